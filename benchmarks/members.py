"""``python -m benchmarks.members``: one member of a replicated metadata store, in a process of its own.

The members are linked as brokers are: over connections of :mod:`danube.peers`, each on its own port.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio

from danube.log import RealDisk
from danube.metadata.raft import PeerLinks, RaftStore, SqliteStateTable
from danube.peers import Peer
from danube.peers.links import open_peers
from danube.raft import Conf, NodeId
from danube.wire import Server

__all__ = ["open_member"]

_LOOK_S = 0.1


@asynccontextmanager
async def open_member(number: int, ports: Sequence[int], directory: Path) -> AsyncGenerator[RaftStore, None]:
    """Run a member until the end of the block.

    Args:
        number: of the member: 1, 2, ...
        ports: on the loopback interface, of all members.
        directory: for the data of this member.
    """
    addresses = {NodeId(each): f"127.0.0.1:{port}" for each, port in enumerate(ports, start=1)}
    own = Peer(
        cluster="benchmark",
        identity=f"member-{number}",
        life=1,
        address=addresses[NodeId(number)],
        level=1,
        incarnation=1,
        required=1,
        broker=number,
        member=number,
    )
    async with open_peers(own, None) as peers, trio.open_nursery() as nursery:
        links = PeerLinks(peers, addresses.get)
        listeners = await trio.open_tcp_listeners(ports[number - 1], host="127.0.0.1")
        await nursery.start(Server([peers.service()]).run, listeners)
        for member, address in addresses.items():
            if member != number:
                peers.link(address)
        async with (
            RealDisk(directory / "log") as disk,
            RaftStore(
                disk,
                SqliteStateTable(directory),
                member=NodeId(number),
                first_conf=Conf(tuple(addresses)),
                links=links,
                random=Random(),
            ) as store,
        ):
            links.connect(store.node)
            yield store
        nursery.cancel_scope.cancel()


async def _serve(number: int, ports: Sequence[int], directory: Path, hand_to: int) -> None:
    """Run a member for ever; as a leader it hands over to the member ``hand_to`` (0: it keeps its role)."""
    async with open_member(number, ports, directory) as store:
        while True:
            await trio.sleep(_LOOK_S)
            raft = store.node.raft
            if hand_to and raft.is_leader and raft.matches().get(NodeId(hand_to), 0) >= raft.log.last_index:
                store.node.transfer(NodeId(hand_to))


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.members", description="One member of a metadata store.")
    parser.add_argument("--member", type=int, required=True)
    parser.add_argument("--ports", required=True, help="of all members, with commas")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--hand-to", type=int, default=0, help="the member that is to lead")
    given = parser.parse_args()
    ports = [int(port) for port in given.ports.split(",")]
    trio.run(_serve, given.member, ports, given.directory, given.hand_to)


if __name__ == "__main__":
    main()
