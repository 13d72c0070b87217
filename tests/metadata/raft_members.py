"""Members of a replicated metadata store on simulated machines: disks, tables and links that fail, from a seed.

All of it runs in virtual time, without threads. A machine may lose its process (``kill``) or its power
(``power_loss``); its store starts again on what its disk and its table have kept. Links delay, lose, repeat and reorder
payloads, and may be cut in one direction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from random import Random

import trio
from trio._core import _run as trio_run

from danube.metadata import MetadataStore, Watch
from danube.metadata.raft import NodeOptions, RaftStore, digest_of
from danube.model.errors import ClosedError, DanubeError
from danube.model.limits import KIB, Limits
from danube.raft import Conf, NodeId
from danube.testing.clock import simulated_clock, sleep
from danube.testing.disk import SimulatedDisk
from danube.testing.simulated_table import SimulatedTable, inline
from danube.testing.simulation._scheduler import check_trio

OPTIONS = NodeOptions(file_bytes=128 * KIB, proposal_bytes=16 * KIB, piece_bytes=2 * KIB)


@contextmanager
def seeded_scheduler(seed: int) -> Iterator[None]:
    """Let Trio run ready tasks in an order that the seed decides, so that a failure can be repeated."""
    check_trio()
    before = trio_run._ALLOW_DETERMINISTIC_SCHEDULING, trio_run._r.getstate()
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True
    trio_run._r.seed(seed)
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        trio_run._r.setstate(before[1])


class Switch:
    """Carries payloads between members.

    Attributes:
        delay_s: longest time of a payload; may change at any time.
        loss, twice: probabilities.
        cut: (sender, receiver) pairs whose payloads are lost.
        held: members that receive nothing for now: what is sent to them waits.
    """

    def __init__(self, random: Random, *, delay_s: float = 0.002, loss: float = 0.0, twice: float = 0.0) -> None:
        self._random = random
        self.delay_s = delay_s
        self.loss = loss
        self.twice = twice
        self.cut: set[tuple[int, int]] = set()
        self.held: dict[int, list[bytes]] = {}
        self.receivers: dict[int, Callable[[bytes], None]] = {}
        self.sent = 0

    def send(self, sender: int, to: int, payload: bytes) -> None:
        self.sent += 1
        random = self._random
        for _ in range(2 if random.random() < self.twice else 1):
            if random.random() >= self.loss:
                clock = simulated_clock()
                assert clock is not None
                delay = random.uniform(self.delay_s / 10, self.delay_s)
                clock.call_at(clock.now + delay, lambda: self._arrive(sender, to, payload))

    def _arrive(self, sender: int, to: int, payload: bytes) -> None:
        if (sender, to) in self.cut:
            return
        if to in self.held:
            self.held[to].append(payload)
        elif to in self.receivers:
            self.receivers[to](payload)

    def isolate(self, member: int, others: Sequence[int], *, inward: bool = True, outward: bool = True) -> None:
        for other in others:
            if other != member:
                if inward:
                    self.cut.add((other, member))
                if outward:
                    self.cut.add((member, other))

    def heal(self) -> None:
        self.cut.clear()


class _Port:
    """A member's links."""

    def __init__(self, switch: Switch, member: int) -> None:
        self._switch = switch
        self._member = member
        self.is_open = True

    def send(self, to: NodeId, payload: bytes, *, bulk: bool = False) -> None:
        if self.is_open:
            self._switch.send(self._member, to, payload)


