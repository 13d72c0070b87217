"""Topics move in simulated clusters: that ambushes strike between any two steps, and what was ambushed before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
import trio

from danube.cluster.ordering import order_move
from danube.cluster.records import ASSIGNMENTS
from danube.metadata import MetadataStore, Put
from danube.model import Durability
from danube.model.errors import DanubeError, UnavailableError
from danube.model.ids import TopicId
from danube.model.limits import KIB
from danube.testing.simulation import World, draw_plan
from danube.testing.simulation._scheduler import MACHINE, run_seeded
from danube.testing.simulation.ambushes import Ambush
from danube.testing.simulation.node import BrokerNode
from danube.testing.simulation.plan import CLUSTER
from danube.testing.simulation.trace import Trace
from danube.testing.simulation.world import directory_of

pytestmark = pytest.mark.timeout(300)


class Procedure:
    """Takes ten steps, at some depth."""

    def __init__(self) -> None:
        self.done = 0

    async def run(self) -> None:
        for _ in range(5):
            await self.step()
            await self.step()

    async def step(self) -> None:
        self.done += 1
        await trio.lowlevel.checkpoint()


async def others() -> None:
    for _ in range(100):
        await trio.lowlevel.checkpoint()


def test_an_ambush_strikes_at_each_step_of_a_procedure_and_at_no_other() -> None:
    """The first step is the start of the task; there are ten more."""
    for machine, functions, expected in (
        ("", ("Procedure.",), list(range(11))),
        ("h1", ("Procedure.step", "another"), list(range(1, 11))),
        ("h2", ("Procedure.",), []),
        ("", ("Procedure.walk",), []),
    ):
        struck = []
        for steps in range(1, 14):

            async def main(
                machine: str = machine, functions: tuple[str, ...] = functions, steps: int = steps
            ) -> tuple[int, bool]:
                procedure, at = Procedure(), [-1]
                MACHINE.set("h1")
                ambush = Ambush(functions, machine, steps, lambda where: at.append(procedure.done))
                trio.lowlevel.add_instrument(ambush)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(procedure.run)
                    nursery.start_soon(others)
                ambush.end()
                ambush.end()
                return at[-1], ambush.sprung.is_set()

            done, is_sprung = run_seeded(main, 1)
            assert is_sprung == (done >= 0)
            if is_sprung:
                struck.append(done)
        assert struck == expected


# --- Directed worlds


TOPIC = "/default/moving"


class Moving:
    """A cluster of three brokers without faults; one topic is published to all the time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.acknowledged: dict[int, bytes] = {}
        self._publishing = trio.CancelScope()

    @property
    def topic_id(self) -> TopicId:
        return directory_of(self.world._ready()[0]).catalogue.locate(TOPIC)[1]

    async def create(self, durability: Durability, home: BrokerNode) -> None:
        """Create the topic, and have it on this machine."""
        async with self.world._client("admin", CLUSTER) as client:
            await client.admin.create_topic(TOPIC, durability=durability)
        await self.served()
        if self.owner() is not home:
            await self.move(home)

    async def publish(self) -> None:
        """Task: publish one message after the other, until :meth:`check`."""
        with self._publishing:
            async with self.world._client("p", CLUSTER) as client, client.producer(TOPIC, name="p") as producer:
                for number in count():
                    payload = b"%d" % number
                    receipt = await producer.send(payload)
                    self.acknowledged[receipt.offset] = payload
                    await trio.sleep(0.005)

    def owner(self) -> BrokerNode | None:
        """Return the machine that serves the topic, if just one does."""
        found = [
            node
            for node in self.world._ready()
            if TOPIC in {each.name for each in directory_of(node).topics() if not each.is_frozen}
        ]
        return found[0] if len(found) == 1 else None

    async def served(self) -> BrokerNode:
        """Wait until the topic is served, and no move is ordered."""
        with trio.move_on_after(60):
            while True:
                node = self.owner()
                orders = [dict(directory_of(each).membership.moves.values) for each in self.world._ready()]
                if node is not None and not any(orders) and len(orders) == 3:
                    return node
                await trio.sleep(0.05)
        raise AssertionError(f"{TOPIC} is not served by one broker, or a move of it is not over")

    async def order(self, target: BrokerNode) -> None:
        """Order a move, from the target."""
        directory = directory_of(target)
        membership = directory.membership
        store = directory.catalogue.store
        await order_move(store, membership, self.topic_id, membership.me, random=Random(7))

    async def move(self, target: BrokerNode) -> None:
        """Move the topic, and wait until that is over."""
        await self.order(target)
        await self.arrived(target)
        assert await self.served() is target

    async def arrived(self, target: BrokerNode) -> None:
        """Wait until a machine, and no other one, serves the topic."""
        with trio.fail_after(60):
            while self.owner() is not target:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.001)

    def other(self, *nodes: BrokerNode) -> BrokerNode:
        return next(node for node in self.world.serving if node not in nodes)

    async def restarted(self, node: BrokerNode, *, power_loss: bool = True) -> None:
        """Kill a broker, or cut its power, and wait until it is ready again."""
        self.world.crash(node, power_loss=power_loss)
        await trio.sleep(0.1)
        with trio.fail_after(60):
            await node.ready.wait()

    async def check(self) -> None:
        """Compare what is stored with what was acknowledged: everything once, at its offset, and nothing between."""
        self._publishing.cancel()
        async with self.world._client("auditor", CLUSTER) as client:
            end = max(self.acknowledged) + 1
            messages = []
            async with client.reader(TOPIC, start="earliest") as reader:
                with trio.move_on_after(60):
                    while len(messages) < end:
                        messages.append(await reader.receive())
        found = {message.offset: message.payload for message in messages}
        lost = {offset for offset, payload in self.acknowledged.items() if found.get(offset) != payload}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged messages are lost, from {min(lost)} on"
        stored = [int(message.payload) for message in messages]
        assert stored == list(range(end)), f"messages are stored twice, or not in their order: {stored}"


