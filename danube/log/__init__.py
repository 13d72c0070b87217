"""The core log: the write-ahead journal of all topics, per-topic logs and caches, and producer deduplication state.

:class:`Journal` commits entries to a :class:`Disk` and recovers them; :class:`TopicLog` assigns offsets to batches and
reads them back; :class:`ProducerTable` keeps retries from being stored twice. The byte formats are defined in
:mod:`danube.log.format`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_HOMES: Final = {
    "Admission": "_admission",
    "BatchCache": "cache",
    "Checked": "producers",
    "Corruption": "recovered",
    "Disk": "disk",
    "Entry": "format",
    "EntryType": "format",
    "Journal": "journal",
    "JournalUsage": "usage",
    "Location": "index",
    "MemoryLog": "memory_log",
    "ProducedBatch": "recovered",
    "ProducerEntry": "producers",
    "ProducerSession": "producers",
    "ProducerTable": "producers",
    "RealDisk": "disk",
    "Recovered": "recovered",
    "RecoveredTopic": "recovered",
    "SealedReader": "topic_log",
    "Settling": "settling",
    "Standing": "recovered",
    "StoredBatch": "cache",
    "Submitter": "topic_log",
    "TopicIndex": "index",
    "TopicLog": "topic_log",
    "TornTail": "recovered",
    "Verdict": "producers",
    "Visitor": "recovered",
    "with_descriptors": "patience",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    """Load a module when one of its names is used first: what only reads batches does without the journal."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
