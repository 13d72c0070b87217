"""Server and client together, over TCP on this machine and over memory streams with a virtual clock."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import msgspec
import pytest
import trio
import trio.testing
from wire_harness import RawClient, frame, parse_frames

from danube.model.errors import (
    BrokerDrainingError,
    CallCancelledError,
    CallRefusedError,
    ConfigurationError,
    ConnectionLostError,
    DanubeError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    LimitExceededError,
    MessageTooLargeError,
    TopicNotFoundError,
    UnavailableError,
    UnimplementedError,
)
from danube.model.limits import Limits
from danube.wire import Channel, Context, Method, Server, ServerStream, connect_channel, connection_problem, serve
from danube.wire._events import Event
from danube.wire._transport import SocketTransport
from danube.wire.connection import GrpcConnection

MIB = 1024 * 1024


class Number(msgspec.Struct):
    value: int


class Handlers:
    """The methods that the tests call, and what they noticed."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.contexts: list[Context] = []
        self.held, self.release = trio.Event(), trio.Event()

    def methods(self) -> dict[str, Method]:
        unary = {
            "/t/add": self.add,
            "/t/fail": self.fail,
            "/t/bug": self.bug,
            "/t/hang": self.hang,
            "/t/hold": self.hold,
            "/t/nest": self.nest,
        }
        bidi = {"/t/echo": self.echo, "/t/flood": self.flood, "/t/deaf": self.deaf, "/t/nothing": self.nothing}
        found = [
            Method(path=path, kind="unary", handler=handler, request_type=Number) for path, handler in unary.items()
        ]
        found += [
            Method(path=path, kind="bidi", handler=handler, max_request_bytes=16 * MIB)
            for path, handler in bidi.items()
        ]
        found.append(Method(path="/t/count", kind="server_stream", handler=self.count, request_type=Number))
        return {method.path: method for method in found}

    async def add(self, request: Number, context: Context) -> Number:
        self.contexts.append(context)
        return Number(request.value + 1)

    async def fail(self, request: Number, context: Context) -> Number:
        raise TopicNotFoundError("there is no topic /default/ünbekannt\nat all: 100%")

    async def bug(self, request: Number, context: Context) -> Number:
        raise ZeroDivisionError("a secret of the broker")

    async def nest(self, request: Number, context: Context) -> Number:
        async def refuse() -> None:
            raise TopicNotFoundError("inside a nursery")

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                if request.value:
                    nursery.start_soon(refuse)
        finally:
            if not request.value:
                raise ValueError("a bug on the way out")
        return request

    async def hang(self, request: Number, context: Context) -> Number:
        try:
            await trio.sleep_forever()
        finally:
            self.ended.append(context.path)

    async def hold(self, request: Number, context: Context) -> Number:
        self.held.set()
        with trio.CancelScope(shield=True):
            await self.release.wait()
        return request

    async def echo(self, stream: ServerStream, context: Context) -> None:
        try:
            while (message := await stream.receive()) is not None:
                for item in [message, *stream.receive_nowait()]:
                    await stream.send(item.data)
                    item.release()
        finally:
            self.ended.append(context.path)

    async def flood(self, stream: ServerStream, context: Context) -> None:
        try:
            while True:
                await stream.send(bytes(MIB))
        finally:
            self.ended.append(context.path)

    async def deaf(self, stream: ServerStream, context: Context) -> None:
        await trio.sleep_forever()

    async def nothing(self, stream: ServerStream, context: Context) -> None:
        return

    async def count(self, stream: ServerStream, context: Context) -> None:
        request = await stream.receive()
        assert request is not None
        for value in range(stream.decode(Number, request.data).value):
            await stream.send(stream.encode(Number(value)))


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@asynccontextmanager
async def tcp_server(handlers: Handlers, limits: Limits | None = None) -> AsyncGenerator[tuple[Server, int], None]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server: Server = await nursery.start(serve, listeners, [handlers.methods()], limits)
        with trio.fail_after(10):
            yield server, listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition without an event; the surrounding test has the time limit."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.01)


