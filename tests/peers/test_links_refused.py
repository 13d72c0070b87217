"""What a broker refuses on its port from others than linked brokers, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hellos import SECRET, broker
from peer_nodes import Node, World, simulate

from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    LimitExceededError,
    PeerRefusedError,
    ProtocolError,
    UnimplementedError,
)
from danube.peers import Peer
from danube.peers._incoming import SHARE_OF_A_HOST
from danube.peers.frames import CHANNEL, CHANNEL_HEADER, LINK, LINK_HEADER, Ask, Cancel, Note, encode
from danube.peers.hello import NONCE_BYTES, Initiator, Lives
from danube.wire import Channel, ClientStream, connect_channel


@asynccontextmanager
async def connected(node: Node, host: str = "stranger") -> AsyncIterator[Channel]:
    """Connect to a broker's port as any program can."""
    async with connect_channel(
        node.name, 6650, connect=lambda: node.world.network.connect(host, node.name, 6650)
    ) as channel:
        yield channel


async def answer(stream: ClientStream) -> bytes:
    message = await stream.receive()
    assert message is not None
    return message.data


async def say_hello(channel: Channel, own: Peer | None = None) -> tuple[ClientStream, str]:
    """Open a link as a broker does; return its stream and token."""
    stream = channel.open_stream(LINK)
    own = own or broker(9, address="stranger:1", level=1, required=1)
    initiator = Initiator(own, SECRET, bytes(NONCE_BYTES), "b2:6650", Lives(9))
    stream.send_nowait(initiator.greet())
    stream.send_nowait(initiator.prove(await answer(stream)))
    return stream, initiator.finish(await answer(stream)).token


def open_channel(channel: Channel, token: str, name: str = "raft") -> ClientStream:
    return channel.open_stream(CHANNEL, metadata={LINK_HEADER: token, CHANNEL_HEADER: name})


async def end_of(stream: ClientStream, within_s: float = 1.0) -> DanubeError:
    """Return the error with which a call ends."""
    with trio.fail_after(within_s):
        try:
            while await stream.receive() is not None:
                pass
        except DanubeError as error:
            return error
    raise AssertionError("it ended with success")


def test_nothing_is_taken_before_a_hello(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            for token in ("", "0" * 64, "täuschung".encode().hex()):
                stream = open_channel(channel, token)
                stream.send_nowait(encode(Note(b"vote for me")))
                error = await end_of(stream)
                assert type(error) is CallRefusedError
                assert error.message == "there is no link on this connection; it begins with a hello"
        assert not node.heard

    simulate(work)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "danube.peers"]
    assert line.startswith("refused a link from ServerStream: there is no link on this connection")


def test_a_hello_in_progress_opens_nothing() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            stream = channel.open_stream(LINK)
            initiator = Initiator(broker(9), b"x" * 16, bytes(NONCE_BYTES), "b2:6650", Lives(9))
            stream.send_nowait(initiator.greet())
            initiator.prove(await answer(stream))
            assert type(await end_of(open_channel(channel, ""))) is CallRefusedError
        assert not node.heard

    simulate(work)


def test_a_token_is_valid_on_its_own_connection_only_and_no_other_token_is() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as linked, connected(node) as other:
            _, token = await say_hello(linked)
            for channel, presented in ((other, token), (linked, ""), (linked, token[:-1]), (linked, "0" * 64)):
                stream = open_channel(channel, presented)
                stream.send_nowait(encode(Note(b"vote for me")))
                assert type(await end_of(stream)) is CallRefusedError
            assert not node.heard
            stream = open_channel(linked, token)
            stream.send_nowait(encode(Note(b"vote for me")))
            await trio.sleep(0.1)
            assert [payload for _, payload in node.heard] == [b"vote for me"]

    simulate(work)


def test_channels_end_with_their_link() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            link, token = await say_hello(channel)
            stream = open_channel(channel, token)
            stream.send_nowait(encode(Note(b"before")))
            await trio.sleep(0.1)
            link.cancel()
            await end_of(stream)
            assert type(await end_of(open_channel(channel, token))) is CallRefusedError
        assert [payload for _, payload in node.heard] == [b"before"]

    simulate(work)


def test_a_connection_has_one_link() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            link, token = await say_hello(channel)
            error = await end_of(channel.open_stream(LINK))
            assert type(error) is PeerRefusedError
            assert "there is a link on this connection already" in error.message
            assert not link.over
            assert not open_channel(channel, token).over

    simulate(work)


def test_a_connection_has_one_hello_at_a_time() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            channel.open_stream(LINK)
            await trio.sleep(0.1)
            assert type(await end_of(channel.open_stream(LINK))) is PeerRefusedError

    simulate(work)


def test_a_hello_that_is_not_finished_is_refused_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            began = trio.current_time()
            error = await end_of(channel.open_stream(LINK), 10)
            assert type(error) is PeerRefusedError
            assert "the hello was not finished within 5 s (handshake_timeout_s)" in error.message
            assert 5 <= trio.current_time() - began < 5.1

    simulate(work)
    assert "refused a link from ServerStream: the hello was not finished" in caplog.text


