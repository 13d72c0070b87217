"""Reads the metadata of a stopped broker from its files, and changes nothing.

The table may be behind the log. What the log has beyond it is applied to a copy in memory: all of it for a member that
was alone, and for others what is known to be committed. Such a copy may be behind the group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from danube.log import Disk, RealDisk
from danube.metadata._contract import MetadataStore
from danube.metadata._memory_table import MemoryTable
from danube.metadata.embedded import LOG_DIRECTORY, own_directory
from danube.metadata.memory import MemoryStore
from danube.metadata.raft.memory_copy import NO_CONF, catch_up, copy_table
from danube.metadata.raft.records import Contents
from danube.metadata.raft.sqlite_table import SqliteStateTable
from danube.metadata.raft.state import Mark
from danube.metadata.raft.wal import Wal
from danube.model.limits import Limits
from danube.raft import Conf, NodeId

__all__ = ["Inspected", "inspect"]


class Inspected(msgspec.Struct, frozen=True):
    """The metadata that a directory holds."""

    store: MetadataStore
    """A copy in memory."""
    member: NodeId | None
    """The member whose files these are; None: there are none."""
    conf: Conf
    """The members of its group, as far as it knows."""

    @property
    def is_alone(self) -> bool:
        """Whether the files are complete by themselves."""
        return self.member is None or self.conf.members == {self.member}


@asynccontextmanager
async def inspect(
    data_directory: Path, limits: Limits, *, directory: Path | None = None, all_entries: bool = False
) -> AsyncIterator[Inspected]:
    """Read the metadata in a broker's data directory.

    Args:
        data_directory: of the broker.
        limits: ``metadata_*`` are used.
        directory: of the metadata, if they are not where the broker has them.
        all_entries: whether what the log holds and is not known to be committed counts, too.

    Raises:
        DataDirectoryError: a running broker has the directory open, it cannot be read, or has another format.
        DataLossError: log or table are damaged, or do not belong together.
    """
    directory = directory or own_directory(data_directory)
    if not await trio.Path(directory).is_dir():
        async with MemoryStore(limits=limits) as store:
            yield Inspected(store, None, NO_CONF)
        return
    contents: Contents | None = None
    if await trio.Path(directory / LOG_DIRECTORY).is_dir():
        async with RealDisk(directory / LOG_DIRECTORY) as disk:
            contents = await Wal(_Overlay(disk), lambda number: None).recover()
            table, mark = await trio.to_thread.run_sync(_load, directory, contents, limits, all_entries)
    else:
        table, mark = await trio.to_thread.run_sync(_load, directory, contents, limits, all_entries)
    async with MemoryStore(limits=limits, table=table) as store:
        yield Inspected(store, contents.standing.member if contents is not None else None, mark.conf)


def _load(directory: Path, contents: Contents | None, limits: Limits, all_entries: bool) -> tuple[MemoryTable, Mark]:
    """Return a copy of the table with what the log has beyond it, and the mark."""
    source = SqliteStateTable(directory)
    source.open()
    try:
        with source.transaction():
            copy = copy_table(source, source.extra)
    finally:
        source.close()
    return copy, catch_up(copy, contents, limits, all_entries=all_entries)


class _Overlay:
    """A disk whose changes stay in memory. The journal's recovery writes."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._own: dict[str, bytearray] = {}
        self._names: dict[str, str | None] = {}
        """Files of the disk by their present names; None: removed. Others have the name that they have there."""

    def _name(self, name: str) -> str:
        found = self._names.get(name, name)
        if found is None:
            raise FileNotFoundError(name)
        return found

    async def list(self) -> dict[str, int]:
        """See :meth:`Disk.list`."""
        sizes = await self._disk.list()
        found = {name: size for name, size in sizes.items() if name not in self._names}
        found |= {name: sizes[real] for name, real in self._names.items() if real is not None}
        return found | {name: len(content) for name, content in self._own.items()}

    async def create(self, name: str, size: int) -> None:
        """See :meth:`Disk.create`."""
        await trio.lowlevel.checkpoint()
        self._own[name] = bytearray(size)

    async def rename(self, old: str, new: str) -> None:
        """See :meth:`Disk.rename`."""
        await trio.lowlevel.checkpoint()
        if old in self._own:
            self._own[new] = self._own.pop(old)
        else:
            self._names[new], self._names[old] = self._name(old), None

    async def remove(self, name: str) -> None:
        """See :meth:`Disk.remove`."""
        await trio.lowlevel.checkpoint()
        if self._own.pop(name, None) is None:
            self._names[name] = None

    async def sync_directory(self) -> None:
        """See :meth:`Disk.sync_directory`."""
        await trio.lowlevel.checkpoint()

    async def write(self, name: str, position: int, buffers: Sequence[bytes], *, sync: bool) -> None:
        """See :meth:`Disk.write`."""
        own = self._own.get(name)
        if own is None:
            real = self._name(name)
            size = (await self._disk.list())[real]
            own = self._own[name] = bytearray(await self._disk.read(real, 0, size))
            self._names[name] = None
        content = b"".join(buffers)
        own[position : position + len(content)] = content
        await trio.lowlevel.checkpoint()

    async def read(self, name: str, position: int, size: int) -> bytes:
        """See :meth:`Disk.read`."""
        own = self._own.get(name)
        if own is not None:
            await trio.lowlevel.checkpoint()
            return bytes(own[position : position + size])
        return await self._disk.read(self._name(name), position, size)

    async def free_bytes(self) -> int:
        """See :meth:`Disk.free_bytes`."""
        return await self._disk.free_bytes()
