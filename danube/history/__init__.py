"""History: what the journal has sealed away into storage backends, and how it is found again.

:class:`History` holds the pieces of one broker: catalogue, sealer, reader, manifests, retention, merging and
the janitor. The bytes are defined in :mod:`danube.history.segment` and :mod:`danube.history.manifest`.
"""

from __future__ import annotations

from danube.history.catalogue import HistoryCatalogue, ObjectRecord, ObjectRef, PartRecord, TopicHistory
from danube.history.history import History, Keepable, Told
from danube.history.janitor import StorageReport
from danube.history.manifest import Bucket, read_bucket
from danube.history.reader import SegmentReader
from danube.history.restore import Chain, Survey, enter, survey_bucket, verify_chains
from danube.history.retention import RetentionPlan
from danube.history.sealer import Sealable, Sealer, SealingStatus

__all__ = [
    "Bucket",
    "Chain",
    "History",
    "HistoryCatalogue",
    "Keepable",
    "ObjectRecord",
    "ObjectRef",
    "PartRecord",
    "RetentionPlan",
    "Sealable",
    "Sealer",
    "SealingStatus",
    "SegmentReader",
    "StorageReport",
    "Survey",
    "Told",
    "TopicHistory",
    "enter",
    "read_bucket",
    "survey_bucket",
    "verify_chains",
]
