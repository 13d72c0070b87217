"""Typed in-memory mirrors of metadata key prefixes, and transactions that determine their outcome if an answer is lost.

:class:`Table` mirrors the rows below a prefix, decoded. :class:`TableWriter` changes rows, in transactions over
any tables of one store. A subsystem of the broker has one writer and some tables::

    writer = await TableWriter.open(store, "/writers/shop")
    orders, totals = Table(store, "/orders/", Order), Table(store, "/totals/", Total)
    await orders.load()
    await totals.load()
    async with writer.changing():
        total = totals.values["today"]           # no other change is in progress or in doubt
        await writer.apply(orders.create("17", order), totals.put("today", total.plus(order)))

Every change is conditional on the revisions in the mirror, so it never overwrites a change by another member: it raises
:class:`~danube.model.errors.MetadataConflictError` instead, and changes nothing.

**Lost answers.** A call that fails or is cancelled may have been applied, or may still be on its way to the store. So
reading a row afterwards proves nothing: the change may arrive after the read. The rule is: first rewrite a key that the
change in doubt was conditional on, then read. This key is the *guard* of the writer (:mod:`danube.metadata._guard`).
Each change is conditional on the guard and writes a new number to it. Once the guard was rewritten, a change that has
not arrived is refused, and the number in the guard shows whether it had arrived before. This happens at once, within
the call. If the store does not answer that either, the call raises the store's error, and the change stays in doubt
until the next :meth:`TableWriter.changing` settles it. Mirrors include a change as soon as its outcome is certain, not
before.

Opening a writer rewrites the guard, too: requests of its predecessor that arrive later are refused, so a table that is
loaded then is complete. Of writers that open the same guard concurrently the last one wins; the others raise
:class:`~danube.model.errors.OwnerFencedError` for every later change.

**Changes by others.** A table that only one process changes is loaded once. One that other members change, too, is
followed (:meth:`Table.follow`): list, then watch from the next revision, and list again when the watch is too far
behind (:class:`~danube.model.errors.WatchCompactedError`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
import trio

from danube.metadata._contract import Condition, Delete, KeyValue, MetadataStore, Put, PutEvent, may_pass
from danube.metadata._guard import Guard, Verdict
from danube.metadata._mirror import Mirror, RowChange
from danube.metadata._rows import Names, PackedRows, released
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    DataLossError,
    InvalidArgumentError,
    MetadataConflictError,
    NotFoundError,
    OwnerFencedError,
    UnavailableError,
    WatchCompactedError,
)
from danube.model.log_events import log_event

__all__ = ["Change", "Table", "TableWriter", "decode_record"]

_log = logging.getLogger("danube.metadata")

T = TypeVar("T")

FOLLOW_RETRY_S: Final = 1.0
"""Pause before a followed table queries an unavailable store again."""

ROWS_PER_TURN: Final = 500
"""Rows that are entered before other tasks run: a few milliseconds."""

_NOT_DONE: Final = (InvalidArgumentError, NotFoundError, CallRefusedError)
"""Errors that prove that the store has not applied the change."""


def decode_record(item: KeyValue, decode: Callable[[bytes], T]) -> T:
    """Decode the value of a key.

    Raises:
        DataLossError: it does not decode: ``decode`` has raised one of :data:`danube.model.decoding.UNDECODABLE`.
    """
    try:
        return decode(item.value)
    except UNDECODABLE as error:
        raise DataLossError(
            f"the metadata record {item.key} does not decode: {error}; restore the metadata store from a copy, or use"
            " the version of Danube that has written it"
        ) from error


class Change(NamedTuple):
    """A change of some rows, to be applied by :meth:`TableWriter.apply`. Created by :meth:`Table.put` and similar."""

    conditions: Sequence[Condition]
    operations: Sequence[Put | Delete]
    applied: Callable[[int], None]
    """Called with the revision as soon as it is certain that the change was applied; must not raise."""


class Table(Generic[T]):
    """A mirror of the keys below a prefix; see the module.

    Args:
        store: the metadata store.
        prefix: of the keys. The name of a row is the rest of its key: with ``/topics/`` it has no slash at its
            beginning, with ``/topics`` it has.
        kind: type of the rows, a msgspec struct.
        encode, decode: other functions than msgpack, for rows that are not structs. ``decode`` may raise the
            exceptions in :data:`danube.model.decoding.UNDECODABLE`.
        watched: whether :meth:`follow` is used.
        on_change: called for each row that :meth:`load` or :meth:`follow` or a change has changed, in order; must not
            raise.
        packed: the compact form of the names, for tables with very many rows: each is kept in its encoded form, and
            decoded when it is read (:mod:`danube.metadata._rows`).
        encode_packed: another function than ``encode`` for that, whose results ``decode`` understands, too.
        is_name: whether a row can have this name; by default any, or any that has a compact form if ``packed`` is
            given. Keys with other names are logged and ignored: they were not written by Danube.
        single: the prefix is a whole key, that of the only row, whose name is empty.
    """

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        kind: type[T],
        *,
        encode: Callable[[T], bytes] = msgspec.msgpack.encode,
        decode: Callable[[bytes], T] | None = None,
        watched: bool = False,
        on_change: Callable[[RowChange[T]], None] | None = None,
        packed: Names | None = None,
        encode_packed: Callable[[T], bytes] | None = None,
        is_name: Callable[[str], bool] | None = None,
        single: bool = False,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._listed = prefix if single or prefix.endswith("/") else prefix + "/"
        self._encode = encode
        self._decode = decode if decode is not None else msgspec.msgpack.Decoder(kind).decode
        rows = PackedRows(packed, encode_packed or encode, self._decode) if packed is not None else None
        self._mirror: Mirror[T] = Mirror(watched=watched, rows=rows)
        if single:
            is_name = _no_name
        elif is_name is None:
            is_name = _any_name if packed is None else lambda name: packed.pack(name) is not None
        self._is_name = is_name
        self._on_change = on_change
        self.changes = 0
        """How often a row was created, replaced or deleted; as long as it is the same all rows are."""
        self._moved = trio.Event()
        self.values: Mapping[str, T] = self._mirror.values
        """The rows by name; always the same object, changed only by this class. A dict, for fast lookups; that of a
        packed table decodes a row each time it is read."""

    # --- Reading ---

    def revision(self, name: str) -> int:
        """Return the revision of a row, 0 if there is none."""
        return self._mirror.revision(name)

    def every(self) -> Iterator[tuple[str, T, int]]:
        """Yield the names, values and revisions of all rows; they must not change meanwhile."""
        return self._mirror.every()

    def batches(self, size: int) -> Iterator[list[tuple[str, T, int]]]:
        """Yield lists of so many of :meth:`every`. Between them rows may change: each is yielded as it is then."""
        return self._mirror.batches(size)

    @property
    def position(self) -> int:
        """Revision up to which list and watch have seen everything; 0: the table was not loaded yet."""
        return self._mirror.position

    async def load(self) -> None:
        """Read all rows. Call this before the first change, unless the table is followed.

        Other tasks run after each :data:`ROWS_PER_TURN` rows, and may see the rows that were entered so far. If this is
        cancelled it may be called again.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store cannot answer.
        """
        items, revision = await self._store.list(self._listed)
        rows = (
            (name, decode_record(item, self._decode), item.mod_revision)
            for item in released(items)
            if (name := self._name(item.key)) is not None
        )
        for count, change in enumerate(self._mirror.reset(rows, revision), 1):
            self._report(change)
            if not count % ROWS_PER_TURN:
                await trio.lowlevel.checkpoint()
        self._note_moved()

    async def refresh(self, name: str) -> None:
        """Read one row of a watched table again: it includes every change that was answered before this was called.

        Raises:
            DataLossError: the record does not decode.
            DanubeError: the store cannot answer.
        """
        key = self._prefix + name
        items, revision = await self._store.list(key)
        item = next((item for item in items if item.key == key), None)
        if item is not None:
            self._report(self._mirror.put(name, decode_record(item, self._decode), item.mod_revision))
        else:
            self._report(self._mirror.delete(name, revision))

    def _name(self, key: str) -> str | None:
        """Return the name of the row with a key; None if no row of this table has such a key."""
        name = key[len(self._prefix) :]
        if self._is_name(name):
            return name
        _log.warning(
            "the metadata key %r is ignored: it is not the name of a row of %s",
            key,
            self._prefix,
            extra=log_event("metadata.key_ignored"),
        )
        return None

    def _report(self, change: RowChange[T] | None) -> None:
        if change is None:
            return
        self.changes += 1
        if self._on_change is not None:
            self._on_change(change)

    # --- Changes ---

    def create(self, name: str, value: T) -> Change:
        """Create a row; the change is refused if it exists."""
        return self._put(name, value, 0)

    def put(self, name: str, value: T) -> Change:
        """Create or replace a row; the change is refused if the row is not as in the mirror now."""
        return self._put(name, value, self._mirror.revision(name))

    def _put(self, name: str, value: T, revision: int) -> Change:
        key = self._prefix + name
        return Change(
            (Condition(key, revision),),
            (Put(key, self._encode(value)),),
            lambda changed_at: self._changed(self._mirror.put(name, value, changed_at)),
        )

    def delete(self, name: str) -> Change:
        """Delete a row; the change is refused if the row is not as in the mirror now. No-op if the mirror has none."""
        key = self._prefix + name
        return Change(
            (Condition(key, self._mirror.revision(name)),),
            (Delete(key),),
            lambda changed_at: self._changed(self._mirror.delete(name, changed_at)),
        )

    def _changed(self, change: RowChange[T] | None) -> None:
        self._report(change)

    # --- Changes by others ---

    async def follow(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Task: keep the mirror up to date, until cancelled. It counts as started once the mirror is loaded.

        A table that was loaded before is watched from there, if the store can replay changes.

        While the store does not answer, the mirror is unchanged, and the query is repeated every second; so it is
        after any other error that may pass, once the mirror was loaded.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store failed for good, for example because it was closed; or it has refused the first
                query, for example because it denies the right.
        """
        started = False
        stale = not self._mirror.position
        compacted_at = -1
        while True:
            try:
                if self._store.capabilities.watch_replay:
                    if stale:
                        await self.load()
                        stale = False
                    watch = self._store.watch(self._listed, self._mirror.position + 1)
                else:
                    stale = True
                    watch = self._store.watch(self._listed)
                async with watch:
                    if stale:  # the watch has begun: it will report changes that the list does not include
                        await self.load()
                    if not started:
                        started = True
                        task_status.started()
                    async for batch in watch:
                        for event in batch.events:  # the mirror ignores events that the list included
                            name = self._name(event.key)
                            if name is None:
                                continue
                            if isinstance(event, PutEvent):
                                value = decode_record(event.item, self._decode)
                                self._report(self._mirror.put(name, value, event.mod_revision))
                            else:
                                self._report(self._mirror.delete(name, event.mod_revision))
                        self._mirror.passed(batch.revision)
                        self._note_moved()
            except WatchCompactedError:
                if compacted_at == self._mirror.position:  # the list was not newer: do not retry in a busy loop
                    await trio.sleep(FOLLOW_RETRY_S)
                compacted_at = self._mirror.position
                stale = True
            except UnavailableError:
                await trio.sleep(FOLLOW_RETRY_S)
            except DanubeError as error:
                if not started or not may_pass(error):
                    raise
                _log.warning(
                    "the changes of %s are not followed at the moment: %s",
                    self._prefix,
                    error,
                    extra=log_event("metadata.not_followed", table=self._prefix),
                )
                await trio.sleep(FOLLOW_RETRY_S)

    def _note_moved(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    async def reached(self, revision: int) -> None:
        """Wait until the mirror includes all changes up to a revision that changed one of its rows.

        For a change that another member has reported. Requires that :meth:`follow` is running.
        """
        while self._mirror.position < revision:
            await self._moved.wait()


class TableWriter:
    """Changes rows, one transaction at a time; see the module. Create it with :meth:`open`.

    Args:
        store: the metadata store.
        guard: state of the guard.
    """

    def __init__(self, store: MetadataStore, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._lock = trio.Lock()
        self._applied: Callable[[int], None] = _ignore

    @classmethod
    async def open(cls, store: MetadataStore, key: str) -> TableWriter:
        """Take over a guard. After this returns, changes of former writers are refused.

        Args:
            store: the metadata store.
            key: of the guard; no other key is below it.

        Raises:
            DataLossError: the guard does not decode.
            DanubeError: the store cannot answer.
        """
        while True:
            try:
                life, mark, expected = Guard.first_mark(key, await store.get(key))
            except ValueError as error:
                raise DataLossError(f"{error}; restore the metadata store from a copy") from error
            try:
                revision = await store.put(mark.key, mark.value, expected_revision=expected)
            except MetadataConflictError:
                continue  # another process opens it at the same time; the last one wins
            return cls(store, Guard(key, life, revision))

    @classmethod
    async def claim(
        cls,
        store: MetadataStore,
        key: str,
        life: int,
        conditions: Sequence[Condition],
        operations: Sequence[Put | Delete],
    ) -> tuple[TableWriter, int]:
        """Take over a guard in one transaction with other changes; return the writer, and the revision.

        Args:
            store: the metadata store.
            key: of the guard; no other key is below it.
            life: number of this writer's life; the conditions must ensure that no other applied claim has the same.
            conditions, operations: of the transaction.

        Raises:
            MetadataConflictError: a condition does not hold; nothing was changed.
            DanubeError: the store cannot answer; claim again, with another life.
        """
        result = await store.transact(conditions, [*operations, Guard.mark_of(key, life)])
        return cls(store, Guard(key, life, result.revision)), result.revision

    @property
    def in_doubt(self) -> bool:
        """Whether it is unknown whether the last change was applied."""
        return self._guard.in_doubt

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Wait until no other change is under way, and settle the last one if it is in doubt.

        Inside, the mirrors of tables that only this writer changes agree with the store, and :meth:`apply` may be
        called.

        Raises:
            OwnerFencedError: another process has taken the guard.
            DanubeError: a change is in doubt, and the store cannot answer.
        """
        async with self._lock:
            if self._guard.in_doubt:
                await self._settle()
            yield

    async def settle(self) -> None:
        """Determine whether the last change was applied, if that is unknown. Raises as :meth:`changing`."""
        async with self.changing():
            return

    async def apply(self, *changes: Change) -> int:
        """Make some changes, all or none, inside :meth:`changing`; return their revision.

        If this is cancelled, the changes are in doubt, until the next :meth:`changing`.

        Raises:
            MetadataConflictError: a row has another revision; nothing was changed.
            OwnerFencedError: another process has taken the guard; nothing was changed.
            DanubeError: nothing was changed; or the outcome is unknown, if :attr:`in_doubt` is set.
        """
        guard = self._guard
        conditions = [guard.condition]
        operations: list[Put | Delete] = []
        for change in changes:
            conditions += change.conditions
            operations += change.operations

        def applied(revision: int) -> None:
            for change in changes:
                change.applied(revision)

        operations.append(guard.change())
        self._applied = applied
        try:
            result = await self._store.transact(conditions, operations)
        except _NOT_DONE:
            guard.withdrawn()
            raise
        except DanubeError:
            if not await self._settle():
                raise
        else:
            guard.applied(result.revision)
            applied(result.revision)
        return guard.revision

    async def _settle(self) -> bool:
        """Determine whether the change in doubt was applied, update the mirrors, and return the result."""
        guard = self._guard
        while True:
            fence = guard.fence()
            try:
                revision = await self._store.put(fence.key, fence.value, expected_revision=guard.revision)
            except MetadataConflictError:
                pass
            else:
                guard.fenced(revision)
                return False
            verdict = guard.judge(await self._store.get(guard.key))
            if verdict == Verdict.DISPLACED:
                raise OwnerFencedError(
                    f"another process has taken over the metadata under {guard.key}; this one can no longer change them"
                    " and must stop"
                )
            if verdict != Verdict.OPEN:
                break
        if verdict == Verdict.APPLIED:
            self._applied(guard.revision)
        return verdict == Verdict.APPLIED


def _any_name(name: str) -> bool:
    """Default for the names of rows."""
    return True


def _no_name(name: str) -> bool:
    """Whether a name is that of the only row of a table with one key."""
    return not name


def _ignore(revision: int) -> None:
    """Initial callback: does nothing."""
