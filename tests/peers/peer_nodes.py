"""Brokers that consist of their links only, on a simulated network in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio
from hellos import SECRET
from msgspec.structs import replace

from danube.model.limits import Limits
from danube.peers import Lost, Peer
from danube.peers.links import WirePeers, open_peers
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.network import Network
from danube.testing.simulation.trace import Trace
from danube.wire import Server

PORT = 6650


class Node:
    """A broker on host ``b1``, ``b2`` and so on. Its links lead to addresses like ``b2:6650``."""

    def __init__(self, world: World, number: int, *, secret: bytes | None = SECRET, **changed: Any) -> None:
        self.world = world
        self.name = f"b{number}"
        self.address = f"{self.name}:{PORT}"
        fields: dict[str, Any] = {
            "cluster": "orders",
            "identity": f"identity-{number}",
            "life": 1,
            "address": self.address,
            "level": 1,
            "incarnation": 77,
            "required": 1,
            "broker": number,
        }
        self.own = Peer(**(fields | changed))
        self.secret = secret
        self.lost: list[Lost] = []
        self.heard: list[tuple[str, bytes]] = []
        """Messages on the channel ``raft``: the sender's address, and the payload."""
        self.peers: WirePeers
        self.server: Server
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def start(self) -> Node:
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        await self.world.nursery.start(self._run)
        return self

    async def _run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        network, limits = self.world.network, self.world.limits
        with self._scope:
            async with (
                open_peers(
                    self.own,
                    self.secret,
                    limits,
                    connect=lambda host, port: network.connect(self.name, host, port),
                    random_bytes=self.world.random.randbytes,
                ) as peers,
                trio.open_nursery() as nursery,
            ):
                self.peers = peers
                peers.on_lost(self.lost.append)
                peers.on_message("raft", self._hear)
                peers.on_call("echo", self._echo)
                self.server = Server([peers.service()], limits)
                await nursery.start(self.server.run, network.listen(self.name, [self.address]))
                task_status.started()
                await trio.sleep_forever()
        self._ended.set()

    async def _hear(self, peer: Peer, payload: bytes) -> None:
        self.heard.append((peer.address, payload))

    async def _echo(self, peer: Peer, payload: bytes) -> bytes:
        return peer.address.encode() + b" " + payload

    async def kill(self, *, silently: bool = False) -> None:
        """Kill the process, or cut the power of its machine."""
        self.world.network.crash(self.name, silently=silently)
        self._scope.cancel()
        await self._ended.wait()

    async def restart(self) -> None:
        """Start the next life."""
        self.world.network.power_on(self.name)
        self.own = replace(self.own, life=self.own.life + 1)
        await self.start()

    async def linked(self, to: Node, within_s: float = 5.0) -> None:
        """Open the link, and wait until it is up."""
        self.peers.link(to.address)
        await until(lambda: self.peers.peer(to.address) is not None, within_s)

    async def call(self, to: Node, payload: bytes = b"hi", channel: str = "echo", timeout_s: float = 5.0) -> bytes:
        return await self.peers.call(to.address, channel, payload, timeout_s)

    def send(self, to: Node, payload: bytes, channel: str = "raft") -> bool:
        return self.peers.send(to.address, channel, payload)


class World:
    """Nodes and their network; see :func:`simulate`."""

    def __init__(self, nursery: trio.Nursery, limits: Limits) -> None:
        self.nursery = nursery
        self.limits = limits
        self.random = Random(5)
        self.network = Network(Random(1), Trace())

    async def node(self, number: int, **changed: Any) -> Node:
        """Start a broker."""
        return await Node(self, number, **changed).start()

    async def pair(self) -> tuple[Node, Node]:
        """Start two brokers, the first of which is linked to the second."""
        one, other = await self.node(1), await self.node(2)
        await one.linked(other)
        return one, other


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for a condition; AssertionError if it does not come true in time."""
    with trio.move_on_after(within_s):
        while not condition():  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.01)
    assert condition()


def simulate(work: Callable[[World], Awaitable[None]], **limits: Any) -> None:
    """Run ``work`` in virtual time; all nodes end with it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(1000):
                await work(World(nursery, Limits(**limits)))
            nursery.cancel_scope.cancel()

    run_seeded(main, 1)
