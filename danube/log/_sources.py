"""Reads the headers of all journal files and decides which files belong to the log.

The newest header lists the older files that belong to the log and where each of them ends. Files newer than it were
prepared ahead of time, or were being written by an interrupted recovery; they hold no data.

A listed file may have been freed since: a FREED entry says so. If that entry is damaged, the file itself still shows
it: a file is renamed only once its FREED entry is durable, and keeps its old header until it is used again.

The reads are actions (:mod:`danube.log._actions`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from danube.log._actions import Read, Steps
from danube.log._files import is_spare_name, journal_name, parse_journal_name
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    Block,
    FileHeader,
    read_block_header,
    read_file_header,
)

__all__ = ["UNKNOWN", "Source", "Sources", "find_recycled", "read_sources"]

UNKNOWN: Final = -1


class Source(NamedTuple):
    """A journal file as found on disk. ``first`` may be unknown (-1); blocks above ``limit`` are void.

    If the limit is exact, the file ends there; otherwise it may end before.
    """

    file_id: int
    size: int
    first: int
    limit: int | None
    exact: bool = True

    @property
    def name(self) -> str:
        return journal_name(self.file_id)


class Sources:
    """All journal files.

    Attributes:
        live: files that belong to the log, oldest first.
        unused: files that were prepared and never written.
        void: files that hold no data of the log any more.
        newest_id: id of the newest file with an intact header; files freed since are listed in it, or behind it.
        watermark: sequences up to this one are known to be synced.
        highest: sequences up to this one must not be used again.
        expected_ids: ids of files that must exist, unless the log says that they were freed.
        identity: of the journal; 0 if no file has an intact header, or if the journal is bound to no metadata.
        metadata: the highest metadata revision recorded in a header.
        cut: files that are shorter than they should be, and their sizes.
    """

    def __init__(self) -> None:
        self.live: list[Source] = []
        self.unused: list[Source] = []
        self.void: list[Source] = []
        self.newest_id = 0
        self.watermark = 0
        self.highest = 0
        self.expected_ids: set[int] = set()
        self.identity = 0
        self.metadata = 0
        self.cut: dict[str, int] = {}


def read_sources(sizes: Mapping[str, int]) -> Steps[Sources]:
    """Read the headers of all journal files among ``sizes``, and classify the files."""
    ids = sorted(file_id for name in sizes if (file_id := parse_journal_name(name)) is not None)
    found = Sources()
    newest: FileHeader | None = None
    listed: dict[int, int] = {}
    limit: int | None = None
    for file_id in reversed(ids):
        size = sizes[journal_name(file_id)]
        head: bytes = yield Read(journal_name(file_id), 0, FILE_HEADER_SIZE + BLOCK_HEADER_SIZE)
        header = read_file_header(head, file_id)
        group, last, exact = found.live, limit, True
        if newest is not None:
            last = listed.get(file_id, limit)
            exact = file_id in listed
            # An unlisted file was freed, is the old copy of a recovered tail, or did not fit in the list.
            if not exact and (newest.complete or file_id > min(listed)):
                group = found.void
        elif header is not None:
            # Only files that recovery was writing, or that were prepared ahead of time, are newer than this one.
            if header.prelude:
                group = found.void
            else:
                newest = header
                found.newest_id = file_id
                found.identity = header.identity
                listed = dict(header.live)
                found.expected_ids = set(listed)
        elif _is_unused(head):
            group = found.unused
        # A file has its full size before it gets this name, so no crash leaves a shorter one.
        if size < (header.file_size if header is not None else FILE_HEADER_SIZE) and group is not found.void:
            found.cut[journal_name(file_id)] = size
        header = header or _header_from_block(head, file_id)
        source = Source(file_id, size, header.first_sequence if header else UNKNOWN, last, exact)
        group.append(source)
        if group is found.live and header is not None:
            limit = header.resume_after if limit is None else min(limit, header.resume_after)
            found.watermark = max(found.watermark, header.watermark)
            found.highest = max(found.highest, header.first_sequence - 1)
            if header.identity == found.identity:
                found.metadata = max(found.metadata, header.metadata)
    found.live.reverse()
    return found


def find_recycled(sizes: Mapping[str, int]) -> Steps[dict[int, str]]:
    """Return the files that were freed and renamed, and not yet written again: their former ids and present names."""
    recycled: dict[int, str] = {}
    for name in sizes:
        file_id = parse_journal_name(name)
        if file_id is None and not is_spare_name(name):
            continue
        head: bytes = yield Read(name, 0, FILE_HEADER_SIZE)
        former = _former_id(head)
        if former != file_id and read_file_header(head, former) is not None:
            recycled[former] = name
    return recycled


def _header_from_block(head: bytes, file_id: int) -> FileHeader | None:
    """Build a substitute for a damaged file header from the first block."""
    block = read_block_header(head, FILE_HEADER_SIZE, file_id)
    if not isinstance(block, Block):
        return None
    return FileHeader(file_id, block.sequence, block.sequence - 1, block.watermark, (), complete=False, prelude=False)


def _is_unused(head: bytes) -> bool:
    """Return whether a file was never written under its present name: zeros, or the header of its previous use."""
    return not any(head[:FILE_HEADER_SIZE]) or read_file_header(head, _former_id(head)) is not None


def _former_id(head: bytes) -> int:
    return int.from_bytes(head[8:16], "little")
