"""Plans the tasks of a query: splits the requested ranges into tasks of about equal size. Pure.

First positions become *spans* of offsets, one for each plain topic or partition (:func:`choose_spans`). Then a caller
with access to the logs locates the messages of each span (:class:`Source`). Then the sources, concatenated, are cut
into tasks (:func:`pack`)::

    topic a, partition 0          topic a, partition 1      topic b
    [part|part|  part  |tail]     [ part  |tail]            [part|tail]
    +-------------+---------------------+---------------------+-------+
    |   task 0    |       task 1        |       task 2        |   3   |
    +-------------+---------------------+---------------------+-------+

A cut may be inside a part; the reader finds the position with the part's index. A task may have many small pieces. So
the number of tasks depends neither on one huge part nor on a thousand tiny ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from danube.model.errors import ConfigurationError, DataLossError
from danube.model.ids import TopicId
from pyspark_danube._options import EARLIEST_OFFSET, LATEST_OFFSET, At, ReadOptions, nearest
from pyspark_danube._positions import Gaps, LogKey, Span, pieces

if TYPE_CHECKING:
    from danube.history.direct import DirectPart
    from danube.model.query_api import LogState

__all__ = [
    "GUESSED_MESSAGE_BYTES",
    "ReadTask",
    "Slice",
    "Source",
    "check_named",
    "choose_spans",
    "data_loss",
    "pack",
    "resolve",
]

GUESSED_MESSAGE_BYTES: Final = 256
"""Assumed size of a message if nothing of its topic was sealed yet."""

_SNAP: Final = 0.05
"""A cut moves to the edge of a part if that is nearer than this share of a task."""

FindTime = Callable[[LogKey, int], int]
"""Returns the first offset of a log that was appended at or after a time, in microseconds since the epoch."""


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A task's share of one log: messages ``[start, end)``, read from parts and, after the last part, from a broker."""

    topic: str
    partition: int
    name: str
    """Name of the plain topic or partition."""
    topic_id: TopicId
    start: int
    end: int
    sealed: int
    """End offset of the parts; messages from here on come from the broker."""
    parts: tuple[DirectPart, ...]
    """Parts that overlap the range, in the order of their offsets."""
    is_framed: bool = False
    """Whether payloads of batches whose header names no schema begin with Confluent's frame."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Declared gaps: that their messages are missing is no loss to be reported."""


class ReadTask(InputPartition):
    """One task of a query."""

    def __init__(self, slices: Sequence[Slice], storages: Mapping[str, str]) -> None:
        self.slices = tuple(slices)
        self.storages = dict(storages)
        """URLs of storages by name, without secrets."""

    def __repr__(self) -> str:
        return f"ReadTask({', '.join(f'{part.name}[{part.start}:{part.end}]' for part in self.slices)})"


class Source(NamedTuple):
    """Location of the messages of a span."""

    span: Span
    name: str
    topic_id: TopicId
    sealed: int
    """End offset of the parts."""
    parts: Sequence[DirectPart]
    is_framed: bool = False
    """As in :class:`Slice`."""
    gaps: Gaps = ()
    """Declared gaps."""

    def runs(self) -> list[tuple[int, int, float]]:
        """Return ``(start, end, bytes per message)`` for all of the span: each part, and the tail."""
        runs = []
        stored = messages = 0
        for part in self.parts:
            count = part.part.end_offset - part.part.base_offset
            stored += part.part.size_bytes
            messages += count
            start, end = max(self.span.start, part.part.base_offset), min(self.span.end, part.part.end_offset)
            if start < end:
                runs.append((start, end, max(1.0, part.part.size_bytes / count)))
        weight = max(1.0, stored / messages) if messages else GUESSED_MESSAGE_BYTES
        for start, end in pieces(max(self.span.start, self.sealed), self.span.end, self.gaps):
            runs.append((start, end, weight))
        return runs

    def cut(self, start: int, end: int) -> Slice:
        """Return the slice ``[start, end)`` for a task."""
        wanted = tuple(
            part
            for part in self.parts
            if part.part.end_offset > start and part.part.base_offset < min(end, self.sealed)
        )
        topic, partition = self.span.key
        return Slice(
            topic,
            partition,
            self.name,
            self.topic_id,
            start,
            end,
            self.sealed,
            wanted,
            self.is_framed,
            tuple(self.gaps),
        )


# --- Spans ---


def check_named(options: ReadOptions, states: Mapping[LogKey, LogState]) -> None:
    """Check that the offsets in options are for logs that are read.

    Raises:
        ConfigurationError: an offset is for another topic or partition.
    """
    topics = list(dict.fromkeys(key.topic for key in states))
    for at in (options.starting, options.ending):
        for topic, row in (at.offsets or {}).items():
            if topic not in topics:
                raise ConfigurationError(f"offsets are given for {topic!r}, which is not read;{nearest(topic, topics)}")
            for partition in row:
                if LogKey(topic, partition) not in states:
                    raise ConfigurationError(
                        f"offsets are given for {topic!r}, partition {partition}, which it does not have; it has"
                        f" {sum(key.topic == topic for key in states)}"
                    )


