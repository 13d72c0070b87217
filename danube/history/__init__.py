"""History: seals batches from the journal into storage backends, reads them back, and maintains them.

:class:`History` combines the components of one broker: catalogue, sealer, reader, manifests, retention, merging and
the janitor. Topics of durability ``remote`` commit to a storage directly, with a :class:`RemoteJournal`. The bytes
are defined in :mod:`danube.history.segment` and :mod:`danube.history.manifest_format`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from danube.history.catalogue import HistoryCatalogue
    from danube.history.history import History, ManagedTopic, RecordSource
    from danube.history.janitor import StorageReport
    from danube.history.manifest import read_bucket, read_streams
    from danube.history.manifest_format import Bucket, Subscriptions
    from danube.history.parts import ObjectRecord, ObjectRef, PartRecord, TopicHistory, to_log_part
    from danube.history.reader import SegmentReader
    from danube.history.remote import (
        Change,
        RemoteJournal,
        RemoteRecovered,
        RemoteState,
        RemoteTopicState,
        SubscriptionDeleted,
        SubscriptionStored,
        TopicDeleted,
        TopicGone,
        TopicKept,
        TopicLeaving,
        TopicStored,
        TopicTaken,
        brokers_with_commits,
        decode_change,
        encode_change,
        highest_epoch,
        wal_place,
    )
    from danube.history.restore import enter, survey_bucket, survey_topics, verify_chains
    from danube.history.retention import RetentionPlan
    from danube.history.schemas import SchemaSource, read_schemas
    from danube.history.sealer import Sealable, Sealer, SealingStatus
    from danube.history.sole_tenure import SoleTenure
    from danube.history.survey import Chain, Survey
    from danube.history.tenure import Tenure, assigned_epoch, owner_epoch

__all__ = [
    "Bucket",
    "Chain",
    "History",
    "HistoryCatalogue",
    "ManagedTopic",
    "ObjectRecord",
    "ObjectRef",
    "PartRecord",
    "Change",
    "RemoteJournal",
    "RemoteRecovered",
    "RemoteState",
    "RemoteTopicState",
    "RetentionPlan",
    "Sealable",
    "Sealer",
    "SealingStatus",
    "SchemaSource",
    "SegmentReader",
    "SoleTenure",
    "StorageReport",
    "SubscriptionDeleted",
    "SubscriptionStored",
    "Subscriptions",
    "Survey",
    "RecordSource",
    "Tenure",
    "TopicDeleted",
    "TopicHistory",
    "TopicGone",
    "TopicKept",
    "TopicLeaving",
    "TopicStored",
    "TopicTaken",
    "assigned_epoch",
    "decode_change",
    "encode_change",
    "enter",
    "brokers_with_commits",
    "highest_epoch",
    "wal_place",
    "owner_epoch",
    "read_bucket",
    "read_streams",
    "read_schemas",
    "survey_bucket",
    "survey_topics",
    "to_log_part",
    "verify_chains",
]

_HOMES: Final = {
    "Bucket": "manifest_format",
    "Chain": "survey",
    "History": "history",
    "HistoryCatalogue": "catalogue",
    "ManagedTopic": "history",
    "ObjectRecord": "parts",
    "ObjectRef": "parts",
    "PartRecord": "parts",
    "RecordSource": "history",
    "RemoteJournal": "remote",
    "RemoteRecovered": "remote",
    "RemoteState": "remote",
    "RemoteTopicState": "remote",
    "RetentionPlan": "retention",
    "SchemaSource": "schemas",
    "Sealable": "sealer",
    "Sealer": "sealer",
    "SealingStatus": "sealer",
    "SegmentReader": "reader",
    "SoleTenure": "sole_tenure",
    "StorageReport": "janitor",
    "SubscriptionDeleted": "remote",
    "SubscriptionStored": "remote",
    "Subscriptions": "manifest_format",
    "Survey": "survey",
    "Tenure": "tenure",
    "TopicDeleted": "remote",
    "TopicHistory": "parts",
    "TopicStored": "remote",
    "assigned_epoch": "tenure",
    "brokers_with_commits": "remote",
    "encode_change": "remote",
    "enter": "restore",
    "highest_epoch": "remote",
    "owner_epoch": "tenure",
    "read_bucket": "manifest",
    "read_streams": "manifest",
    "read_schemas": "schemas",
    "survey_bucket": "restore",
    "survey_topics": "restore",
    "to_log_part": "parts",
    "verify_chains": "restore",
    "wal_place": "remote",
    "Change": "remote",
    "TopicGone": "remote",
    "TopicKept": "remote",
    "TopicLeaving": "remote",
    "TopicTaken": "remote",
    "decode_change": "remote",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Load a module when one of its names is used first: what only reads a storage does without the rest."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
