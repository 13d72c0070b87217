"""What a server counts of its calls and connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from danube.model.errors import DeadlineExceededError, Status, TopicNotFoundError, UnimplementedError
from danube.wire import Channel, Context, Method, Server, ServerStream, UnaryCall, connect_channel, serve
from danube.wire._figures import CallFigures, ConnectionKind


class Number(msgspec.Struct):
    value: int


def start(request: Number, call: UnaryCall) -> None:
    if request.value == 0:
        raise TopicNotFoundError("no")
    if request.value > 0:
        call.reply(request)  # else it is never answered


async def handle(request: Number, _context: Context) -> Number:
    if request.value == 0:
        raise TopicNotFoundError("no")
    await trio.sleep(0.02)
    return request


async def echo(stream: ServerStream, _context: Context) -> None:
    while (message := await stream.receive()) is not None:
        await stream.send(message.data)
        message.release()


METHODS = {
    method.path: method
    for method in (
        Method(path="/t/start", kind="unary", start=start, request_type=Number),
        Method(path="/t/handle", kind="unary", handler=handle, request_type=Number),
        Method(path="/t/echo", kind="bidi", handler=echo),
    )
}


@asynccontextmanager
async def served() -> AsyncGenerator[tuple[Server, Channel], None]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server: Server = await nursery.start(serve, listeners, [METHODS])
        with trio.fail_after(20):
            async with connect_channel("127.0.0.1", listeners[0].socket.getsockname()[1]) as channel:
                yield server, channel
            while server.connections:  # noqa: ASYNC110
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


async def call(channel: Channel, path: str, value: int, **options: Any) -> None:
    await channel.unary(path, Number(value), Number, **options)


def ended(figures: CallFigures) -> int:
    return figures.ok + sum(figures.failed.values())


@pytest.mark.parametrize("path", ["/t/start", "/t/handle"])
async def test_unary_calls_are_counted_by_how_they_end(path: str) -> None:
    async with served() as (server, channel):
        for _ in range(3):
            await call(channel, path, 1)
        with pytest.raises(TopicNotFoundError):
            await call(channel, path, 0)
        figures = server.figures.call(path)
        assert (figures.ok, figures.failed) == (3, {Status.NOT_FOUND: 1})
        assert list(figures.durations.cumulative())[-1] == 4
        if path == "/t/handle":
            assert figures.durations.total >= 3 * 0.02


async def test_a_call_whose_deadline_passes_has_failed() -> None:
    async with served() as (server, channel):
        with pytest.raises(DeadlineExceededError):
            await call(channel, "/t/start", -1, timeout_s=0.05)
        figures = server.figures.call("/t/start")
        assert figures.ok == 0
    # It was begun, and is never answered: it ends with its connection. The caller may give up first.
    assert figures.failed in ({Status.DEADLINE_EXCEEDED: 1}, {Status.CANCELLED: 1})


async def test_callers_cannot_make_up_series() -> None:
    async with served() as (server, channel):
        for number in range(5):
            with pytest.raises(UnimplementedError):
                await call(channel, f"/made/up/{number}", 1)
        assert server.figures.calls.keys() == {"(unknown)"}
        assert server.figures.call("/made/up/9", known=False).failed == {Status.UNIMPLEMENTED: 5}


async def test_streams_are_counted_without_durations() -> None:
    async with served() as (server, channel):
        async with channel.open_stream("/t/echo") as stream:
            stream.send_nowait(b"x")
            await stream.receive()
            (connection,) = server.connection_list()
            assert connection.stream_paths == ["/t/echo"]
            stream.end()
            assert await stream.receive() is None
        async with channel.open_stream("/t/echo") as stream:
            stream.send_nowait(b"x")
            await stream.receive()
            stream.cancel()
        figures = server.figures.call("/t/echo")
        while ended(figures) < 2:  # noqa: ASYNC110
            await trio.sleep(0.005)
        assert (figures.ok, figures.failed) == (1, {Status.CANCELLED: 1})
        assert not any(figures.durations.counts)


async def test_bytes_of_a_connection_outlive_it() -> None:
    async with served() as (server, channel):
        await call(channel, "/t/handle", 1)
        (connection,) = server.connection_list()
        assert connection.kind == ConnectionKind.NATIVE
        assert connection.received_bytes == server.received_bytes > 0
        assert connection.sent_bytes == server.sent_bytes > 0
    figures = server.figures
    assert figures.received_bytes == {"native": server.received_bytes}
    assert figures.sent_bytes == {"native": server.sent_bytes}


async def test_refused_connections_are_counted_by_reason() -> None:
    async with served() as (server, _channel):
        server.blocks = lambda _peer: True
        one, two = trio.testing.memory_stream_pair()
        await server.serve_stream(one)
        assert await two.receive_some() == b""
        server.blocks = lambda _peer: False
        server.draining.set()
        one, two = trio.testing.memory_stream_pair()
        await server.serve_stream(one)
    assert server.figures.refused == {"blocked": 1, "draining": 1}
