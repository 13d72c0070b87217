"""Injects faults into a world: one after the other, each for a while, by the plan's weights."""

from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING

import trio

from danube.history.packing import segment_prefix
from danube.log._files import parse_journal_name
from danube.log.format import FILE_HEADER_SIZE, Block, parse_blocks, parse_entries
from danube.model.ids import NO_TOPIC
from danube.testing.simulation.node import BrokerNode

if TYPE_CHECKING:
    from danube.testing.simulation.world import World

__all__ = ["CLUSTER_FAULTS", "FAULTS", "GROUP_FAULTS", "JOINS", "SLOW_FAULTS", "WIPES", "Storm"]

_MOST_PASSES = 12
"""An ambush strikes up to this many passes of the scheduler after its trigger."""

FAULTS = {
    "kill": 2.0,
    "power-loss": 2.0,
    "ambush": 4.0,
    "drain": 1.0,
    "pause": 1.0,
    "pause-client": 0.5,
    "cut": 2.0,
    "reset": 1.5,
    "half-open": 1.0,
    "slow-network": 1.0,
    "slow-disk": 1.0,
    "full-disk": 0.5,
    "sync-error": 0.7,
    "clock-jump": 1.0,
    "metadata-trouble": 1.0,
    "storage-trouble": 2.0,
    "storage-down": 1.0,
}
"""Faults and their weights. ``move`` and ``flip`` only occur in worlds made for them."""

SLOW_FAULTS = {"slow-reads": 1.0, "unsynced-repeats": 1.5}
"""The same, in some worlds: faults that need a slow disk, so that operations overlap with others."""


CLUSTER_FAULTS = {"split": 1.5, "one-way-cut": 1.5, "pause-leader": 1.0, "pause-owner": 1.0, "kill-leader": 1.0}
"""Faults of worlds whose brokers form a cluster."""
GROUP_FAULTS = {"raft-slow-disk": 1.0, "raft-sync-error": 0.3}
"""The same, if they keep their metadata themselves."""
WIPES = {"wipe": 1.5}
"""In some of these worlds, once: a machine loses its disks, and comes back as another broker."""
JOINS = {"join": 2.0}
"""In some worlds whose brokers form a cluster, once: a further broker joins it."""


