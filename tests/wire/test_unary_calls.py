"""Unary calls that a plain function serves: answers now and later, and calls whose callers do not wait any longer."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hpack
import msgspec
import pytest
import trio
import trio.testing
from wire_harness import DATA, END_STREAM, HEADERS, RST_STREAM, RawClient, frame, grpc_message, parse_frames

from danube.model.errors import (
    BrokerDrainingError,
    ConfigurationError,
    InternalError,
    InvalidArgumentError,
    MessageTooLargeError,
    TopicNotFoundError,
)
from danube.model.limits import Limits
from danube.wire import MSGPACK, Channel, Method, Server, ServerStream, UnaryCall, connect_channel, serve


class Number(msgspec.Struct):
    value: int


class Calls:
    """Answers even numbers at once and keeps calls with odd ones."""

    def __init__(self) -> None:
        self.kept: list[tuple[Number, UnaryCall]] = []
        self.seen: list[UnaryCall] = []

    def methods(self) -> dict[str, Method]:
        found = [
            Method(path="/t/add", kind="unary", start=self.add, request_type=Number, max_request_bytes=1000),
            Method(path="/t/fail", kind="unary", start=self.fail, request_type=Number),
            Method(path="/t/bug", kind="unary", start=self.bug, request_type=Number),
            Method(path="/t/odd", kind="unary", start=self.odd, request_type=Number),
            Method(path="/t/echo", kind="bidi", handler=self.echo),
        ]
        return {method.path: method for method in found}

    def add(self, request: Number, call: UnaryCall) -> None:
        self.seen.append(call)
        if request.value % 2:
            self.kept.append((request, call))
        else:
            call.reply(Number(request.value + 1))

    def fail(self, request: Number, call: UnaryCall) -> None:
        if request.value:
            raise TopicNotFoundError("there is no topic /default/x")
        call.fail(TopicNotFoundError("there is no topic /default/y"))

    def bug(self, request: Number, call: UnaryCall) -> None:
        raise ZeroDivisionError("a secret of the broker")

    def odd(self, request: Number, call: UnaryCall) -> None:
        call.reply(object())

    async def echo(self, stream: ServerStream, context: object) -> None:
        while (message := await stream.receive()) is not None:
            await stream.send(message.data)
            message.release()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.005)


@asynccontextmanager
async def channel_to(calls: Calls, limits: Limits | None = None) -> AsyncGenerator[tuple[Channel, Server], None]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server: Server = await nursery.start(serve, listeners, [calls.methods()], limits)
        with trio.fail_after(10):
            async with connect_channel("127.0.0.1", listeners[0].socket.getsockname()[1]) as channel:
                yield channel, server
        nursery.cancel_scope.cancel()


async def add(channel: Channel, value: int, **options: Any) -> int:
    number: Number = await channel.unary("/t/add", Number(value), Number, **options)
    return number.value


async def test_answers_at_once_and_later() -> None:
    calls = Calls()
    async with channel_to(calls) as (channel, _server):
        assert await add(channel, 2) == 3
        answers: list[int] = []

        async def odd(value: int) -> None:
            answers.append(await add(channel, value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(odd, 1)
            nursery.start_soon(odd, 11)
            await until(lambda: len(calls.kept) == 2)
            assert await add(channel, 4) == 5
            for request, call in reversed(calls.kept):
                assert not call.answered
                call.reply(Number(request.value * 100))
                assert call.answered
        assert sorted(answers) == [100, 1100]


async def test_context_says_who_calls() -> None:
    calls = Calls()
    async with channel_to(calls) as (channel, _server):
        await add(channel, 2, metadata={"x-who": "me"}, timeout_s=5.0)
        await add(channel, 2)
    first, second = (call.context for call in calls.seen)
    assert calls.seen[0].context is first
    assert (first.path, first.metadata, first.codec) == ("/t/add", {"x-who": "me"}, MSGPACK)
    assert first.connection_id == second.connection_id
    assert 0 < first.deadline - trio.current_time() <= 5.0
    assert second.deadline == math.inf


async def test_raised_errors_become_the_status(caplog: pytest.LogCaptureFixture) -> None:
    async with channel_to(Calls()) as (channel, _server):
        for value, topic in ((1, "x"), (0, "y")):
            with pytest.raises(TopicNotFoundError, match=f"/default/{topic}"):
                await channel.unary("/t/fail", Number(value), Number)
        assert not caplog.records
        with pytest.raises(InternalError, match="ZeroDivisionError") as caught:
            await channel.unary("/t/bug", Number(0), Number)
        assert "secret" not in caught.value.message
        with pytest.raises(InvalidArgumentError, match="cannot be encoded"):
            await channel.unary("/t/odd", Number(0), Number)
        with pytest.raises(InvalidArgumentError, match="not a Number"):
            await channel.unary("/t/add", "text", Number)
        with pytest.raises(MessageTooLargeError):
            await channel.unary("/t/add", "x" * 1000, Number)
        assert await add(channel, 6) == 7
    assert [record.getMessage() for record in caplog.records if "/t/bug" in record.getMessage()]


async def test_only_the_first_answer_counts() -> None:
    calls = Calls()
    async with channel_to(calls) as (channel, _server), trio.open_nursery() as nursery:

        async def ask() -> None:
            assert await add(channel, 1) == 10

        nursery.start_soon(ask)
        await until(lambda: bool(calls.kept))
        call = calls.kept[0][1]
        call.reply(Number(10))
        call.reply(Number(20))
        call.fail(TopicNotFoundError("no"))


async def test_many_calls_and_a_stream_share_a_connection() -> None:
    calls = Calls()
    async with channel_to(calls) as (channel, _server):
        done = []

        async def ask(value: int) -> None:
            assert await add(channel, 2 * value) == 2 * value + 1
            done.append(value)

        async with channel.open_stream("/t/echo") as stream, trio.open_nursery() as nursery:
            for value in range(200):
                nursery.start_soon(ask, value)
                await stream.send(b"%d" % value)
            for value in range(200):
                message = await stream.receive()
                assert message is not None
                assert message.data == b"%d" % value
                message.release()
        assert sorted(done) == list(range(200))


async def test_drain_waits_for_pending_calls() -> None:
    calls = Calls()
    async with channel_to(calls) as (channel, server), trio.open_nursery() as nursery:
        answers: list[int] = []

        async def ask() -> None:
            answers.append(await add(channel, 1))

        nursery.start_soon(ask)
        await until(lambda: bool(calls.kept))
        nursery.start_soon(server.drain, 5.0)
        await trio.sleep(0.05)
        assert server.connections == 1
        calls.kept[0][1].reply(Number(5))
        await until(lambda: server.connections == 0)
    assert answers == [5]


async def test_drain_does_not_wait_for_ever() -> None:
    calls = Calls()
    async with channel_to(calls) as (channel, server), trio.open_nursery() as nursery:

        async def ask() -> None:
            with pytest.raises(BrokerDrainingError):
                await add(channel, 1)

        nursery.start_soon(ask)
        await until(lambda: bool(calls.kept))
        await server.drain(0.02)
        call = calls.kept[0][1]
        assert call.gone
        assert call.answered
        call.reply(Number(5))


def test_a_method_has_one_way_to_be_served() -> None:
    calls = Calls()

    async def handler(request: object, context: object) -> None: ...

    for options in (
        {},
        {"handler": handler, "start": calls.add},
    ):
        with pytest.raises(ConfigurationError, match="/t/x"):
            Method(path="/t/x", kind="unary", **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="/t/x"):
        Method(path="/t/x", kind="bidi", start=calls.add)


# A peer whose every byte is known, on a clock that moves only when nothing else can.


class RawPeer:
    """Speaks HTTP/2 by hand; :meth:`frames` returns what the server said since the last time."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self.raw = RawClient()
        self.decoder = hpack.Decoder()

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))
        await trio.testing.wait_all_tasks_blocked()

    def request(self, stream_id: int, value: int, **headers: str) -> bytes:
        return self.raw.request(stream_id, path="/t/add", **headers) + frame(
            DATA, END_STREAM, stream_id, grpc_message(MSGPACK.encode(Number(value)))
        )

    async def frames(self) -> list[tuple[int, int, int, bytes]]:
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.001):
            return parse_frames(await self.stream.receive_some(1 << 20))
        return []

    async def statuses(self) -> dict[int, str]:
        """Return the grpc-status of the calls that were ended since the last time."""
        found = {}
        for kind, _flags, stream_id, body in await self.frames():
            if kind == HEADERS:
                headers = dict(self.decoder.decode(body))
                if "grpc-status" in headers:
                    found[stream_id] = headers["grpc-status"]
        return found


