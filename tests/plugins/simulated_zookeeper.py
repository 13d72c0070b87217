"""ZooKeeper's nodes in memory, for several clients, with the faults of networks: for virtual time.

What a client may rely on is kept, and nothing else: commits have one order, a client's calls are executed in the order
in which they were sent, and each connection shows a state that may be old, but never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from random import Random

import trio
from danube_metadata_zookeeper._nodes import (
    ANY,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeOperation,
    Refusal,
    RefusedError,
    SetNode,
)

from danube.model.errors import ClosedError, UnavailableError

__all__ = ["SimulatedNodes", "SimulatedZooKeeper"]

KEPT = 32


class SimulatedZooKeeper:
    """The servers. They have the states after the last commits, refused ones included."""

    def __init__(self, most_bytes: int = 1024 * 1024 - 1) -> None:
        self._states: deque[dict[str, Node]] = deque([{"/": Node(b"", 0)}], maxlen=KEPT)
        self.last = 0
        """Number of the present state."""
        self.most_bytes = most_bytes
        self.commits = 0
        self.refusals = 0
        self.clients: list[SimulatedNodes] = []

    @property
    def nodes(self) -> dict[str, Node]:
        return self._states[-1]

    def state(self, number: int) -> dict[str, Node]:
        """Return an old state, or the oldest one that is kept."""
        return self._states[max(0, len(self._states) - 1 - (self.last - number))]

    def _enter(self, nodes: dict[str, Node]) -> None:
        self._states.append(nodes)
        self.last += 1

    def commit(self, operations: Sequence[NodeOperation]) -> list[int] | RefusedError:
        """Execute operations, and remember the state."""
        self.commits += 1
        size = sum(len(one.path) + 50 + len(getattr(one, "data", b"")) for one in operations)
        assert size <= self.most_bytes, "the server would close the connection"
        nodes = copy(self.nodes)
        versions = []
        for index, operation in enumerate(operations):
            found = nodes.get(operation.path)
            why = _refusal(operation, found, nodes)
            if why is not None:
                self.refusals += 1
                self._enter(self.nodes)
                return RefusedError(index, why)
            versions.append(ANY)
            match operation:
                case CreateNode(path, data):
                    nodes[path] = Node(data, 0)
                case SetNode(path, data, _):
                    assert found is not None
                    nodes[path] = Node(data, found.version + 1)
                    versions[-1] = found.version + 1
                case DeleteNode(path, _):
                    del nodes[path]
        self._enter(nodes)
        for client in self.clients:
            client.news.set()
        return versions


def _refusal(operation: NodeOperation, found: Node | None, nodes: dict[str, Node]) -> Refusal | None:
    if isinstance(operation, CreateNode):
        parent = operation.path.rpartition("/")[0] or "/"
        return Refusal.EXISTS if found is not None else None if parent in nodes else Refusal.MISSING
    if found is None:
        return Refusal.MISSING
    if isinstance(operation, SetNode | DeleteNode | CheckNode) and operation.version not in (ANY, found.version):
        return Refusal.VERSION
    return None


class SimulatedNodes:
    """Implements ``Nodes`` over a :class:`SimulatedZooKeeper`.

    Args:
        servers: the servers.
        random: the source of delays and faults.
        latency_s: most of one way.
        lose_answer: probability that the connection breaks after a commit was sent: it is executed, or not, or later.
        lag_s: how old the state of a server may be.
    """

    def __init__(
        self,
        servers: SimulatedZooKeeper,
        random: Random,
        *,
        latency_s: float = 0.0,
        lose_answer: float = 0.0,
        lag_s: float = 0.0,
    ) -> None:
        self.connections = 1
        self.news = trio.Event()
        self.lose_answer = lose_answer
        self.is_cut = False
        self._servers = servers
        self._random = random
        self._latency_s = latency_s
        self._lag_s = lag_s
        self._shown = 0  # index of the state that this connection shows
        self._watched: dict[str, tuple[Node, Callable[[], None]]] = {}
        self._closed = trio.Event()
        self._late: list[Sequence[NodeOperation]] = []
        self._lock = trio.Lock()
        servers.clients.append(self)

    @property
    def place(self) -> str:
        return "simulation"

    async def run(self) -> None:
        """Show newer states, and tell of what has changed."""
        while True:
            await self.news.wait()
            self.news = trio.Event()
            await trio.sleep(self._random.random() * self._lag_s)
            self._show(self._servers.last)

    def _show(self, index: int) -> None:
        self._shown = max(self._shown, index)
        shown = self._servers.state(self._shown)
        for path, (node, changed) in list(self._watched.items()):
            if shown.get(path) != node:
                del self._watched[path]
                changed()

    def close(self) -> None:
        self._closed.set()

    def reconnect(self, *, expire: bool = False) -> None:
        """Break the connection. With another session, the new server may be behind what was shown."""
        self.connections += 1
        if expire:
            self._shown = self._random.randrange(max(0, self._shown - 3), self._shown + 1)
        watched, self._watched = self._watched, {}
        for _, changed in watched.values():
            changed()

    async def _travel(self) -> None:
        connection = self.connections
        await trio.lowlevel.checkpoint()
        delay = self._random.random() * self._latency_s
        with trio.move_on_after(delay):
            await self._closed.wait()
        if self._closed.is_set():
            raise ClosedError("the metadata store is closed; open it again")
        if self.is_cut or self.connections != connection:
            raise UnavailableError("the connection is lost")

    async def read(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        async with self._lock:
            await self._travel()
            node = self._servers.state(self._shown).get(path)
            if node is not None and changed is not None:
                self._watched[path] = (node, changed)
            await self._travel()
            return node

    async def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [await self.read(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        async with self._lock:
            await self._travel()
            begin = path + "/"
            return [each[len(begin) :] for each in self._servers.state(self._shown) if each.startswith(begin)]

    async def commit(self, operations: Sequence[NodeOperation], what: str) -> list[int]:
        async with self._lock:
            await self._travel()
            if self._random.random() < self.lose_answer:
                fate = self._random.randrange(3)
                if fate == 0:
                    self._servers.commit(operations)
                elif fate == 1:
                    self._late.append(operations)
                self.reconnect()
                raise UnavailableError(f"{what}: the answer is lost")
            result = self._servers.commit(operations)
            index = self._servers.last
            await self._travel()
            self._show(index)
            if isinstance(result, RefusedError):
                raise result
            return result

    def arrive(self) -> None:
        """Execute what was sent over connections that have broken."""
        while self._late:
            self._servers.commit(self._late.pop(0))