def simulate(work: Callable[[Moving, trio.Nursery], Awaitable[None]], **limits: Any) -> None:
    """Run ``work`` in a cluster whose brokers keep the metadata themselves, and share a bucket."""
    plan = next(
        plan
        for plan in (draw_plan(seed, kind="cluster") for seed in count())
        if plan.keeps_metadata and len(plan.configs) == 3 and "shared=true" in str(plan.configs["h1"].storage)
    )
    configs = {
        home: msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, **limits))
        for home, config in plan.configs.items()
    }
    plan = plan._replace(configs=configs, topics=[], restarts_s=(0.0,))

    async def main() -> None:
        world = World(plan, Trace())
        async with world.machines():
            await world._formed()
            with trio.fail_after(1_000):
                async with trio.open_nursery() as nursery:
                    await work(Moving(world), nursery)
        assert world.history.violations == []

    run_seeded(main, 1)


@pytest.mark.parametrize(
    ("late_s", "cut_s"),
    [
        (0.0, 0.0),
        (2.0, 0.0),
        pytest.param(0.3, 0.0, marks=pytest.mark.extended),
        pytest.param(0.3, 4.0, marks=pytest.mark.extended),
    ],
)
def test_a_switch_whose_answer_is_lost_may_still_be_on_its_way(late_s: float, cut_s: float) -> None:
    """The source withdraws the order before it decides: reading the assignment would not tell."""

    async def work(moving: Moving, nursery: trio.Nursery) -> None:
        source, target, bystander = moving.world.serving
        await moving.create(Durability.DISK, source)
        nursery.start_soon(moving.publish)
        await trio.sleep(0.5)
        store = directory_of(source).catalogue.store
        transact, switches = store.transact, 0

        async def arrive(conditions: Any, operations: Any) -> None:
            await trio.sleep(late_s)
            with suppress(DanubeError):
                await transact(conditions, operations)

        async def lose(conditions: Any, operations: Any) -> Any:
            nonlocal switches
            if not any(isinstance(each, Put) and each.key.startswith(ASSIGNMENTS) for each in operations):
                return await transact(conditions, operations)
            switches += 1
            nursery.start_soon(arrive, conditions, operations)
            await trio.sleep(0.2)
            if cut_s:
                for other in (target, bystander):
                    moving.world.network.set_cut(source.name, other.name, cut=True)
            raise UnavailableError("the answer was lost")

        store.transact = lose  # type: ignore[method-assign]
        await moving.order(target)
        await trio.sleep(cut_s or 0.5)
        for other in (target, bystander):
            moving.world.network.set_cut(source.name, other.name, cut=False)
        await trio.sleep(8.0)
        assert switches == 1
        owner = await moving.served()
        assert owner is (target if late_s < 0.2 else source) or (cut_s and owner is target)
        sent = len(moving.acknowledged)
        await trio.sleep(1.0)
        assert len(moving.acknowledged) > sent
        await moving.check()

    simulate(work)


