"""Keep-alives of leases: one stream for all leases of a store.

etcd answers the messages of the stream in their order, so the answers belong to the oldest messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from danube.metadata import LeaseId, lease_ended
from danube.model.errors import ClosedError, DanubeError, ProtocolError, UnavailableError
from danube.wire import ClientStream
from danube_metadata_etcd._codec import ETCD
from danube_metadata_etcd._link import Held, Link
from danube_metadata_etcd.proto import etcd_pb2 as pb

__all__ = ["KeepAlives"]

_KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"


class _Waiter:
    """One message that is not answered yet. Its caller may have been cancelled."""

    __slots__ = ("done", "error", "lease", "ttl_s")

    def __init__(self, lease: LeaseId) -> None:
        self.lease = lease
        self.done = trio.Event()
        self.ttl_s: int | None = None
        """The answer; None if there is none."""
        self.error: DanubeError = UnavailableError("no answer")


class _Stream:
    """An open stream, and its messages that are not answered yet."""

    def __init__(self, call: ClientStream, held: Held) -> None:
        self.call = call
        self.held = held
        self.waiters: deque[_Waiter] = deque()


class KeepAlives:
    """Sends keep-alives.

    Args:
        link: to etcd.
        nursery: for the task that reads the answers.
    """

    def __init__(self, link: Link, nursery: trio.Nursery) -> None:
        self._link = link
        self._nursery = nursery
        self._stream: _Stream | None = None

    async def renew(self, lease: LeaseId) -> None:
        """Reset a lease to its full time.

        Raises:
            NotFoundError: it has ended.
            UnavailableError: no answer; the lease may have been renewed.
        """
        stream = self._usable()
        if stream is None:
            call, held = await self._link.open(_KEEP_ALIVE, "keep-alive")
            stream = self._usable()  # opened by another task in the meantime
            if stream is not None:
                call.cancel()
            else:
                stream = self._stream = _Stream(call, held)
                self._nursery.start_soon(self._read, stream)
        waiter = _Waiter(lease)
        stream.waiters.append(waiter)
        stream.call.send_nowait(ETCD.encode(pb.LeaseKeepAliveRequest(ID=lease)))
        with trio.move_on_after(self._link.request_timeout_s):
            await waiter.done.wait()
        if not waiter.done.is_set():
            self._end(stream, UnavailableError(f"no answer within {self._link.request_timeout_s} s"))
        if waiter.ttl_s is None:
            raise self._link.explain(waiter.error, stream.held, f"keep-alive of lease {lease}", changes=True)
        if waiter.ttl_s <= 0:
            raise lease_ended(lease)

    def _usable(self) -> _Stream | None:
        stream = self._stream
        return stream if stream is not None and not stream.call.over and stream.held.usable else None

    async def _read(self, stream: _Stream) -> None:
        """Task: pass the answers to the callers, until the stream ends."""
        failure: DanubeError = UnavailableError("etcd has ended the stream")
        try:
            while (message := await stream.call.receive()) is not None:
                answer = ETCD.decode(pb.LeaseKeepAliveResponse, message.data)
                message.release()
                if not stream.waiters or stream.waiters[0].lease != answer.ID:
                    raise ProtocolError(f"etcd has answered for lease {answer.ID}, which was not the next one")
                waiter = stream.waiters.popleft()
                waiter.ttl_s = answer.TTL
                waiter.done.set()
        except DanubeError as error:
            failure = error
        except trio.Cancelled:
            failure = ClosedError("the metadata store is closed; open it again")
            raise
        finally:
            self._end(stream, failure)

    def _end(self, stream: _Stream, failure: DanubeError) -> None:
        """End a stream: what is not answered has failed."""
        if self._stream is stream:
            self._stream = None
        stream.call.cancel()
        for waiter in stream.waiters:
            waiter.error = failure
            waiter.done.set()
        stream.waiters.clear()
