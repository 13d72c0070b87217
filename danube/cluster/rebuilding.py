"""Makes a stopped broker the only member that keeps the metadata: with those of a backup, or with its own.

Both begin another incarnation (:func:`~danube.cluster.backup_format.another_incarnation`): the broker's journal is
reconciled with it at the next start, and members of the former one are refused. Those join again as new members: with
their journals, and without the directory ``metadata`` and the files ``group-*``.

Everything is written beside what is there, and takes its place last, so a crash leaves the former state, or one that
cannot be started until the command is repeated.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import trio

from danube.cluster.backup_format import KnownBroker, another_incarnation, decode_backup, known_brokers
from danube.cluster.group import load_memory, save_memory
from danube.cluster.group_memory import GroupMemory
from danube.log import RealDisk
from danube.metadata import KeyValue
from danube.metadata.embedded import DIRECTORY, LOG_DIRECTORY, LONE_MEMBER, own_directory
from danube.metadata.incarnation import incarnation_record
from danube.metadata.raft.founding import write_member
from danube.metadata.raft.inspection import inspect
from danube.model.errors import DataDirectoryError, DataLossError, FailedPreconditionError, NotFoundError
from danube.model.limits import Limits
from danube.raft import Conf

__all__ = ["Rebuilt", "recover_metadata", "restore_metadata"]

_NEW: Final = "metadata.new"
_FORMER: Final = "metadata.former"


class Rebuilt(msgspec.Struct, frozen=True):
    """The metadata of the next start."""

    cluster: str
    incarnation: int
    revision: int
    keys: int
    former_members: int
    """Members of the former group; 0: unknown."""
    brokers: tuple[KnownBroker, ...] = ()
    """Those that the metadata know."""
    kept: Path | None = None
    """Where the former metadata are now."""


async def restore_metadata(data_directory: Path, file: Path, random: Random, limits: Limits | None = None) -> Rebuilt:
    """Put the metadata of a backup into a data directory without metadata.

    Args:
        data_directory: created if it is missing. It may hold a broker's journal.
        file: the backup.
        random: draws the incarnation.
        limits: ``metadata_*`` are used.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: it is damaged.
        FailedPreconditionError: the data directory holds metadata.
        DataDirectoryError: a broker uses it, or it cannot be written.
    """
    try:
        content = await trio.Path(file).read_bytes()
    except OSError as error:
        raise NotFoundError(f"the backup {file} cannot be read: {error.strerror}") from error
    backup = decode_backup(content, str(file))
    async with RealDisk(data_directory) as disk:
        if await trio.Path(own_directory(data_directory)).exists():
            raise FailedPreconditionError(
                f"data directory {data_directory} holds metadata, which would be lost; move its directory"
                f" {DIRECTORY!r} away, or choose an empty data directory"
            )
        return await _rebuild(
            disk,
            data_directory,
            backup.items,
            backup.head.revision,
            f"restored from {file}",
            0,
            random,
            limits or Limits(),
        )


async def recover_metadata(data_directory: Path, random: Random, limits: Limits | None = None) -> Rebuilt:
    """Make a stopped member the only one, when the others that are needed for a majority are permanently lost.

    Everything in its log counts, also what is not known to be committed. What only the others had is lost.

    Args:
        data_directory: of the broker.
        random: draws the incarnation.
        limits: ``metadata_*`` are used.

    Raises:
        NotFoundError: the data directory holds no metadata.
        FailedPreconditionError: it is the only member already.
        DataLossError: the metadata are damaged.
        DataDirectoryError: a broker uses the directory, or it cannot be written.
    """
    limits = limits or Limits()
    directory = own_directory(data_directory)
    if not await trio.Path(data_directory).is_dir():
        raise NotFoundError(f"there is no data directory {data_directory}")
    async with RealDisk(data_directory) as disk:
        memory = await load_memory(disk, str(data_directory))
        if not await trio.Path(directory).is_dir():
            directory = data_directory / _FORMER  # a crash has interrupted an earlier attempt
        async with inspect(data_directory, limits, directory=directory, all_entries=True) as found:
            if found.member is None:
                raise NotFoundError(f"data directory {data_directory} holds no metadata; nothing was changed")
            if found.is_alone and memory is not None and memory.incarnation:
                raise FailedPreconditionError(
                    f"the broker in {data_directory} is the only member that keeps the metadata: there is nothing to"
                    " recover, start it"
                )
            items, revision = await found.store.list("/")
            members = len(found.conf.members)
        if memory is not None:
            # From here on it cannot be started as the member that it was, nor as one that asks for a place.
            begun = GroupMemory(cluster=memory.cluster, member=memory.member, is_opened=True)
            await save_memory(disk, begun, str(data_directory))
        return await _rebuild(
            disk, data_directory, items, revision, "recovered after a loss of members", members, random, limits
        )


async def _rebuild(
    disk: RealDisk,
    data_directory: Path,
    items: Sequence[KeyValue],
    revision: int,
    reason: str,
    former_members: int,
    random: Random,
    limits: Limits,
) -> Rebuilt:
    incarnation = random.getrandbits(63) | 1
    cluster, kept = another_incarnation(items, incarnation)
    known = known_brokers(items)
    if cluster is None:
        raise DataLossError("these metadata have no record of their cluster; they were not made by this Danube")
    new, directory, former = data_directory / _NEW, data_directory / DIRECTORY, data_directory / _FORMER
    await trio.to_thread.run_sync(_remove, new)
    record = incarnation_record(incarnation, reason)
    made = await write_member(new, new / LOG_DIRECTORY, LONE_MEMBER, kept, revision, [record], limits)
    moved = await trio.to_thread.run_sync(_put_in_place, data_directory, new, directory, former)
    memory = GroupMemory(cluster=cluster.name, member=LONE_MEMBER, incarnation=incarnation, conf=Conf((LONE_MEMBER,)))
    await save_memory(disk, memory, str(data_directory))
    return Rebuilt(cluster.name, incarnation, made, len(kept), former_members, known, former if moved else None)


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)


def _put_in_place(data_directory: Path, new: Path, directory: Path, former: Path) -> bool:
    """Rename the directories, synced; return whether there are former metadata."""
    try:
        if directory.exists():
            _remove(former)
            os.rename(directory, former)
        os.rename(new, directory)
        descriptor = os.open(data_directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataDirectoryError(f"data directory {data_directory} cannot be written: {error.strerror}") from error
    return former.exists()
