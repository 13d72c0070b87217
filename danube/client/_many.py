"""The decisions of ``send_many``: which messages share a batch, where they go, and which ranges come back. Pure.

* Bare payloads are encoded piece by piece: as many as the size of the first one promises, fewer if they did not fit,
  and twice as many as before while batches are less than half full.
* Messages with a key are grouped by its partition; those without one may go anywhere.
* Adjacent offsets of one partition become one range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from danube.client._outbox import RECORD_OVERHEAD, OutBatch, record_size
from danube.client._payloads import checked_attributes, encoded_key, encoded_keys, too_large
from danube.client._receipts import OffsetRange
from danube.model.batch import Record, encode_records
from danube.model.errors import InvalidArgumentError

__all__ = ["ANYWHERE", "Segment", "by_partition", "checked_lengths", "encoded_pieces", "joined"]

ANYWHERE = -1
"""Stands for a partition: messages without a key may go to any."""


class Segment(NamedTuple):
    """Messages of one call that share a batch."""

    topic: str
    """The plain topic or partition."""
    partition: int
    batch: OutBatch
    first: int
    """Position of the first of them in the batch."""
    messages: int


def checked_lengths(payloads: Sequence[bytes], max_message_bytes: int) -> list[int]:
    """Return the sizes of payloads.

    Raises:
        MessageTooLargeError: one is too large; the message names the first one.
    """
    lengths = list(map(len, payloads))
    if lengths and max(lengths) > max_message_bytes:
        index = next(index for index, size in enumerate(lengths) if size > max_message_bytes)
        raise too_large(lengths[index], max_message_bytes, index)
    return lengths


def encoded_pieces(
    payloads: list[bytes], max_bytes: int, max_messages: int, max_message_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Yield encoded batches of bare payloads, with the number of their messages; every pass is one call into C.

    A batch is encoded to measure its size, and again if the estimated number of messages did not fit. Only a single
    message may exceed ``max_bytes``.

    Args:
        payloads: at least one.
        max_bytes, max_messages: bounds of a batch.
        max_message_bytes: maximum size of a message.

    Raises:
        MessageTooLargeError: a payload is too large; batches before it were yielded.
    """
    start = 0
    step = max(1, min(max_messages, max_bytes // (len(payloads[0]) + RECORD_OVERHEAD)))
    while start < len(payloads):
        piece = payloads[start : start + step]
        body = encode_records(piece)
        if len(body) > max_message_bytes:
            checked_lengths(payloads, max_message_bytes)  # the error names the message, if a single one is too large
        if len(body) > max_bytes and len(piece) > 1:
            step = max(1, min(len(piece) - 1, len(piece) * max_bytes * 15 // (len(body) * 16)))
            continue
        start += len(piece)
        if len(body) * 2 < max_bytes:
            step = min(max_messages, len(piece) * 2)
        yield body, len(piece)


def by_partition(
    payloads: Sequence[bytes],
    max_message_bytes: int,
    key: str | bytes | None,
    keys: Sequence[str | bytes | None] | None,
    attributes: dict[str, str] | None,
    route: Callable[[bytes], int] | None,
) -> list[tuple[int, list[Record], list[int]]]:
    """Make records; return them and their sizes, grouped by partition (or :data:`ANYWHERE`), each group in order.

    Args:
        payloads: of the messages.
        max_message_bytes: maximum size of a message.
        key: of all messages; or
        keys: one for each.
        attributes: of all messages.
        route: returns the partition of a key; None if there is only one, number 0.

    Raises:
        InvalidArgumentError: both ``key`` and ``keys``, or ``keys`` has another length.
        MessageTooLargeError: a payload is too large.
    """
    if key is not None and keys is not None:
        raise InvalidArgumentError("send_many takes either key (for all messages) or keys (one for each)")
    lengths = checked_lengths(payloads, max_message_bytes)
    count = len(payloads)
    if keys is not None and len(keys) != count:
        raise InvalidArgumentError(f"send_many got {count} payloads and {len(keys)} keys; give one key for each")
    each_key = encoded_keys(keys) if keys is not None else [None if key is None else encoded_key(key)] * count
    extra = record_size(0, None, checked_attributes(attributes)) - RECORD_OVERHEAD
    records = list(map(Record, payloads, each_key, repeat(attributes)))
    sizes = [
        size + extra if one is None else size + extra + RECORD_OVERHEAD + len(one)
        for size, one in zip(lengths, each_key, strict=True)
    ]
    if route is None:
        return [(0, records, sizes)]
    groups: dict[int, tuple[list[Record], list[int]]] = {}
    for record, one, size in zip(records, each_key, sizes, strict=True):
        group = groups.setdefault(ANYWHERE if one is None else route(one), ([], []))
        group[0].append(record)
        group[1].append(size)
    return [(index, *group) for index, group in groups.items()]


def joined(segments: Iterable[Segment]) -> list[OffsetRange]:
    """Return the ranges of settled messages; a negative start stands for messages without an offset."""
    ranges: list[OffsetRange] = []
    for topic, partition, batch, index, count in segments:
        start = batch.base_offset + index if batch.base_offset >= 0 else batch.base_offset
        if ranges and start >= 0 and ranges[-1].topic == topic and ranges[-1].end == start:
            last = ranges.pop()
            start, count = last.start, last.count + count
        ranges.append(OffsetRange(topic, start, count, partition))
    return ranges
