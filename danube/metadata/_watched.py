"""Base of the stores that have a :class:`~danube.metadata._machine.StoreMachine` in this process.

It makes changes of single keys transactions, and adds watches.

A watch is a position. When a change arrives, a watch that has seen everything so far either advances (the change is not
under its prefix, or its reader waits, and gets the change at once) or becomes *behind*, keeps its position, and is
woken. A watch that is behind reads the history from its position, page by page. So an idle watch never falls out of the
history because of other changes, a slow one costs no memory, and no polling is needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self

import trio

from danube.metadata._contract import Condition, Delete, EventBatch, LeaseId, MetadataStore, Put, Watch
from danube.metadata._machine import HistoryPage, StoreMachine, changes_under
from danube.model.errors import ClosedError, FailedPreconditionError

__all__ = ["WatchedStore"]


class WatchedStore(MetadataStore):
    """A store with a machine and watches."""

    def __init__(self) -> None:
        self._opened = False
        self._closed = False
        self._revision = 0
        """Last revision passed to the watches."""
        self._watches: dict[_StoreWatch, None] = {}

    @property
    @abstractmethod
    def _machine(self) -> StoreMachine:
        """The machine. Its ``check_`` methods may be called at any time, all others only from within a call."""

    @abstractmethod
    async def _history(self, prefix: str, after: int) -> HistoryPage:
        """Return the changes under ``prefix`` behind a revision; as :meth:`StoreMachine.history`."""

    async def _reach_present(self) -> None:
        """Return when ``_revision`` has reached every change that was acknowledged before the call."""
        await trio.lowlevel.checkpoint()

    async def put(
        self, key: str, value: bytes, *, expected_revision: int | None = None, lease: LeaseId | None = None
    ) -> int:
        """See :meth:`MetadataStore.put`."""
        result = await self.transact(_conditions(key, expected_revision), [Put(key, value, lease)])
        return result.revision

    async def delete(self, key: str, *, expected_revision: int | None = None) -> int | None:
        """See :meth:`MetadataStore.delete`."""
        result = await self.transact(_conditions(key, expected_revision), [Delete(key)])
        return result.revision if result.replaced[0] else None

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the metadata store is closed; open it again")
        if not self._opened:
            raise FailedPreconditionError("the metadata store is not open; use it inside `async with`")

    def _notice(self, batches: Iterable[EventBatch]) -> None:
        """Tell the watches about new revisions, in their order."""
        for batch in batches:
            self._revision = batch.revision
            for watch in self._watches:
                watch.notice(batch)

    def _displace(self, revision: int) -> None:
        """Tell the watches that the table was replaced by a later one, now at ``revision``."""
        self._revision = revision
        for watch in self._watches:
            watch.displaced()

    def _wake_watches(self) -> None:
        """Let all watches notice that the store is closed."""
        for watch in self._watches:
            watch.wake()

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """See :meth:`MetadataStore.watch`."""
        self._machine.check_prefix(prefix)
        self._machine.check_start(start_revision)
        return _StoreWatch(self, prefix, start_revision)


class _StoreWatch(Watch):
    """A position in the history of a :class:`WatchedStore`."""

    __slots__ = ("_behind", "_busy", "_entered", "_news", "_position", "_prefix", "_ready", "_start", "_store")

    def __init__(self, store: WatchedStore, prefix: str, start_revision: int | None) -> None:
        self._store = store
        self._prefix = prefix
        self._start = start_revision
        self._position = 0
        self._behind = False  # there is something to read after the position
        self._ready: deque[EventBatch] = deque()  # not yet returned: a page of the history, or one change
        self._news = trio.Event()
        self._busy = False
        self._entered = False

    async def __aenter__(self) -> Self:
        store = self._store
        store._check_open()
        if self._entered:
            raise FailedPreconditionError("a metadata watch can be entered only once; create a new one")
        self._entered = True
        if self._start is None:
            await store._reach_present()
            self._position = store._revision
        else:
            if self._start > store._revision + 1:
                await store._reach_present()  # another member may have told of it
            self._position = self._start - 1
            self._behind = True
            await self._read()
        # No await since the position was taken from the store: nothing can have changed in between.
        store._watches[self] = None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store._watches.pop(self, None)
        self._ready.clear()
        self._entered = False
        await trio.lowlevel.cancel_shielded_checkpoint()

    def notice(self, batch: EventBatch) -> None:
        """Process a new revision: advance past it, or become behind."""
        if self._behind:
            return
        seen = changes_under(self._prefix, batch)
        if seen is not None:
            self._news.set()
            if self._ready or not self._busy:  # no reader waits for it
                self._behind = True
                return
            self._ready.append(seen)
        self._position = batch.revision

    def displaced(self) -> None:
        """Note that the table was replaced by a later one: what lies in between is in its history, or lost there."""
        self._behind = True
        self._news.set()

    def wake(self) -> None:
        """Wake a waiting iterator, to check for changes."""
        self._news.set()

    async def __anext__(self) -> EventBatch:
        if self not in self._store._watches:
            raise FailedPreconditionError("the metadata watch is not open; iterate inside its `async with`")
        if self._busy:
            raise FailedPreconditionError("two tasks iterate the same metadata watch; open one for each")
        self._busy = True
        try:
            if self._ready:
                await trio.lowlevel.checkpoint()
            while not self._ready:
                self._store._check_open()
                if self._behind:
                    await self._read()
                else:
                    self._news = trio.Event()
                    await self._news.wait()
            return self._ready.popleft()
        finally:
            self._busy = False

    async def _read(self) -> None:
        """Read the next page of history. If cancelled, the position is unchanged."""
        prefix, position = self._prefix, self._position
        page: HistoryPage = await self._store._history(prefix, position)
        self._position = page.position
        self._ready.extend(page.batches)
        self._behind = page.position < self._store._revision


def _conditions(key: str, expected_revision: int | None) -> tuple[Condition, ...]:
    return () if expected_revision is None else (Condition(key, expected_revision),)
