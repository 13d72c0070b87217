"""Positions of a streaming query: checkpoint format, losses, and the end of the next batch. Pure.

Spark writes a position into the checkpoint, so it is a format::

    {"/default/orders": {"0": 1200, "1": 1187}, "ids": {"/default/orders": {"0": 71, "1": 72}}}

For each topic and partition it has the offset of the first unread message, and the id of the log. The id distinguishes
a topic that was deleted and created again from one that continues. Topics begin with a slash, so ``ids`` is not a
topic. Spark compares positions as text: :func:`encode` always writes the same text for the same position.

Changes of a log between two batches are handled in :func:`resume`:

=========================================  =====================================================
it is not in the position                  it is new: read from its first message
its first messages have expired            loss; continue with the first existing one
it ends before the position                loss (a log without sync, after a power loss); continue at its end
it has another id                          loss; read the new log from its first message
it no longer exists                        loss; remove it from the position
=========================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from danube.model.errors import ConfigurationError
from danube.model.ids import Offset, TopicId

__all__ = [
    "Gaps",
    "Log",
    "LogKey",
    "Position",
    "Positions",
    "Resumed",
    "Span",
    "decode",
    "encode",
    "messages",
    "pieces",
    "resume",
    "retreats",
    "share",
    "spans",
]

IDS = "ids"


class LogKey(NamedTuple):
    """One plain topic, or one partition."""

    topic: str
    """The plain topic, or the base name."""
    partition: int
    """0 for a plain topic."""


class Position(NamedTuple):
    """Position of a query in one log."""

    offset: int
    """Offset of the first unread message."""
    topic_id: TopicId
    """The log that the offset belongs to."""


Positions = dict[LogKey, Position]
Gaps = Sequence[tuple[int, int]]
"""Ranges of offsets without messages, in order and disjoint."""


class Log(Protocol):
    """The fields used of :class:`danube.model.query_api.LogState`."""

    topic_id: TopicId
    start_offset: Offset
    end_offset: Offset

    @property
    def gaps(self) -> Gaps:
        """Declared gaps."""
        ...


class Span(NamedTuple):
    """Range of a batch in one log: messages ``[start, end)``."""

    key: LogKey
    start: int
    end: int


@dataclass(frozen=True)
class Resumed:
    """Positions where reading continues, and losses."""

    positions: Positions
    losses: list[str]
    """One sentence for each log that has lost messages before they were read."""


def encode(positions: Mapping[LogKey, Position]) -> dict[str, Any]:
    """Return positions as the JSON object of a checkpoint."""
    offsets: dict[str, dict[str, int]] = {}
    ids: dict[str, dict[str, int]] = {}
    for key in sorted(positions):
        offsets.setdefault(key.topic, {})[str(key.partition)] = positions[key].offset
        ids.setdefault(key.topic, {})[str(key.partition)] = positions[key].topic_id
    return {**offsets, IDS: ids}


def decode(saved: Mapping[str, Any]) -> Positions:
    """Read the JSON object of a checkpoint.

    Raises:
        ConfigurationError: it was not written by this source.
    """
    try:
        ids = saved[IDS]
        return {
            LogKey(topic, int(partition)): Position(int(offset), TopicId(int(ids[topic][partition])))
            for topic, offsets in saved.items()
            if topic != IDS
            for partition, offset in offsets.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"the checkpoint holds {dict(saved)!r}, which is not a position in Danube topics; it belongs to another"
            f" source: give the query a checkpointLocation of its own"
        ) from error


def resume(start: Mapping[LogKey, Position], logs: Mapping[LogKey, Log]) -> Resumed:
    """Return the positions where reading continues after ``start``, for the present logs."""
    positions: Positions = {}
    losses = []
    for key, log in logs.items():
        at = start.get(key)
        goes_on = at is not None and at.topic_id == log.topic_id
        if at is not None and not goes_on:
            losses.append(f"{_name(key)} was deleted and created again after offset {at.offset}")
        wanted = at.offset if at is not None and goes_on else 0
        offset = min(max(wanted, log.start_offset), max(log.end_offset, log.start_offset))
        if wanted < log.start_offset:
            gone = pieces(wanted, log.start_offset, log.gaps)  # without what no message ever was, or will be
            if gone:
                losses.append(f"offsets {gone[0][0]} to {gone[-1][1] - 1} of {_name(key)} have expired")
        elif wanted > log.end_offset:
            losses.append(f"{_name(key)} ends at offset {log.end_offset}, but was read up to {wanted} before")
        positions[key] = Position(offset, log.topic_id)
    losses += [f"{_name(key)} was deleted after offset {at.offset}" for key, at in start.items() if key not in logs]
    return Resumed(positions, losses)


def spans(start: Mapping[LogKey, Position], end: Mapping[LogKey, Position]) -> list[Span]:
    """Return the spans of the batch between two positions, without empty ones."""
    found = []
    for key, until in sorted(end.items()):
        at = start.get(key)
        begin = at.offset if at is not None and at.topic_id == until.topic_id else 0
        if begin < until.offset:
            found.append(Span(key, begin, until.offset))
    return found


def retreats(start: Mapping[LogKey, Position], end: Mapping[LogKey, Position]) -> list[str]:
    """Return a sentence for each log of ``start`` that has lost messages, as far as two positions show it.

    That is all there is where the end of a batch was chosen without its start. Messages that have expired since are
    found when the batch is planned.
    """
    losses = []
    for key, at in start.items():
        until = end.get(key)
        if until is None:
            losses.append(f"{_name(key)} was deleted after offset {at.offset}")
        elif until.topic_id != at.topic_id:
            losses.append(f"{_name(key)} was deleted and created again after offset {at.offset}")
        elif until.offset < at.offset:
            losses.append(f"{_name(key)} ends at offset {until.offset}, but was read up to {at.offset} before")
    return losses


def share(waiting: Mapping[LogKey, int], limit: int) -> dict[LogKey, int]:
    """Divide ``limit`` (messages or bytes) among logs in proportion to their waiting messages.

    The shares add up to the limit exactly, or to all waiting messages. If the limit allows it, each log gets at least
    one, so that a busy log never starves a quiet one.
    """
    asking = {key: amount for key, amount in waiting.items() if amount > 0}
    total = sum(asking.values())
    if total <= limit:
        return asking
    largest_first = sorted(asking, key=lambda key: (-asking[key], key))
    if limit <= len(asking):
        return dict.fromkeys(largest_first[:limit], 1)
    rest, spare = total - len(asking), limit - len(asking)
    shares = {key: 1 + (amount - 1) * spare // rest for key, amount in asking.items()}
    left = limit - sum(shares.values())
    for key in largest_first:
        extra = min(left, asking[key] - shares[key])
        shares[key] += extra
        left -= extra
    return shares


def advance(runs: Iterable[tuple[int, int, float]], start: int, budget: float) -> int:
    """Return how far ``budget`` bytes reach from ``start``.

    Args:
        runs: ``(start, end, bytes per message)`` in the order of their offsets.
        start: the first message to be read.
        budget: bytes.
    """
    offset = start
    for begin, end, weight in runs:
        first = max(begin, offset)
        if end <= first:
            continue
        fits = int(budget / weight) if weight > 0 else end - first
        if fits < end - first:
            return first + fits if fits else offset
        budget -= (end - first) * weight
        offset = end
    return offset


def weigh(runs: Iterable[tuple[int, int, float]], start: int, end: int) -> float:
    """Return the bytes of the messages ``[start, end)``."""
    return sum(max(0, min(end, until) - max(start, begin)) * weight for begin, until, weight in runs)


def pieces(start: int, end: int, gaps: Gaps) -> list[tuple[int, int]]:
    """Return what is left of the offsets ``[start, end)`` without declared gaps, which are in order and disjoint."""
    left = []
    for gap_start, gap_end in gaps:
        if start < min(gap_start, end):
            left.append((start, min(gap_start, end)))
        start = max(start, gap_end)
    if start < end:
        left.append((start, end))
    return left


def messages(start: int, end: int, gaps: Gaps) -> int:
    """Return how many of the offsets ``[start, end)`` are in no gap."""
    return sum(stop - begin for begin, stop in pieces(start, end, gaps))


def ahead(start: int, count: int, end: int, gaps: Gaps) -> int:
    """Return the offset behind the next ``count`` messages of ``[start, end)``, or ``end`` if there are fewer."""
    for begin, stop in pieces(start, end, gaps):
        if count < stop - begin:
            return begin + count if count else start
        count -= stop - begin
        start = stop
    return end


Runs = Callable[[LogKey, int, int], list[tuple[int, int, float]]]
"""Returns the runs of a log between two offsets: ``(start, end, bytes per message)``."""


def admit(
    begin: Mapping[LogKey, Position],
    logs: Mapping[LogKey, Log],
    *,
    max_messages: int | None = None,
    max_bytes: int | None = None,
    runs: Runs | None = None,
) -> Positions:
    """Return the end of the next batch: the end of the logs, or less if the limits require it.

    A limit in bytes uses estimated sizes. It is exceeded by at most one message of each log: every log with messages
    advances, even if its share is smaller than its next message, so that a busy log never starves a quiet one.

    Args:
        begin: where reading continues.
        logs: the present logs.
        max_messages: at most this many messages.
        max_bytes: about this many bytes; needs ``runs``.
        runs: returns the estimated sizes of a log's messages.
    """
    ends = {key: max(at.offset, logs[key].end_offset) for key, at in begin.items() if key in logs}
    if max_messages is not None:
        waiting = {key: messages(begin[key].offset, end, logs[key].gaps) for key, end in ends.items()}
        granted = share(waiting, max_messages)
        ends = {key: ahead(begin[key].offset, granted.get(key, 0), end, logs[key].gaps) for key, end in ends.items()}
    if max_bytes is not None and runs is not None:
        ends |= _within_bytes(begin, ends, max_bytes, runs, logs)
    return {key: Position(ends.get(key, at.offset), at.topic_id) for key, at in begin.items()}


def _within_bytes(
    begin: Mapping[LogKey, Position],
    ends: Mapping[LogKey, int],
    max_bytes: int,
    runs: Runs,
    logs: Mapping[LogKey, Log],
) -> dict[LogKey, int]:
    starts = {key: begin[key].offset for key, end in ends.items() if end > begin[key].offset}
    weights = {key: runs(key, start, ends[key]) for key, start in starts.items()}
    sizes = {key: max(1, round(weigh(weights[key], start, ends[key]))) for key, start in starts.items()}
    if sum(sizes.values()) <= max_bytes:
        return dict(ends)
    budgets = share(sizes, max_bytes)
    return {
        key: max(
            ahead(start, 1, ends[key], logs[key].gaps),
            min(advance(weights[key], start, budgets.get(key, 0)), ends[key]),
        )
        for key, start in starts.items()
    }


def _name(key: LogKey) -> str:
    return f"topic {key.topic}, partition {key.partition},"
