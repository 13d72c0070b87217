"""A small group of Raft nodes for directed tests, which decide about lost messages, absent nodes and delayed disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from danube.raft import Base, Conf, Entry, EntryKind, HardState, Message, NodeId, Raft, Ready, Settings

SETTINGS = Settings(heartbeat_ticks=2, election_ticks=10, snapshot_ticks=30)


def node_ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def conf(*voters: int, learners: Iterable[int] = ()) -> Conf:
    return Conf(node_ids(*voters), learners=node_ids(*learners))


def entries_of(*terms: int, after: int = 0) -> tuple[Entry, ...]:
    """Entries with these terms, the first one at ``after`` + 1."""
    return tuple(Entry(index, term, EntryKind.DATA, b"e") for index, term in enumerate(terms, after + 1))


def make_node(
    node_id: int,
    *voters: int,
    learners: Iterable[int] = (),
    terms: Iterable[int] = (),
    hard: HardState | None = None,
    base: Base | None = None,
    applied: int | None = None,
    settings: Settings = SETTINGS,
    chance: Callable[[int], int] = lambda most: 0,
) -> Raft:
    """Make a node whose log has entries with the given terms; its election time is the shortest."""
    base = base or Base(0, 0, conf(*voters, learners=learners))
    return Raft(
        NodeId(node_id),
        base,
        hard=hard,
        entries=entries_of(*terms, after=base.index),
        applied=applied,
        chance=chance,
        settings=settings,
    )


def carry_out(node: Raft, *, apply: bool = True) -> list[Message]:
    """Do what is ready until nothing is, with a disk that takes no time; return what was sent."""
    sent: list[Message] = []
    while node.has_ready:
        ready = node.ready()
        sent += ready.messages
        sent += node.persisted(ready)
        if apply and ready.committed:
            node.applied(ready.committed[-1].index)
    return sent


def take(node: Raft, message: Message) -> list[Message]:
    """Give a node a message; return what it sends then."""
    node.step(message)
    return carry_out(node)


class Group:
    """Nodes with links between them.

    Attributes:
        held: nodes whose disk does not finish its writes; see :meth:`release`.
        away: nodes that no message reaches or leaves.
        blocked: (sender, receiver) pairs whose messages are lost.
        log: what each node applied.
    """

    def __init__(self, *nodes: Raft) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.held: set[int] = set()
        self.away: set[int] = set()
        self.blocked: set[tuple[int, int]] = set()
        self.lost_kinds: tuple[type, ...] = ()
        self.writes: dict[int, list[Ready]] = defaultdict(list)
        self.applied: dict[int, list[Entry]] = defaultdict(list)
        self.reads: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.lost_reads: dict[int, list[int]] = defaultdict(list)
        self.need_snapshot: list[tuple[int, int]] = []
        self.seen: list[Message] = []

    def __getitem__(self, number: int) -> Raft:
        return self.nodes[NodeId(number)]

    def run(self, *, most: int = 10_000) -> None:
        """Deliver until nothing is on its way."""
        queue: list[Message] = []
        for _ in range(most):
            for node in self.nodes.values():
                queue += self._drive(node)
            if not queue:
                return
            message = queue.pop(0)
            self.seen.append(message)
            lost = (
                message.to in self.away
                or message.sender in self.away
                or (message.sender, message.to) in self.blocked
                or isinstance(message, self.lost_kinds)
                or message.to not in self.nodes
            )
            if not lost:
                self.nodes[message.to].step(message)
        raise AssertionError("the group never comes to rest")

    def _drive(self, node: Raft) -> list[Message]:
        sent: list[Message] = []
        while node.has_ready:
            ready = node.ready()
            sent += ready.messages
            self.writes[node.node_id].append(ready)
            self.reads[node.node_id] += ready.reads
            self.lost_reads[node.node_id] += ready.lost_reads
            self.need_snapshot += [(node.node_id, to) for to in ready.need_snapshot]
            self.applied[node.node_id] += ready.committed
            if ready.committed:
                node.applied(ready.committed[-1].index)
            if node.node_id not in self.held:
                sent += self._finish(node)
        return sent

    def _finish(self, node: Raft) -> list[Message]:
        sent: list[Message] = []
        for ready in self.writes.pop(node.node_id, []):
            sent += node.persisted(ready)
        return sent

    def release(self, number: int) -> list[Message]:
        """Let a held disk finish; return what its node may send then."""
        self.held.discard(number)
        return self._finish(self[number])

    def tick(self, number: int, times: int = 1) -> None:
        for _ in range(times):
            self[number].tick()
            self.run()

    def elect(self, number: int) -> Raft:
        """Let a node's election time pass until it leads."""
        for _ in range(3 * SETTINGS.election_ticks):
            if self[number].is_leader:
                break
            for node in self.nodes.values():
                if node.node_id != number and node.node_id not in self.away:
                    node.leader_lost(node.leader or NodeId(0))
            self[number].tick()
            self.run()
        assert self[number].is_leader, f"node {number} was not elected"
        return self[number]


def group_of(*numbers: int, settings: Settings = SETTINGS) -> Group:
    return Group(*(make_node(number, *numbers, settings=settings) for number in numbers))
