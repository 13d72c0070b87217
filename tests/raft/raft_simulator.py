"""Groups of Raft nodes in a hostile world, made from a seed: lossy links, slow disks, crashes, churn, wrong clocks.

Nothing here knows how the core works. The world drives it as a real driver would, breaks what may break, and checks
what Raft promises:

* one leader a term; a leader has everything that was ever applied;
* every node applies the same entries in the same order, each one once;
* what was acknowledged is there in the end;
* a read sees what was acknowledged before it was asked for;
* when the storm is over, there is a leader, the members agree, and a proposal goes through.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from random import Random
from types import ModuleType
from typing import Any, NamedTuple

import danube.raft


class ViolationError(AssertionError):
    """A promise was broken."""


class Weather(NamedTuple):
    """How hostile a world is. Frequencies are weights of what happens next."""

    nodes: int
    steps: int
    deliver: float = 60.0
    tick: float = 30.0
    disk: float = 30.0
    apply: float = 15.0
    propose: float = 8.0
    read: float = 4.0
    crash: float = 0.0
    partition: float = 0.0
    compact: float = 0.0
    churn: float = 0.0
    transfer: float = 0.0
    hint: float = 0.0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    uneven_clocks: bool = False
    lazy_disks: bool = False


def draw_weather(random: Random) -> Weather:
    """Draw a world's weather: each kind of trouble is there or not."""

    def maybe(value: float) -> float:
        return value * random.random() if random.random() < 0.6 else 0.0

    return Weather(
        nodes=random.choice((1, 2, 3, 3, 3, 4, 5, 5)),
        steps=random.choice((1500, 3000, 5000)),
        propose=random.choice((2.0, 8.0, 30.0)),
        disk=random.choice((5.0, 30.0, 100.0)),
        tick=random.choice((10.0, 30.0)),
        crash=maybe(1.0),
        partition=maybe(1.5),
        compact=maybe(3.0),
        churn=maybe(2.0),
        transfer=maybe(1.0),
        hint=maybe(0.5),
        drop=maybe(0.3),
        duplicate=maybe(0.2),
        reorder=maybe(1.0),
        uneven_clocks=random.random() < 0.4,
        lazy_disks=random.random() < 0.4,
    )


class _Flight(NamedTuple):
    message: Any
    state: tuple[Any, ...] | None
    """With a snapshot: the state machine."""


class Node:
    """A node: what is on its disk, what its state machine has, and the core while it runs."""

    def __init__(self, world: World, node_id: int, base: Any, state: list[Any]) -> None:
        self.world = world
        self.node_id = node_id
        self.base = base
        self.hard: Any = None
        self.entries: list[Any] = []
        self.state = list(state)
        """(index, term, kind, data) of everything applied, from index 1 on."""
        self.durable_state = base.index
        self.unsynced: list[Callable[[], None]] = []
        self.core: Any = None
        self.writes: deque[Any] = deque()
        self.to_apply: deque[Any] = deque()
        self.reads: dict[int, tuple[int, int | None]] = {}
        """token → (what had been acknowledged when it was asked, index of the answer)"""
        self.incoming: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.rate = 1.0
        self.clock = 0.0
        self.proposed: dict[int, int] = {}
        """index → term of what clients of this node wait for"""
        self.next_token = 0
        self.led: set[int] = set()

    def start(self) -> None:
        raft = self.world.raft
        self.core = raft.Raft(
            self.node_id,
            self.base,
            hard=self.hard,
            entries=tuple(self.entries),
            applied=self.durable_state,
            chance=self.world.random.randrange,
            settings=self.world.settings,
        )
        del self.state[self.durable_state :]

    def crash(self) -> None:
        """Lose everything that is not synced."""
        random = self.world.random
        # Unsynced writes reach the disk in order, up to some point.
        kept = random.randrange(len(self.unsynced) + 1)
        for write in self.unsynced[:kept]:
            write()
        self.unsynced.clear()
        self.core = None
        self.writes.clear()
        self.to_apply.clear()
        self.reads.clear()
        self.incoming.clear()
        self.proposed.clear()
        self.durable_state = random.randint(self.durable_state, len(self.state))
        self.durable_state = min(self.durable_state, self.base.index + len(self.entries))
        self.durable_state = max(self.durable_state, self.base.index)

    # The disk ----------------------------------------------------------------------------------------------------

    def write(self, ready: Any) -> None:
        """Write what a Ready asks for; it is durable when it is synced, now or with a later one."""

        def put(ready: Any = ready) -> None:
            if ready.hard is not None:
                self.hard = ready.hard
            if ready.snapshot is not None:
                self.base = ready.snapshot
                self.entries = []
                self.state = list(self.incoming_state(ready.snapshot))
                self.durable_state = ready.snapshot.index
            if ready.entries:
                first = ready.entries[0].index
                del self.entries[first - self.base.index - 1 :]
                self.entries.extend(ready.entries)

        self.unsynced.append(put)
        if ready.must_sync:
            for write in self.unsynced:
                write()
            self.unsynced.clear()

    def incoming_state(self, base: Any) -> tuple[Any, ...]:
        return self.incoming[base.index, base.term]


