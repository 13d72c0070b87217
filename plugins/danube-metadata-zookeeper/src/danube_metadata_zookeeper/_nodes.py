"""What the store asks of ZooKeeper: reads of nodes, and commits of several operations at once. Pure: no I/O, no clock.

:class:`Nodes` is implemented by :class:`~danube_metadata_zookeeper._link.Link`, and by a simulation in the tests.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

__all__ = [
    "ANY",
    "CheckNode",
    "CreateNode",
    "DeleteNode",
    "Node",
    "NodeOperation",
    "Nodes",
    "Refusal",
    "RefusedError",
    "SetNode",
]

ANY: Final = -1
"""A version that every node has."""


class Node(msgspec.Struct, frozen=True):
    """A node as it was read."""

    data: bytes
    version: int
    """How often its data were set."""


class CreateNode(msgspec.Struct, frozen=True):
    """Create a node that does not exist."""

    path: str
    data: bytes = b""


class SetNode(msgspec.Struct, frozen=True):
    """Set a node's data."""

    path: str
    data: bytes
    version: int = ANY


class DeleteNode(msgspec.Struct, frozen=True):
    """Delete a node."""

    path: str
    version: int = ANY


class CheckNode(msgspec.Struct, frozen=True):
    """Only check a node's version."""

    path: str
    version: int = ANY


NodeOperation = CreateNode | SetNode | DeleteNode | CheckNode


class Refusal(enum.Enum):
    """Why an operation is refused."""

    EXISTS = "the node exists"
    MISSING = "the node does not exist"
    VERSION = "the node has another version"


class RefusedError(Exception):
    """Operations that were not executed, because one of them is refused. Only inside this package."""

    def __init__(self, index: int, why: Refusal) -> None:
        super().__init__(f"operation {index}: {why.value}")
        self.index = index
        self.why = why


class Nodes(Protocol):
    """The nodes of a ZooKeeper, through one session at a time.

    Calls raise UnavailableError while ZooKeeper does not answer, PermissionDeniedError if the user lacks a right, and
    ClosedError after :meth:`close`. They can be cancelled: a commit may then be executed, or not. What is read after
    the answer to a commit, a refusal included, is at least as new as that answer, as long as ``connections`` is the
    same.
    """

    connections: int
    """How many connections there have been."""

    @property
    def place(self) -> str:
        """The servers, for messages."""

    async def run(self) -> None:
        """Task: keep a connection, until the call is cancelled."""

    async def read(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        """Return a node, None if it does not exist.

        Args:
            path: of the node.
            changed: called once, when an existing node is changed or the connection is lost.
        """

    async def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return nodes, read one after another."""

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""

    async def commit(self, operations: Sequence[NodeOperation], what: str) -> list[int]:
        """Execute all operations or none, and return for each set node its version, for others ``ANY``.

        Raises:
            RefusedError: nothing was executed, and the quorum has said so: this is as good as a commit for what is
                read after it.
            UnavailableError: the answer is missing; the operations may have been executed.
        """

    def close(self) -> None:
        """Let calls fail with ClosedError."""