@pytest.mark.parametrize(
    ("durability", "dies"),
    [
        (Durability.DISK, "before the tombstone"),
        (Durability.OS, "when it is back"),
        pytest.param(Durability.DISK, "after the tombstone", marks=pytest.mark.extended),
        pytest.param(Durability.OS, "always", marks=pytest.mark.extended),
    ],
)
def test_a_topic_that_returns_has_only_what_returned_with_it(durability: Durability, dies: str) -> None:
    """The journal of the first owner holds two tenures: the batches of the first one are void, whatever was synced."""

    async def work(moving: Moving, nursery: trio.Nursery) -> None:
        source, target, _ = moving.world.serving
        await moving.create(durability, source)
        nursery.start_soon(moving.publish)
        for _ in range(2):
            await trio.sleep(0.5)
            if dies in ("before the tombstone", "always"):
                source.disk.sync_delay_s = 1.0
            await moving.order(target)
            await moving.arrived(target)
            if dies in ("before the tombstone", "always"):
                await moving.restarted(source)
                source.disk.sync_delay_s = 0.002
            await moving.served()
            await trio.sleep(0.5)
            if dies in ("after the tombstone", "always"):
                await moving.restarted(source)
            await moving.served()
            await moving.move(source)
            if dies in ("when it is back", "always"):
                await moving.restarted(source, power_loss=durability is Durability.DISK)
                await moving.served()
        await trio.sleep(0.5)
        await moving.restarted(source, power_loss=False)
        await moving.restarted(target, power_loss=False)
        assert await moving.served() is source
        await moving.check()

    simulate(work)


@pytest.mark.parametrize("durability", [Durability.DISK, pytest.param(Durability.OS, marks=pytest.mark.extended)])
def test_a_target_that_loses_its_power_at_once_has_what_it_took(durability: Durability) -> None:
    """The owner changes only when the target has synced the copy, however slow its disk is."""

    async def work(moving: Moving, nursery: trio.Nursery) -> None:
        source, target, _ = moving.world.serving
        await moving.create(durability, source)
        nursery.start_soon(moving.publish)
        await trio.sleep(0.5)
        target.disk.sync_delay_s = 1.0
        await moving.order(target)
        await moving.arrived(target)
        await moving.restarted(target)
        target.disk.sync_delay_s = 0.002
        assert await moving.served() is target
        await moving.check()

    simulate(work)


