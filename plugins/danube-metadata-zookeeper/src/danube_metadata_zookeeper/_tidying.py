"""Writes snapshots of the state, and deletes what they replace: entries of the log, and pieces of older snapshots.

Several clients may do so at the same time: the node ``snapshot`` is only set if it has the version that was read.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from danube.model.errors import DataLossError
from danube_metadata_zookeeper._mirror import Mirror
from danube_metadata_zookeeper._nodes import CreateNode, DeleteNode, NodeOperation, Nodes, SetNode
from danube_metadata_zookeeper._records import Paths, Snapshot, decode, encode, pieces

__all__ = ["tidy"]

_DELETED_TOGETHER: Final = 256


async def tidy(nodes: Nodes, paths: Paths, mirror: Callable[[], Mirror], random: Random, most_bytes: int) -> None:
    """Write a snapshot if the log has grown, and delete old entries. If cancelled, the next call goes on.

    Args:
        nodes: of ZooKeeper.
        paths: of the nodes.
        mirror: returns the present state.
        random: for names that no other client uses.
        most_bytes: of a piece.

    Raises:
        RefusedError: another client does the same.
        DanubeError: as :class:`Nodes`.
    """
    version = await _learn(nodes, paths, mirror())
    if mirror().needs_snapshot:
        await _write(nodes, paths, mirror(), version, random, most_bytes)
        version = await _learn(nodes, paths, mirror())
    while mirror().needs_trimming:
        old, new = mirror().snapshot, mirror().trimmed(_DELETED_TOGETHER)
        if new.first == old.first:
            return
        operations: list[NodeOperation] = [SetNode(paths.snapshot, encode(new), version)]
        operations += [DeleteNode(paths.entry(position)) for position in range(old.first, new.first)]
        versions = await nodes.commit(operations, "deletion of old entries")
        version = versions[0]
        mirror().learn(new)


async def _learn(nodes: Nodes, paths: Paths, mirror: Mirror) -> int:
    """Tell the mirror which snapshot there is; return the version of its node."""
    node = await nodes.read(paths.snapshot)
    if node is None:
        raise DataLossError(f"ZooKeeper's node {paths.snapshot} is gone; restore it from a backup")
    mirror.learn(decode(Snapshot, node.data, paths.snapshot))
    return node.version


async def _write(nodes: Nodes, paths: Paths, mirror: Mirror, version: int, random: Random, most_bytes: int) -> None:
    """Write a snapshot of the present state, make it the valid one, and delete the pieces of older ones."""
    snapshot, items = mirror.picture()
    nonce = f"{random.getrandbits(48):012x}"
    names: list[str] = []
    for data in pieces(items, most_bytes):
        name = paths.piece_name(snapshot.position, nonce, len(names))
        await nodes.commit([CreateNode(paths.piece(name), data)], "writing of a snapshot")
        names.append(name)
    snapshot = msgspec.structs.replace(snapshot, pieces=tuple(names))
    await nodes.commit([SetNode(paths.snapshot, encode(snapshot), version)], "end of a snapshot")
    # Those of a later position may belong to a client that is still writing.
    old = [
        name
        for name in await nodes.children(paths.pieces)
        if name not in names and paths.piece_position(name) <= snapshot.position
    ]
    for first in range(0, len(old), _DELETED_TOGETHER):
        await nodes.commit(
            [DeleteNode(paths.piece(name)) for name in old[first : first + _DELETED_TOGETHER]],
            "deletion of old snapshots",
        )
