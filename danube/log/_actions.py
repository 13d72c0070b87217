"""What recovery has done to files: actions out, results in. Pure.

Recovery decides by what it reads, again and again, so it is written as generators: they yield an action, and are sent
its result, or thrown the ``OSError`` of its failure. :func:`danube.log._carrying.carry_out` carries them out on a disk.
Each action is an operation of :class:`~danube.log.disk.Disk`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

__all__ = ["Action", "Create", "ListFiles", "Read", "Remove", "Rename", "Steps", "SyncDirectory", "Write"]

_T = TypeVar("_T")


class ListFiles(NamedTuple):
    """Its result is the name and size of every file: ``dict[str, int]``."""


class Read(NamedTuple):
    """Its result is ``bytes``, fewer than ``size`` only at the end of the file."""

    name: str
    position: int
    size: int


class Write(NamedTuple):
    """Write buffers one after the other; with ``sync``, they are durable when it returns."""

    name: str
    position: int
    buffers: Sequence[bytes]
    sync: bool


class Create(NamedTuple):
    """Create a file of zeros, allocated and synced."""

    name: str
    size: int


class Rename(NamedTuple):
    """Rename a file; durable after :class:`SyncDirectory`."""

    old: str
    new: str


class Remove(NamedTuple):
    """Remove a file."""

    name: str


class SyncDirectory(NamedTuple):
    """Make creations and renames durable."""


Action: TypeAlias = ListFiles | Read | Write | Create | Rename | Remove | SyncDirectory
Steps: TypeAlias = Generator[Action, Any, _T]
"""Actions, and what follows from their results."""
