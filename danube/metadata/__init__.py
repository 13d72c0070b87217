"""Metadata stores: the contract, plugins, and the built-in memory and embedded engines.

:class:`MetadataStore` is the contract used by the rest of the broker; its module explains its
design. :func:`open_store` opens the engine of a URL: ``memory://``, ``embedded://``, or one provided by a
plugin; :func:`require_role` refuses one that lacks a guarantee. :class:`Table` mirrors the records below a prefix in
memory, and :class:`TableWriter` changes them.

An engine that has a log, but no rules of its own, can use those of the built-in ones: :class:`StoreMachine` over a
table such as :class:`MemoryTable`, :class:`WatchedStore` for the watches, and :class:`LocalStore` for leases of one
process.
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
    may_pass,
)
from danube.metadata._keys import covers, validate_key, validate_prefix
from danube.metadata._local import Clock, LocalStore
from danube.metadata._machine import Effects, HistoryPage, Rows, StoreMachine
from danube.metadata._memory_table import MemoryTable
from danube.metadata._mirror import RowChange
from danube.metadata._observed import ObservedStore
from danube.metadata._plugins import (
    KNOWN_PACKAGES,
    Group,
    InstalledPlugin,
    MetadataPlugin,
    Surroundings,
    install_command,
    installed_plugins,
    open_store,
)
from danube.metadata._requests import RequestChecks, conflict, lease_ended
from danube.metadata._roles import Role, require_role
from danube.metadata._rows import HexNames, Names, TextNames
from danube.metadata._watched import WatchedStore
from danube.metadata.incarnation import Incarnation, begin_incarnation, read_incarnation
from danube.metadata.memory import MemoryStore
from danube.metadata.table import Change, Table, TableWriter, decode_record

__all__ = [
    "KNOWN_PACKAGES",
    "Capabilities",
    "Change",
    "Clock",
    "Condition",
    "Delete",
    "DeleteEvent",
    "Effects",
    "Event",
    "EventBatch",
    "Group",
    "HexNames",
    "HistoryPage",
    "Incarnation",
    "InstalledPlugin",
    "KeyValue",
    "LeaseId",
    "LocalStore",
    "MemoryStore",
    "MemoryTable",
    "MetadataPlugin",
    "MetadataStore",
    "Names",
    "ObservedStore",
    "Put",
    "PutEvent",
    "RequestChecks",
    "Role",
    "RowChange",
    "Rows",
    "StoreMachine",
    "Surroundings",
    "Table",
    "TableWriter",
    "TextNames",
    "TransactionResult",
    "Watch",
    "WatchedStore",
    "begin_incarnation",
    "conflict",
    "covers",
    "decode_record",
    "install_command",
    "installed_plugins",
    "lease_ended",
    "may_pass",
    "open_store",
    "read_incarnation",
    "require_role",
    "validate_key",
    "validate_prefix",
]
