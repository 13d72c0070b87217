"""A copy of a member's table in memory, and the entries of its log that the table lacks. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

from danube.metadata._machine import Rows
from danube.metadata._memory_table import MemoryTable
from danube.metadata.raft.records import Contents
from danube.metadata.raft.start import start_of
from danube.metadata.raft.state import Mark, ReplicatedState, StateTable
from danube.model.limits import Limits
from danube.raft import Base, Conf, NodeId

__all__ = ["NO_CONF", "MemoryCopy", "catch_up", "copy_table"]

NO_CONF: Final = Conf((NodeId(1),))
"""Of metadata that are not there."""
_PAGE_REVISIONS: Final = 1_000
_PAGE_BYTES: Final = 1 << 20


class MemoryCopy(MemoryTable):
    """A table in memory to which entries can be applied."""

    extra = b""
    """The encoded mark."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context in which changes are made; they stay if it raises."""
        yield


def copy_table(source: Rows, extra: bytes) -> MemoryCopy:
    """Return a copy of a table, whose encoded mark is ``extra``.

    Raises:
        DataLossError: a row of the table is damaged.
    """
    copy = MemoryCopy()
    copy.extra = extra
    for lease, ttl_s in source.leases():
        copy.add_lease(lease, ttl_s)
    for item in source.scan("/"):
        copy.write(item)
    position = copy.compacted = source.compacted
    while position < source.revision:
        for batch in source.replay(position, _PAGE_REVISIONS, _PAGE_BYTES):
            position = batch.revision
            copy.record(batch)
    copy.revision, copy.next_lease = source.revision, source.next_lease
    return copy


def catch_up(copy: MemoryCopy, contents: Contents | None, limits: Limits, *, all_entries: bool = False) -> Mark:
    """Apply what a log has beyond a table: all for a member that is alone, else what is known to be committed.

    Args:
        copy: of the table.
        contents: of the log; None if there is none.
        limits: ``metadata_*`` are used.
        all_entries: whether what is not known to be committed is applied, too.

    Raises:
        DataLossError: table and log do not belong together.
        DataDirectoryError: one of them has another format.
    """
    base = contents.standing.base if contents is not None else Base(0, 0, NO_CONF)
    state = ReplicatedState(cast("StateTable", copy), limits, base.conf)
    state.load()
    entries = [entry for entry in start_of(contents, base, state.mark).entries if entry.index > state.mark.index]
    if contents is not None and not all_entries and state.mark.conf.members != {contents.standing.member}:
        entries = [entry for entry in entries if entry.index <= contents.standing.hard.commit]
    if entries:
        state.apply(entries)
    return state.mark