class World:
    """One group of nodes and its weather."""

    def __init__(self, seed: int, *, weather: Weather | None = None, raft: ModuleType = danube.raft) -> None:
        self.random = Random(f"raft {seed}")
        self.seed = seed
        self.raft = raft
        self.weather = weather or draw_weather(self.random)
        self.settings = raft.Settings(
            heartbeat_ticks=2,
            election_ticks=8,
            snapshot_ticks=30,
            max_append_bytes=self.random.choice((100, 1000)),
            max_sent_messages=self.random.choice((1, 4, 16)),
            max_sent_bytes=self.random.choice((200, 10_000)),
            max_uncommitted_bytes=self.random.choice((500, 20_000)),
            max_apply_entries=self.random.choice((1, 5, 100)),
        )
        voters = tuple(range(1, self.weather.nodes + 1))
        self.first = raft.Base(0, 0, raft.Conf(voters))
        self.nodes: dict[int, Node] = {}
        for node_id in voters:
            self._add(node_id)
        self.next_id = self.weather.nodes + 1
        self.flights: dict[tuple[int, int], list[_Flight]] = {}
        self.cut: set[tuple[int, int]] = set()
        self.leaders: dict[int, int] = {}
        self.applied: dict[int, tuple[int, int, bytes]] = {}
        self.acked = 0
        """The highest index that a client knows to be applied."""
        self.acked_all: set[int] = set()
        self.counts: Counter[str] = Counter()
        self.proposals = 0
        self.calm = False

    def _add(self, node_id: int) -> Node:
        node = Node(self, node_id, self.first, [])
        if self.weather.uneven_clocks:
            node.rate = self.random.choice((0.5, 1.0, 1.0, 1.3))
        self.nodes[node_id] = node
        node.start()
        return node

    # Running -----------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        weather = self.weather
        actions: list[tuple[Callable[[], None], float]] = [
            (self._deliver, weather.deliver),
            (self._tick, weather.tick),
            (self._disk, weather.disk),
            (self._apply, weather.apply),
            (self._propose, weather.propose),
            (self._read, weather.read),
            (self._crash, weather.crash),
            (self._partition, weather.partition),
            (self._compact, weather.compact),
            (self._churn, weather.churn),
            (self._transfer, weather.transfer),
            (self._hint, weather.hint),
        ]
        chosen = [action for action, weight in actions if weight]
        weights = [weight for _, weight in actions if weight]
        for action in self.random.choices(chosen, weights, k=weather.steps):
            action()
        self._settle()
        return self.counts

    def _running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None]

    def _pick(self) -> Node | None:
        running = self._running()
        return self.random.choice(running) if running else None

    def _drive(self, node: Node) -> None:
        """Take what is ready, as the driver does after each event."""
        core = node.core
        while core.has_ready:
            ready = core.ready()
            for message in ready.messages:
                self._send(message)
            node.writes.append(ready)
            node.to_apply.extend(ready.committed)
            for token, index in ready.reads:
                asked = node.reads.get(token)
                if asked is not None:
                    node.reads[token] = (asked[0], index)
            for token in ready.lost_reads:
                node.reads.pop(token, None)
            for to in ready.need_snapshot:
                self._send_snapshot(node, to)
        self._check_leader(node)
        if not self.weather.lazy_disks or self.calm:
            while node.writes and node.core is core:
                self._finish_write(node)
                if core.has_ready:
                    self._drive(node)

    def _check_leader(self, node: Node) -> None:
        core = node.core
        if not core.is_leader or core.term in node.led:
            return
        node.led.add(core.term)
        other = self.leaders.setdefault(core.term, node.node_id)
        if other != node.node_id:
            raise ViolationError(f"nodes {other} and {node.node_id} both lead term {core.term}")
        self.counts["elections"] += 1
        for index, (term, _, _) in self.applied.items():
            own = core.log.term(index)
            if own != term and index > core.log.base_index:
                raise ViolationError(
                    f"leader {node.node_id} of term {core.term} lacks entry {index}, which was applied"
                )

    def _finish_write(self, node: Node) -> None:
        ready = node.writes.popleft()
        node.write(ready)
        if ready.snapshot is not None:
            # A driver installs synchronously: nothing is applied on top of the old state any more.
            node.to_apply.clear()
            self.counts["snapshots installed"] += 1
        for message in node.core.persisted(ready):
            self._send(message)

    # The network -------------------------------------------------------------------------------------------------

    def _send(self, message: Any, state: tuple[Any, ...] | None = None) -> None:
        if message.to == message.sender:
            raise ViolationError("a node sends to itself")
        self._check_sent(message)
        self.flights.setdefault((message.sender, message.to), []).append(_Flight(message, state))

    def _check_sent(self, message: Any) -> None:
        entries = getattr(message, "entries", ())
        if len(entries) > 1 and sum(entry.size for entry in entries) > self.settings.max_append_bytes:
            raise ViolationError("a message is larger than max_append_bytes")

    def _deliver(self) -> None:
        links = [link for link, flights in self.flights.items() if flights]
        if not links:
            return None
        link = self.random.choice(links)
        flights = self.flights[link]
        position = 0
        if self.random.random() < self.weather.reorder and not self.calm:
            position = self.random.randrange(len(flights))
        flight = flights.pop(position)
        sender, to = link
        if not self.calm:
            if self.random.random() < self.weather.duplicate:
                flights.append(flight)
            if self.random.random() < self.weather.drop:
                self.counts["messages dropped"] += 1
                return self._lost(flight)
        node = self.nodes.get(to)
        if node is None or node.core is None or (sender, to) in self.cut:
            return self._lost(flight)
        if flight.state is not None:
            node.incoming[flight.message.index, flight.message.index_term] = flight.state
        node.core.step(flight.message)
        self.counts["messages"] += 1
        self._drive(node)
        return None

    def _lost(self, flight: _Flight) -> None:
        sender = self.nodes.get(flight.message.sender)
        if flight.state is not None and sender is not None and sender.core is not None and self.random.random() < 0.5:
            sender.core.snapshot_failed(flight.message.to)  # else nothing tells it
            self._drive(sender)

    def _send_snapshot(self, node: Node, to: int) -> None:
        base = node.core.snapshot_at(len(node.state))
        if base is None:
            raise ViolationError("the log was cut behind what the state machine has")
        message = self.raft.InstallSnapshot(to, node.node_id, node.core.term, base.index, base.term, base.conf)
        self._send(message, tuple(node.state))
        self.counts["snapshots sent"] += 1

    # What happens ------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        for node in self._running():
            node.clock += node.rate
            while node.clock >= 1.0:
                node.clock -= 1.0
                node.core.tick()
                self._drive(node)

    def _disk(self) -> None:
        node = self._pick()
        if node is not None and node.writes:
            self._finish_write(node)
            self._drive(node)

    def _apply(self) -> None:
        for node in self._running():
            self._apply_at(node, self.random.choice((1, 3, 100)))

    def _apply_at(self, node: Node, most: int) -> None:
        for _ in range(min(most, len(node.to_apply))):
            entry = node.to_apply.popleft()
            if entry.index != len(node.state) + 1:
                raise ViolationError(f"node {node.node_id} applies {entry.index} after {len(node.state)}")
            if not any(entry.index == each.index for each in node.entries) and entry.index > node.base.index:
                raise ViolationError(f"node {node.node_id} applies entry {entry.index}, which is not on its disk")
            value = (entry.term, int(entry.kind), entry.data)
            known = self.applied.setdefault(entry.index, value)
            if known != value:
                raise ViolationError(f"entry {entry.index} is {known} at one node and {value} at node {node.node_id}")
            node.state.append((entry.index, *value))
            node.core.applied(entry.index)
            self.counts["applied"] += 1
            term = node.proposed.pop(entry.index, None)
            if term == entry.term:
                self.acked = max(self.acked, entry.index)
                self.acked_all.add(entry.index)
                self.counts["acknowledged"] += 1
        for token, (asked, index) in list(node.reads.items()):
            if index is not None and len(node.state) >= index:
                del node.reads[token]
                self.counts["reads"] += 1
                if len(node.state) < asked:
                    raise ViolationError(
                        f"a read at node {node.node_id} sees {len(node.state)}, and {asked} was acknowledged"
                    )
        self._drive(node)

    def _propose(self) -> None:
        leaders = [node for node in self._running() if node.core.is_leader]
        if leaders:
            node = self.random.choice(leaders)
            self.proposals += 1
            data = b"%d" % self.proposals + b"x" * self.random.choice((0, 0, 20, 150))
            index = node.core.propose(data)
            if isinstance(index, int):
                node.proposed[index] = node.core.term
            else:
                self.counts[f"refused: {index.name}"] += 1
            self._drive(node)

    def _read(self) -> None:
        node = self._pick()
        if node is not None:
            node.next_token += 1
            token = node.next_token * 1000 + self.random.randrange(1000)
            if node.core.read_index(token):
                node.reads[token] = (self.acked, None)
            self._drive(node)

    def _crash(self) -> None:
        down = [node for node in self.nodes.values() if node.core is None]
        if down and self.random.random() < 0.6:
            self.random.choice(down).start()
            return
        node = self._pick()
        if node is not None:
            node.crash()
            self.counts["crashes"] += 1

    def _partition(self) -> None:
        if self.cut and self.random.random() < 0.6:
            self.cut.clear()
            return
        nodes = list(self.nodes)
        side = set(self.random.sample(nodes, self.random.randint(1, len(nodes))))
        one_way = self.random.random() < 0.3
        for a in side:
            for b in nodes:
                if b not in side:
                    self.cut.add((a, b))
                    if not one_way:
                        self.cut.add((b, a))
        self.counts["partitions"] += 1

    def _compact(self) -> None:
        node = self._pick()
        if node is None or node.unsynced or node.writes:
            return
        index = self.random.randint(node.core.log.base_index, len(node.state))
        index = min(index, node.core.applied_index)
        base = node.core.snapshot_at(index)
        if base is not None and index > node.base.index:
            node.durable_state = max(node.durable_state, index)
            node.core.compact(index)
            del node.entries[: index - node.base.index]
            node.base = base
            self.counts["compactions"] += 1

    def _churn(self) -> None:
        leaders = [node for node in self._running() if node.core.is_leader]
        if not leaders:
            return
        core = self.random.choice(leaders).core
        conf = core.conf
        voters, learners = set(conf.voters), set(conf.learners)
        for _ in range(self.random.choice((1, 1, 2))):
            kind = self.random.choice(("add", "learn", "promote", "demote", "remove", "replace"))
            if kind in ("add", "learn", "replace") and len(voters | learners) < 6 and self.next_id < 30:
                new = self.next_id
                self.next_id += 1
                self._add(new)
                (learners if kind == "learn" else voters).add(new)
            if kind == "promote" and learners:
                voters.add(moved := self.random.choice(sorted(learners)))
                learners.discard(moved)
            if kind == "demote" and len(voters) > 1:
                learners.add(moved := self.random.choice(sorted(voters)))
                voters.discard(moved)
            if kind in ("remove", "replace") and len(voters) > 1:
                voters.discard(self.random.choice(sorted(voters)))
        result = core.propose_conf(voters, learners)
        self.counts["changes proposed" if isinstance(result, int) else f"change refused: {result.name}"] += 1
        self._drive(self.nodes[core.node_id])

    def _transfer(self) -> None:
        for node in self._running():
            if node.core.is_leader:
                node.core.transfer(self.random.choice(list(self.nodes)))
                self._drive(node)

    def _hint(self) -> None:
        node = self._pick()
        if node is not None and node.core.leader is not None:
            node.core.leader_lost(node.core.leader)
            self._drive(node)

    # The end -----------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let the storm end; the group has to come to an agreement, and to go on."""
        self.calm = True
        self.cut.clear()
        for node in self.nodes.values():
            node.rate = 1.0
            if node.core is None:
                node.start()
        for _ in range(40):
            self._quiet_rounds(25)
            leader = self._agreed_leader()
            if leader is not None and self._final_write(leader):
                self._check_end(leader)
                return
        raise ViolationError(f"the group does not settle: {self.describe()}")

    def _quiet_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self._tick()
            for _ in range(2000):
                if not any(self.flights.values()):
                    break
                self._deliver()
            for node in self._running():
                self._drive(node)
                while node.to_apply:
                    self._apply_at(node, 1000)

    def _agreed_leader(self) -> Node | None:
        leaders = [node for node in self._running() if node.core.is_leader]
        if not leaders:
            return None
        leader = max(leaders, key=lambda node: node.core.term)
        return None if leader.core.conf.is_joint else leader

    def _final_write(self, leader: Node) -> bool:
        index = leader.core.propose(b"the last one")
        if not isinstance(index, int):
            return False
        leader.proposed[index] = leader.core.term
        self._drive(leader)
        self._quiet_rounds(25)
        return index in self.acked_all and all(
            len(self.nodes[member].state) >= index for member in leader.core.conf.members
        )

    def _check_end(self, leader: Node) -> None:
        for index in self.acked_all:
            if index not in self.applied or index > len(leader.state):
                raise ViolationError(f"entry {index} was acknowledged and is gone")
        for member in leader.core.conf.members:
            for index, term, kind, data in self.nodes[member].state:
                if self.applied[index] != (term, kind, data):
                    raise ViolationError(f"node {member} has another entry {index}")

    def describe(self) -> str:
        return "; ".join(
            f"node {node.node_id}: {core.role.value} term {core.term} leader {core.leader} commit {core.commit}"
            f" last {core.log.last_index} conf {core.conf}"
            if (core := node.core) is not None
            else f"node {node.node_id}: down"
            for node in self.nodes.values()
        )


def run_world(seed: int, *, raft: ModuleType = danube.raft, weather: Weather | None = None) -> Counter[str]:
    """Run the world of a seed; return how often what happened."""
    return World(seed, raft=raft, weather=weather).run()
