"""Writes the files of a member that begins a group alone, with given contents: after a restore or a recovery."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from danube.log import RealDisk
from danube.metadata._contract import KeyValue, Put
from danube.metadata._machine import StoreMachine
from danube.metadata.raft.sqlite_table import SqliteStateTable
from danube.metadata.raft.state import FIRST_BOUNDS, Mark
from danube.metadata.raft.wal import Wal
from danube.model.limits import Limits
from danube.raft import Base, Conf, NodeId

__all__ = ["write_member"]

_LEASES: Final = 1 << 32
"""More leases than were ever granted without a change of a key: none is numbered alike again."""


async def write_member(
    directory: Path,
    log_directory: Path,
    member: NodeId,
    items: Sequence[KeyValue],
    revision: int,
    puts: Sequence[Put],
    limits: Limits,
) -> int:
    """Write table and log of the only member of a group, synced; return the revision of the metadata.

    The log begins behind the contents, so members that are added get a copy of them.

    Args:
        directory: of the table; new.
        log_directory: of the log; new.
        member: its id.
        items: all keys, without leases.
        revision: at which they were.
        puts: a change that is made at the next revision.
        limits: ``metadata_*`` are used.

    Raises:
        DanubeError: the files cannot be written. What is there is incomplete.
    """
    conf = Conf((member,))
    made = await trio.to_thread.run_sync(_write_table, directory, items, revision, puts, conf, limits)
    async with RealDisk(log_directory) as disk, trio.open_nursery() as nursery:
        wal = Wal(disk, lambda number: None)
        await wal.recover()
        await nursery.start(wal.run)
        await wal.begin(member, Base(1, 1, conf))
        await wal.aclose()
    return made


def _write_table(
    directory: Path, items: Sequence[KeyValue], revision: int, puts: Sequence[Put], conf: Conf, limits: Limits
) -> int:
    table = SqliteStateTable(directory)
    table.open()
    try:
        with table.transaction():
            for item in items:
                table.write(msgspec.structs.replace(item, version=1))  # a new row for the table's count
                if item.version != 1:
                    table.write(item)
            table.revision = table.compacted = revision
            table.next_lease = revision + _LEASES
            StoreMachine(table, limits).transact((), puts)
            table.extra = msgspec.msgpack.encode(Mark(1, 1, conf, FIRST_BOUNDS))
        table.sync()
        return table.revision
    finally:
        table.close()
