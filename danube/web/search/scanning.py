"""Applies a filter to stored batches. Pure.

A batch is passed over as a whole if its bytes, offsets or time rule out a match; otherwise its records are decoded, and
the predicate sees one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from danube.model.batch import BatchFlags, CompositeRecord, Record, read_header, unpack_body
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CorruptBatchError
from danube.web.search.filters import All, Compare, Node, OneOf
from danube.web.search.matching import View, predicate_of, value_test
from danube.web.search.needles import ESCAPE, BatchFacts, batch_test, guard_of, need_of

if TYPE_CHECKING:
    from danube.model.query_api import RawBatch

__all__ = ["Bounds", "Found", "Scanner", "bounds_of"]

_PAYLOADS: Any = msgspec.msgpack.Decoder(list[bytes])
_RECORDS: Any = msgspec.msgpack.Decoder(list[Record])
_COMPOSITE: Any = msgspec.msgpack.Decoder(list[CompositeRecord])


class Found(msgspec.Struct):
    """A message that matches; has what :func:`danube.web.messages.message_row` shows."""

    payload: bytes
    offset: int
    key_bytes: bytes | None
    attributes: dict[str, str] | None
    topic: str
    partition: int
    publish_time_us: int
    append_time_us: int
    producer: str
    attempt: int = 1


class Scanner:
    """Applies a filter to the batches of one plain topic or partition.

    Args:
        node: the filter.
        topic: name of the plain topic or partition.
        partition: its number.
        max_batch_bytes: of the unpacked records of one batch.
    """

    def __init__(self, node: Node | None, topic: str, partition: int, max_batch_bytes: int) -> None:
        self._test = predicate_of(node)
        need = need_of(node)
        self._may_match = batch_test(need, _fact_test)
        self._guard = guard_of(need)
        self._topic = topic
        self._partition = partition
        self._max_batch_bytes = max_batch_bytes
        self._view = View(partition)

    def scan(self, batch: RawBatch, start: int, end: int) -> tuple[int, list[Found]]:
        """Return how many messages of a checked batch are in ``[start, end)``, and those that match, in their order.

        Raises:
            CorruptBatchError: its records do not decode.
        """
        base, part = batch.base_offset, batch.part
        header = read_header(part)
        count = header.record_count
        first, last = max(start - base, 0), min(end - base, count)
        if first >= last:
            return 0, []
        body = unpack_body(part, header, self._max_batch_bytes)
        data = body if isinstance(body, bytes) else bytes(body)
        facts = BatchFacts(self._partition, base + first, base + last - 1, batch.append_time_us)
        if not self._may_match(facts, data):
            return last - first, []
        flags = header.flags
        view = self._view
        view.time = batch.append_time_us
        view.producer = batch.producer
        decoder = _PAYLOADS if flags & BatchFlags.PAYLOADS_ONLY else _RECORDS
        if flags & BatchFlags.COMPOSITE:
            decoder = _COMPOSITE
        try:
            records: list[Any] = decoder.decode(data)
        except UNDECODABLE as error:
            raise CorruptBatchError(f"batch records do not decode: {error}") from error
        if len(records) != count:
            raise CorruptBatchError(f"batch header gives {count} records, but the batch has {len(records)}")
        if decoder is _PAYLOADS:
            at = self._plain(records, base, self._candidates(records, data, first, last))
        else:
            at = self._full(records, base, first, last)
        return last - first, [self._found(records[index], batch, base + index, header.publish_time_us) for index in at]

    def _candidates(self, payloads: list[bytes], body: bytes, first: int, last: int) -> Iterable[int]:
        """Return the indexes of payloads that may match, by one look at their bytes."""
        guard = self._guard
        if guard is None or (guard.escapable and ESCAPE in body):
            return range(first, last)
        wanted = guard.data
        return [index for index in range(first, last) if wanted in payloads[index]]

    def _plain(self, payloads: list[bytes], base: int, candidates: Iterable[int]) -> list[int]:
        view, test, found = self._view, self._test, list[int]()
        view.key = view.attributes = None
        show = view.show
        for index in candidates:
            show(payloads[index])
            view.offset = base + index
            if test(view):
                found.append(index)
        return found

    def _full(self, records: list[Record], base: int, first: int, last: int) -> list[int]:
        view, test, found = self._view, self._test, list[int]()
        composite = bool(records) and type(records[0]) is CompositeRecord
        for index in range(first, last):
            record = records[index]
            view.show(record.payload)
            view.key, view.attributes = record.key or None, record.attributes
            view.offset = base + index
            if composite:
                view.producer = record.producer  # type: ignore[attr-defined]
            if test(view):
                found.append(index)
        return found

    def _found(self, record: Any, batch: RawBatch, offset: int, publish_time_us: int) -> Found:
        if type(record) is bytes:
            record = Record(record)
        return Found(
            record.payload,
            offset,
            record.key or None,
            record.attributes,
            self._topic,
            self._partition,
            publish_time_us + record.publish_delta_us,
            batch.append_time_us,
            record.producer if type(record) is CompositeRecord else batch.producer,
        )


# --- What a filter says of whole batches and ranges ---


def _fact_test(node: Compare) -> Callable[[BatchFacts], bool]:
    """Return whether a condition on partition, time or offset can hold for a message of a batch."""
    test = value_test(node.operator, node.values)
    if node.field.kind == "partition":
        return lambda facts: test(facts.partition)
    if node.field.kind == "time":
        return lambda facts: test(facts.time)
    if node.operator in ("<", "<="):
        return lambda facts: test(facts.first)
    if node.operator in (">", ">="):
        return lambda facts: test(facts.last)
    if node.operator in ("==", "in"):
        numbers = [each.number for each in node.values if each.number is not None]
        return lambda facts: any(facts.first <= number <= facts.last for number in numbers)
    return lambda _facts: True


class Bounds(NamedTuple):
    """Where all matches of a filter are."""

    start: int = 0
    """First offset."""
    end: int = 2**63 - 1
    """Behind the last offset."""
    time_us: int = 0
    """None was stored before it."""


def bounds_of(node: Node | None) -> Bounds:
    """Return in which offsets, and since when, all matches of a filter are; wider than they are if it is not clear."""
    if isinstance(node, All):
        each = [bounds_of(part) for part in node.parts]
        return Bounds(
            max(part.start for part in each), min(part.end for part in each), max(part.time_us for part in each)
        )
    if isinstance(node, OneOf):
        each = [bounds_of(part) for part in node.parts]
        return Bounds(
            min(part.start for part in each), max(part.end for part in each), min(part.time_us for part in each)
        )
    if not isinstance(node, Compare) or node.field.kind not in ("offset", "time"):
        return Bounds()
    numbers = [each.number for each in node.values if each.number is not None]
    if len(numbers) != len(node.values):
        return Bounds()
    low, high = int(min(numbers)), int(max(numbers))
    if node.field.kind == "time":
        return Bounds(time_us=max(0, low)) if node.operator in (">", ">=", "==", "in") else Bounds()
    return {
        ">": Bounds(start=max(0, low)),
        ">=": Bounds(start=max(0, low)),
        "<": Bounds(end=max(0, high + 1)),
        "<=": Bounds(end=max(0, high + 1)),
        "==": Bounds(max(0, low), max(0, high + 1)),
        "in": Bounds(max(0, low), max(0, high + 1)),
    }.get(node.operator, Bounds())
