"""Watches: each has a stream of its own.

A watch that is not iterated receives no more than the window of its stream; then etcd keeps its place in the history,
and it costs no memory. A stream that is lost is opened again at the position, perhaps at another member.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Self

import trio

from danube.metadata import EventBatch, Watch
from danube.model.errors import ClosedError, DanubeError, FailedPreconditionError, UnavailableError
from danube.wire import ClientStream
from danube_metadata_etcd._codec import ETCD
from danube_metadata_etcd._link import WATCH, Held
from danube_metadata_etcd._messages import WatchReader
from danube_metadata_etcd.proto import etcd_pb2 as pb

if TYPE_CHECKING:
    from danube_metadata_etcd._store import EtcdStore

__all__ = ["EtcdWatch"]


class EtcdWatch(Watch):
    """A position in etcd's history of one prefix.

    Iterating raises UnavailableError, too, while no endpoint answers; the next step goes on at the position.
    """

    def __init__(self, store: EtcdStore, prefix: str, start_revision: int | None) -> None:
        self._store = store
        self._prefix = prefix
        self._start = start_revision
        self._reader: WatchReader | None = None
        self._call: ClientStream | None = None
        self._held: Held | None = None
        self._ready: deque[EventBatch] = deque()
        self._failure: DanubeError | None = None
        self._busy = False
        self._entered = False

    async def __aenter__(self) -> Self:
        store = self._store
        store.check_open()
        if self._entered:
            raise FailedPreconditionError("a metadata watch can be entered only once; create a new one")
        self._entered = True
        position = await store.check_position(self._prefix, None if self._start is None else self._start - 1)
        reader = WatchReader(store.keys, self._prefix, position)
        await self._open(reader)
        self._reader = reader
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader = None
        self._ready.clear()
        self._drop()
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def __anext__(self) -> EventBatch:
        reader = self._reader
        if reader is None:
            raise FailedPreconditionError("the metadata watch is not open; iterate inside its `async with`")
        if self._busy:
            raise FailedPreconditionError("two tasks iterate the same metadata watch; open one for each")
        self._busy = True
        try:
            if self._ready:
                await trio.lowlevel.checkpoint()
            reopened = False
            while not self._ready:
                self._store.check_open()
                if self._failure is not None:
                    raise type(self._failure)(self._failure.message)
                if self._call is None:
                    await self._store.check_position(self._prefix, reader.position)
                    await self._open(reader)
                    reopened = True
                try:
                    self._ready.extend(await self._read(reader))
                    reopened = False
                except ClosedError:
                    raise
                except UnavailableError:
                    if reopened:
                        raise
            return self._ready.popleft()
        finally:
            self._busy = False

    async def _open(self, reader: WatchReader) -> None:
        """Open a stream at the reader's position. If cancelled, there is none."""
        self._call, self._held = await self._store.link.open(WATCH, self._what)
        self._call.send_nowait(ETCD.encode(reader.request()))

    async def _read(self, reader: WatchReader) -> list[EventBatch]:
        """Wait for the next message, and return the batches that it completes. If cancelled, nothing is lost."""
        assert self._call is not None
        assert self._held is not None
        try:
            message = await self._call.receive()
            if message is None:
                raise UnavailableError("etcd has ended the stream")
            answer = ETCD.decode(pb.WatchResponse, message.data)
            message.release()
        except DanubeError as error:
            held = self._held
            self._drop()
            raise self._store.link.explain(error, held, self._what, changes=False) from error
        try:
            return reader.read(answer)
        except UnavailableError:
            self._drop()
            raise
        except DanubeError as error:
            # What came before it in the same message is lost: the watch never goes on.
            self._failure = error
            self._drop()
            raise

    def _drop(self) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._held = None

    @property
    def _what(self) -> str:
        return f"watch of {self._prefix!r}"
