"""The contract of a metadata store: revisions, conditional changes, watches and leases.

A broker needs four operations on its metadata: to read a consistent snapshot, to change it without
overwriting concurrent changes, to watch changes, and to detect that another broker has died. The contract offers
each of them once, in a form that all known engines support:

* **One revision counter for everything.** Each change (a put, a delete, a transaction, the end of a lease) gets the
  next revision; a key remembers the revision that last changed it. That is etcd's ``mod_revision``, ZooKeeper's
  ``mzxid`` and the log index of an embedded Raft. ``list`` returns the revision of its snapshot, and a watch from
  the revision after it continues exactly there: list and watch together are a replica without gaps.
* **Compare and change.** A condition compares a key's revision, never its value: an A-B-A change is detected, and
  the engine needs no query language. A transaction is conditions and changes, all or nothing, at one revision, small
  enough to be one log entry (etcd ``txn``, ZooKeeper ``multi``). There is no read-modify-write in the engine and no
  callback: a replicated log can only apply data.
* **Watches read history, they are not queues.** A watch is a position in the store's history. A slow watcher costs no
  memory and loses nothing: it reads the history at its own pace. History is bounded, so a watcher that has
  fallen behind it gets an error (:class:`~danube.model.errors.WatchCompactedError`) and must list again: never a silent
  gap. An engine without history (ZooKeeper, Redis) declares ``watch_replay=False`` in its capabilities.
* **Leases belong to the engine.** Liveness must be decided in one place. Changes never depend on time: the end of a
  lease is a change like others. It names the lease, and deletes only keys that are attached to it: a key that was put
  again under another lease, or without one, is not deleted.

A call that is cancelled, or that fails with a retryable error, may or may not have been applied; the store stays
usable. To find out, read back: revisions make that decidable. A repeated conditional change cannot be applied twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Final, NewType, Self

import msgspec

from danube.model.cluster_api import MetadataStanding
from danube.model.errors import ClosedError, DanubeError, DataDirectoryError, DataLossError, InternalError

__all__ = [
    "Capabilities",
    "Condition",
    "Delete",
    "DeleteEvent",
    "Event",
    "EventBatch",
    "KeyValue",
    "LeaseId",
    "MetadataStore",
    "Put",
    "PutEvent",
    "TransactionResult",
    "Watch",
    "may_pass",
]

_LASTING: Final = (ClosedError, DataDirectoryError, DataLossError, InternalError)


def may_pass(error: DanubeError) -> bool:
    """Whether the same call may succeed later in this process.

    A store that does not answer, is full, has too many leases or denies a right may be mended meanwhile. A task of the
    broker waits for that, and does not end the broker, which serves its topics without the metadata. A store that was
    closed, is damaged, or cannot use its disk needs another start.
    """
    return not isinstance(error, _LASTING)


LeaseId = NewType("LeaseId", int)
"""Id of a lease: a positive number, never reused by the same store."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Guarantees of an engine. A broker refuses an engine that lacks those of its role."""

    durable: bool
    """An acknowledged change survives a power loss."""
    linearizable: bool
    """Every read sees every change acknowledged before the read began, by any client."""
    watch_replay: bool
    """A watch can start at an older revision; otherwise only at the present one."""
    leases: bool
    """Leases end in the engine, even if their owner is dead."""


class KeyValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One key as it was at one revision."""

    key: str
    value: bytes
    create_revision: int
    """Revision of the change that created the key (putting a deleted key creates it again)."""
    mod_revision: int
    """Revision of the last change; what ``expected_revision`` and :class:`Condition` compare."""
    version: int
    """Number of puts since the key was created, including that one: 1 for a new key."""
    lease: LeaseId | None
    """The lease with whose end the key is deleted."""


class PutEvent(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """A key was created or changed."""

    item: KeyValue
    previous_revision: int
    """Previous ``mod_revision`` of the key; 0 if it was created."""

    @property
    def key(self) -> str:
        """The key."""
        return self.item.key

    @property
    def mod_revision(self) -> int:
        """Revision of the change."""
        return self.item.mod_revision


class DeleteEvent(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A key was deleted, by a call or because its lease ended."""

    key: str
    mod_revision: int
    """Revision of the change."""
    previous_revision: int
    """Previous ``mod_revision`` of the key."""


Event = PutEvent | DeleteEvent
"""One change of one key, as reported by a watch."""


class EventBatch(msgspec.Struct, frozen=True):
    """All changes of one revision under a watch's prefix: a transaction is never split."""

    revision: int
    """To resume after this batch, watch from ``revision + 1``."""
    events: tuple[Event, ...]
    """In the order of the operations; each key at most once."""


