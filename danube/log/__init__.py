"""The core log: the write-ahead journal of all topics, per-topic logs and caches, and producer deduplication state.

:class:`Journal` commits entries to a :class:`Disk` and recovers them; :class:`TopicLog` assigns offsets to batches and
reads them back; :class:`ProducerTable` keeps retries from being stored twice. The byte formats are defined in
:mod:`danube.log.format`.
"""

from __future__ import annotations

from danube.log._admission import Admission
from danube.log.cache import BatchCache, StoredBatch
from danube.log.disk import Disk, RealDisk
from danube.log.format import Entry, EntryType
from danube.log.index import Location, TopicIndex
from danube.log.journal import Journal
from danube.log.memory_log import MemoryLog
from danube.log.patience import with_descriptors
from danube.log.producers import Checked, ProducerEntry, ProducerSession, ProducerTable, Verdict
from danube.log.recovered import Corruption, ProducedBatch, Recovered, RecoveredTopic, Standing, TornTail, Visitor
from danube.log.settling import Settling
from danube.log.topic_log import SealedReader, Submitter, TopicLog
from danube.log.usage import JournalUsage

__all__ = [
    "Admission",
    "BatchCache",
    "Checked",
    "Corruption",
    "Disk",
    "Entry",
    "EntryType",
    "Journal",
    "JournalUsage",
    "Location",
    "MemoryLog",
    "ProducedBatch",
    "ProducerEntry",
    "ProducerSession",
    "ProducerTable",
    "RealDisk",
    "Recovered",
    "RecoveredTopic",
    "SealedReader",
    "Settling",
    "Standing",
    "StoredBatch",
    "Submitter",
    "TopicIndex",
    "TopicLog",
    "TornTail",
    "Verdict",
    "Visitor",
    "with_descriptors",
]
