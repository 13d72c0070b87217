"""What goes wrong in a world while it storms: one fault after the other, each for a while, by the plan's weights."""

from __future__ import annotations

import errno
import math
from random import Random
from typing import TYPE_CHECKING

import trio

from danube.testing.history import History
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import BrokerNode
from danube.testing.simulation.trace import Trace

if TYPE_CHECKING:
    from danube.testing.simulation.plan import Plan

__all__ = ["Storm"]

_MOST_PASSES = 12
"""An ambush strikes up to so many passes of the scheduler after what it waits for."""


class Storm:
    """Breaks things, and mends them."""

    def __init__(
        self, plan: Plan, node: BrokerNode, network: Network, history: History, trace: Trace, random: Random
    ) -> None:
        self.disk_errors = 0
        """Syncs that were made to fail: the broker may end because of them."""
        self._plan = plan
        self._node = node
        self._network = network
        self._history = history
        self._trace = trace
        self._random = random
        self._hosts = [each.name for each in plan.producers] + [each.name for each in plan.consumers]

    async def rage(self) -> None:
        """Storm for the plan's duration, then repair everything."""
        plan, random = self._plan, self._random
        names, weights = list(plan.faults), list(plan.faults.values())
        with trio.move_on_after(plan.duration_s):
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(random.expovariate(1 / plan.fault_every_s))
                    (name,) = random.choices(names, weights)
                    nursery.start_soon(self._strike, name, nursery)
        self._repair()

    def _repair(self) -> None:
        node, network = self._node, self._network
        self._trace("calm")
        node.on_touch = lambda what: None
        node.disk.capacity = math.inf
        node.disk.sync_delay_s = 0.002
        node.set_storage_faults(down=False, unavailable=0.0, lose_answer=0.0, throttle=0.0, hang=0.0, latency_s=0.005)
        network.short_reads = 0.0
        for host in self._hosts:
            network.link(host, node.name).latency_s = 0.0005
            if network.link(host, node.name).cut:
                network.set_cut(host, node.name, cut=False)

    async def _strike(self, name: str, nursery: trio.Nursery) -> None:
        node, network, random = self._node, self._network, self._random
        if name in ("kill", "power-loss"):
            await self._crash(power_loss=name == "power-loss")
        elif name == "ambush":
            self._lie_in_ambush(nursery)
        elif name == "drain":
            node.drain()
        elif name in ("cut", "reset", "half-open"):
            await self._break_links(name)
        elif name == "slow-network":
            self._trace(name)
            network.short_reads = random.choice((0.0, 0.5))
            for host in self._hosts:
                network.link(host, node.name).latency_s = random.choice((0.0005, 0.02, 0.3))
        elif name == "slow-disk":
            self._trace(name)
            node.disk.sync_delay_s = random.choice((0.002, 0.05, 1.0))
        elif name == "full-disk":
            self._trace(name)
            node.disk.capacity = 0
            await trio.sleep(random.uniform(0.5, 8))
            node.disk.capacity = math.inf
        elif name == "sync-error":
            if node.life is not None:
                self._trace(name)
                self.disk_errors += 1
                node.disk.fail("sync", errno.EIO)
        elif name == "storage-trouble":
            self._trace(name)
            node.set_storage_faults(
                latency_s=random.choice((0.01, 0.5)),
                unavailable=random.choice((0.0, 0.3)),
                lose_answer=random.choice((0.0, 0.3)),
                throttle=random.choice((0.0, 0.3)),
                hang=random.choice((0.0, 0.1)),
            )
        elif name == "storage-down":
            self._trace(name)
            node.set_storage_faults(down=True)
            await trio.sleep(random.uniform(0.5, 15))
            node.set_storage_faults(down=False)

    async def _crash(self, *, power_loss: bool) -> None:
        # Not always between two events: also some passes into whatever the scheduler is at.
        for _ in range(self._random.randrange(_MOST_PASSES)):
            await trio.lowlevel.checkpoint()
        self._end_life(power_loss=power_loss)

    def _end_life(self, *, power_loss: bool) -> None:
        life = self._node.life
        if life is not None and not life.over:
            self._node.crash(power_loss=power_loss)
            if power_loss:
                self._history.power_loss()

    def _lie_in_ambush(self, nursery: trio.Nursery) -> None:
        """Crash the broker a few passes after its n-th next touch of the disk or a storage."""
        random = self._random
        target = random.choice(
            ("disk-write", "disk-written", "disk-rename", "disk-renamed", "storage-put", "storage-delete")
        )
        left = random.choice((1, 2, 5, 20)) if target.startswith("disk-wr") else random.choice((1, 2, 3))
        passes = random.randrange(_MOST_PASSES)
        power_loss = random.random() < 0.5
        self._trace("ambush", target, left, passes)

        def touched(what: str) -> None:
            nonlocal left
            if what == target:
                left -= 1
                if not left:
                    self._node.on_touch = lambda what: None
                    nursery.start_soon(spring)

        async def spring() -> None:
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            self._trace("sprung", target)
            self._end_life(power_loss=power_loss)

        self._node.on_touch = touched

    async def _break_links(self, name: str) -> None:
        node, network, random = self._node, self._network, self._random
        hosts = self._hosts if random.random() < 0.3 else [random.choice(self._hosts)]
        for host in hosts:
            if name == "reset":
                network.reset(host, node.name)
            elif name == "half-open":
                network.half_open(host, node.name)
            else:
                network.set_cut(host, node.name, cut=True)
        if name == "cut":
            await trio.sleep(random.choice((0.05, 1.0, 8.0, 25.0)))
            for host in hosts:
                network.set_cut(host, node.name, cut=False)
