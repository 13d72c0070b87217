"""The asynchronous half of direct reading: fetches pieces of objects ahead, in order, within a bound.

A run reads *spans*, each a range of offsets in one part. A planner finds the bytes of a span (using the part's
index if the span is not the whole part), cuts them into pieces of 4 to 8 MiB and starts to fetch them; it continues
with the next span, so that a new object causes no pause. At most three pieces are ready or being fetched besides the
one being decoded::

    caller (its own thread)           planner (Trio)
    decode piece 1  <-- next() ----   piece 2 ready | pieces 3, 4 being fetched | waits for room
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from danube.history._direct_reading import DirectPart, Piece, Span, cut_range
from danube.history.objects import load_footer
from danube.history.segment import read_index
from danube.model.errors import ClosedError, DanubeError, DataLossError
from danube.model.ids import ProducerId
from danube.model.limits import KIB
from danube.storage import Storage

__all__ = ["DirectRun", "FooterCache"]

T = TypeVar("T")

_AHEAD: Final = 2
"""Pieces that are queued, besides the one that the planner is about to queue."""
_WHOLE_BYTES: Final = 256 * KIB
"""A part up to this size is read whole: that is cheaper than reading its index."""
_MAX_FOOTERS: Final = 256


class _Fetch(Generic[T]):
    """A fetch in progress."""

    __slots__ = ("_done", "_error", "_result", "_work")

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._done = trio.Event()
        self._result: T
        self._error: Exception = ClosedError("the storage was closed during a read; open it again")

    async def run(self) -> None:
        try:
            self._result = await self._work()
            del self._error
        except Exception as error:  # noqa: BLE001 - raised in wait()
            self._error = error
        finally:
            self._done.set()

    async def wait(self) -> T:
        await self._done.wait()
        error = getattr(self, "_error", None)
        if error is not None:
            raise error
        return self._result


class _Item(NamedTuple):
    """A piece that was requested."""

    number: int
    position: int
    data: _Fetch[bytes]
    is_last: bool
    names: _Fetch[dict[ProducerId, str]] | None


class FooterCache:
    """Producer names of the most recently read objects."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, dict[ProducerId, str]] = OrderedDict()

    async def producers(self, storage: Storage, part: DirectPart) -> dict[ProducerId, str]:
        """Return the names of the producers in an object.

        Raises:
            DataLossError: its footer is damaged.
            StorageError: it cannot be read.
        """
        found = self._known.get(part.object)
        if found is None:
            footer = await load_footer(storage, part.object, part.object_bytes)
            found = self._known[part.object] = footer.producers
            while len(self._known) > _MAX_FOOTERS:
                self._known.popitem(last=False)
        return found


class DirectRun:
    """One pass over spans. Start ``run`` in a nursery, and take pieces with ``next``, one at a time.

    Args:
        storage: the storage with the objects.
        footers: the footer cache of this storage.
        spans: the ranges to read.
        skip_to: position in the first span's object to start from; 0: the first batch of the range.
        producers: whether to read names of producers.
        careful: read only the needed bytes even of small parts, with the help of their index.
    """

    def __init__(
        self,
        storage: Storage,
        footers: FooterCache,
        spans: Sequence[Span],
        skip_to: int,
        producers: bool,
        careful: bool,
    ) -> None:
        self._storage = storage
        self._footers = footers
        self._spans = spans
        self._skip_to = skip_to
        self._producers = producers
        self._whole_bytes = 0 if careful else _WHOLE_BYTES
        self._scope = trio.CancelScope()
        self._complete = False
        self._send, self._receive = trio.open_memory_channel[_Item](_AHEAD)

    def close(self) -> None:
        """Stop fetching. Must be called in the event loop."""
        self._scope.cancel()

    async def run(self) -> None:
        """Fetch ahead until everything is fetched, or the run is closed."""
        with self._scope, self._send:
            async with trio.open_nursery() as nursery:
                for number, span in enumerate(self._spans):
                    await self._order(nursery, number, span)
                self._complete = True

    async def next(self) -> Piece | None:
        """Return the next piece; None after the last one.

        Raises:
            DataLossError: an index or footer is damaged.
            StorageError: an object cannot be read.
            ClosedError: the storage was closed.
        """
        try:
            item = await self._receive.receive()
        except trio.EndOfChannel:
            if not self._complete:
                raise ClosedError("the storage was closed during a read; open it again") from None
            return None
        data = await item.data.wait()
        names = await item.names.wait() if item.names is not None else {}
        return Piece(item.number, item.position, data, item.is_last, names)

    # --- The planner ---

    async def _order(self, nursery: trio.Nursery, number: int, span: Span) -> None:
        part, storage = span.part, self._storage

        def start(work: Callable[[], Awaitable[Any]]) -> _Fetch[Any]:
            fetch: _Fetch[Any] = _Fetch(work)
            nursery.start_soon(fetch.run)
            return fetch

        names = start(partial(self._footers.producers, storage, part)) if self._producers else None
        try:
            begin, end = await self._locate(span)
        except DanubeError as error:
            await self._send.send(_Item(number, 0, start(partial(_fail, error)), True, None))
            return
        if number == 0 and self._skip_to:
            begin = self._skip_to
        for low, high in cut_range(begin, end):
            fetch = start(partial(storage.get, part.object, low, high))
            await self._send.send(_Item(number, low, fetch, high == end, names))

    async def _locate(self, span: Span) -> tuple[int, int]:
        """Return the byte range of a span in its object: whole batches, possibly a few more than needed."""
        part = span.part.part
        if span.is_whole or part.size_bytes <= self._whole_bytes or part.index_count < 2:
            return part.start, part.end
        for again in (True, False):
            data = await self._storage.get(span.part.object, part.index_start, part.index_end)
            try:
                index = read_index(data, part, f"{self._storage.url}/{span.part.object}")
                break
            except DataLossError:
                if not again:
                    raise  # damaged twice: the stored index is damaged, not the transfer
        first, _ = index.find(span.start)
        _, behind = index.find(span.end - 1)
        return part.start + first, part.start + behind if behind >= 0 else part.end


async def _fail(error: DanubeError) -> bytes:
    raise error