class MemoryByteStream(anyio.abc.ByteStream):
    """A Trio memory stream for anyio; ``pause`` makes it a peer that reads nothing."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self.pause = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            data = bytes(await self.stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise anyio.BrokenResourceError from exc
        await until(lambda: not self.pause)
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        try:
            await self.stream.send_all(item)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise anyio.BrokenResourceError from exc

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()


def memory_pair() -> tuple[MemoryByteStream, trio.StapledStream[Any, Any]]:
    client, server = trio.testing.memory_stream_pair()
    return MemoryByteStream(client), server


async def running(nursery: trio.Nursery, handlers: Handlers, limits: Limits | None = None) -> Server:
    server = Server([handlers.methods()], limits)

    async def run(task_status: trio.TaskStatus[Server]) -> None:
        await server.run([], task_status=task_status)

    await nursery.start(run)
    return server


@asynccontextmanager
async def memory_channel(
    nursery: trio.Nursery, server: Server, limits: Limits | None = None
) -> AsyncGenerator[tuple[Channel, MemoryByteStream], None]:
    near, far = memory_pair()
    nursery.start_soon(server.serve_stream, far)

    async def connect() -> anyio.abc.ByteStream:
        return near

    async with connect_channel("memory", 1, limits, connect=connect) as channel:
        yield channel, near


async def exercise(port: int) -> None:
    """What a client does, under either event loop."""
    async with connect_channel("127.0.0.1", port) as channel:
        assert await channel.unary("/t/add", Number(1), Number, metadata={"x-token": "t"}) == Number(2)
        with pytest.raises(TopicNotFoundError, match="ünbekannt\nat all: 100%"):
            await channel.unary("/t/fail", Number(1), Number)
        with pytest.raises(UnimplementedError, match="/t/missing"):
            await channel.unary("/t/missing", Number(1), Number)
        with pytest.raises(InvalidArgumentError, match="not a Number"):
            await channel.unary("/t/add", "no number", Number)
        async with channel.server_stream("/t/count", Number(20), Number) as numbers:
            assert [number.value async for number in numbers] == list(range(20))
        async with channel.server_stream("/t/count", Number(10**9), Number) as numbers:
            assert (await anext(numbers)).value == 0
        async with channel.open_stream("/t/echo") as stream:
            for size in (0, 1, 255, 256, 70_000, 5 * MIB):
                data = bytes(index & 0xFF for index in range(256)) * (size // 256) + b"z" * (size % 256)
                await stream.send((data[:3], data[3:]))
                message = await stream.receive()
                assert message is not None
                assert message.data == data
                message.release()
            assert stream.send_nowait(b"last")
            stream.end()
            assert not stream.send_nowait(b"too late")
            message = await stream.receive()
            assert message is not None
            assert message.data == b"last"
            assert await stream.receive() is None
            assert stream.over
        results: list[int] = []

        async def add(value: int) -> None:
            results.append((await channel.unary("/t/add", Number(value), Number)).value)

        async with anyio.create_task_group() as tasks:
            for value in range(50):
                tasks.start_soon(add, value)
        assert sorted(results) == list(range(1, 51))
        with pytest.raises(DeadlineExceededError):
            await channel.unary("/t/hang", Number(1), Number, timeout_s=0.5)
        with anyio.move_on_after(0.5) as scope:
            await channel.unary("/t/hang", Number(1), Number)
        assert scope.cancelled_caught
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)
        assert channel.protocol.open_streams == 0
    assert channel.closed
    with pytest.raises(ConnectionLostError, match="closed by this client"):
        channel.open_stream("/t/echo")


async def test_a_trio_client(handlers: Handlers) -> None:
    async with tcp_server(handlers) as (server, port):
        await exercise(port)
        await until(lambda: server.connections == 0)
        assert handlers.ended.count("/t/hang") == 2
        assert handlers.contexts[0].metadata == {"x-token": "t"}
        assert handlers.contexts[0].peer.startswith("127.0.0.1:")


async def test_an_asyncio_client(handlers: Handlers) -> None:
    async with tcp_server(handlers) as (_, port):
        await trio.to_thread.run_sync(lambda: anyio.run(exercise, port, backend="asyncio"))
        assert handlers.ended.count("/t/hang") == 2


async def test_memory_streams_with_a_virtual_clock(handlers: Handlers, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = await running(nursery, handlers)
        async with memory_channel(nursery, server) as (channel, _):
            with trio.fail_after(10):
                assert await channel.unary("/t/add", Number(1), Number) == Number(2)
            await trio.sleep(1000)  # keep-alive on both sides finds nothing wrong
            assert await channel.unary("/t/add", Number(1), Number) == Number(2)
            with pytest.raises(DeadlineExceededError):
                await channel.unary("/t/hang", Number(1), Number, timeout_s=50)
        nursery.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------------ failures of handlers


async def test_a_bug_in_a_handler_costs_its_call_only(handlers: Handlers, caplog: pytest.LogCaptureFixture) -> None:
    async with tcp_server(handlers) as (_, port), connect_channel("127.0.0.1", port) as channel:
        with pytest.raises(InternalError, match="ZeroDivisionError") as caught:
            await channel.unary("/t/bug", Number(1), Number)
        assert "secret" not in caught.value.message
        assert "a secret of the broker" in caplog.text
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)


async def test_errors_out_of_a_handlers_nursery_keep_their_meaning(handlers: Handlers) -> None:
    async with tcp_server(handlers) as (_, port), connect_channel("127.0.0.1", port) as channel:
        with pytest.raises(TopicNotFoundError, match="inside a nursery"):
            await channel.unary("/t/nest", Number(1), Number)
        with trio.move_on_after(0.05):
            await channel.unary("/t/nest", Number(0), Number)
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)


async def test_an_oversized_request_is_refused_by_name(handlers: Handlers) -> None:
    async with tcp_server(handlers) as (_, port), connect_channel("127.0.0.1", port) as channel:
        async with channel.open_stream("/t/add") as stream:
            await stream.send(bytes(2 * MIB))
            with pytest.raises(MessageTooLargeError, match="1048576"):
                await stream.receive()
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)


async def test_an_oversized_response_is_refused_too(handlers: Handlers) -> None:
    async with (
        tcp_server(handlers) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/echo", max_message_bytes=10) as stream,
    ):
        await stream.send(bytes(11))
        with pytest.raises(MessageTooLargeError):
            await stream.receive()


async def test_a_stream_that_ends_early_tells_a_sender(handlers: Handlers) -> None:
    async with (
        tcp_server(handlers) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/nothing") as stream,
    ):
        assert await stream.receive() is None
        with pytest.raises(CallCancelledError):
            await stream.send(b"x")


def test_a_method_registered_twice_is_refused(handlers: Handlers) -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        Server([handlers.methods(), handlers.methods()])


# ------------------------------------------------------------------------------------------------ streams


async def test_messages_can_be_drained_at_once(handlers: Handlers) -> None:
    async with (
        tcp_server(handlers) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/echo") as stream,
    ):
        for number in range(100):
            stream.send_nowait(b"%d" % number)
        received: list[bytes] = []
        while len(received) < 100:
            message = await stream.receive()
            assert message is not None
            received += [item.data for item in [message, *stream.receive_nowait()]]
            message.release()
            message.release()
        assert received == [b"%d" % number for number in range(100)]


async def test_a_message_can_be_sent_in_the_present_turn(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send_now = SocketTransport.send_now

    def counted(transport: SocketTransport, data: bytes | memoryview) -> int:
        sent.append(len(data))
        return send_now(transport, data)

    async with (
        tcp_server(handlers) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/echo") as stream,
    ):
        await stream.send(b"first")
        assert await stream.receive() is not None
        monkeypatch.setattr(SocketTransport, "send_now", counted)
        assert stream.send_at_once(b"now")
        assert len(sent) == 1
        assert stream.send_buffered == 0
        stream.cancel()
        assert not stream.send_at_once(b"too late")


@pytest.mark.parametrize("accepted", [0, 5, 30_000])
async def test_what_a_socket_does_not_accept_in_the_present_turn_follows_in_order(
    handlers: Handlers, monkeypatch: pytest.MonkeyPatch, accepted: int
) -> None:
    send_now = SocketTransport.send_now

    def partly(transport: SocketTransport, data: bytes | memoryview) -> int:
        return send_now(transport, data[:accepted]) if accepted else 0

    async with (
        tcp_server(handlers) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/echo") as stream,
    ):
        monkeypatch.setattr(SocketTransport, "send_now", partly)
        messages = [bytes([number]) * 20_000 for number in range(8)]
        for number, message in enumerate(messages):
            assert stream.send_at_once(message) if number % 3 else stream.send_nowait(message)
        for message in messages:
            answer = await stream.receive()
            assert answer is not None
            assert answer.data == message
            answer.release()


async def test_a_handler_that_does_not_read_stops_only_its_sender(handlers: Handlers) -> None:
    limits = Limits(stream_window_bytes=256 * 1024, max_send_buffer_bytes=256 * 1024)
    async with (
        tcp_server(handlers, limits) as (_, port),
        connect_channel("127.0.0.1", port, limits) as channel,
        channel.open_stream("/t/deaf") as deaf,
    ):
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(100):
                await deaf.send(bytes(100_000))
                sent += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(0.2)
            await until(lambda: deaf.send_buffered >= 256 * 1024 or sent == 100)
            nursery.cancel_scope.cancel()
        assert sent < 100
        assert 256 * 1024 <= deaf.send_buffered < 512 * 1024
        async with channel.open_stream("/t/echo") as echo:
            for _ in range(20):
                await echo.send(bytes(100_000))
                message = await echo.receive()
                assert message is not None
                message.release()


async def test_a_client_that_does_not_read_stops_the_handler(handlers: Handlers) -> None:
    limits = Limits(stream_window_bytes=MIB, max_send_buffer_bytes=MIB)
    async with tcp_server(handlers, limits) as (_, port), connect_channel("127.0.0.1", port, limits) as channel:
        async with channel.open_stream("/t/flood") as stream:
            first = await stream.receive()
            await trio.sleep(0.1)
            held = stream.receive_nowait()
            assert len(held) <= 3
            assert first is not None
            for message in [first, *held]:
                message.release()
            assert await stream.receive() is not None
        await until(lambda: bool(handlers.ended))
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)


async def test_a_reset_call_keeps_its_slot_until_its_work_has_ended(handlers: Handlers) -> None:
    limits = Limits(max_streams_per_connection=1)
    async with tcp_server(handlers, limits) as (_, port), connect_channel("127.0.0.1", port) as channel:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.unary, "/t/hold", Number(1), Number)
            await handlers.held.wait()
            nursery.cancel_scope.cancel()
        with pytest.raises(UnavailableError, match="refused"):
            await channel.unary("/t/add", Number(1), Number)
        handlers.release.set()
        with trio.fail_after(10):
            while True:
                try:
                    assert await channel.unary("/t/add", Number(1), Number) == Number(2)
                    break
                except UnavailableError:  # its end is on its way
                    await trio.sleep(0.01)


async def test_too_many_calls_are_refused(handlers: Handlers) -> None:
    limits = Limits(max_streams_per_connection=2)
    async with (
        tcp_server(handlers, limits) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/echo"),
        channel.open_stream("/t/echo"),
    ):
        with pytest.raises(LimitExceededError):
            channel.open_stream("/t/echo")


async def test_cancelling_any_await_harms_no_other_call(
    handlers: Handlers, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        server = await running(nursery, handlers)
        async with memory_channel(nursery, server) as (channel, _), channel.open_stream("/t/echo") as echo:
            for turns in range(40):
                async with trio.open_nursery() as calls:
                    calls.start_soon(channel.unary, "/t/add", Number(turns), Number)
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    calls.cancel_scope.cancel()
                await echo.send(b"%d" % turns)
                message = await echo.receive()
                assert message is not None
                assert message.data == b"%d" % turns
            assert channel.protocol.open_streams == 1
        nursery.cancel_scope.cancel()


async def test_cancelling_a_receive_loses_no_message(handlers: Handlers) -> None:
    async with (
        tcp_server(handlers) as (_, port),
        connect_channel("127.0.0.1", port) as channel,
        channel.open_stream("/t/echo") as stream,
    ):
        with trio.move_on_after(0.01):
            await stream.receive()
        stream.send_nowait(b"one")
        message = await stream.receive()
        assert message is not None
        assert message.data == b"one"


# ------------------------------------------------------------------------------------------------ connections


async def test_no_broker_is_said_plainly() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectionLostError) as caught:
            async with connect_channel("127.0.0.1", port):
                pass
        reason = f"no connection to 127.0.0.1:{port}: connection refused"
        assert caught.value.message == f"{reason}; is a broker running there?"
        assert connection_problem(caught.value, f"127.0.0.1:{port}") == "connection refused"
        assert connection_problem(caught.value, "b2:6650").endswith("connection refused")
        assert connection_problem(CallRefusedError("the broker drains"), "b2:6650") == "the broker drains"
    with pytest.raises(ConnectionLostError, match=r"no connection to unknown\.invalid:1: [^\[\]]+; is a broker"):
        async with connect_channel("unknown.invalid", 1):
            pass


async def test_a_port_that_says_nothing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    near, _far = memory_pair()

    async def connect() -> anyio.abc.ByteStream:
        return near

    with pytest.raises(ConnectionLostError, match="did not speak HTTP/2 within 2"):
        async with connect_channel("memory", 1, connect=connect, connect_timeout_s=2):
            pass


async def test_an_error_in_the_block_comes_out_as_it_is(handlers: Handlers) -> None:
    async with tcp_server(handlers) as (_, port):
        with pytest.raises(KeyError, match="mine"):
            async with connect_channel("127.0.0.1", port):
                raise KeyError("mine")


async def test_losing_the_connection_fails_every_call(
    handlers: Handlers, autojump_clock: trio.testing.MockClock
) -> None:
    errors: list[DanubeError] = []

    async def expect_loss(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(ConnectionLostError) as caught:
            await call()
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        server = await running(nursery, handlers)
        async with memory_channel(nursery, server) as (channel, near), channel.open_stream("/t/echo") as stream:
            async with trio.open_nursery() as calls:
                calls.start_soon(expect_loss, stream.receive)
                calls.start_soon(expect_loss, lambda: channel.unary("/t/hang", Number(1), Number))
                await trio.sleep(1)
                await trio.aclose_forcefully(near.stream)
            await channel.wait_closed()
            assert channel.closed
            with pytest.raises(ConnectionLostError):
                channel.open_stream("/t/echo")
        await trio.sleep(1)
        assert server.connections == 0
        assert set(handlers.ended) == {"/t/echo", "/t/hang"}
        nursery.cancel_scope.cancel()
    assert len(errors) == 2


async def test_a_half_open_peer_is_found_by_both_sides(
    handlers: Handlers, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        server = await running(nursery, handlers)
        async with memory_channel(nursery, server) as (channel, near):
            near.pause = True
            start = trio.current_time()
            await channel.wait_closed()
            assert 14 <= trio.current_time() - start <= 17
            assert isinstance(channel.error, ConnectionLostError)
            assert "PING" in channel.error.message
        near, far = memory_pair()
        nursery.start_soon(server.serve_stream, far)
        await near.stream.send_all(RawClient().hello())
        await trio.sleep(10)
        assert server.connections == 1
        await trio.sleep(8)
        assert server.connections == 0
        nursery.cancel_scope.cancel()


async def test_a_client_that_never_speaks_is_cut(handlers: Handlers, autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        server = await running(nursery, handlers)
        for opening in (b"", b"PRI * HTTP/2.0\r\n", RawClient().hello() + frame(1, 0, 1, b"\x82")):
            _near, far = memory_pair()
            nursery.start_soon(server.serve_stream, far)
            await _near.stream.send_all(opening)
            await trio.sleep(3)
            assert server.connections == 1
            await trio.sleep(11)
            assert server.connections == 0
        nursery.cancel_scope.cancel()


async def test_a_peer_that_reads_nothing_is_cut(handlers: Handlers) -> None:
    limits = Limits(write_timeout_s=0.5, keepalive_idle_s=100.0)
    async with tcp_server(handlers, limits) as (server, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        raw = RawClient()
        grow = frame(4, 0, 0, b"\0\4\x7f\0\0\0") + frame(8, 0, 0, b"\x7f\0\0\0")
        await stream.send_all(raw.hello() + grow + raw.request(1, path="/t/flood"))  # type: ignore[arg-type]
        with trio.fail_after(6):
            await until(lambda: bool(handlers.ended) and server.connections == 0)
        await stream.aclose()


async def test_http1_is_answered_over_tcp(handlers: Handlers) -> None:
    async with tcp_server(handlers) as (_, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while data := await stream.receive_some():
            answer += data
        assert answer.startswith(b"HTTP/1.1 505")
        await stream.aclose()


async def test_connections_are_counted(handlers: Handlers) -> None:
    limits = Limits(max_connections=1)
    async with tcp_server(handlers, limits) as (_, port), connect_channel("127.0.0.1", port) as first:
        with pytest.raises(ConnectionLostError):
            async with connect_channel("127.0.0.1", port):
                pass
        assert await first.unary("/t/add", Number(1), Number) == Number(2)


async def test_a_broken_connection_costs_no_other(handlers: Handlers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "danube.wire")
    async with tcp_server(handlers) as (_, port), connect_channel("127.0.0.1", port) as channel:
        for garbage in (b"\0" * 100, RawClient().hello() + b"\xff" * 100):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(garbage)
            answer = b""
            while data := await stream.receive_some():
                answer += data
            assert parse_frames(answer)[-1][0] == 7
            await stream.aclose()
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)
    assert "ends:" in caplog.text


async def test_a_bug_in_a_connection_costs_no_other(
    handlers: Handlers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tcp_server(handlers) as (_, port), connect_channel("127.0.0.1", port) as channel:
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)
        receive = GrpcConnection.receive

        def buggy(self: GrpcConnection, data: bytes, now: float) -> list[Event]:
            if data.startswith(b"PRI"):
                raise RuntimeError("planted")
            return receive(self, data, now)

        monkeypatch.setattr(GrpcConnection, "receive", buggy)
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(RawClient().hello())
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
        await stream.aclose()
        assert await channel.unary("/t/add", Number(1), Number) == Number(2)
    # The records, not the text: the text depends on the configuration of logging in this process.
    (failure,) = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert "planted" in "".join(traceback.format_exception(failure))


# ------------------------------------------------------------------------------------------------ drain


async def test_drain_lets_calls_end_and_then_ends_them(
    handlers: Handlers, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        server = await running(nursery, handlers)
        async with memory_channel(nursery, server) as (channel, _):
            async with channel.open_stream("/t/echo") as polite, channel.open_stream("/t/deaf") as stubborn:
                await polite.send(b"1")
                assert await polite.receive() is not None
                start = trio.current_time()
                nursery.start_soon(server.drain, 5.0)
                await trio.sleep(1)
                assert channel.draining
                with pytest.raises(UnavailableError):
                    channel.open_stream("/t/echo")
                await polite.send(b"still served")
                message = await polite.receive()
                assert message is not None
                assert message.data == b"still served"
                polite.end()
                assert await polite.receive() is None
                with pytest.raises(BrokerDrainingError) as caught:
                    await stubborn.receive()
                assert caught.value.retryable
                assert 4.9 <= trio.current_time() - start <= 5.1
            await channel.wait_closed()
        # The nursery ends because the drained server has ended.


async def test_drain_of_an_idle_server_is_immediate(handlers: Handlers) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server: Server = await nursery.start(serve, listeners, [handlers.methods()])
        async with connect_channel("127.0.0.1", listeners[0].socket.getsockname()[1]) as channel:
            with trio.fail_after(8):
                await server.drain(10.0)
                await channel.wait_closed()
