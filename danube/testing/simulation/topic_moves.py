"""Moves topics between the brokers of a simulated cluster, while faults strike them.

In some turns an ambush waits for the move: the source, the target or the broker that leads the metadata is killed,
stands still, or is cut off from another one, between any two steps of one of the procedures that take part
(:data:`_PROCEDURES`).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from danube.cluster.ordering import order_move
from danube.cluster.records import broker_name
from danube.model.errors import DanubeError
from danube.model.ids import BrokerId
from danube.testing.simulation.ambushes import Ambush
from danube.testing.simulation.node import shown_error

if TYPE_CHECKING:
    from danube.testing.simulation.node import BrokerNode
    from danube.testing.simulation.world import World

__all__ = ["drain_brokers", "move_topics"]

_PROCEDURES: Final[dict[str, tuple[str, ...]]] = {
    "source": ("_Move.", "Following._leave"),
    "target": ("Arrivals.answer", "Arrivals._judge"),
    "order": ("order_move",),
}
"""What takes part in a move, by who does it; see :class:`Ambush`."""
_STEPS: Final = (5, 20, 60, 150)
"""A move of a topic with some messages takes some hundred steps at its source, and fewer at its target."""
_PATIENCE_S: Final = 6.0
"""How long an ambush lies in wait."""
_DRAINED_S: Final = (0.5, 3.0, 10.0)


class _Trap(NamedTuple):
    """What an ambush does to a move."""

    procedure: str
    steps: int
    victim: str
    """source, target or leader"""
    fate: str
    """kill, power-loss, pause, cut or one-way-cut"""
    lasts_s: float


def _draw_trap(random: Random) -> _Trap | None:
    """Draw an ambush for a move; for half of them none."""
    trap = _Trap(
        random.choice(("source", "source", "target", "order")),
        1 + random.randrange(random.choice(_STEPS)),
        random.choice(("source", "target", "leader")),
        random.choice(("kill", "power-loss", "pause", "cut", "one-way-cut")),
        random.choice((0.1, 1.0, 4.0, 8.0)),
    )
    return trap if random.random() < 0.5 else None


async def move_topics(world: World, every_s: float) -> None:
    """Task: order moves of random topics to random brokers, until cancelled.

    Args:
        world: with several brokers.
        every_s: mean pause between two of them.
    """
    random = world.random_of("moves")
    parts = [part for topic in world.plan.topics for part in topic.parts]
    async with trio.open_nursery() as nursery:
        while parts:
            await trio.sleep(random.expovariate(1 / every_s))
            part, asked, shift = random.choice(parts), random.choice(world.serving), random.randrange(1, 10)
            trap = _draw_trap(random)
            life = asked.life
            if life is None or life.over or not asked.ready.is_set():
                continue
            directory = life.broker.directory
            membership = directory.membership
            try:
                _, topic_id = directory.catalogue.locate(part)
                owner = membership.owner(topic_id)
                others = [each.broker for each in membership.candidates() if each.broker != owner]
                if owner is None or not others:
                    continue
                target = others[shift % len(others)]
                world.trace("move-topic", part, broker_name(owner), broker_name(target), *(trap or ()))
                if trap is not None:
                    nursery.start_soon(_lie_in_wait, world, trap, owner, target, nursery)
                await order_move(directory.catalogue.store, membership, topic_id, target, random=random)
            except DanubeError as error:
                world.trace("not-ordered", part, shown_error(error))


async def _lie_in_wait(world: World, trap: _Trap, owner: BrokerId, target: BrokerId, nursery: trio.Nursery) -> None:
    """Task: let an ambush wait for one move, for a while."""
    source, other = _node_of(world, owner), _node_of(world, target)
    machines = {"source": source, "target": other, "order": None}
    waits_for = machines[trap.procedure]
    if waits_for is None and trap.procedure != "order":
        return

    def strike(machine: str) -> None:
        nursery.start_soon(_strike, world, trap, source, other)

    ambush = Ambush(_PROCEDURES[trap.procedure], waits_for.name if waits_for is not None else "", trap.steps, strike)
    trio.lowlevel.add_instrument(ambush)
    try:
        with trio.move_on_after(_PATIENCE_S):
            await ambush.sprung.wait()
    finally:
        ambush.end()


async def _strike(world: World, trap: _Trap, source: BrokerNode | None, target: BrokerNode | None) -> None:
    victim = {"source": source, "target": target, "leader": world.leader()}[trap.victim]
    if victim is None or victim.life is None or victim.life.over:
        return
    world.trace.fault(f"ambushed-{trap.fate}", victim.name, *trap)
    if trap.fate in ("kill", "power-loss"):
        world.crash(victim, power_loss=trap.fate == "power-loss")
    elif trap.fate == "pause":
        victim.pause()
        await trio.sleep(trap.lasts_s)
        world.trace("resume", victim.name)
        victim.resume()
    else:
        await _cut_off(world, trap, victim, source, target)


async def _cut_off(
    world: World, trap: _Trap, victim: BrokerNode, source: BrokerNode | None, target: BrokerNode | None
) -> None:
    """Cut the link of the victim to one of the others that take part, in one direction or both."""
    others = [each for each in (source, target, world.leader()) if each is not None and each is not victim]
    if not others:
        return
    other, is_both = others[trap.steps % len(others)], trap.fate == "cut"
    network = world.network
    if is_both:
        network.set_cut(victim.name, other.name, cut=True)
    else:
        network.set_one_way_cut(victim.name, other.name, cut=True)
    await trio.sleep(trap.lasts_s)
    if is_both:
        network.set_cut(victim.name, other.name, cut=False)
    else:
        network.set_one_way_cut(victim.name, other.name, cut=False)


async def drain_brokers(world: World, every_s: float) -> None:
    """Task: have random brokers give their topics away, and make them active again, until cancelled.

    :meth:`World.activate` makes those active that are not in the end.

    Args:
        world: with several brokers.
        every_s: mean pause before each drain.
    """
    random = world.random_of("drains")
    while True:
        await trio.sleep(random.expovariate(1 / every_s))
        node, lasts_s = random.choice(world.serving), random.choice(_DRAINED_S)
        life = node.life
        if life is None or life.over or not node.ready.is_set():
            continue
        name = broker_name(life.broker.directory.membership.me)
        world.trace.fault("drain-broker", node.name, name)
        world.drained[name] = None
        try:
            async with world.operator() as client:
                await client.admin.drain_broker(name)
                await trio.sleep(lasts_s)
                await client.admin.activate_broker(name)
                world.drained.pop(name, None)
        except DanubeError as error:
            world.trace("not-drained", name, shown_error(error))


def _node_of(world: World, broker: BrokerId) -> BrokerNode | None:
    """Return the machine of a broker that is ready."""
    for node in world.serving:
        life = node.life
        if life is None or life.over or not node.ready.is_set():
            continue
        if life.broker.directory.membership.me == broker:
            return node
    return None
