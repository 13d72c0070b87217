"""Links that work: messages, calls, their errors and limits, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
from hellos import broker
from peer_nodes import Node, World, simulate, until

from danube.model.errors import (
    CallRefusedError,
    ClosedError,
    ConfigurationError,
    ConnectionLostError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    LimitExceededError,
    MessageTooLargeError,
    PermissionDeniedError,
    TopicNotFoundError,
    UnavailableError,
    UnimplementedError,
)
from danube.model.limits import MIB
from danube.peers import Peer
from danube.peers.links import open_peers


def test_messages_arrive_in_order_with_their_sender() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        for number in range(50):
            assert one.send(other, str(number).encode())
        await until(lambda: len(other.heard) == 50)
        assert other.heard == [("b1:6650", str(number).encode()) for number in range(50)]
        assert one.peers.peer("b2:6650") == other.own
        assert other.peers.incoming == [one.own]
        assert other.peers.peer("b1:6650") is None, "a link has one direction"

    simulate(work)


def test_a_message_without_a_link_is_dropped_and_opens_it() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2)
        assert not one.send(other, b"lost")
        await until(lambda: one.peers.peer(other.address) is not None)
        assert one.send(other, b"kept")
        await until(lambda: bool(other.heard))
        assert other.heard == [("b1:6650", b"kept")]

    simulate(work)


def test_calls_are_answered_concurrently() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        order: list[bytes] = []

        async def wait(_peer: Peer, payload: bytes) -> bytes:
            await trio.sleep(float(payload))
            return payload

        async def call(payload: bytes) -> None:
            assert await one.call(other, payload, "wait") == payload
            order.append(payload)

        other.peers.on_call("wait", wait)
        async with trio.open_nursery() as nursery:
            for payload in (b"3", b"1", b"2"):
                nursery.start_soon(call, payload)
        assert order == [b"1", b"2", b"3"]
        assert await one.call(other, bytes(MIB)) == b"b1:6650 " + bytes(MIB)

    simulate(work)


def test_a_call_waits_for_the_first_attempt_and_then_fails_at_once() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2)
        assert await one.call(other) == b"b1:6650 hi"
        await other.kill()
        await until(lambda: one.peers.peer(other.address) is None)
        await trio.sleep(1)
        began = trio.current_time()
        with pytest.raises(CallRefusedError, match="there is no link to the broker at b2:6650: "):
            await one.call(other)
        assert trio.current_time() == began

    simulate(work)


def test_errors_of_handlers_are_raised_at_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()

        async def fail(_peer: Peer, payload: bytes) -> bytes:
            if payload == b"bug":
                raise ValueError("secret details")
            raise TopicNotFoundError("there is no topic x", {"topic": "x"})

        other.peers.on_call("fail", fail)
        with pytest.raises(TopicNotFoundError, match="there is no topic x") as caught:
            await one.call(other, b"", "fail")
        assert caught.value.details == {"topic": "x"}
        with pytest.raises(InternalError, match="ValueError; see its log"):
            await one.call(other, b"bug", "fail")
        for _ in range(2):
            with pytest.raises(CallRefusedError, match="broker b2 at b2:6650 is starting; try again"):
                await one.call(other, b"", "other")
        other.peers.complete()
        for _ in range(2):
            with pytest.raises(UnimplementedError, match="broker b2 at b2:6650 has no channel 'other'"):
                await one.call(other, b"", "other")
        with pytest.raises(UnimplementedError, match="answers no calls on the channel 'raft'"):
            await one.call(other, b"", "raft")
        assert await one.call(other) == b"b1:6650 hi"

    simulate(work)
    assert "the handler of the channel 'fail' failed" in caplog.text
    assert caplog.text.count("broker b2 at b2:6650 ended the channel 'other'") == 1


def test_a_failed_message_is_logged_and_the_next_one_is_handled(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        handled: list[bytes] = []

        async def fail(_peer: Peer, payload: bytes) -> None:
            handled.append(payload)
            if payload == b"bug":
                raise ValueError(payload)
            raise TopicNotFoundError("there is no topic x")

        other.peers.on_message("fail", fail)
        for payload in (b"bug", b"wrong", b"last"):
            assert one.send(other, payload, "fail")
        await until(lambda: handled == [b"bug", b"wrong", b"last"])

    simulate(work)
    assert "the handler of the channel 'fail' failed" in caplog.text
    assert "a message of broker b1 at b1:6650 on the channel 'fail' failed: there is no topic x" in caplog.text


@pytest.mark.parametrize("ending", ["deadline", "cancellation", "unlink", "kill"])
def test_the_end_of_a_call_cancels_its_handler(ending: str) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        ends: list[float] = []

        async def hang(_peer: Peer, _payload: bytes) -> bytes:
            try:
                await trio.sleep_forever()
            finally:
                ends.append(trio.current_time())
            return b""

        other.peers.on_call("hang", hang)
        began = trio.current_time()
        if ending == "deadline":
            with pytest.raises(DeadlineExceededError, match="b2:6650 did not answer a call on the channel 'hang'"):
                await one.call(other, b"", "hang", 2)
            assert trio.current_time() == began + 2
        elif ending == "cancellation":
            with trio.move_on_after(1):
                await one.call(other, b"", "hang", 100)
        else:
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def end() -> None:
                    await trio.sleep(1)
                    if ending == "unlink":
                        one.peers.unlink(other.address)
                    else:
                        await one.kill()

                with pytest.raises(ConnectionLostError):
                    await one.call(other, b"", "hang", 100)
        await until(lambda: bool(ends), 0.5)
        if ending in ("deadline", "cancellation"):
            assert await one.call(other) == b"b1:6650 hi"

    simulate(work)


def test_a_handler_ends_at_the_deadline_even_if_its_caller_cannot_be_heard() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        ends: list[float] = []

        async def hang(_peer: Peer, _payload: bytes) -> bytes:
            world.network.set_one_way_cut("b1", "b2", cut=True)
            try:
                await trio.sleep_forever()
            finally:
                ends.append(trio.current_time())
            return b""

        other.peers.on_call("hang", hang)
        await trio.sleep(5)
        began = trio.current_time()
        with pytest.raises(DeadlineExceededError):
            await one.call(other, b"", "hang", 1)
        await until(lambda: bool(ends), 0.1)
        assert ends[0] - began < 1.1

    simulate(work)


# -- limits


def test_a_channel_whose_handler_waits_delays_no_other_channel() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        release = trio.Event()
        handled: list[int] = []

        async def slow(_peer: Peer, payload: bytes) -> None:
            await release.wait()
            handled.append(len(payload))

        other.peers.on_message("slow", slow)
        sent = 0
        while one.send(other, bytes(512 * 1024), "slow"):
            sent += 1
            await trio.sleep(0.05)
        assert sent <= 2 * 8 + 2, "the queue and the window of 4 MiB each"
        for number in range(20):
            began = trio.current_time()
            assert one.send(other, str(number).encode())
            await until(lambda number=number: len(other.heard) == number + 1)  # type: ignore[misc]
            assert trio.current_time() - began < 0.05
        assert await one.call(other) == b"b1:6650 hi"
        assert not handled
        release.set()
        await until(lambda: len(handled) == sent)
        assert one.send(other, b"again", "slow")

    simulate(work)


def test_messages_can_be_passed_to_a_function_as_they_arrive(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        taken: list[tuple[str, bytes]] = []

        def take(peer: Peer, payload: bytes) -> None:
            if payload == b"refused":
                raise UnavailableError("not now")
            if payload == b"bug":
                raise ZeroDivisionError
            taken.append((peer.address, payload))

        async def count(_peer: Peer, payload: bytes) -> bytes:
            return b"%d" % len(taken)

        other.peers.divert("news", take)
        other.peers.on_call("news", count)
        payloads = [b"one", b"refused", b"bug", bytes(512 * 1024), b"two"]
        for payload in payloads:
            assert one.send(other, payload, "news")
        assert await one.call(other, b"", "news") == b"3"  # what was sent before a call is handled before it
        assert taken == [(one.address, payload) for payload in payloads if payload not in (b"refused", b"bug")]
        logged = [record for record in caplog.records if "'news'" in record.getMessage()]
        assert "not now" in logged[0].getMessage()
        assert [record.exc_info is not None for record in logged] == [False, True]
        for number in range(100):
            assert one.send(other, bytes(512 * 1024), "news"), number  # the window is given back
            await until(lambda number=number: len(taken) == 4 + number)  # type: ignore[misc]

    simulate(work)


@pytest.mark.parametrize(("size", "most"), [(10, 64), (MIB, 5)])
def test_the_queue_to_a_broker_that_does_not_read_is_bounded(size: int, most: int) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        assert one.send(other, b"the channel is open")
        await until(lambda: bool(other.heard))
        world.network.set_reading("b2", "b1", reads=False)
        for _ in range(40):  # fill the socket
            one.send(other, bytes(10_000))
            await trio.lowlevel.checkpoint()
        await trio.sleep(0.1)
        queue = one.peers._links[other.address]._up
        assert queue is not None
        outlet = queue.outlets["raft"]
        before = len(outlet._ends)
        sent = [one.send(other, bytes(size)) for _ in range(200)]
        assert 0 < before + sum(sent) <= most + before * (size > 10)
        assert sent == sorted(sent, reverse=True)
        assert queue.channel.protocol.waiting_bytes < world.limits.peer_queue_bytes + 2 * MIB

    simulate(work)


def test_a_call_that_waits_for_room_fails_with_its_link() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        assert await one.call(other) == b"b1:6650 hi"
        world.network.set_reading("b2", "b1", reads=False)
        ends: list[float] = []

        async def call() -> None:
            with pytest.raises(ConnectionLostError):
                await one.call(other, bytes(MIB), timeout_s=100)
            ends.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(call)
            await trio.sleep(0.5)
            assert not ends
            up = one.peers._links[other.address]._up
            assert up is not None
            assert len(up.outlets["echo"]._calls) < 5, "some wait for room"
            world.network.reset("b1", "b2")
            reset_at = trio.current_time()
        assert max(ends) - reset_at < 0.1

    simulate(work)


def test_calls_beyond_the_limit_wait() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        running = 0
        most = 0

        async def count(_peer: Peer, _payload: bytes) -> bytes:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await trio.sleep(1)
            running -= 1
            return b""

        other.peers.on_call("count", count)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(one.call, other, b"", "count")
        assert most == 2
        assert 3 <= trio.current_time() - began < 3.2

    simulate(work, max_peer_calls=2)


def test_messages_calls_and_answers_are_limited_by_name() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()

        async def large(_peer: Peer, payload: bytes) -> bytes:
            return payload if payload[:1] == b"=" else payload + b"x"

        other.peers.on_call("large", large)
        most = world.limits.max_peer_message_bytes
        with pytest.raises(MessageTooLargeError, match="max_peer_message_bytes = 100000"):
            one.send(other, bytes(most + 1))
        with pytest.raises(MessageTooLargeError, match="max_peer_message_bytes = 100000"):
            await one.call(other, bytes(most + 1))
        with pytest.raises(MessageTooLargeError, match="has 100001 bytes, and max_peer_message_bytes is 100000"):
            await one.call(other, bytes(most), "large")
        exactly = b"=" + bytes(most - 1)
        assert await one.call(other, exactly, "large") == exactly
        assert one.send(other, bytes(most))
        await until(lambda: len(other.heard) == 1)

    simulate(work, max_peer_message_bytes=100_000)


def test_a_message_larger_than_the_window_arrives() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        assert one.send(other, bytes(3 * MIB))
        assert one.send(other, b"next")
        await until(lambda: [len(payload) for _, payload in other.heard] == [3 * MIB, 4])
        assert len(await one.call(other, bytes(3 * MIB))) > 3 * MIB

    simulate(work, stream_window_bytes=100_000)


def test_the_numbers_of_links_and_channels_are_limited_by_name(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        third = await world.node(3)
        await third.linked(other)
        fourth = await world.node(4)
        fourth.peers.link(other.address)
        await trio.sleep(3)
        assert fourth.peers.peer(other.address) is None
        with pytest.raises(CallRefusedError, match="broker b2 at b2:6650 has links of 2 brokers, which is max_peers"):
            await fourth.call(other)
        one.peers.link(third.address)
        with pytest.raises(LimitExceededError, match="links to 2 brokers, which is max_peers"):
            one.peers.link("b5:6650")
        for _ in range(2):  # consensus sends without asking whether there is room for a link: it must not end
            assert one.peers.send("b5:6650", "raft", b"") is False
        assert [record.levelname for record in caplog.records if "b5:6650 are dropped" in record.message] == ["ERROR"]
        one.peers.unlink(third.address)
        one.peers.link("b5:6650")
        assert one.send(other, b"", "raft")
        assert await one.call(other) == b"b1:6650 hi"
        with pytest.raises(LimitExceededError, match="max_peer_channels is 2"):
            one.send(other, b"", "third")

    simulate(work, max_peers=2, max_peer_channels=2)


def test_invalid_names_of_channels_and_addresses_are_refused() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        for name in ("", "Raft", "a b", "x" * 41, "a/b"):
            with pytest.raises(InvalidArgumentError, match="choose another name"):
                one.send(other, b"", name)
            with pytest.raises(InvalidArgumentError, match="choose another name"):
                one.peers.on_message(name, one._hear)
        with pytest.raises(ConfigurationError, match="is not host:port"):
            one.peers.link("b2:port")

    simulate(work)


# -- members and strangers


def test_strangers_reach_only_the_channels_that_take_them_until_they_are_members() -> None:
    async def work(world: World) -> None:
        one = await world.node(1, incarnation=0, required=0, broker=0)
        other = await world.node(2)
        await one.linked(other)
        heard: list[Peer] = []

        async def form(peer: Peer, _payload: bytes) -> bytes:
            heard.append(peer)
            return b"joined"

        async def take(peer: Peer, _payload: bytes) -> None:
            heard.append(peer)

        other.peers.on_call("forming", form, strangers=True)
        other.peers.on_message("news", take, strangers=True)
        diverted: list[bytes] = []
        other.peers.divert("secret", lambda _peer, payload: diverted.append(payload))
        other.peers.divert("open", lambda _peer, payload: diverted.append(payload), strangers=True)
        assert one.send(other, b"dropped")
        assert one.send(other, b"dropped", "secret")
        assert one.send(other, b"open", "open")
        with pytest.raises(PermissionDeniedError, match="are not members of the same cluster yet"):
            await one.call(other)
        assert await one.call(other, b"", "forming") == b"joined"
        assert one.send(other, b"", "news")
        await until(lambda: len(heard) == 2)
        assert heard == [one.own] * 2
        assert not other.heard
        assert diverted == [b"open"]

        one.peers.identify(broker(1, incarnation=77, address=one.address, level=1, identity="identity-1", life=1))
        await until(lambda: one.peers.peer(other.address) is not None)
        assert one.send(other, b"taken")
        assert await one.call(other) == b"b1:6650 hi"
        await until(lambda: other.heard == [("b1:6650", b"taken")])
        assert [peer.incarnation for peer in other.peers.incoming] == [77]
        assert not one.lost

    simulate(work)


def test_a_broker_without_a_cluster_takes_no_orders_from_members() -> None:
    async def work(world: World) -> None:
        one = await world.node(1)
        other = await world.node(2, incarnation=0, required=0, broker=0)
        await one.linked(other)
        assert one.send(other, b"dropped")
        with pytest.raises(PermissionDeniedError):
            await one.call(other)
        assert not other.heard

    simulate(work)


def test_two_strangers_are_not_members_of_one_cluster() -> None:
    async def work(world: World) -> None:
        one, other = [await world.node(each, incarnation=0, required=0, broker=0) for each in (1, 2)]
        await one.linked(other)
        with pytest.raises(PermissionDeniedError):
            await one.call(other)

    simulate(work)


def test_a_broker_that_joins_another_cluster_loses_the_links_of_the_former_one() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        other.peers.identify(broker(2, incarnation=78, address=other.address, level=1, identity="identity-2", life=1))
        await until(lambda: one.peers.peer(other.address) is None)
        await trio.sleep(3)
        assert one.peers.peer(other.address) is None
        assert not other.peers.incoming
        assert not one.lost, "a link that was closed is not a dead broker"

    simulate(work)


# -- the end


def test_the_end_of_the_block_ends_handlers_links_and_calls() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        cancelled: list[str] = []

        async def hang(_peer: Peer, payload: bytes) -> bytes:
            try:
                await trio.sleep_forever()
            finally:
                cancelled.append(payload.decode())
            return b""

        async def hear(peer: Peer, payload: bytes) -> None:
            await hang(peer, payload)

        other.peers.on_call("hang", hang)
        other.peers.on_message("hear", hear)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with pytest.raises(ConnectionLostError):
                    await one.call(other, b"call", "hang", 100)

            one.send(other, b"message", "hear")
            await trio.sleep(0.1)
            await other.peers.aclose()
            assert sorted(cancelled) == ["call", "message"]
        assert not other.peers.incoming
        await trio.sleep(2)
        assert one.peers.peer(other.address) is None, "a closed broker takes no further links"
        with pytest.raises(CallRefusedError, match="takes no links any more"):
            await one.call(other)
        with pytest.raises(ClosedError):
            other.peers.link("b9:6650")
        assert not other.send(one, b"")

    simulate(work)


def test_a_handler_that_shields_itself_delays_the_end_by_a_second_at_most() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        release = trio.Event()

        async def stubborn(_peer: Peer, _payload: bytes) -> None:
            with trio.CancelScope(shield=True):
                await release.wait()

        other.peers.on_message("stubborn", stubborn)
        assert one.send(other, b"", "stubborn")
        await trio.sleep(0.1)
        began = trio.current_time()
        await other.peers.aclose()
        assert trio.current_time() - began == 1.0
        release.set()

    simulate(work)


def test_errors_pass_the_block_unchanged() -> None:
    async def work(world: World) -> None:
        with pytest.raises(TopicNotFoundError):  # noqa: PT012 - it is the block that is tested
            async with open_peers(broker(1), None) as peers:
                peers.link("127.0.0.1:1")
                raise TopicNotFoundError("x")

    simulate(work)


def test_calls_in_flight_fail_when_the_own_block_ends() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        third: Node = Node(world, 3)  # never started: the link to it is never up
        world.network.set_cut("b1", "b3", cut=True)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def call() -> None:
                with pytest.raises(CallRefusedError, match="the link to b3:6650 was closed"):
                    await one.call(third, timeout_s=100)

            await trio.sleep(0.1)
            await one.peers.aclose()
        assert other.heard == []

    simulate(work)
