"""When a member's log is cut, and up to which entry. Pure.

The table holds what is applied, so the log is kept for other members only: for those that follow, a few entries; for
those that lag, as far back as they are, but no more than a bound: beyond it a copy of the table is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable

from danube.metadata.raft.options import NodeOptions
from danube.raft import Raft

__all__ = ["cut_index", "is_cut_due"]


def is_cut_due(options: NodeOptions, *, entries: int, size: int) -> bool:
    """Return whether to cut the log, after so many entries were applied, and so many bytes written, since the last."""
    return entries >= options.cut_entries or size >= options.cut_bytes


def cut_index(raft: Raft, options: NodeOptions, applied: int, copies: Iterable[int]) -> int:
    """Return up to which entry the log is not needed any more.

    Args:
        raft: the core, with its log.
        options: ``kept_entries``, ``most_kept_entries`` and ``most_kept_bytes`` are used.
        applied: the last entry that the table holds durably.
        copies: the indexes of copies that are on their way to members, which need what follows them.
    """
    base = raft.log.base_index
    if raft.conf.is_only(raft.node_id):
        return applied
    if applied <= base:
        return base
    wanted = max(base, applied - options.kept_entries)
    if raft.is_leader:
        wanted = min(wanted, *(match for node, match in raft.matches().items() if node != raft.node_id))
    wanted = min([wanted, *copies])
    least = max(base, applied - options.most_kept_entries)
    size = 0
    for entry in reversed(raft.log.between(least + 1, applied + 1)):
        size += entry.size
        if size > options.most_kept_bytes:
            least = entry.index
            break
    return max(wanted, least)
