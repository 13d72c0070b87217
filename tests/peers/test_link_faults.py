"""Links that break: hints of losses, reconnecting, and what is no hint. In virtual time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
from hellos import OTHER_SECRET
from msgspec import structs
from peer_nodes import World, simulate, until

from danube.model.errors import CallRefusedError, ConnectionLostError, DanubeError
from danube.peers import Lost
from danube.peers.frames import LINK
from danube.wire import Method


def test_a_killed_broker_is_reported_once_and_soon() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        began = trio.current_time()
        await other.kill()
        await until(lambda: bool(one.lost), 0.2)
        assert 0.05 <= trio.current_time() - began < 0.1
        await trio.sleep(10)
        assert one.lost == [Lost("b2:6650", other.own)]

        await other.restart()
        await until(lambda: one.peers.peer(other.address) == other.own, 0.5)
        assert one.lost[0].peer.life + 1 == other.own.life
        await trio.sleep(2)
        await other.kill()
        await until(lambda: len(one.lost) == 2, 0.2)
        assert one.lost[1].peer.life == 2

    simulate(work)


def test_a_port_that_accepts_for_a_moment_while_the_process_ends_hides_no_loss() -> None:
    """The kernel closes the connections of a killed process first, and its port last."""

    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        await other.kill()
        world.network.power_on(other.name)
        (port,) = world.network.listen(other.name, [other.address])
        await trio.sleep(0.02)
        port.close()  # resets what it has accepted
        await until(lambda: bool(one.lost), 0.2)

    simulate(work)


def test_all_listeners_hear_of_a_loss() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        heard: list[Lost] = []
        one.peers.on_lost(heard.append)
        await trio.sleep(2)
        await other.kill()
        await until(lambda: bool(heard))
        assert heard == one.lost

    simulate(work)


Fault = Callable[[World], Awaitable[None]]


async def cut(world: World) -> None:
    world.network.set_cut("b1", "b2", cut=True)


async def cut_there(world: World) -> None:
    world.network.set_one_way_cut("b1", "b2", cut=True)


async def cut_back(world: World) -> None:
    world.network.set_one_way_cut("b2", "b1", cut=True)


async def half_open(world: World) -> None:
    world.network.half_open("b1", "b2")
    world.network.set_cut("b1", "b2", cut=True)


@pytest.mark.parametrize("fault", [cut, cut_there, cut_back, half_open])
def test_an_unreachable_broker_is_noticed_by_silence_and_is_no_loss(fault: Fault) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        began = trio.current_time()
        await fault(world)
        await until(lambda: one.peers.peer(other.address) is None, 10)
        limits = world.limits
        assert limits.peer_keepalive_timeout_s <= trio.current_time() - began <= 2 * limits.peer_keepalive_timeout_s
        await trio.sleep(30)
        assert not one.lost
        assert not one.send(other, b"dropped")
        with pytest.raises(CallRefusedError, match="b2:6650"):
            await one.call(other)

    simulate(work)


def test_a_machine_without_power_is_no_loss_until_it_is_back() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        await other.kill(silently=True)
        await trio.sleep(20)
        assert one.peers.peer(other.address) is None
        assert not one.lost
        await other.restart()
        await until(lambda: one.peers.peer(other.address) == other.own, 0.5)
        assert not one.lost

    simulate(work)


@pytest.mark.parametrize("fault", [cut, cut_there, cut_back])
def test_a_mended_link_is_up_again_soon(fault: Fault) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await fault(world)
        await trio.sleep(20)
        assert one.peers.peer(other.address) is None
        world.network.set_cut("b1", "b2", cut=False)
        world.network.set_one_way_cut("b1", "b2", cut=False)
        world.network.set_one_way_cut("b2", "b1", cut=False)
        await until(lambda: one.peers.peer(other.address) is not None, 0.5)
        assert one.send(other, b"after")
        await until(lambda: other.heard == [("b1:6650", b"after")])

    simulate(work)


def test_a_reset_link_is_opened_again_at_once_and_is_no_loss() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        world.network.reset("b1", "b2")
        await trio.sleep(0.03)
        assert one.peers.peer(other.address) is not None
        assert other.server._next_connection_id == 3, "a second connection"
        await trio.sleep(10)
        assert not one.lost

    simulate(work)


def test_a_broker_that_listens_again_before_the_second_attempt_is_no_loss() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        await other.kill()
        await trio.sleep(0.02)
        await other.restart()
        await until(lambda: one.peers.peer(other.address) == other.own, 1)
        assert not one.lost

    simulate(work)


def test_a_broker_that_never_was_linked_is_no_loss() -> None:
    async def work(world: World) -> None:
        one = await world.node(1)
        one.peers.link("b2:6650")
        await trio.sleep(10)
        assert not one.lost

    simulate(work)


def test_a_broker_that_closes_its_links_and_listens_is_no_loss() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        other.peers._incoming.close_all("a test")
        await trio.sleep(2)
        assert one.peers.peer(other.address) is not None
        assert not one.lost

    simulate(work)


def test_unlinking_is_no_loss() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        one.peers.unlink(other.address)
        await until(lambda: not other.peers.incoming)
        await other.kill()
        await trio.sleep(2)
        assert not one.lost
        one.peers.unlink("b9:6650")

    simulate(work)


def test_a_hello_that_is_never_answered_is_given_up() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2)

        async def silent(_stream: object, _context: object) -> None:
            await trio.sleep_forever()

        other.server.methods[LINK] = Method(path=LINK, kind="bidi", handler=silent)
        began = trio.current_time()
        with pytest.raises(CallRefusedError, match="b2:6650 did not finish the hello within 5"):
            await one.call(other, timeout_s=100)
        assert 5 <= trio.current_time() - began < 5.1

    simulate(work)


def test_a_hello_that_ends_without_an_answer_is_tried_again() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2)
        honest = other.server.methods[LINK]

        async def end(_stream: object, _context: object) -> None:
            other.server.methods[LINK] = honest

        other.server.methods[LINK] = Method(path=LINK, kind="bidi", handler=end)
        with pytest.raises(CallRefusedError, match="b2:6650 closed the link during the hello"):
            await one.call(other)
        await one.linked(other, 0.2)

    simulate(work)


def test_a_link_that_ends_without_its_channels_is_opened_again() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        assert one.send(other, b"first")
        await until(lambda: bool(other.heard))
        (link,) = other.peers._incoming._links.values()
        (of_link, _of_channel) = list(link._scopes)
        of_link.cancel()
        await trio.sleep(1)
        assert one.peers.peer(other.address) is not None
        assert other.server._next_connection_id == 3, "a second connection"

    simulate(work)


def test_a_message_on_a_connection_that_has_just_ended_is_dropped() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        up = one.peers._links[other.address]._up
        assert up is not None
        up.channel.close()
        assert one.send(other, b"late") is False
        await one.linked(other)

    simulate(work)


def test_a_broken_link_fails_its_calls_and_later_ones_work() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()

        async def break_it(_peer: object, _payload: bytes) -> bytes:
            world.network.reset("b1", "b2")
            await trio.sleep_forever()
            return b""

        other.peers.on_call("break", break_it)
        with pytest.raises(ConnectionLostError):
            await one.call(other, b"", "break", 100)
        assert await one.call(other) == b"b1:6650 hi"

    simulate(work)


def test_the_links_of_earlier_lives_are_closed() -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        # The machine of b1 loses its power: b2 is not told, until the next life is there.
        await one.kill(silently=True)
        await trio.sleep(0.5)
        assert [peer.life for peer in other.peers.incoming] == [1]
        await one.restart()
        await one.linked(other)
        await until(lambda: [peer.life for peer in other.peers.incoming] == [2], 0.5)
        assert one.send(other, b"new life")
        await until(lambda: len(other.heard) == 1)

    simulate(work)


def test_an_earlier_life_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await one.kill()
        await one.restart()
        await one.linked(other)
        await one.kill()
        world.network.power_on("b1")
        one.own = type(one.own)(**{**{name: getattr(one.own, name) for name in one.own.__struct_fields__}, "life": 1})
        await one.start()
        one.peers.link(other.address)
        await trio.sleep(1)
        assert one.peers.peer(other.address) is None
        with pytest.raises(CallRefusedError, match="start number 1, but start number 2 was seen"):
            await one.call(other)

    simulate(work)
    assert caplog.text.count("refused a link from") == 1


# -- refused


def test_a_broker_with_another_secret_is_never_linked_and_both_logs_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1, secret=OTHER_SECRET), await world.node(2)
        one.peers.link(other.address)
        await trio.sleep(1)
        with pytest.raises(CallRefusedError, match="has another cluster secret than the broker at b2:6650"):
            await one.call(other)
        await trio.sleep(100)
        assert one.peers.peer(other.address) is None
        assert not other.peers.incoming
        assert not one.lost
        assert other.server.connections <= 1

    simulate(work)
    lines = [record.getMessage() for record in caplog.records if record.name == "danube.peers"]
    incoming = [line for line in lines if line.startswith("refused a link from ServerStream: ")]
    outgoing = [line for line in lines if line.startswith("refused the link to b2:6650: ")]
    # One attempt every 5 s, and one line every 10 s.
    assert 9 <= len(incoming) <= 11
    assert 9 <= len(outgoing) <= 11
    assert incoming[1].endswith("(2 since the last such line)")


def test_a_refused_broker_that_was_corrected_is_linked() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2, secret=OTHER_SECRET)
        one.peers.link(other.address)
        await trio.sleep(1)
        await other.kill()
        other.secret = one.secret
        await other.restart()
        await one.linked(other, world.limits.peer_refused_pause_s + 1)

    simulate(work)


def test_without_secrets_other_machines_are_not_even_tried() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1, secret=None), await world.node(2, secret=None)
        one.peers.link(other.address)
        await trio.sleep(10)
        with pytest.raises(CallRefusedError, match="opens links to its own machine only, and not to b2:6650"):
            await one.call(other)
        assert other.server.connections == 0

    simulate(work)


def test_a_port_without_links_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2)
        other.server.methods.clear()
        one.peers.link(other.address)
        await trio.sleep(1)
        with pytest.raises(CallRefusedError, match="b2:6650 takes no links: it was not started with --peers"):
            await one.call(other)

    simulate(work)


def test_a_broker_of_another_cluster_is_refused_by_either_side() -> None:
    async def work(world: World) -> None:
        one, other = await world.node(1), await world.node(2, cluster="bills")
        for source, target in ((one, other), (other, one)):
            source.peers.link(target.address)
            await trio.sleep(1)
            with pytest.raises(CallRefusedError, match=r"belongs to the cluster '(orders|bills)', and broker"):
                await source.call(target)

    simulate(work)


def test_the_log_tells_of_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        one, other = await world.pair()
        await trio.sleep(2)
        await other.kill()
        await trio.sleep(20)
        await other.restart()
        await one.linked(other)

    caplog.set_level(logging.INFO, "danube.peers")
    simulate(work)
    lines = [record.getMessage() for record in caplog.records if record.name == "danube.peers"]
    assert [line.partition(":")[0] for line in lines if "from" not in line] == [
        "linked to broker b2 at b2",
        "the link to b2",
        "no link to b2",
        "broker b2 at b2",
        "linked to broker b2 at b2",
    ]


def test_the_log_tells_of_each_reason_of_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """As when a broker that cannot be trusted listens a moment later than the first attempt to reach it."""

    async def work(world: World) -> None:
        _, other = await world.pair()
        await trio.sleep(2)
        await other.kill()
        await trio.sleep(20)
        await other.restart()
        other.server.methods.clear()
        await trio.sleep(20)

    caplog.set_level(logging.INFO, "danube.peers")
    simulate(work)
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("no link to b2")]
    assert said == [
        "no link to b2:6650, retrying: connection refused",
        "no link to b2:6650, retrying: the broker at b2:6650 takes no links: it was not started with --peers",
    ]


def test_links_that_are_opened_again_for_a_new_hello_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """As when a cluster is formed: every broker changes, and all links stay usable."""

    async def work(world: World) -> None:
        one, other = await world.node(1, incarnation=0), await world.node(2, incarnation=0)
        await one.linked(other)
        await trio.sleep(1)
        for node in (other, one):
            node.peers.identify(structs.replace(node.own, incarnation=78))
            await trio.sleep(1)
        await one.linked(other)
        assert [peer.incarnation for peer in other.peers.incoming] == [78]

    caplog.set_level(logging.INFO, "danube.peers")
    simulate(work)
    lines = [record.getMessage() for record in caplog.records if record.name == "danube.peers"]
    assert lines == ["linked to broker b2 at b2:6650"]


@pytest.mark.parametrize("seed", range(10))
def test_storms_end_with_links_and_order(seed: int) -> None:
    async def work(world: World) -> None:
        world.random.seed(seed)
        world.network.short_reads = 0.3
        world.network.random.seed(seed)
        one, other = await world.pair()
        number = 0
        faults: list[Fault] = [cut, cut_there, cut_back, half_open]
        for _ in range(8):
            choice = world.random.randrange(6)
            if choice < len(faults):
                await faults[choice](world)
            elif choice == 4:
                world.network.reset("b1", "b2")
            else:
                await other.kill(silently=world.random.random() < 0.5)
            for _ in range(world.random.randrange(40)):
                number += 1
                one.send(other, b"%d" % number)
                await trio.sleep(world.random.random() * 0.3)
            if choice == 5:
                await other.restart()
            world.network.set_cut("b1", "b2", cut=False)
            world.network.set_one_way_cut("b1", "b2", cut=False)
            world.network.set_one_way_cut("b2", "b1", cut=False)
            await trio.sleep(world.random.random())
        with trio.fail_after(20):
            while True:
                try:
                    assert await one.call(other, timeout_s=1) == b"b1:6650 hi"
                    break
                except DanubeError:
                    await trio.sleep(0.2)
        assert one.send(other, b"0")
        await until(lambda: bool(other.heard) and other.heard[-1][1] == b"0")
        heard = [int(payload) for _, payload in other.heard[:-1]]
        assert len(set(heard)) == len(heard), "no message twice"
        assert len(heard) > 10
        assert len(other.peers.incoming) <= 4

    simulate(work)