class Storm:
    """Injects and repairs faults; each strikes one of the serving machines, drawn at random."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plan = world.plan
        self._network = world.network
        self._trace = world.trace
        self._random = world.random_of("storm")
        self._other_random = world.random_of("other storms")
        """For faults added later: the draws from the first source stay as they were."""
        plan = world.plan
        self._hosts = [each.name for each in plan.producers] + [each.name for each in plan.consumers]
        self._hosts += [each.name for each in plan.upstream] + [each.name for each in plan.schema_users]
        self._nursery: trio.Nursery

    async def rage(self) -> None:
        """Inject faults for the plan's duration, then repair everything."""
        plan, random = self._plan, self._random
        names, weights = list(plan.faults), list(plan.faults.values())
        with trio.move_on_after(plan.duration_s):
            async with trio.open_nursery() as self._nursery:
                if plan.losses:
                    self._nursery.start_soon(self._lose)
                while True:
                    await trio.sleep(random.expovariate(1 / plan.fault_every_s))
                    (name,) = random.choices(names, weights)
                    self._nursery.start_soon(self._strike, name, random.choice(self._world.serving))
        self._repair()

    def _repair(self) -> None:
        network = self._network
        self._trace("calm")
        for host in self._hosts:
            self._world.pauses.resume(host)
        for node in self._world.nodes:
            node.resume()
            node.on_touch = lambda what: None
            node.clock_error_us = 0
            node.disk.capacity = math.inf
            node.disk.no_descriptors = False
            node.disk.sync_delay_s = 0.002
            node.disk.read_delay_s = 0.0002
            node.set_metadata_faults(latency_s=0.0, refuse=0.0, lose_answer=0.0)
            node.set_storage_faults(
                down=False, unavailable=0.0, lose_answer=0.0, throttle=0.0, hang=0.0, latency_s=0.005
            )
            if node.raft is not None:
                node.raft.disk.sync_delay_s = 0.002
            for host in [*self._hosts, *self._neighbours(node)]:
                network.link(host, node.name).latency_s = 0.0005
                network.mend(host, node.name)
            if node not in self._world.serving:
                node.crash(power_loss=False)  # a former owner that does not know it yet: turn it off
        network.short_reads = 0.0

    async def _strike(self, name: str, node: BrokerNode) -> None:
        random, trace = self._random, self._trace
        match name:
            case "kill" | "power-loss":
                await self._crash(node, power_loss=name == "power-loss")
            case "ambush":
                self._lie_in_ambush(node)
            case "drain":
                trace.fault(name, node.name)
                node.drain()
            case "pause":
                trace.fault(name, node.name)
                node.pause()
                await trio.sleep(random.choice((0.1, 2.0, 8.0, 20.0)))
                trace("resume", node.name)
                node.resume()
            case "pause-client":
                host = random.choice(self._hosts)
                trace.fault(name, host)
                self._world.pauses.pause(host)
                await trio.sleep(random.choice((0.1, 2.0, 8.0)))
                trace("resume", host)
                self._world.pauses.resume(host)
            case "cut" | "reset" | "half-open":
                await self._break_links(name, node)
            case "slow-network":
                trace.fault(name, node.name)
                self._network.short_reads = random.choice((0.0, 0.5))
                for host in [*self._hosts, *self._neighbours(node)]:
                    self._network.link(host, node.name).latency_s = random.choice((0.0005, 0.02, 0.3))
            case "slow-disk":
                trace.fault(name, node.name)
                node.disk.sync_delay_s = random.choice((0.002, 0.05, 1.0, 5.0))
            case "slow-reads":
                trace.fault(name, node.name)
                node.disk.read_delay_s = random.choice((0.02, 0.2, 1.0))
                await trio.sleep(random.uniform(1, 10))
                node.disk.read_delay_s = 0.0002
            case "unsynced-repeats":
                await self._repeat_what_is_not_synced(node)
            case "full-disk":
                trace.fault(name, node.name)
                node.disk.capacity = 0
                await trio.sleep(random.uniform(0.5, 8))
                node.disk.capacity = math.inf
            case "sync-error":
                if node.life is not None:
                    trace.fault(name, node.name)
                    node.disk_errors += 1
                    node.disk.fail("sync", errno.EIO)
            case "clock-jump":
                seconds = random.choice((-3600, -5, -1, 1, 5, 3600, 86400))
                trace.fault(name, node.name, seconds)
                node.clock_error_us += seconds * 1_000_000
            case "metadata-trouble":
                trace.fault(name, node.name)
                node.set_metadata_faults(
                    latency_s=random.choice((0.0, 0.1, 1.0)),
                    refuse=random.choice((0.0, 0.3)),
                    lose_answer=random.choice((0.0, 0.3)),
                )
                await trio.sleep(random.uniform(0.5, 10))
                node.set_metadata_faults(latency_s=0.0, refuse=0.0, lose_answer=0.0)
            case "storage-trouble":
                trace.fault(name, node.name)
                node.set_storage_faults(
                    latency_s=random.choice((0.01, 0.5)),
                    unavailable=random.choice((0.0, 0.3)),
                    lose_answer=random.choice((0.0, 0.3)),
                    throttle=random.choice((0.0, 0.3)),
                    hang=random.choice((0.0, 0.1)),
                )
            case "storage-down":
                trace.fault(name, node.name)
                node.set_storage_faults(down=True)
                await trio.sleep(random.uniform(0.5, 15))
                node.set_storage_faults(down=False)
            case "flip":
                self._flip(node)
            case "flip-object":
                self._flip_object(node)
            case "move":
                await self._move(node)
            case "split":
                await self._split()
            case "one-way-cut":
                await self._cut_one_way(node)
            case "pause-leader" | "pause-owner":
                await self._pause(name, self._world.leader() if name == "pause-leader" else self._world.busiest())
            case "kill-leader":
                await self._crash(self._world.leader() or node, power_loss=random.random() < 0.5)
            case "raft-slow-disk" if node.raft is not None:
                trace.fault(name, node.name)
                node.raft.disk.sync_delay_s = random.choice((0.05, 0.5, 2.0))
                await trio.sleep(random.uniform(0.5, 8))
                node.raft.disk.sync_delay_s = 0.002
            case "raft-sync-error" if node.raft is not None:
                if node.life is not None:
                    trace.fault(name, node.name)
                    node.disk_errors += 1
                    node.raft.disk.fail("sync", errno.EIO)
            case "wipe":
                self._world.wipe(node)
            case "join":
                self._world.join()
            case _:
                raise AssertionError(name)

    # --- Losses and shortages

    async def _lose(self) -> None:
        """Now and then restore older metadata, remove the journal's file, or use up file descriptors."""
        random = self._world.random_of("losses")
        while True:
            node = random.choice(self._world.serving)
            older = random.choice((None, node.copy_metadata()))
            await trio.sleep(random.expovariate(1 / 8))
            match random.choice(("metadata", "metadata", "journal", "descriptors")):
                case _ if node.retired or node.lost:
                    pass
                case "metadata":
                    node.lose_metadata(older)
                case "journal":
                    node.lose_journal()
                case "descriptors":
                    self._trace.fault("descriptors", node.name)
                    node.disk.no_descriptors = True
                    await trio.sleep(random.uniform(0.5, 8))
                    node.disk.no_descriptors = False

    # --- Machines

    async def _crash(self, node: BrokerNode, *, power_loss: bool) -> None:
        # Not always between two events: also some passes into whatever the scheduler is at.
        for _ in range(self._random.randrange(_MOST_PASSES)):
            await trio.lowlevel.checkpoint()
        self._end_life(node, power_loss=power_loss)

    async def _repeat_what_is_not_synced(self, node: BrokerNode) -> None:
        """Make producers repeat batches on other connections that the disk is still syncing, and cut the power."""
        random = self._random
        self._trace.fault("unsynced-repeats", node.name)
        node.disk.sync_delay_s = random.choice((4.0, 10.0))
        await trio.sleep(random.uniform(0.2, 1.0))
        for host in self._hosts:
            self._network.reset(host, node.name)
        await trio.sleep(random.uniform(0.2, 2.0))
        if random.random() < 0.8:
            self._end_life(node, power_loss=True)
        node.disk.sync_delay_s = 0.002

    def _end_life(self, node: BrokerNode, *, power_loss: bool) -> None:
        life = node.life
        if life is not None and not life.over:
            self._trace.faults["power-loss" if power_loss else "kill"] += 1
            self._world.crash(node, power_loss=power_loss)

    def _lie_in_ambush(self, node: BrokerNode) -> None:
        """Crash the broker a few passes after its n-th next touch of the disk or a storage."""
        random = self._random
        target = random.choice(
            ("disk-write", "disk-written", "disk-rename", "disk-renamed", "storage-put", "storage-delete")
        )
        if node.raft is not None and self._other_random.random() < 0.3:
            target = self._other_random.choice(("raft-write", "raft-written", "raft-rename", "raft-renamed"))
        left = random.choice((1, 2, 5, 20)) if target[5:].startswith("wr") else random.choice((1, 2, 3))
        passes = random.randrange(_MOST_PASSES)
        power_loss = random.random() < 0.5
        self._trace.fault("ambush", node.name, target, left, passes)
        nursery = self._nursery

        def touched(what: str) -> None:
            nonlocal left
            if what == target:
                left -= 1
                if not left:
                    node.on_touch = lambda what: None
                    nursery.start_soon(spring)

        async def spring() -> None:
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            self._trace("sprung", target)
            self._end_life(node, power_loss=power_loss)

        node.on_touch = touched

    async def _move(self, former: BrokerNode) -> None:
        """Let a new machine take over the bucket, while the former owner is dead, alive or paused."""
        world, random = self._world, self._random
        if former not in world.serving or len(world.nodes) >= self._plan.most_moves:
            return
        fate = random.choice(("dead", "alive", "stands-still", "cut-off"))
        self._trace.fault("move", former.name, fate)
        if fate == "dead":
            world.crash(former, power_loss=True)
        elif fate == "stands-still":
            former.pause()
        elif fate == "cut-off":
            former.set_storage_faults(down=True)
        heir = world.replace(former)
        if fate == "alive" and (latency_s := self._other_random.choice((0.0, 0.1, 0.5, 1.0))):
            # While it looks at one object after the other, the former owner seals, merges and cleans.
            self._trace("slow-heir", heir.name, latency_s)
            heir.set_storage_faults(latency_s=latency_s)
            with trio.move_on_after(20.0):
                await heir.ready.wait()
            heir.set_storage_faults(latency_s=0.005)
        await trio.sleep(random.choice((1.0, 5.0, 15.0)))
        if fate == "stands-still":
            self._trace("resume", former.name)
            former.resume()
        elif fate == "cut-off":
            former.set_storage_faults(down=False)

    # --- Damage

    def _flip(self, node: BrokerNode) -> None:
        """Flip a bit of the journal that was synced long ago: only affected topics may be concerned, with an error.

        The last blocks could have been torn by a crash; later blocks prove that these were whole.
        """
        if not node.ready.is_set() or node.life is None or node.life.over:
            return
        random, disk = self._random, node.disk
        found: list[tuple[str, Block, bytes]] = []
        for name in disk.names():
            file_id = parse_journal_name(name)
            if file_id is not None:
                data = disk.held(name)
                blocks = parse_blocks(data, file_id, FILE_HEADER_SIZE)
                found += [(name, block, data) for block in blocks if isinstance(block, Block)]
        watermark = max((block.watermark for _, block, _ in found), default=0)
        old = [each for each in found if each[1].sequence <= watermark and each[1].entry_count]
        if not old:
            return
        name, block, data = random.choice(old)
        entries = list(parse_entries(data, block))
        position = block.position + random.randrange(block.length)
        # If a header is damaged, it is uncertain which topic the following messages belong to.
        in_payload = any(entry.start <= position < entry.end for entry in entries)
        concerned = {entry.topic_id for entry in entries} if in_payload else {NO_TOPIC}
        self._trace.fault("flip", node.name, name, block.sequence, position)
        disk.flip(name, position, 1 << random.randrange(8))
        self._world.damaged(node, concerned)

    def _flip_object(self, node: BrokerNode) -> None:
        """Flip a bit of a segment in the bucket."""
        random = self._random
        space = self._world.buckets.get(node.config.all_storages["default"].url)
        keys = [key for key in space.objects if key.startswith(segment_prefix(node.config.cluster))] if space else []
        if not space or not keys or not node.ready.is_set() or node.life is None or node.life.over:
            return
        key = random.choice(keys)
        data, modified_us = space.objects[key]
        wrong = bytearray(data)
        wrong[random.randrange(len(wrong))] ^= 1 << random.randrange(8)
        self._trace.fault("flip-object", node.name, key, len(data))
        space.store(key, bytes(wrong), modified_us)
        self._world.damaged(node, {NO_TOPIC})

    # --- Clusters

    def _neighbours(self, node: BrokerNode) -> list[str]:
        return [each.name for each in self._world.nodes if each is not node] if self._plan.is_cluster else []

    async def _pause(self, name: str, node: BrokerNode | None) -> None:
        if node is None:
            return
        self._trace.fault(name, node.name)
        node.pause()
        await trio.sleep(self._random.choice((0.3, 1.0, 4.0, 12.0)))
        self._trace("resume", node.name)
        node.resume()

    async def _split(self) -> None:
        """Cut the brokers, and the applications, into two groups that do not reach each other."""
        network, random = self._network, self._random
        names = [node.name for node in self._world.serving]
        one = random.sample(names, random.randint(1, len(names) // 2))
        other = [name for name in names if name not in one]
        links = [(first, second) for first in one for second in other]
        for host in self._hosts:
            links += [(host, name) for name in random.choice(([], one, other))]
        self._trace.fault("split", *one)
        for link in links:
            network.set_cut(*link, cut=True)
        await trio.sleep(random.choice((0.5, 2.0, 6.0, 15.0)))
        for link in links:
            network.set_cut(*link, cut=False)

    async def _cut_one_way(self, node: BrokerNode) -> None:
        """Let a broker send, and hear nothing from some others, or the reverse."""
        network, random = self._network, self._random
        others = self._neighbours(node)
        others = random.sample(others, random.randint(1, len(others)))
        inward = random.random() < 0.5
        links = [(other, node.name) if inward else (node.name, other) for other in others]
        self._trace.fault("one-way-cut", node.name, "inward" if inward else "outward")
        for link in links:
            network.set_one_way_cut(*link, cut=True)
        await trio.sleep(random.choice((0.5, 2.0, 6.0, 15.0)))
        for link in links:
            network.set_one_way_cut(*link, cut=False)

    # --- Links

    async def _break_links(self, name: str, node: BrokerNode) -> None:
        network, random = self._network, self._random
        hosts = self._hosts if random.random() < 0.3 else [random.choice(self._hosts)]
        self._trace.faults[name] += len(hosts)
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