def resolve(at: At, states: Mapping[LogKey, LogState], find_time: FindTime, *, default: int) -> dict[LogKey, int]:
    """Return the offset of a position in each log.

    Args:
        at: the position.
        states: the logs.
        find_time: finds a time in a log.
        default: offset for logs that ``offsets`` do not name: -2 (the first message) or -1 (after the last).
    """
    named = at.offsets or {}
    found = {}
    for key, state in states.items():
        if at.kind == "time":
            offset = find_time(key, at.time_us)
        elif at.kind == "offsets":
            offset = named.get(key.topic, {}).get(key.partition, default)
        else:
            offset = EARLIEST_OFFSET if at.kind == "earliest" else LATEST_OFFSET
        ends = {EARLIEST_OFFSET: state.start_offset, LATEST_OFFSET: state.end_offset}
        found[key] = ends.get(offset, offset)
    return found


def choose_spans(
    starting: At,
    ending: At,
    states: Mapping[LogKey, LogState],
    find_time: FindTime,
    *,
    include_tail: bool = True,
) -> tuple[list[Span], list[str]]:
    """Return the spans of a batch query, and a sentence for each requested range that is not available.

    A start after the end yields nothing and is not a loss; neither is an end after the sealed messages, if the tail is
    not read.
    """
    starts = resolve(starting, states, find_time, default=EARLIEST_OFFSET)
    ends = resolve(ending, states, find_time, default=LATEST_OFFSET)
    spans, losses = [], []
    for key, state in sorted(states.items()):
        start, end = starts[key], ends[key]
        where = f"topic {key.topic}, partition {key.partition}"
        if start >= end:
            continue
        if start < state.start_offset:
            losses += [
                f"{where}: offsets [{low}, {high}) have expired; it begins at {state.start_offset}"
                for low, high in pieces(start, min(end, state.start_offset), state.gaps)
            ]
        if end > state.end_offset:
            first = max(start, state.end_offset)
            losses.append(f"{where}: offsets [{first}, {end}) do not exist; it ends at {state.end_offset}")
        start = max(start, state.start_offset)
        end = min(end, state.end_offset if include_tail else state.sealed_offset)
        if start < end:
            spans.append(Span(key, start, end))
    return spans, losses


def data_loss(losses: Iterable[str]) -> DataLossError:
    """Return the error for ranges that cannot be read."""
    return DataLossError(
        f"requested messages do not exist: {'; '.join(losses)}; request existing offsets, or set the option"
        " failOnDataLoss=false to continue after them"
    )


# --- Tasks ---


def pack(
    sources: Sequence[Source], storages: Mapping[str, str], *, target_bytes: int, min_tasks: int = 1
) -> list[ReadTask]:
    """Cut sources into tasks of about ``target_bytes``, all of about one size.

    Args:
        sources: where the messages are.
        storages: URLs of the storages by name.
        target_bytes: approximate maximum of bytes that a task should read.
        min_tasks: minimum number of tasks, if there are as many messages.
    """
    # Drop sources without messages (a span in a gap), so that the number of a cut is its source's index in the list.
    readable = [(source, found) for source in sources if (found := source.runs())]
    runs = [(source, run) for source, found in readable for run in found]
    total = sum((end - start) * weight for _, (start, end, weight) in runs)
    messages = sum(end - start for _, (start, end, _) in runs)
    wanted = min(max(-(-int(total) // target_bytes), min_tasks), messages)
    if not wanted:
        return []
    share = total / wanted
    # Position of each cut: the source's index in the list, and the offset in it.
    cuts = _cuts(runs, [share * number for number in range(1, wanted)], share)
    tasks: list[list[Slice]] = [[]]
    for number, (source, _) in enumerate(readable):
        position = source.span.start
        for cut in [cut for at, cut in cuts if at == number]:
            if cut > position:
                tasks[-1].append(source.cut(position, cut))
                position = cut
            if tasks[-1]:
                tasks.append([])
        if position < source.span.end:
            tasks[-1].append(source.cut(position, source.span.end))
    return [ReadTask(slices, storages) for slices in tasks if slices]


def _cuts(
    runs: Sequence[tuple[Source, tuple[int, int, float]]], marks: Sequence[float], share: float
) -> list[tuple[int, int]]:
    """Return the cut for each mark, which is a number of bytes from the beginning: number of the source, and offset."""
    numbers = [0]
    for (before, _), (after, _) in pairwise(runs):
        numbers.append(numbers[-1] + (after is not before))
    begins: list[float] = []
    position = 0.0
    for _, (start, end, weight) in runs:
        begins.append(position)
        position += (end - start) * weight
    cuts = []
    for mark in marks:
        at = max(0, bisect_left(begins, mark) - 1)
        start, end, weight = runs[at][1]
        inside = mark - begins[at]
        size = (end - start) * weight
        if inside < _SNAP * share:
            cut = start
        elif size - inside < _SNAP * share:
            cut = end
        else:
            cut = start + round(inside / weight)
        cuts.append((numbers[at], cut))
    return cuts