def test_a_switch_that_arrives_from_a_source_that_is_cut_off() -> None:
    """The source stays frozen until it knows: its clients can reach it, and the new owner serves them, too."""

    async def work(moving: Moving, nursery: trio.Nursery) -> None:
        leader = moving.world.leader()
        assert leader is not None
        source = moving.other(leader)
        target = moving.other(leader, source)
        await moving.create(Durability.DISK, source)
        nursery.start_soon(moving.publish)
        await trio.sleep(0.5)
        store = directory_of(source).catalogue.store
        transact, switches = store.transact, 0

        async def lose(conditions: Any, operations: Any) -> Any:
            nonlocal switches
            if not any(isinstance(each, Put) and each.key.startswith(ASSIGNMENTS) for each in operations):
                return await transact(conditions, operations)
            switches += 1
            for other in (leader, target):
                moving.world.network.set_cut(source.name, other.name, cut=True)
            await store_of(leader).transact(conditions, operations)
            raise UnavailableError("the answer was lost")

        store.transact = lose  # type: ignore[method-assign]
        await moving.order(target)
        await trio.sleep(2.0)
        for other in (leader, target):
            moving.world.network.set_cut(source.name, other.name, cut=False)
        assert switches == 1
        assert await moving.served() is target
        await trio.sleep(1.0)
        await moving.check()

    simulate(work)


def test_what_was_acknowledged_before_a_move_is_not_delivered_behind_it() -> None:
    """The new owner begins with the cursors that the topic had, and with its producers."""

    async def work(moving: Moving, nursery: trio.Nursery) -> None:
        source, target, _ = moving.world.serving
        await moving.create(Durability.DISK, source)
        delivered: list[int] = []
        async with moving.world._client("c", CLUSTER) as client:
            async with client.consumer(TOPIC, subscription="s") as consumer:
                nursery.start_soon(moving.publish)
                with trio.move_on_after(1.0):
                    async for message in consumer:
                        await message.ack()
                        delivered.append(message.offset)
            assert len(delivered) > 20
            await moving.move(target)
            async with client.consumer(TOPIC, subscription="s") as consumer:
                with trio.move_on_after(1.0):
                    async for message in consumer:
                        await message.ack()
                        delivered.append(message.offset)
        again = len(delivered) - len(set(delivered))
        assert again <= 1, f"{again} acknowledged messages are delivered again"  # the last one was on its way
        await moving.check()

    simulate(work)


def test_segments_are_sealed_merged_and_deleted_while_their_topic_moves() -> None:
    """What the former owner enters too late becomes garbage; the topic keeps all of its own, also when it returns."""

    async def work(moving: Moving, nursery: trio.Nursery) -> None:
        source, target, other = moving.world.serving
        await moving.create(Durability.DISK, source)
        nursery.start_soon(moving.publish)
        keeping = [trio.CancelScope() for _ in moving.world.serving]
        for node, scope in zip(moving.world.serving, keeping, strict=True):
            nursery.start_soon(keep_house, node, scope)
        listed = set[str]()
        for owner in (target, source, other, source):
            await trio.sleep(1.5)
            listed |= {item.key for item in (await store_of(owner).list("/garbage"))[0]}
            await moving.move(owner)
        assert listed, "nothing was garbage, so this says nothing"
        await trio.sleep(0.5)
        for scope in keeping:
            scope.cancel()
        await moving.check()
        await trio.sleep(80.0)  # readers that have begun are given a minute
        with suppress(DanubeError):
            await directory_of(source).history.keep()
        garbage = {item.key for item in (await store_of(source).list("/garbage"))[0]}
        assert not garbage & listed
        await moving.check()

    simulate(work, segment_max_age_s=0.3, segment_merge_parts=2, segment_bytes=64 * KIB)


def store_of(node: BrokerNode) -> MetadataStore:
    return directory_of(node).catalogue.store


async def keep_house(node: BrokerNode, scope: trio.CancelScope) -> None:
    """Task: let a broker merge and collect garbage all the time, until cancelled."""
    with scope:
        while True:
            with suppress(DanubeError):
                await directory_of(node).history.keep()
            await trio.sleep(0.2)
