"""A peer that speaks etcd's protocol and answers what a test tells it, for answers that a real etcd rarely gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from danube_metadata_etcd._codec import ETCD
from danube_metadata_etcd.proto import etcd_pb2 as pb

from danube.metadata import MetadataStore, open_store
from danube.model.errors import DanubeError, Status
from danube.wire import Context, Method, Server, ServerStream

UNARY = {
    "/etcdserverpb.KV/Range": pb.RangeRequest,
    "/etcdserverpb.KV/Put": pb.PutRequest,
    "/etcdserverpb.KV/DeleteRange": pb.DeleteRangeRequest,
    "/etcdserverpb.KV/Txn": pb.TxnRequest,
    "/etcdserverpb.Lease/LeaseGrant": pb.LeaseGrantRequest,
    "/etcdserverpb.Lease/LeaseRevoke": pb.LeaseRevokeRequest,
    "/etcdserverpb.Lease/LeaseTimeToLive": pb.LeaseTimeToLiveRequest,
    "/etcdserverpb.Auth/Authenticate": pb.AuthenticateRequest,
}
STREAMS = {
    "/etcdserverpb.Watch/Watch": pb.WatchRequest,
    "/etcdserverpb.Lease/LeaseKeepAlive": pb.LeaseKeepAliveRequest,
}


def refusal(status: Status, text: str) -> DanubeError:
    """An error as etcd reports it: a status and a text, without a code of Danube's."""
    error = DanubeError(f"etcdserver: {text}")
    error.status, error.code = status, ""  # type: ignore[misc]
    return error


def header(revision: int) -> pb.ResponseHeader:
    return pb.ResponseHeader(revision=revision)


def lives_forever(request: Any, context: Context) -> Any:
    """Answer a read: nothing is there, at revision 10."""
    return pb.RangeResponse(header=header(10))


class Conversation:
    """One stream, from the peer's side."""

    def __init__(self, stream: ServerStream, kind: Any) -> None:
        self._stream = stream
        self._kind = kind

    async def receive(self) -> Any:
        message = await self._stream.receive()
        if message is None:
            raise EOFError
        message.release()
        return self._kind.FromString(message.data)

    async def send(self, answer: Any) -> None:
        await self._stream.send(ETCD.encode(answer))


class ScriptedEtcd:
    """``answers`` has a function for each method: of request and context, or of a conversation; it may be async."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[..., Any]] = {"Range": lives_forever, "Watch": self.idle}
        self.calls: list[tuple[str, Any, dict[str, str]]] = []
        self.port = 0
        self.watches: list[Any] = []
        self._server = Server([self._methods()], codecs={"proto": ETCD})

    def count(self, name: str) -> int:
        return sum(called == name for called, _, _ in self.calls)

    def requests(self, name: str) -> list[Any]:
        return [request for called, request, _ in self.calls if called == name]

    def tokens(self, name: str) -> list[str | None]:
        return [metadata.get("token") for called, _, metadata in self.calls if called == name]

    async def idle(self, talk: Conversation) -> None:
        await trio.sleep_forever()

    def _methods(self) -> dict[str, Method]:
        found = {}
        for path, kind in UNARY.items():
            found[path] = Method(path=path, kind="unary", handler=self._unary(path), request_type=kind)
        for path, kind in STREAMS.items():
            found[path] = Method(path=path, kind="bidi", handler=self._bidi(path, kind))
        return found

    def _unary(self, path: str) -> Callable[[Any, Context], Awaitable[Any]]:
        name = path.rpartition("/")[2]

        async def handle(request: Any, context: Context) -> Any:
            self.calls.append((name, request, dict(context.metadata)))
            answer = self.answers[name](request, context)
            if isinstance(answer, Awaitable):
                answer = await answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return handle

    def _bidi(self, path: str, kind: Any) -> Callable[[ServerStream, Context], Awaitable[None]]:
        name = path.rpartition("/")[2]

        async def handle(stream: ServerStream, context: Context) -> None:
            if name == "Watch" and "hasleader" not in context.metadata:
                await trio.sleep_forever()  # the idle stream that each connection holds
            self.calls.append((name, None, dict(context.metadata)))
            try:
                await self.answers[name](Conversation(stream, kind))
            except EOFError:
                return

        return handle

    def hang_up(self) -> None:
        """End all connections at once."""
        self._life.cancel()

    async def run(self, listener: trio.SocketListener, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._life = nursery.cancel_scope
            await nursery.start(self._server.run, [listener])
            task_status.started()


@asynccontextmanager
async def scripted(*, port: int = 0) -> AsyncIterator[ScriptedEtcd]:
    """Run a peer."""
    (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    peer = ScriptedEtcd()
    peer.port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(peer.run, listener)
        try:
            yield peer
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def store_at(*peers: ScriptedEtcd, **options: Any) -> AsyncIterator[MetadataStore]:
    """Open a store at peers; what it called until then is forgotten."""
    location = ",".join(f"127.0.0.1:{peer.port}" for peer in peers)
    async with open_store(f"etcd://{location}/p", options=options) as store:
        for peer in peers:
            peer.calls.clear()
        yield store
