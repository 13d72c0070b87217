"""Declares the broker of a machine that has lost its disks gone, and checks what becomes of its topics (C4).

An operator gives the order: in some worlds while other faults go on, and in all of them in calm weather, when
everything else was checked. Meanwhile an ambush kills the broker that carries it out, or the leader of the metadata,
between any two of its steps; the order is repeated. Then:

* C4. The offsets of a topic are dense, except for the gaps that are declared, and no message is in an open gap. What is
  published after it was forgotten is behind the gap, at offsets that are used once, also after a restart, and is not
  lost, whatever happens to the topic from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from danube.model import Durability
from danube.model.errors import DanubeError
from danube.testing.simulation.ambushes import Ambush
from danube.testing.simulation.node import shown_error
from danube.testing.simulation.workload import read_topic

if TYPE_CHECKING:
    from danube.model.api import DeclaredGap
    from danube.testing.simulation.workload import TopicPlan
    from danube.testing.simulation.world import World

__all__ = ["Forgetting", "holes"]

_STEPS: Final = (5, 20, 60)
"""To forget a broker with a few topics takes some dozens of steps."""
_PATIENCE_S: Final = 6.0
_EARLY_S: Final = 2.0
"""Mean pause until the order is given, if faults go on."""
_MESSAGES: Final = 3
"""Published to each topic at a time."""


def holes(offsets: Sequence[int], start: int, gaps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges from ``start`` to the last offset that have no message, without those that are declared.

    Args:
        offsets: of all messages, in order.
        start: the first offset that may be read.
        gaps: the declared ones, in order.
    """
    found, position = list[tuple[int, int]](), start
    for offset in offsets:
        while position < offset:
            behind = next((high for low, high in gaps if low <= position < high), position)
            if behind == position:
                found.append((position, min([offset, *(low for low, _ in gaps if low > position)])))
                behind = found[-1][1]
            position = behind
        position = max(position, offset + 1)
    return found


class Forgetting:
    """See the module.

    Args:
        world: one of whose machines was wiped, and is calm now.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        (self._broker,) = world.wiped.values()
        self._random = world.random_of("forgetting")
        self._parts = {
            part: topic._replace(name=part, partitions=0)
            for topic in world.plan.topics
            if topic.durability in (Durability.DISK, Durability.OS)
            for part in filter(world.history.is_gone, topic.parts)
        }
        self.is_ordered = False
        """Whether the order was given."""
        self._published: dict[str, dict[int, bytes]] = {part: {} for part in self._parts}

    async def forget_early(self) -> None:
        """Task: have the broker forgotten while faults go on; until that has succeeded, or cancelled."""
        world, random = self._world, self._random
        await trio.sleep(random.expovariate(1 / _EARLY_S))
        self.is_ordered = True
        for part in self._parts:
            world.history.forgotten(part)
        world.trace("forgetting", self._broker)
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._lie_in_wait, nursery)
                    async with world.operator() as client:
                        await client.admin.forget_broker(self._broker, accept_loss=True)
                    nursery.cancel_scope.cancel()
                break
            except* DanubeError as error:
                world.trace("not-forgotten", self._broker, shown_error(error))
            await trio.sleep(1)
        world.trace("forgotten-early", self._broker, *sorted(self._parts))

    async def forget(self) -> None:
        """Have the broker forgotten, publish to its topics, and check them."""
        world = self._world
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lie_in_wait, nursery)
            async with world.client("operator") as client:
                order = partial(client.admin.forget_broker, self._broker, accept_loss=True)
                await world.patiently(f"forgetting {self._broker}", order)
            nursery.cancel_scope.cancel()
        world.trace("forgotten", self._broker, *sorted(self._parts))
        await self._publish("forgotten")
        await self.check("forgotten")

    async def check(self, label: str) -> None:
        """Check the topics (C4)."""
        for part, topic in self._parts.items():
            async with self._world.client("auditor") as client:
                found = await self._world.patiently(f"audit {label} of {part}", partial(read_topic, client, topic))
                info = await self._world.patiently(f"describing {part}", partial(client.admin.describe_topic, part))
            messages, start = found[part]
            self._check(label, topic, {each.offset: each.payload for each in messages}, start, info.gaps)

    def _check(
        self, label: str, topic: TopicPlan, messages: dict[int, bytes], start: int, gaps: Sequence[DeclaredGap]
    ) -> None:
        world, part, published = self._world, topic.name, self._published[topic.name]
        world.trace("gaps", label, part, len(messages), *((gap.start, gap.end) for gap in gaps))
        if [(gap.broker, gap.open) for gap in gaps] != [(self._broker, True)]:
            world.history.violation(f"C4: {part}, which was lost with broker {self._broker}, has the gaps {gaps}")
        ranges = [(gap.start, gap.end) for gap in gaps]
        world.history.declared(part, ranges)
        for low, high in holes(list(messages), start, ranges):
            world.history.violation(f"C4: audit {label}: {part} has no messages in [{low}, {high}), which is no gap")
        for low, high in ranges:
            inside = [offset for offset in (*messages, *published) if low <= offset < high]
            if inside:
                world.history.violation(f"C4: audit {label}: {part} has messages {inside} in the gap [{low}, {high})")
        loses = topic.durability is Durability.OS and world.plan.last_end == "power-loss" and label != "forgotten"
        accepted = {} if loses else world.history.accepted_without_disk(part)
        for offset, payload in (published | accepted).items():
            may_be_gone = (topic.retention and offset < start) or (loses and offset not in messages)
            if messages.get(offset) != payload and not may_be_gone:
                world.history.violation(f"C4: audit {label}: {part} has another message @{offset} than {payload!r}")

    async def publish_again(self) -> None:
        """Publish after a restart of all brokers, and check again."""
        await self.check("sealed")
        await self._publish("restarted")
        await self.check("restarted")

    async def _publish(self, label: str) -> None:
        for part, published in self._published.items():
            async with self._world.client("auditor") as client:
                for number in range(_MESSAGES):
                    payload = f"{label}|{part}|{number}".encode()
                    offset = await self._world.patiently(
                        f"publishing to {part}", partial(self._world.send, client, f"{label}{number}", part, payload)
                    )
                    if offset in published and published[offset] != payload and not self._may_reuse(part):
                        self._world.history.violation(f"C4: {part} uses offset {offset} twice")
                    published[offset] = payload

    def _may_reuse(self, part: str) -> bool:
        """Whether a power loss may have taken the newest messages."""
        return self._parts[part].durability is Durability.OS and self._world.plan.last_end == "power-loss"

    async def _lie_in_wait(self, nursery: trio.Nursery) -> None:
        """Task: kill the broker that carries the order out, or the leader of the metadata, once."""
        world, random = self._world, self._random
        steps, is_leader = 1 + random.randrange(random.choice(_STEPS)), random.random() < 0.3

        async def kill(machine: str) -> None:
            await trio.lowlevel.checkpoint()
            named = next((node for node in world.serving if node.name == machine), None)
            victim = world.leader() if is_leader else named
            if victim is not None and victim.life is not None and not victim.life.over:
                world.trace.fault("forgetting-kill", victim.name, steps)
                world.crash(victim, power_loss=False)

        ambush = Ambush(("ForgetOperations.",), "", steps, lambda machine: nursery.start_soon(kill, machine))
        trio.lowlevel.add_instrument(ambush)
        try:
            with trio.move_on_after(_PATIENCE_S):
                await ambush.sprung.wait()
        finally:
            ambush.end()
