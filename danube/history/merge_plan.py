"""Decides which parts of a topic are merged into one. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from danube.history.parts import PartRecord, TopicHistory

__all__ = ["Run", "adjacent", "runs_to_merge"]

_MOST_PARTS = 40
"""Maximum parts of one run: their change of the catalogue is one transaction."""

Run = Sequence[PartRecord]
"""Adjacent parts that become one."""


def runs_to_merge(
    history: TopicHistory, must_move: Callable[[PartRecord], bool], segment_bytes: int, merge_parts: int
) -> list[Run]:
    """Return the runs of adjacent parts of one topic that should be merged into one part each.

    Args:
        history: of the topic.
        must_move: whether a part has to leave its object.
        segment_bytes: size of a segment; parts up to a quarter of it are small.
        merge_parts: so many small parts in a row are merged.
    """
    runs: list[Run] = []
    run: list[PartRecord] = []
    size = 0
    small_bytes = segment_bytes // 4

    def close() -> None:
        nonlocal run, size
        if len(run) >= merge_parts or any(map(must_move, run)):
            runs.append(run)
        run, size = [], 0

    for record in history.parts:
        part = record.part
        fits = part.size_bytes <= small_bytes or must_move(record)
        continues = run and run[-1].part.end_offset == part.base_offset and run[-1].storage == record.storage
        if not fits or not continues or size + part.size_bytes > segment_bytes or len(run) == _MOST_PARTS:
            close()
        if fits:
            run.append(record)
            size += part.size_bytes
    close()
    return runs


def adjacent(records: Sequence[PartRecord], segment_bytes: int) -> list[Run]:
    """Return parts of one topic as runs of adjacent ones, each of at most the size of a segment unless it is one part.

    Args:
        records: in the order of their offsets, with gaps.
        segment_bytes: size of a segment.
    """
    runs: list[list[PartRecord]] = []
    size = 0
    for record in records:
        last = runs[-1][-1] if runs else None
        size += record.part.size_bytes
        continues = last is not None and last.part.end_offset == record.part.base_offset
        if not continues or size > segment_bytes or len(runs[-1]) == _MOST_PARTS:
            runs.append([])
            size = record.part.size_bytes
        runs[-1].append(record)
    return list(runs)
