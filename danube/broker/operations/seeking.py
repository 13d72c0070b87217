"""What a seek would do to a subscription, and which messages are skipped. Pure."""

from __future__ import annotations

from danube.dispatch import Cursor
from danube.model.ids import Offset
from danube.model.overview_api import SeekPlan

__all__ = ["moved_by", "plan_of", "unacked_below"]


def moved_by(cursor: Cursor, by: int, start_offset: Offset, end_offset: Offset) -> Offset:
    """Return the offset that lies a number of messages before or behind the first unacknowledged one.

    Args:
        cursor: of the subscription.
        by: below 0: so many messages back; above 0: forward over so many unacknowledged ones.
        start_offset, end_offset: of the log; the result is within it.
    """
    if by <= 0:
        return Offset(min(max(cursor.floor + by, start_offset), end_offset))
    for low, high in cursor.live(max(cursor.floor, start_offset), end_offset):
        if by < high - low:
            return Offset(cursor.next_live(low + by))
        by -= high - low
        if not by:
            return Offset(min(cursor.next_live(high), end_offset))
    return Offset(end_offset)


def plan_of(topic: str, cursor: Cursor, target: int, start_offset: Offset, end_offset: Offset) -> SeekPlan:
    """Return what moving a cursor to an offset would do.

    Args:
        topic: name of the topic or partition.
        cursor: of the subscription.
        target: the offset, within the log.
        start_offset, end_offset: of the log.
    """
    floor = max(cursor.floor, start_offset)
    skipped = _messages(cursor, floor, min(target, end_offset))
    left = _messages(cursor, max(floor, target), end_offset)
    solid = cursor.solid(target, end_offset)
    return SeekPlan(
        topic=topic,
        floor=Offset(floor),
        target=Offset(target),
        end_offset=Offset(end_offset),
        skipped_messages=skipped,
        repeated_messages=sum(solid[1::2]) - sum(solid[::2]) - left,
        generation=cursor.generation,
    )


def _messages(cursor: Cursor, low: int, high: int) -> int:
    """Return how many unacknowledged messages there are in ``[low, high)``, without those that are missing."""
    solid = cursor.solid(low, high)
    return sum(b - a for start, end in zip(solid[::2], solid[1::2], strict=True) for a, b in cursor.live(start, end))


def unacked_below(cursor: Cursor, below: int, start_offset: Offset, end_offset: Offset) -> tuple[list[int], int]:
    """Return what has to be settled so that everything below an offset is acknowledged.

    Args:
        cursor: of the subscription.
        below: the offset; the end of the log is the last one.
        start_offset, end_offset: of the log.

    Returns:
        Flat ranges, and how many stored messages they have: those that retention has removed do not count.
    """
    end = min(below, end_offset)
    if end <= cursor.floor:
        return [], 0
    stored = _messages(cursor, max(cursor.floor, start_offset), end)
    return [cursor.floor, end], stored
