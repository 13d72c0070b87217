"""Brokers of a list find each other: started in any order, unreachable at times, with crashes while they form."""

from __future__ import annotations

import logging
from random import Random

import msgspec
import pytest
import trio

from danube.cluster.forming import Founding, Join, Standing
from danube.cluster.gathering import REPORT_S, Gathering
from danube.model.errors import ConfigurationError, ConnectionLostError, DataDirectoryError

pytestmark = pytest.mark.virtual

PEERS = ("a:1", "b:1", "c:1")


class Network:
    """Calls between brokers by address; some do not arrive."""

    def __init__(self, random: Random, lost: float = 0.0) -> None:
        self.brokers: dict[str, Gathering] = {}
        self.random = random
        self.lost = lost
        self.garbage = False

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        assert channel == "forming"
        await trio.sleep(self.random.uniform(0, 0.01))
        if to not in self.brokers or self.random.random() < self.lost:
            raise ConnectionLostError(f"no connection to {to}")
        answer = b"\xc1" if self.garbage else await self.brokers[to].answer(payload)
        await trio.sleep(self.random.uniform(0, 0.01))
        if self.random.random() < self.lost:
            raise ConnectionLostError(f"no connection to {to}")
        return answer


class Node:
    """A broker with a data directory, which survives crashes."""

    def __init__(self, network: Network, address: str, peers: tuple[str, ...] = PEERS) -> None:
        self.network = network
        self.address = address
        self.peers = peers
        self.identity = f"id of {address}"
        self.stored: Founding | None = None
        self.decision: Founding | Join | None = None

    async def store(self, founding: Founding) -> None:
        await trio.sleep(0.005)
        self.stored = founding

    async def start(self) -> Founding | Join:
        standing = Standing(self.identity, "danube", self.peers)
        gathering = Gathering(self.network, self.address, standing)
        self.network.brokers[self.address] = gathering
        if self.stored is not None:
            gathering.become(self.stored, self.stored.incarnation)
            self.decision = self.stored
        else:
            self.decision = await gathering.decide(self.store)
        return self.decision

    def stop(self) -> None:
        self.network.brokers.pop(self.address, None)


async def form(network: Network, *nodes: Node) -> None:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.start)


async def test_three_brokers_form_one_cluster() -> None:
    network = Network(Random(1))
    nodes = [Node(network, address) for address in PEERS]
    await form(network, *nodes)
    assert isinstance(nodes[0].stored, Founding)
    assert {node.stored for node in nodes} == {nodes[0].stored}


async def test_a_broker_says_for_whom_it_waits(caplog: pytest.LogCaptureFixture) -> None:
    network = Network(Random(1))
    nodes = [Node(network, address) for address in PEERS]
    with caplog.at_level(logging.WARNING, "danube.cluster"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nodes[0].start)
            nursery.start_soon(nodes[1].start)
            await trio.sleep(2.5 * REPORT_S)
            assert nodes[0].decision is nodes[1].decision is None
            nursery.start_soon(nodes[2].start)
    waiting = [record.message for record in caplog.records]
    assert len(waiting) == 6
    assert waiting[-1].endswith("have not answered: c:1 (no connection to c:1)")
    assert nodes[0].stored == nodes[2].stored


async def test_a_machine_with_a_new_disk_joins() -> None:
    network = Network(Random(1))
    nodes = [Node(network, address) for address in PEERS]
    await form(network, *nodes)
    assert nodes[0].stored is not None
    nodes[2].stop()
    wiped = Node(network, "c:1")
    wiped.identity = "new"
    assert await wiped.start() == Join("a:1", nodes[0].stored.incarnation)


async def test_a_founding_that_cannot_be_stored_is_not_told() -> None:
    network = Network(Random(1))
    nodes = [Node(network, address) for address in ("a:1", "b:1", "c:1")]

    async def full(founding: Founding) -> None:
        raise DataDirectoryError("the disk is full")

    nodes[0].store = full  # type: ignore[method-assign]
    with pytest.raises(ExceptionGroup) as caught:
        await form(network, *nodes)
    assert caught.group_contains(DataDirectoryError)
    assert network.brokers["a:1"].standing.founding is None


async def test_lists_that_differ_are_refused() -> None:
    network = Network(Random(1))
    nodes = [Node(network, "a:1"), Node(network, "b:1", ("a:1", "b:1")), Node(network, "c:1")]
    with pytest.raises(ExceptionGroup) as caught:
        await form(network, *nodes)
    assert caught.group_contains(ConfigurationError, match="was started with other --peers")


async def test_an_answer_of_another_version_is_refused() -> None:
    network = Network(Random(1))
    network.garbage = True
    nodes = [Node(network, address) for address in PEERS]
    with pytest.raises(ExceptionGroup) as caught:
        await form(network, *nodes)
    assert caught.group_contains(ConfigurationError, match="install the same version of Danube on all brokers")


@pytest.mark.parametrize("seed", range(60))
async def test_brokers_that_crash_and_are_cut_off_form_one_cluster(seed: int) -> None:
    random = Random(seed)
    peers = tuple(f"h{number}:1" for number in range(random.randint(2, 5)))
    network = Network(random, lost=random.choice((0.0, 0.3, 0.7)))
    nodes = [Node(network, address, peers) for address in peers]

    async def live(node: Node) -> None:
        await trio.sleep(random.uniform(0, 5))
        while node.decision is None:
            with trio.move_on_after(random.choice((0.003, 0.01, 0.02, 1.0, 60.0))):
                await node.start()
                break
            node.stop()
            await trio.sleep(random.uniform(0, 2))

    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(live, node)
    assert {node.stored for node in nodes} == {nodes[0].stored}
    assert isinstance(nodes[0].stored, Founding)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(nodes[0].stored), type=Founding) == nodes[0].stored