class Machine:
    """A machine with a member on it."""

    def __init__(self, group: Group, member: NodeId, first_conf: Conf) -> None:
        self.group = group
        self.member = member
        self.first_conf = first_conf
        self.disk = group.make_disk()
        self.table = SimulatedTable(group.random)
        self.store: RaftStore | None = None
        self.busy = 0
        self.doomed = False
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self._gate: trio.Event | None = None

    @property
    def running(self) -> RaftStore:
        assert self.store is not None
        return self.store

    @property
    def is_leader(self) -> bool:
        return self.store is not None and self.store.node.failure is None and self.store.node.raft.is_leader

    async def start(self) -> RaftStore:
        """Start the member's process; return when its store is open."""
        assert self.store is None
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        store: RaftStore = await self.group.nursery.start(self._live)
        return store

    async def try_start(self) -> None:
        """Open the store in this task, so that the error of a refusal arrives here; it must be refused."""
        group = self.group
        store = self.make_store(_Port(group.switch, self.member))
        async with store:
            raise AssertionError("the store has opened")

    def make_store(self, port: _Port) -> RaftStore:
        group = self.group
        return group.store_type(
            self.disk,
            self.table,
            member=self.member,
            first_conf=self.first_conf,
            links=port,
            limits=group.limits,
            random=group.random,
            work=inline,
            options=group.options,
        )

    async def _live(self, task_status: trio.TaskStatus[RaftStore]) -> None:
        group = self.group
        port = self._port = _Port(group.switch, self.member)
        store = self.make_store(port)
        turn = store.node._turn

        async def gated_turn() -> None:
            while self._gate is not None:
                await self._gate.wait()
            await turn()

        store.node._turn = gated_turn
        try:
            with self._scope:
                async with store:
                    self.store = store
                    self.doomed = False
                    group.switch.receivers[self.member] = store.node.deliver
                    task_status.started(store)
                    await trio.sleep_forever()
        finally:
            self.store = None
            self._stopped.set()

    async def stop(self) -> None:
        """Stop the process in good order."""
        if self.store is not None:
            self.resume()
            await self.store.aclose()
            self._leave()
            self._scope.cancel()
            await self._stopped.wait()

    async def kill(self, *, power_loss: bool = False) -> None:
        """Kill the process, or cut the power: first disk and links are gone, then the process."""
        if self.store is None:
            return
        disk, table = self.disk.crash(power_loss=power_loss), self.table.crash(power_loss=power_loss)
        self._leave()
        self._gate = None if self._gate is None else self._gate.set()
        self._scope.cancel()
        await self._stopped.wait()
        self.disk, self.table = disk, table

    def _leave(self) -> None:
        self._port.is_open = False
        self.group.switch.receivers.pop(self.member, None)

    def pause(self) -> None:
        """Let the process stand still, as SIGSTOP does; what is sent to it waits."""
        if self._gate is None and self.store is not None:
            self._gate = trio.Event()
            self.group.switch.held.setdefault(self.member, [])

    def resume(self) -> None:
        if self._gate is not None:
            self._gate.set()
            self._gate = None
            for payload in self.group.switch.held.pop(self.member, []):
                if self.store is not None:
                    self.store.node.deliver(payload)


class Group:
    """Machines of one group; an async context in which they live."""

    def __init__(
        self,
        seed: int,
        members: int = 3,
        *,
        limits: Limits | None = None,
        options: NodeOptions = OPTIONS,
        delay_s: float = 0.002,
        loss: float = 0.0,
        twice: float = 0.0,
        sync_delay_s: float = 0.002,
        store_type: type[RaftStore] = RaftStore,
    ) -> None:
        self.random = Random(seed)
        self.limits = limits
        self.options = options
        self.store_type = store_type
        self.sync_delay_s = sync_delay_s
        self.switch = Switch(self.random, delay_s=delay_s, loss=loss, twice=twice)
        self.nursery: trio.Nursery
        self.sticky = False
        """Whether all calls go to the same member."""
        ids = tuple(NodeId(number) for number in range(1, members + 1))
        self.machines: dict[NodeId, Machine] = {}
        for member in ids:
            self.machines[member] = Machine(self, member, Conf(ids))

    def make_disk(self) -> SimulatedDisk:
        return SimulatedDisk(self.random, sync_delay_s=self.sync_delay_s)

    def __getitem__(self, number: int) -> Machine:
        return self.machines[NodeId(number)]

    def add(self, number: int) -> Machine:
        """Add a machine that is no member yet: it knows the group's voters, and is none."""
        member = NodeId(number)
        conf = next(iter(self.machines.values())).first_conf
        machine = self.machines[member] = Machine(self, member, conf)
        return machine

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Group]:
        """Start all members, and stop them at the end."""
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            for machine in self.machines.values():
                await machine.start()
            try:
                yield self
            finally:
                with trio.CancelScope(shield=True), trio.move_on_after(30):
                    for machine in self.machines.values():
                        await machine.stop()
                nursery.cancel_scope.cancel()

    @property
    def up(self) -> list[Machine]:
        return [each for each in self.machines.values() if each.store is not None]

    async def leader(self, *, other_than: Machine | None = None) -> Machine:
        """Wait until a member leads, with the highest term, and return its machine."""
        with trio.fail_after(60):
            while True:
                leaders = [each for each in self.up if each.is_leader and each is not other_than]
                leaders = [each for each in leaders if each._gate is None]
                if leaders:
                    best = max(leaders, key=lambda each: each.running.node.raft.term)
                    if best.running.node.raft.commit >= best.running.node.raft._first_of_term:
                        return best
                await sleep(0.05)

    async def settle(self) -> int:
        """Wait until all members have applied the same; check that their tables are equal; return the index."""
        with trio.fail_after(120):
            while True:
                marks = {each.running.node._state.mark.index for each in self.up}
                ends = {each.running.node.raft.log.last_index for each in self.up}
                if len(marks) == 1 and marks == ends and len(self.up) == len(self.machines):
                    break
                await sleep(0.1)
        digests = {each.member: digest_of(each.table) for each in self.up}
        assert len(set(digests.values())) == 1, f"the tables differ: {digests}"
        return marks.pop()


