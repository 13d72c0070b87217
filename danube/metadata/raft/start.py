"""Where a member begins: what its log and its table have kept, and whether they belong together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from danube.metadata.raft.records import Contents
from danube.metadata.raft.state import Mark
from danube.model.errors import DataLossError, FailedPreconditionError
from danube.raft import Base, Conf, Entry, HardState, NodeId

__all__ = ["Repair", "Start", "first_base", "start_of"]


class Repair(NamedTuple):
    """An installation of a copy that a crash has interrupted; the log is to be brought in step."""

    base: Base | None
    """The table is the copy, and the log begins behind it. None: the table is the old one, and the copy is void."""


class Start(NamedTuple):
    """What the core begins with."""

    base: Base
    hard: HardState | None
    """None: the member is new, and its log is to be begun."""
    entries: Sequence[Entry]
    repair: Repair | None


def first_base(member: NodeId, contents: Contents | None, first_conf: Conf | None) -> Base:
    """Return where the log of a member begins.

    Args:
        member: its id.
        contents: of its log, if it has one.
        first_conf: the first configuration of its group, for a member without a log.

    Raises:
        FailedPreconditionError: the log belongs to another member, or there is none and no configuration was given.
    """
    if contents is None:
        if first_conf is None:
            raise FailedPreconditionError(
                "this metadata member has no log and was given no first configuration; form or join a cluster"
            )
        return Base(0, 0, first_conf)
    if contents.standing.member != member:
        raise FailedPreconditionError(f"the metadata log belongs to member {contents.standing.member}, not to {member}")
    return contents.standing.base


def start_of(contents: Contents | None, base: Base, mark: Mark) -> Start:
    """Return what a member begins with, given its log and the mark of its table.

    Raises:
        DataLossError: the table does not fit to the log.
    """
    entries: Sequence[Entry] = contents.entries if contents is not None else ()
    repair: Repair | None = None
    if contents is not None and contents.standing.installing:
        if contents.standing.installing == mark.index:
            base, entries = mark.base, ()
            repair = Repair(base)
        else:
            repair = Repair(None)
    if not _fits(mark, base, entries):
        raise DataLossError(
            f"the metadata table is at entry {mark.index} of term {mark.term}, which does not fit to the log of"
            f" entries {base.index} to {base.index + len(entries)}: one of the two has lost something."
            " Restore the metadata from a backup, or let this broker join again as a new member"
        )
    return Start(base, contents.standing.hard if contents is not None else None, entries, repair)


def _fits(mark: Mark, base: Base, entries: Sequence[Entry]) -> bool:
    """Return whether a table continues, or is continued by, a log."""
    if mark.index == base.index:
        return mark.index == 0 or mark.term == base.term
    position = mark.index - base.index - 1
    return 0 <= position < len(entries) and entries[position].term == mark.term