def test_hellos_in_progress_are_limited_and_one_host_cannot_use_all() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with trio.open_nursery() as nursery:

            async def linger(host: str) -> None:
                async with connected(node, host) as channel:
                    channel.open_stream(LINK)
                    await trio.sleep_forever()

            share = world.limits.max_peer_hellos // SHARE_OF_A_HOST
            for _ in range(share + 3):
                nursery.start_soon(linger, "stranger")
            await trio.sleep(0.1)
            incoming: Any = node.peers._incoming
            assert len(incoming._hellos) == share
            async with connected(node) as channel:
                error = await end_of(channel.open_stream(LINK))
                assert type(error) is LimitExceededError
                assert "max_peer_hellos is 8, of which one host may use one in 4" in error.message
            # The hosts of simulated connections have one name; let the table say otherwise.
            incoming._hellos = dict.fromkeys(incoming._hellos, "other")
            async with connected(node) as channel:
                await say_hello(channel)
            incoming._hellos |= {-number: f"host{number}" for number in range(1, 7)}
            async with connected(node) as channel:
                assert type(await end_of(channel.open_stream(LINK))) is LimitExceededError
            nursery.cancel_scope.cancel()

    simulate(work, max_peer_hellos=8)


def test_hellos_end_with_their_connection() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        incoming: Any = node.peers._incoming
        async with connected(node) as channel:
            channel.open_stream(LINK)
            await trio.sleep(0.1)
            assert len(incoming._hellos) == 1
        await trio.sleep(0.1)
        assert not incoming._hellos
        assert not incoming._served

    simulate(work)


def test_too_long_a_hello_is_refused() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            stream = channel.open_stream(LINK)
            stream.send_nowait(bytes(5000))
            assert isinstance(await end_of(stream), DanubeError)

    simulate(work)


@pytest.mark.parametrize("number", [0, 1])
def test_garbage_is_refused(number: int) -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            stream = channel.open_stream(LINK)
            if number:
                initiator = Initiator(broker(9), SECRET, bytes(NONCE_BYTES), "b2:6650", Lives(9))
                stream.send_nowait(initiator.greet())
                await answer(stream)
            stream.send_nowait(b"\xc1garbage")
            error = await end_of(stream)
            assert type(error) is PeerRefusedError
            assert "sent an invalid hello" in error.message

    simulate(work)


def test_a_message_behind_the_hello_ends_the_link() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            stream, _ = await say_hello(channel)
            stream.send_nowait(b"more")
            assert "sent a message behind its hello" in (await end_of(stream)).message
        assert not node.peers.incoming

    simulate(work)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93", encode([7, b""]), encode([1, 2])])
def test_invalid_frames_end_their_channel_only(data: bytes) -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            link, token = await say_hello(channel)
            stream = open_channel(channel, token)
            stream.send_nowait(data)
            assert type(await end_of(stream)) is ProtocolError
            stream = open_channel(channel, token)
            stream.send_nowait(encode(Note(b"next")))
            await trio.sleep(0.1)
            assert [payload for _, payload in node.heard] == [b"next"]
            assert not link.over

    simulate(work)


def test_a_number_used_twice_ends_the_channel() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)

        async def hang(_peer: Peer, _payload: bytes) -> bytes:
            await trio.sleep_forever()
            return b""

        node.peers.on_call("hang", hang)
        async with connected(node) as channel:
            _, token = await say_hello(channel)
            stream = open_channel(channel, token, "hang")
            stream.send_nowait(encode(Cancel(5)))  # of a call that is over: ignored
            for _ in range(2):
                stream.send_nowait(encode(Ask(1, 10_000, b"")))
            assert "used the number of a call twice" in (await end_of(stream)).message

    simulate(work)


def test_channels_of_a_link_are_limited_and_named() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        async with connected(node) as channel:
            _, token = await say_hello(channel)
            assert type(await end_of(open_channel(channel, token, "none"))) is CallRefusedError  # it is starting
            node.peers.complete()
            assert type(await end_of(open_channel(channel, token, "none"))) is UnimplementedError
            streams = []
            for _ in range(3):
                streams.append(open_channel(channel, token))
                await trio.sleep(0.1)
            assert [stream.over for stream in streams] == [False, False, True]
            assert type(await end_of(streams[2])) is LimitExceededError
            streams[0].cancel()
            await trio.sleep(0.1)
            for over in (False, True):
                stream = open_channel(channel, token)
                await trio.sleep(0.1)
                assert stream.over is over

    simulate(work, max_peer_channels=2)


def test_calls_of_a_link_are_limited_at_the_receiver_too() -> None:
    async def work(world: World) -> None:
        node = await world.node(2)
        running: list[bytes] = []

        lasted: list[float] = []

        async def hang(_peer: Peer, payload: bytes) -> bytes:
            running.append(payload)
            began = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                lasted.append(trio.current_time() - began)
            return b""

        node.peers.on_call("hang", hang)
        async with connected(node) as channel:
            _, token = await say_hello(channel)
            stream = open_channel(channel, token, "hang")
            for number in range(10):
                stream.send_nowait(encode(Ask(number, 1000 if number < 3 else 100_000, b"%d" % number)))
            await trio.sleep(0.5)
            assert running == [b"0", b"1", b"2"]
            await trio.sleep(1)
            assert running == [b"0", b"1", b"2", b"3", b"4", b"5"], "the deadlines of the first have passed"
            assert lasted == pytest.approx([1.0] * 3, abs=1e-6)

    simulate(work, max_peer_calls=3)