@asynccontextmanager
async def raw_peer(calls: Calls, limits: Limits | None = None) -> AsyncGenerator[tuple[RawPeer, Server], None]:
    server = Server([calls.methods()], limits)

    async def run(task_status: trio.TaskStatus[Server]) -> None:
        await server.run([], task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        mine, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        peer = RawPeer(mine)
        await peer.send(peer.raw.hello())
        await peer.frames()
        yield peer, server
        nursery.cancel_scope.cancel()


def reset(stream_id: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, struct.pack(">L", 8))


async def test_a_reset_call_holds_its_slot_until_it_is_answered(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    async with raw_peer(calls, Limits(max_streams_per_connection=3)) as (peer, _server):
        for stream_id in (1, 3, 5):
            await peer.send(peer.request(stream_id, 1), reset(stream_id))
        assert all(call.gone and not call.answered for _, call in calls.kept)
        await peer.send(peer.request(7, 2))
        refused = [entry for entry in await peer.frames() if entry[2] == 7]
        assert refused == [(RST_STREAM, 0, 7, struct.pack(">L", 7))]
        calls.kept[0][1].reply(Number(0))
        calls.kept[1][1].fail(TopicNotFoundError("unheard"))
        assert await peer.frames() == []
        await peer.send(peer.request(9, 2), peer.request(11, 4))
        assert await peer.statuses() == {9: "0", 11: "0"}


async def test_a_reset_before_the_request_is_complete_frees_the_slot(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    async with raw_peer(calls, Limits(max_streams_per_connection=1)) as (peer, _server):
        await peer.send(peer.raw.request(1, path="/t/add"), reset(1))
        await peer.send(peer.raw.request(3, path="/t/add"), frame(DATA, 0, 3, b"\0\0\0"), reset(3))
        await peer.send(peer.raw.request(5, path="/t/add"), frame(DATA, 0, 5, grpc_message(b"\x91\x01")), reset(5))
        await peer.send(peer.request(7, 2))
        assert await peer.statuses() == {7: "0"}
        assert len(calls.seen) == 1


async def test_rapid_resets_end_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    async with raw_peer(calls, Limits(max_resets_per_minute=10)) as (peer, server):
        for number in range(11):
            await peer.send(peer.request(2 * number + 1, 1), reset(2 * number + 1))
        assert server.connections == 0
        assert len(calls.kept) == 11
        for _, call in calls.kept:
            assert call.gone
            call.reply(Number(0))


async def test_nothing_of_a_content_type_but_the_codec_is_repeated(autojump_clock: trio.testing.MockClock) -> None:
    """Parameters may be any text. Answers that repeated them could not be encoded by the answering component."""
    calls = Calls()
    headers = {"content_type": "application/grpc+msgpack; charset=\xe9"}
    async with raw_peer(calls) as (peer, server):
        for stream_id in (1, 3, 5, 7):  # the same block each time: its meaning is remembered
            await peer.send(peer.request(stream_id, 1, grpc_timeout="2S", **headers))
        for _, call in calls.kept[:2]:
            call.reply(Number(0))
        frames = [frame for frame in await peer.frames() if frame[0] == HEADERS]
        found = [dict(peer.decoder.decode(frame[3])) for frame in frames]
        assert [each["content-type"] for each in found if "content-type" in each] == ["application/grpc+msgpack"] * 2
        await trio.sleep(3.1)
        assert await peer.statuses() == {5: "4", 7: "4"}
        assert server.connections == 1


async def test_an_answer_that_cannot_be_sent_costs_its_connection_only(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    async with raw_peer(calls) as (peer, server):
        for stream_id in (1, 3):
            await peer.send(peer.request(stream_id, 1, grpc_timeout="2S"))
        (connection,) = server._connections

        def broken(*_args: object, **_options: object) -> None:
            raise RuntimeError("planted")

        monkeypatch.setattr(connection.protocol, "answer", broken)
        monkeypatch.setattr(connection.protocol, "send_trailers", broken)
        calls.kept[0][1].reply(Number(0))
        calls.kept[1][1].fail(TopicNotFoundError("unheard"))
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections == 0
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "an answer to /t/add could not be sent",
        "the end of /t/add could not be sent",
    ]


async def test_deadlines(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    async with raw_peer(calls, Limits(max_streams_per_connection=2)) as (peer, _server):
        await peer.send(peer.request(1, 1, grpc_timeout="2S"), peer.request(3, 1))
        assert await peer.statuses() == {}
        await trio.sleep(3.1)
        assert await peer.statuses() == {1: "4"}
        (_, late), (_, patient) = calls.kept
        assert late.gone
        assert not late.answered
        await peer.send(peer.request(5, 2))
        assert [entry[2] for entry in await peer.frames()] == [5]
        late.reply(Number(1))
        patient.reply(Number(1))
        assert await peer.statuses() == {3: "0"}
        await peer.send(peer.request(7, 2, grpc_timeout="0n"), peer.request(9, 2, grpc_timeout="never"))
        assert await peer.statuses() == {7: "4", 9: "3"}
        assert len(calls.seen) == 2


async def test_requests_with_no_or_two_messages(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    message = grpc_message(MSGPACK.encode(Number(2)))
    async with raw_peer(calls) as (peer, _server):
        await peer.send(peer.raw.request(1, END_STREAM, path="/t/add"))
        assert await peer.statuses() == {1: "3"}
        await peer.send(peer.raw.request(3, path="/t/add"), frame(DATA, END_STREAM, 3, message + message))
        assert await peer.statuses() == {3: "3"}
        await peer.send(peer.raw.request(5, path="/t/add"), frame(DATA, END_STREAM, 5, message[:-1]))
        assert (await peer.statuses())[5] != "0"
        assert not calls.seen
        # In pieces, and with the end of the stream on its own.
        await peer.send(peer.raw.request(7, path="/t/add"))
        for position in range(len(message)):
            await peer.send(frame(DATA, 0, 7, message[position : position + 1]))
        assert await peer.statuses() == {}
        await peer.send(frame(DATA, END_STREAM, 7))
        assert await peer.statuses() == {7: "0"}


class DeafStream(trio.abc.HalfCloseableStream):
    """The server's end of a connection whose peer sends what it likes and reads nothing."""

    def __init__(self, incoming: trio.abc.ReceiveStream) -> None:
        self.incoming = incoming

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self.incoming.receive_some(max_bytes))

    async def send_all(self, data: object) -> None:
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def send_eof(self) -> None: ...

    async def aclose(self) -> None:
        await self.incoming.aclose()


async def test_a_peer_that_never_reads_is_cut_off(autojump_clock: trio.testing.MockClock) -> None:
    calls = Calls()
    server = Server([calls.methods()], Limits(write_timeout_s=3.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, [])
        outgoing, incoming = trio.testing.memory_stream_one_way_pair()
        nursery.start_soon(server.serve_stream, DeafStream(incoming))
        peer = RawPeer(trio.StapledStream(outgoing, incoming))
        await peer.send(peer.raw.hello())
        await peer.send(*(peer.request(2 * number + 1, 2 - number % 2) for number in range(100)))
        assert len(calls.seen) == 100
        assert len(calls.kept) == 50
        await trio.sleep(2.0)
        assert server.connections == 1
        await trio.sleep(3.0)
        assert server.connections == 0
        for _, call in calls.kept:
            assert call.gone
            call.reply(Number(0))
        nursery.cancel_scope.cancel()


async def test_a_lost_connection_leaves_its_calls_to_the_code_that_answers_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    calls = Calls()
    async with raw_peer(calls) as (peer, server):
        await peer.send(peer.request(1, 1), peer.raw.request(3, path="/t/add"))
        await peer.stream.aclose()
        await until(lambda: server.connections == 0)
        call = calls.kept[0][1]
        assert call.gone
        call.reply(Number(3))
