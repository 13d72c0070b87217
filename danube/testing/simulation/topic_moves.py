"""Moves topics between the brokers of a simulated cluster, while faults strike them.

Only topics of durability ``disk`` move: what may become of the others is judged by the machine that has them. In some
turns the source or the target of the move is killed some passes of the scheduler later, so between any two steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from danube.cluster.ordering import order_move
from danube.cluster.records import broker_name
from danube.model import Durability
from danube.model.errors import DanubeError
from danube.model.ids import BrokerId
from danube.testing.simulation.node import shown_error

if TYPE_CHECKING:
    from danube.testing.simulation.node import BrokerNode
    from danube.testing.simulation.world import World

__all__ = ["move_topics"]

_MOST_PASSES: Final = 400
"""A move takes some hundred passes of the scheduler."""


async def move_topics(world: World, every_s: float) -> None:
    """Task: order moves of random topics to random brokers, until cancelled.

    Args:
        world: with several brokers.
        every_s: mean pause between two of them.
    """
    random = world.random_of("moves")
    parts = [part for topic in world.plan.topics if topic.durability is Durability.DISK for part in topic.parts]
    while parts:
        await trio.sleep(random.expovariate(1 / every_s))
        part, asked, shift = random.choice(parts), random.choice(world.serving), random.randrange(1, 10)
        victim, passes = random.choice(("", "", "source", "target")), random.randrange(_MOST_PASSES)
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
            world.trace("move-topic", part, broker_name(owner), broker_name(target), victim, passes)
            await order_move(directory.catalogue.store, membership, topic_id, target, random=random)
        except DanubeError as error:
            world.trace("not-ordered", part, shown_error(error))
            continue
        node = _node_of(world, owner if victim == "source" else target)
        if victim and node is not None:
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            if node.life is not None and not node.life.over:
                world.trace.fault("kill", node.name, victim)
                world.crash(node, power_loss=random.random() < 0.5)


def _node_of(world: World, broker: BrokerId) -> BrokerNode | None:
    """Return the machine of a broker that is ready."""
    for node in world.serving:
        life = node.life
        if life is None or life.over or not node.ready.is_set():
            continue
        if life.broker.directory.membership.me == broker:
            return node
    return None
