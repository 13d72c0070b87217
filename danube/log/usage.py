"""Usage and activity of the journal, in figures. Pure."""

from __future__ import annotations

from typing import NamedTuple

from danube.log._commits import Commits
from danube.log._quota import Quota
from danube.log._stock import FileStock

__all__ = ["JournalUsage", "usage_of"]


class JournalUsage(NamedTuple):
    """Usage and activity of a journal. Sizes in bytes, times in seconds."""

    used_bytes: int
    """Part of the disk limit in use: closed files, and the written part of the active one."""
    limit_bytes: int
    live_bytes: int
    """Bytes of batches that are still needed."""
    pending_bytes: int
    """Bytes submitted and not settled."""
    files: int
    spare_files: int
    commits: int
    syncs: int
    sync_time_s: float
    """Moving average of write and sync together."""
    sequence: int
    watermark: int
    disk_full: bool
    """The file system has no space for another file."""
    stranded_topics: int = 0
    """Topics with entries in the journal that the metadata do not know."""
    stranded_bytes: int = 0
    """Bytes of their batches."""
    disk_commits: int = 0
    """Blocks of entries that had to be synced."""
    os_commits: int = 0
    """Blocks of those that only had to be written."""
    waiting: int = 0
    """Publishers that wait for room."""


def usage_of(stock: FileStock, commits: Commits, quota: Quota, limit_bytes: int) -> JournalUsage:
    """Return the figures of a journal, whose limit is ``journal_max_bytes``."""
    return JournalUsage(
        used_bytes=quota.used_bytes,
        limit_bytes=limit_bytes,
        live_bytes=stock.files.live_bytes(),
        pending_bytes=quota.pending_bytes,
        files=len(stock.files),
        spare_files=stock.spare_count,
        commits=commits.commits,
        syncs=commits.syncs,
        sync_time_s=commits.sync_time_s,
        sequence=commits.sequence,
        watermark=commits.watermark,
        disk_full=stock.disk_full,
        stranded_topics=len(stock.files.stranded),
        stranded_bytes=sum(size for size, _ in stock.files.stranded_batches().values()),
        disk_commits=commits.disk_lane.commits,
        os_commits=commits.os_lane.commits,
        waiting=quota.waiting,
    )
