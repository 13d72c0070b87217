"""A server that is not open yet serves early methods only; a drain leaves the connections of peers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from danube.model.errors import (
    CallRefusedError,
    ConfigurationError,
    ConnectionLostError,
    PermissionDeniedError,
    UnimplementedError,
)
from danube.wire import Context, Method, Server, ServerStream, Service, connect_channel
from danube.wire.client import Channel


class Number(msgspec.Struct):
    """A request and a response."""

    value: int


async def add(request: Number, _context: Context) -> Number:
    return Number(request.value + 1)


async def echo(stream: ServerStream, _context: Context) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message.data)
        message.release()


async def link(stream: ServerStream, context: Context) -> None:
    if "secret" not in context.metadata:
        raise PermissionDeniedError("no peer")
    stream.outlast()
    await echo(stream, context)


def unary(path: str, *, early: bool = False) -> Service:
    return {path: Method(path=path, kind="unary", handler=add, request_type=Number, early=early)}


LINK = {"/t/link": Method(path="/t/link", kind="bidi", handler=link, early=True)}
SECRET = {"secret": "x"}


@asynccontextmanager
async def running(server: Server) -> AsyncGenerator[int, None]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(server.run, listeners)
        with trio.fail_after(10):
            yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def ask(channel: Channel, path: str) -> Number:
    return await channel.unary(path, Number(1), Number)


async def test_early_methods_are_served_and_others_refused_until_the_server_is_open() -> None:
    server = Server([unary("/t/early", early=True), unary("/t/late")], refusal="it waits")
    async with running(server) as port, connect_channel("127.0.0.1", port) as channel:
        assert (await ask(channel, "/t/early")).value == 2
        for path in ("/t/late", "/t/later", "/t/never"):
            with pytest.raises(CallRefusedError, match="it waits"):
                await ask(channel, path)
        with pytest.raises(ConfigurationError, match="twice"):
            server.open([unary("/t/late")])
        with pytest.raises(CallRefusedError):
            await ask(channel, "/t/late")
        server.open([unary("/t/later")])
        for path in ("/t/early", "/t/late", "/t/later"):
            assert (await ask(channel, path)).value == 2
        with pytest.raises(UnimplementedError):
            await ask(channel, "/t/never")


async def test_connections_of_peers_outlive_a_drain() -> None:
    server = Server([LINK, unary("/t/add")])
    async with (
        running(server) as port,
        connect_channel("127.0.0.1", port) as link,
        connect_channel("127.0.0.1", port) as channel,
    ):
        assert (await ask(channel, "/t/add")).value == 2
        async with link.open_stream("/t/link", metadata=SECRET) as stream:
            stream.send_nowait(b"before")
            await stream.receive()
            await server.drain(1.0)
            assert channel.closed or channel.retired
            assert not link.retired
            assert server.connections == 1
            async with link.open_stream("/t/link", metadata=SECRET) as another:
                for each in (stream, another):
                    each.send_nowait(b"after")
                    message = await each.receive()
                    assert message is not None
                    assert bytes(message.data) == b"after"
        with pytest.raises(OSError, match="connect"):
            await trio.open_tcp_stream("127.0.0.1", port)


async def test_a_refused_call_does_not_keep_its_connection() -> None:
    server = Server([LINK])
    async with running(server) as port, connect_channel("127.0.0.1", port) as channel:
        async with channel.open_stream("/t/link") as stream:
            with pytest.raises(PermissionDeniedError):
                await stream.receive()
        await server.drain(0)
        assert server.connections == 0


async def test_connections_of_peers_end_when_the_server_is_cancelled() -> None:
    server = Server([LINK])
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        await nursery.start(server.run, listeners)
        async with connect_channel("127.0.0.1", port) as link, link.open_stream("/t/link", metadata=SECRET) as stream:
            stream.send_nowait(b"x")
            await stream.receive()
            await server.drain(0)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(5), pytest.raises(ConnectionLostError):
                await stream.receive()
