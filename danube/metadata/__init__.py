"""Metadata stores: the contract, plugins, and the built-in memory and embedded engines.

:class:`MetadataStore` is the contract used by the rest of the broker; its module explains its
design. :func:`open_store` opens the engine of a URL: ``memory://``, ``embedded://``, or one provided by a
plugin. :class:`Table` mirrors the records below a prefix in memory, and :class:`TableWriter` changes them.
"""

from __future__ import annotations

from danube.metadata._contract import (
    Capabilities,
    Condition,
    Delete,
    DeleteEvent,
    Event,
    EventBatch,
    KeyValue,
    LeaseId,
    MetadataStore,
    Put,
    PutEvent,
    TransactionResult,
    Watch,
)
from danube.metadata._keys import covers, validate_key, validate_prefix
from danube.metadata._mirror import RowChange
from danube.metadata._observed import ObservedStore
from danube.metadata._plugins import (
    InstalledPlugin,
    MetadataPlugin,
    Surroundings,
    installed_plugins,
    open_store,
)
from danube.metadata.embedded import EmbeddedStore
from danube.metadata.memory import MemoryStore
from danube.metadata.table import Change, Table, TableWriter, decode_record

__all__ = [
    "Capabilities",
    "Change",
    "Condition",
    "Delete",
    "DeleteEvent",
    "EmbeddedStore",
    "Event",
    "EventBatch",
    "InstalledPlugin",
    "KeyValue",
    "LeaseId",
    "MemoryStore",
    "MetadataPlugin",
    "MetadataStore",
    "ObservedStore",
    "Put",
    "PutEvent",
    "RowChange",
    "Surroundings",
    "Table",
    "TableWriter",
    "TransactionResult",
    "Watch",
    "covers",
    "decode_record",
    "installed_plugins",
    "open_store",
    "validate_key",
    "validate_prefix",
]