class Condition(msgspec.Struct, frozen=True):
    """A key must have this ``mod_revision``; 0 means that it must not exist."""

    key: str
    mod_revision: int


class Put(msgspec.Struct, frozen=True):
    """Operation: create or replace a key."""

    key: str
    value: bytes
    lease: LeaseId | None = None


class Delete(msgspec.Struct, frozen=True):
    """Operation: delete a key. No-op if it does not exist."""

    key: str


class TransactionResult(msgspec.Struct, frozen=True):
    """Outcome of a transaction whose conditions held."""

    revision: int
    """Revision of the change; if nothing changed, the store's present revision."""
    replaced: tuple[int, ...]
    """For each operation the previous ``mod_revision`` of its key; 0 if it did not exist."""


class Watch(ABC):
    """A position in the history of one prefix: an async context manager, and an async iterator of event batches.

    ``__aenter__`` fixes the position: every change after it will be delivered, in order, once. Iterating raises
    :class:`WatchCompactedError` if the position has fallen out of the history (list again, and watch from there),
    :class:`ClosedError` if the store is closed. A cancelled ``__anext__`` loses nothing; the next one continues. One
    task at a time may iterate.
    """

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Fix the position; raise :class:`WatchCompactedError` if it is not in the history."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the watch."""

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> EventBatch:
        """Wait for the next change under the prefix, and return it."""


class MetadataStore(ABC):
    """Keys and values with revisions, transactions, leases and watches. Must be entered before use.

    All calls raise :class:`ClosedError` after :meth:`aclose`, :class:`InvalidArgumentError` for keys, values and sizes
    beyond the limits, and :class:`UnavailableError` while the engine cannot answer. Keys and prefixes are defined in
    ``danube.metadata.validate_key`` and ``validate_prefix``: a prefix covers whole path segments (``/a`` covers ``/a``
    and ``/a/b``, never ``/ab``).
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The guarantees of this engine."""

    def standing(self) -> MetadataStanding:
        """Return what the engine tells about itself, for people: nothing is asked of other machines for it.

        The default tells nothing. An engine outside the brokers says who keeps the metadata, without secrets.
        """
        return MetadataStanding()

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Open the store."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store: calls in progress are settled or fail with ClosedError, watches end. Idempotent."""

    @abstractmethod
    async def get(self, key: str) -> KeyValue | None:
        """Return the key, or None if it does not exist."""

    @abstractmethod
    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """Return every key that the prefix covers, sorted, and the revision of this snapshot.

        The revision is the store's present one, not the newest in the list: ``watch(prefix, revision + 1)`` continues
        the snapshot without a gap. The list belongs to the caller, who may change it.
        """

    @abstractmethod
    async def put(
        self, key: str, value: bytes, *, expected_revision: int | None = None, lease: LeaseId | None = None
    ) -> int:
        """Create or replace a key and return the new revision.

        ``expected_revision`` is compared with the key's ``mod_revision`` (0: must not exist; None: not compared); if it
        differs nothing is changed and :class:`MetadataConflictError` is raised. The key is attached to ``lease``, or
        detached from any if None. A lease that has ended raises :class:`NotFoundError`.
        """

    @abstractmethod
    async def delete(self, key: str, *, expected_revision: int | None = None) -> int | None:
        """Delete a key and return the new revision, or None if it did not exist; conditions as for :meth:`put`."""

    @abstractmethod
    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """Apply all operations at one revision if all conditions hold, else none.

        Raises :class:`MetadataConflictError` naming the first key whose condition did not hold, :class:`NotFoundError`
        for a lease that has ended. A key may be named by one operation only (and by one condition).
        """

    @abstractmethod
    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """Create a lease that ends ``ttl_s`` seconds after the last :meth:`keep_alive`; an engine may round up.

        After a restart of the engine every lease has its full time again.
        """

    @abstractmethod
    async def keep_alive(self, lease: LeaseId) -> None:
        """Reset the lease to its full time; raises :class:`NotFoundError` if it has ended."""

    @abstractmethod
    async def revoke(self, lease: LeaseId) -> int | None:
        """End a lease: delete all keys attached to it, at one revision, which is returned.

        None if no key was attached, or the lease had ended already.
        """

    @abstractmethod
    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """Return a watch of the changes under ``prefix``, beginning with revision ``start_revision``.

        None: with the first change after the watch was entered. A revision no longer in the history, or one that the
        store has not reached (greater than the present plus one: the caller saw another history), raises
        :class:`WatchCompactedError` when the watch is entered.
        """
