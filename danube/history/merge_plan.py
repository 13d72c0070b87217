"""Decides which parts of a topic are merged into one. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from danube.history.parts import PartRecord, TopicHistory

__all__ = ["Run", "runs_to_merge"]

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
