"""Founds a root in ZooKeeper, and reads everything below it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from danube.metadata import KeyValue
from danube.model.errors import DataLossError, FailedPreconditionError, UnavailableError
from danube.model.limits import Limits
from danube_metadata_zookeeper._mirror import Mirror
from danube_metadata_zookeeper._nodes import CreateNode, Node, Nodes, Refusal, RefusedError
from danube_metadata_zookeeper._records import (
    FORMAT,
    Entry,
    Head,
    Paths,
    Snapshot,
    decode,
    decode_items,
    encode,
)

__all__ = ["check_head", "found_root", "load", "read_entries"]

_ATTEMPTS: Final = 10
"""Attempts to read everything while others delete what is old."""
_PAGE: Final = 64
"""Nodes that are read at once: 64 MiB if all are of the largest size."""


async def found_root(nodes: Nodes, paths: Paths, random: Random) -> None:
    """Create what does not exist: the root, and an empty store in it. Several clients may do so at the same time.

    Raises:
        FailedPreconditionError: the root has nodes of another program.
        DanubeError: as :class:`Nodes`.
    """
    if await nodes.read(paths.revision) is not None:
        return
    if paths.root and await nodes.read(paths.root) is None:
        for parent in paths.parents():
            if await nodes.read(parent) is None:
                try:
                    await nodes.commit([CreateNode(parent)], f"creation of {parent}")
                except RefusedError as error:
                    if error.why is not Refusal.EXISTS:
                        raise UnavailableError(f"ZooKeeper's node {parent} cannot be created: {error}") from error
    head = Head(FORMAT, f"{random.getrandbits(64):016x}", 0, 0)
    snapshot = Snapshot(FORMAT, 0, 0, 1, (), (), 1, 0)
    try:
        await nodes.commit(
            [
                CreateNode(paths.revision, encode(head)),
                CreateNode(paths.log),
                CreateNode(paths.leases),
                CreateNode(paths.pieces),
                CreateNode(paths.snapshot, encode(snapshot)),
            ],
            f"foundation of {paths.root or '/'}",
        )
    except RefusedError as error:
        if await nodes.read(paths.revision) is None:
            raise FailedPreconditionError(
                f"ZooKeeper's node {paths.root or '/'} has nodes of another program ({error}); use another prefix in"
                " the URL, or delete them"
            ) from error


def check_head(node: Node | None, paths: Paths, store: str | None) -> Head:
    """Return the head in a node.

    Args:
        node: as it was read.
        paths: of the nodes.
        store: the id of the store that was read before; None if there was none.

    Raises:
        DataLossError: it is not there, or of another store.
    """
    if node is None:
        raise DataLossError(
            f"ZooKeeper's node {paths.revision} is gone: the metadata were deleted; restore them from a backup"
        )
    head = decode(Head, node.data, paths.revision)
    if store is not None and head.store != store:
        raise DataLossError(
            f"ZooKeeper's node {paths.revision} belongs to another store: the metadata were deleted and founded again;"
            " restore them from a backup"
        )
    return head


async def read_entries(nodes: Nodes, paths: Paths, first: int, last: int) -> list[tuple[int, Entry | None, int]]:
    """Return the positions, entries and sizes from a position on: a page, at most up to another position.

    An entry that was deleted is None.
    """
    positions = range(first, min(first + _PAGE, last + 1))
    found = await nodes.read_many([paths.entry(position) for position in positions])
    return [
        (position, decode(Entry, node.data, paths.entry(position)), len(node.data))
        if node is not None
        else (position, None, 0)
        for position, node in zip(positions, found, strict=True)
    ]


async def load(
    nodes: Nodes, paths: Paths, limits: Limits, changed: Callable[[], None], store: str | None
) -> tuple[Mirror, Head, Node]:
    """Read the snapshot, and the log from its first entry on.

    Args:
        nodes: of ZooKeeper.
        paths: of the nodes.
        limits: of the history.
        changed: called once, when there is something new.
        store: as for :func:`check_head`.

    Returns:
        The state, the head that belongs to it, and the head's node.

    Raises:
        DataLossError: a part is missing, though no other client has deleted it because it was old.
    """
    for _ in range(_ATTEMPTS):
        node = await nodes.read(paths.revision, changed)
        head = check_head(node, paths, store)
        assert node is not None
        described = await nodes.read(paths.snapshot)
        if described is None:
            raise DataLossError(f"ZooKeeper's node {paths.snapshot} is gone; restore it from a backup")
        mirror = await _read(nodes, paths, limits, head, decode(Snapshot, described.data, paths.snapshot))
        if mirror is not None:
            return mirror, head, node
        again = await nodes.read(paths.snapshot)
        if again == described:
            raise DataLossError(
                f"ZooKeeper's nodes below {paths.root or '/'} are incomplete: parts of the state that {paths.snapshot}"
                " describes are gone; restore them from a backup"
            )
    raise UnavailableError(
        f"the metadata in ZooKeeper below {paths.root or '/'} could not be read {_ATTEMPTS} times, because other"
        " clients have deleted old parts meanwhile; try again"
    )


async def _read(nodes: Nodes, paths: Paths, limits: Limits, head: Head, snapshot: Snapshot) -> Mirror | None:
    """Return the state at a head; None if a part is gone."""
    items: list[KeyValue] = []
    for name in snapshot.pieces:
        node = await nodes.read(paths.piece(name))
        if node is None:
            return None
        items += decode_items(node.data, paths.piece(name))
    mirror = Mirror(snapshot, items, limits)
    position, last = snapshot.first - 1, max(head.position, snapshot.position)
    while position < last:
        for position, entry, size in await read_entries(nodes, paths, position + 1, last):  # noqa: B020
            if entry is None:
                return None
            if position <= snapshot.position:
                mirror.recall(position, entry, size)
            elif position <= head.position:
                mirror.apply(position, entry, size)
    return mirror if mirror.position == head.position else None
