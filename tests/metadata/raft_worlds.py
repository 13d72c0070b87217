"""A world of the replicated store from a seed: clients, faults, and what must be true of all they have seen.

Run some by hand, with this directory in the path: ``python tests/metadata/raft_worlds.py SEED [COUNT]``.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections import defaultdict
from random import Random
from typing import Any

import msgspec
import trio
from raft_members import OPTIONS, Group, Machine, seeded_scheduler

from danube.metadata import Condition, Delete, EventBatch, KeyValue, Put, PutEvent
from danube.metadata.raft import RaftStore
from danube.model.errors import (
    ClosedError,
    DanubeError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
)
from danube.model.limits import KIB, Limits
from danube.testing.clock import SimulatedClock, sleep

TTL_S = 3.0
SMALL = OPTIONS._replace(
    cut_entries=10,
    cut_bytes=8 * KIB,
    kept_entries=3,
    most_kept_entries=12,
    most_kept_bytes=32 * KIB,
    call_s=6.0,
    compare_s=1.5,
)
LIMITS = Limits(metadata_history_revisions=100_000)


class Change(msgspec.Struct):
    """A change that was acknowledged."""

    start: float
    end: float
    revision: int
    puts: dict[str, bytes]
    deletes: frozenset[str]
    conditions: dict[str, int]


class Read(msgspec.Struct):
    """A read that was answered."""

    start: float
    end: float
    key: str
    item: KeyValue | None


class World:
    """See the module. ``run`` raises AssertionError if the store has broken a promise."""

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        duration_s: float = 15.0,
        clients: int = 4,
        store_type: type[RaftStore] = RaftStore,
        faults: tuple[str, ...] = ("kill", "power", "pause", "cut", "all", "slow", "straggler", "members"),
    ) -> None:
        self.random = Random(seed)
        self.group = Group(
            seed,
            members,
            limits=LIMITS,
            options=SMALL,
            delay_s=self.random.choice([0.001, 0.01, 0.05]),
            loss=self.random.choice([0.0, 0.0, 0.02, 0.1]),
            twice=self.random.choice([0.0, 0.05]),
            sync_delay_s=self.random.choice([0.001, 0.01]),
            store_type=store_type,
        )
        self.duration_s = duration_s
        self.clients = clients
        self.faults = faults
        self.changes: list[Change] = []
        self.reads: list[Read] = []
        self.unknown = 0
        self.story: dict[int, EventBatch] = {}
        self.seen_at: dict[int, float] = {}
        self.told: dict[int, int] = defaultdict(int)
        self.kept: dict[str, list[tuple[float, float]]] = defaultdict(list)
        """By key: when grant and keep-alives of its lease began and were answered."""
        self.counts: dict[str, int] = defaultdict(int)
        self._number = 0
        self._next_member = members + 1

    async def run(self) -> dict[str, int]:
        async with self.group.run(), trio.open_nursery() as nursery:
            for machine in self.group.machines.values():
                nursery.start_soon(self._follow, machine)
            async with trio.open_nursery() as calls:
                for client in range(self.clients):
                    calls.start_soon(self._client, client)
                calls.start_soon(self._tenant)
                calls.start_soon(self._trouble)
            with trio.fail_after(60):
                await self._dismiss_strangers()
                for machine in self.group.machines.values():
                    if machine.store is None:
                        await machine.start()
                await self.group.settle()
                final, revision = await self._machine().running.list("/")
                while any(self.told[member] < revision for member in self.group.machines if member in self.told):
                    await sleep(0.05)
            self.story = {number: batch for number, batch in self.story.items() if number <= revision}
            self.check({item.key: item for item in final}, revision)
            self.counts["installs"] += sum(each.table.installs for each in self.group.machines.values())
            nursery.cancel_scope.cancel()
        return dict(self.counts)

    # Clients

    def _machine(self) -> Machine:
        return self.random.choice(self.group.up or list(self.group.machines.values()))

    async def _client(self, client: int) -> None:
        random = self.random
        end = trio.current_time() + self.duration_s
        known: dict[str, int] = {}
        while trio.current_time() < end:
            machine = self._machine()
            store = machine.store
            if store is None:
                await sleep(0.1)
                continue
            start = trio.current_time()
            keys = random.sample([f"/k/{number}" for number in range(6)], 2)
            try:
                if random.random() < 0.3:
                    item = await store.get(keys[0])
                    self.reads.append(Read(start, trio.current_time(), keys[0], item))
                    known[keys[0]] = item.mod_revision if item else 0
                else:
                    await self._change(store, keys, known, start)
            except MetadataConflictError:
                known.clear()
            except (UnavailableError, ClosedError):
                self.unknown += 1
                self.counts["unknown"] += 1
            await sleep(random.uniform(0, 0.05))

    async def _change(self, store: RaftStore, keys: list[str], known: dict[str, int], start: float) -> None:
        random = self.random
        self._number += 1
        value = b"%d" % self._number
        conditions = {keys[0]: known[keys[0]]} if keys[0] in known and random.random() < 0.5 else {}
        puts = {keys[0]: value}
        deletes = frozenset(keys[1:]) if random.random() < 0.2 else frozenset()
        result = await store.transact(
            [Condition(key, revision) for key, revision in conditions.items()],
            [*(Put(key, value) for key, value in puts.items()), *(Delete(key) for key in deletes)],
        )
        self.changes.append(Change(start, trio.current_time(), result.revision, puts, deletes, conditions))
        known[keys[0]] = result.revision
        self.counts["changes"] += 1

    async def _tenant(self) -> None:
        """Holds a lease, and keeps it alive through all troubles as well as it can."""
        end = trio.current_time() + self.duration_s
        while trio.current_time() < end:
            self._number += 1
            key = f"/lease/{self._number}"
            try:
                store = self._machine().running
                start = trio.current_time()
                lease = await store.grant_lease(TTL_S)
                self.kept[key].append((start, trio.current_time()))
                await store.put(key, b"", lease=lease)
                leave = trio.current_time() + self.random.uniform(2.0, 12.0)
                while trio.current_time() < min(end, leave):
                    await sleep(0.75)
                    start = trio.current_time()
                    try:
                        await self._machine().running.keep_alive(lease)
                    except UnavailableError:
                        continue
                    self.kept[key].append((start, trio.current_time()))
            except (NotFoundError, UnavailableError, ClosedError, AssertionError):
                await sleep(0.1)

    async def _follow(self, machine: Machine) -> None:
        """Watch everything at one member, through all its lives; all members must tell the same story."""
        position = 0
        while True:
            store = machine.store
            if store is None or store.node.failure is not None:
                await sleep(0.02)
                continue
            try:
                async with store.watch("/", position + 1) as watch:
                    async for batch in watch:
                        assert batch.revision == position + 1, (
                            f"member {machine.member} tells of revision {batch.revision} after {position}"
                        )
                        position = batch.revision
                        self.told[machine.member] = position
                        known = self.story.setdefault(position, batch)
                        assert known == batch, f"member {machine.member} tells of revision {position} differently"
                        self.seen_at.setdefault(position, trio.current_time())
            except (ClosedError, UnavailableError):
                await sleep(0.02)

    # Faults

    async def _trouble(self) -> None:
        random, group = self.random, self.group
        end = trio.current_time() + self.duration_s - 4
        while trio.current_time() < end:
            await sleep(random.uniform(0.2, 2.0))
            kind = random.choice(self.faults)
            leaders = [each for each in group.up if each.is_leader]
            machine = random.choice(leaders or group.up) if random.random() < 0.6 else random.choice(group.up)
            self.counts[kind] += 1
            if kind in ("kill", "power"):
                await machine.kill(power_loss=kind == "power")
                await sleep(random.uniform(0.0, 2.0))
                await machine.start()
            elif kind == "pause":
                machine.pause()
                await sleep(random.uniform(0.1, 4.0))
                machine.resume()
            elif kind == "cut":
                inward, outward = random.choice([(True, True), (True, False), (False, True)])
                group.switch.isolate(machine.member, list(group.machines), inward=inward, outward=outward)
                await sleep(random.uniform(0.1, 4.0))
                group.switch.heal()
            elif kind == "straggler":
                machine = random.choice([each for each in group.up if each not in leaders] or group.up)
                group.switch.isolate(machine.member, list(group.machines))
                await sleep(5.0)
                group.switch.heal()
            elif kind == "members":
                await self._change_members()
            elif kind == "slow":
                machine.disk.sync_delay_s = 0.5
                await sleep(random.uniform(0.1, 2.0))
                machine.disk.sync_delay_s = 0.002
            elif kind == "all":
                for each in group.machines.values():
                    await each.kill(power_loss=True)
                for each in group.machines.values():
                    await each.start()

    async def _change_members(self) -> None:
        """Add a member and make it a voter, or remove one; whatever fails half way stays so."""
        group, random = self.group, self.random
        try:
            with trio.move_on_after(8.0):
                await group.leader()
                node = self._machine().running.node
                if len(group.machines) < 5:
                    machine = group.add(self._next_member)
                    self._next_member += 1
                    await machine.start()
                    await node.add_learner(machine.member)
                    await sleep(random.uniform(0.1, 1.0))
                    await node.promote(machine.member)
                else:
                    await node.remove(random.choice(node.raft.conf.voters))
                self.counts["changes of members"] += 1
        except DanubeError:
            self.counts["changes of members refused"] += 1

    async def _dismiss_strangers(self) -> None:
        """Stop machines that are no members at the end."""
        group = self.group
        while True:
            for machine in list(group.machines.values()):
                if machine.store is None:
                    await machine.start()
            leader = await group.leader()
            conf = leader.running.node.raft.conf
            if not conf.is_joint:
                break
            await sleep(0.1)
        for member, machine in list(group.machines.items()):
            if member not in conf.members:
                await machine.stop()
                del group.machines[member]

    # What must be true

    def check(self, final: dict[str, KeyValue], revision: int) -> None:
        assert sorted(self.story) == list(range(1, revision + 1))
        self._check_final(final)
        by_key: dict[str, list[tuple[int, bytes | None]]] = defaultdict(list)
        for number, batch in sorted(self.story.items()):
            for event in batch.events:
                by_key[event.key].append((number, event.item.value if isinstance(event, PutEvent) else None))
        changes = sorted(self.changes, key=lambda change: change.revision)
        assert len({change.revision for change in changes}) == len(changes), "two changes have one revision"
        acked: dict[int, float] = {}
        latest_start = 0.0
        for change in changes:
            batch = self.story[change.revision]
            puts = {event.key: event.item.value for event in batch.events if isinstance(event, PutEvent)}
            assert puts == change.puts, f"revision {change.revision} is not what was acknowledged"
            for event in batch.events:
                if event.key in change.conditions:
                    assert event.previous_revision == change.conditions[event.key]
            assert change.end >= latest_start, (
                f"revision {change.revision} was acknowledged before an earlier one began"
            )
            latest_start = max(latest_start, change.start)
            acked[change.revision] = change.end
        for read in self.reads:
            versions = by_key[read.key]
            at = read.item.mod_revision if read.item is not None else 0
            if read.item is not None:
                assert (at, read.item.value) in versions, f"{read} was never there"
                later = [number for number, _ in versions if number > at]
            else:
                # It was absent: from some deletion on, or at the beginning, until the next put.
                absent = [0, *(number for number, value in versions if value is None)]
                gone = [
                    number
                    for number in absent
                    if not any(acked.get(later, 1e9) < read.start for later, _ in versions if later > number)
                ]
                assert gone, f"{read} is stale"
                later = []
            for number in later:
                assert acked.get(number, 1e9) >= read.start, f"{read} is stale: revision {number} was acknowledged"
            seen = self.seen_at.get(at, 0.0)
            started = min((change.start for change in changes if change.revision == at), default=0.0)
            assert started <= read.end, f"{read} saw the future {seen}"
        self._check_leases(by_key)

    def _check_final(self, final: dict[str, KeyValue]) -> None:
        fold: dict[str, KeyValue] = {}
        for _, batch in sorted(self.story.items()):
            for event in batch.events:
                before = fold.pop(event.key, None)
                assert event.previous_revision == (before.mod_revision if before else 0)
                if isinstance(event, PutEvent):
                    fold[event.key] = event.item
        assert fold == final

    def _check_leases(self, by_key: dict[str, list[tuple[int, bytes | None]]]) -> None:
        for key, kept in self.kept.items():
            for number, value in by_key[key]:
                if value is not None:
                    continue
                gone_at = self.seen_at[number]
                self.counts["leases ended"] += 1
                for start, end in kept:
                    assert not (end < gone_at < start + TTL_S - 0.001), (
                        f"the lease of {key} was renewed at {start}, and ended at {gone_at}"
                    )


class _Differences(logging.Handler):
    """Collects what members say of tables that differ; in these worlds none does."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "differ" in record.getMessage():
            self.told.append(record.getMessage())

    def __enter__(self) -> None:
        logging.getLogger("danube.metadata").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("danube.metadata").removeHandler(self)


def run_world(seed: int, **options: Any) -> dict[str, int]:
    """Run a world; return counts of what has happened in it."""
    world = World(seed, **options)
    differences = _Differences()
    with seeded_scheduler(seed), differences:
        try:
            counts = trio.run(world.run, clock=SimulatedClock())
            assert differences.told == [], "equal tables are said to differ"
            return counts
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, AssertionError | DanubeError):
                raise error from group
            raise


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    total: dict[str, int] = defaultdict(int)
    failed = 0
    for number in range(first, first + count):
        try:
            for name, value in run_world(number).items():
                total[name] += value
        except Exception as error:  # noqa: BLE001 - reported
            failed += 1
            sys.stdout.write(f"seed {number}: {type(error).__name__}: {error}\n")
            sys.stdout.flush()
        gc.collect()  # the disks of a world
    sys.stdout.write(f"{count} worlds, {failed} failed, {dict(total)}\n")