class AnyMember(MetadataStore):
    """A store whose calls go to a member at random, each to another one."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._closed = False
        self._calls: dict[int, int] = defaultdict(int)
        self._stack = group.run()

    @property
    def capabilities(self):
        return self._group[1].running.capabilities

    async def __aenter__(self):
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, kind, error, trace):
        await self._stack.__aexit__(kind, error, trace)

    async def aclose(self):
        self._closed = True
        for machine in self._group.machines.values():
            if machine.store is not None:
                await machine.store.aclose()

    def _pick(self) -> Machine:
        while True:
            free = [each for each in self._group.up if not each.doomed or self._closed]
            if free and self._group.sticky:
                return free[0]
            if free:
                return self._group.random.choice(free)
            raise AssertionError("no member is up")

    async def _do(self, call):
        machine = self._pick()
        machine.busy += 1
        try:
            return await call(machine.running)
        finally:
            machine.busy -= 1

    async def get(self, key):
        return await self._do(lambda store: store.get(key))

    async def list(self, prefix):
        return await self._do(lambda store: store.list(prefix))

    async def put(self, key, value, *, expected_revision=None, lease=None):
        return await self._do(lambda store: store.put(key, value, expected_revision=expected_revision, lease=lease))

    async def delete(self, key, *, expected_revision=None):
        return await self._do(lambda store: store.delete(key, expected_revision=expected_revision))

    async def transact(self, conditions, operations):
        return await self._do(lambda store: store.transact(conditions, operations))

    async def grant_lease(self, ttl_s):
        return await self._do(lambda store: store.grant_lease(ttl_s))

    async def keep_alive(self, lease):
        await self._do(lambda store: store.keep_alive(lease))

    async def revoke(self, lease):
        return await self._do(lambda store: store.revoke(lease))

    def watch(self, prefix, start_revision=None):
        self._pick().running.watch(prefix, start_revision)  # checks the arguments
        return _AnyWatch(self, prefix, start_revision)


class _AnyWatch(Watch):
    """A watch at a member, which resumes at another one when that one stops."""

    def __init__(self, store: AnyMember, prefix: str, start: int | None) -> None:
        self._store = store
        self._prefix = prefix
        self._start = start
        self._watch: Watch | None = None

    async def __aenter__(self):
        await self._store._do(self._enter)
        return self

    async def _enter(self, store: RaftStore) -> None:
        watch = store.watch(self._prefix, self._start)
        await watch.__aenter__()
        self._watch = watch
        self._place = store

    async def __aexit__(self, kind, error, trace):
        if self._watch is not None:
            await self._watch.__aexit__(kind, error, trace)

    async def __anext__(self):
        while True:
            try:
                return await self._watch.__anext__()
            except (ClosedError, DanubeError) as error:
                if self._store._closed or (not isinstance(error, ClosedError) and self._place.node.failure is None):
                    raise
                self._start = self._watch._position + 1 if not self._watch._ready else self._watch._ready[0].revision
                await self._watch.__aexit__(None, None, None)
                await self._store._do(self._enter)
