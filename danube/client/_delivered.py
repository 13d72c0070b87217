"""Received batches, and messages made from them on demand. Pure: no I/O, no clock.

msgspec decodes a delivery as a whole. A message is created only on iteration; the fast path is
:meth:`DeliveredBatch.payloads`, which creates no message objects. The asynchronous client and the blocking one have
classes of their own for both, derived from those here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, cast

import msgspec

from danube.client._generics import V
from danube.model.batch import BatchFlags, CompositeRecord, Record, SchemaRef, check_part, open_records, read_header
from danube.model.errors import CorruptBatchError, SchemaError
from danube.model.keys import key_to_text
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.model.api import ConsumeBatch

__all__ = [
    "BareMessage",
    "DeliveredBatch",
    "OpenBatch",
    "Source",
    "live_ranges",
    "message_count",
    "open_delivery",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_SCHEMA = SchemaRef()

M = TypeVar("M", bound="BareMessage[Any]")
M_co = TypeVar("M_co", bound="BareMessage[Any]", covariant=True)


class Source(Protocol):
    """The source of a batch, which receives acknowledgements, refusals and lease extensions."""

    topic: str
    partition: int

    @property
    def generation(self) -> int:
        """Number of the stream: messages delivered on an older one may be delivered again."""

    @property
    def moves(self) -> int:
        """Number of observed seeks of the subscription: messages delivered before a seek are void after it."""

    def ack(self, start: int, end: int, moves: int) -> None:
        """Acknowledge ``[start, end)``, delivered after ``moves`` seeks."""

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        """Refuse ranges."""

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        """Move the ack timeout of ranges."""


class BareMessage(msgspec.Struct, Generic[V], gc=False, eq=False):
    """Common base of the messages of the asynchronous and of the blocking client."""

    payload: bytes
    offset: int
    """Position in its topic (partition)."""
    _batch: DeliveredBatch
    key_bytes: bytes | None = None
    """The key: any bytes."""
    attributes: dict[str, str] | None = None
    _delta_us: int = 0
    _producer: str | None = None

    def __repr__(self) -> str:
        topic, partition = split_partition(self.topic) or (self.topic, 0)
        return f"Message({topic!r} {partition}:{self.offset}, {len(self.payload)} B)"

    @property
    def value(self) -> V:
        """With ``schema=``: the decoded payload, whichever version of the schema it was written with; else the payload.

        It is decoded when it is first asked for.

        Raises:
            SchemaError: the payload cannot be decoded. Other messages are not affected.
        """
        return cast("V", self.payload)

    @property
    def key(self) -> str | None:
        r"""The key as text.

        Bytes that are not UTF-8 are lone surrogates in it, as in Python's file names (``b"\xff"`` is ``"\udcff"``):
        it can be compared and published again, but neither printed nor encoded. Use :attr:`key_bytes` if keys may be
        other than text.
        """
        key = self.key_bytes
        if key is None:
            return None
        try:
            return key.decode()  # twice as fast as with an error handler
        except UnicodeDecodeError:
            return key_to_text(key)

    @property
    def topic(self) -> str:
        """The topic; of a partitioned topic, the partition."""
        return self._batch.topic

    @property
    def partition(self) -> int:
        """Index of the partition; 0 in a plain topic."""
        return self._batch.partition

    @property
    def publish_time_us(self) -> int:
        """When the producer created the message's batch: microseconds since the epoch, by the producer's clock."""
        return self._batch.publish_time_us + self._delta_us

    @property
    def publish_time(self) -> datetime:
        """The same as a date with time zone UTC."""
        return _EPOCH + timedelta(microseconds=self.publish_time_us)

    @property
    def append_time_us(self) -> int:
        """When the broker stored the message: microseconds since the epoch, by the broker's clock."""
        return self._batch.append_time_us

    @property
    def attempt(self) -> int:
        """1 for the first delivery, 2 for the second ..."""
        return self._batch.attempt

    @property
    def producer(self) -> str:
        """Name of the producer."""
        return self._batch.producer if self._producer is None else self._producer

    def ack_nowait(self) -> None:
        """Acknowledge the message; the acknowledgement is sent at the end of this turn of the loop."""
        offset, batch = self.offset, self._batch
        batch.feed.ack(offset, offset + 1, batch.moves)


class DeliveredBatch:
    """Common base of the batches of the asynchronous and of the blocking client."""

    __slots__ = (
        "_payloads",
        "_records",
        "append_time_us",
        "attempt",
        "decoder",
        "feed",
        "generation",
        "is_framed",
        "moves",
        "offsets",
        "producer",
        "publish_time_us",
        "ranges",
        "schema_id",
        "schema_version",
    )

    def __init__(
        self,
        feed: Source,
        delivery: ConsumeBatch,
        publish_time_us: int,
        ranges: list[int],
        opened: list[bytes] | list[Record],
        *,
        plain: bool,
        schema: SchemaRef = _NO_SCHEMA,
    ) -> None:
        self.feed = feed
        self.decoder: Callable[[bytes], Any] | None = None
        """Makes values of payloads; None without ``schema=``."""
        self.schema_id, self.schema_version = schema
        """Number of the schema with which the payloads were written, and its version in its subject; 0: none."""
        self.is_framed = False
        """Whether each payload begins with Confluent's frame, which names its schema."""
        self.generation = feed.generation
        self.moves = feed.moves
        self.ranges = ranges
        """Offsets of the messages as ``[start, end, start, end, ...]``."""
        self.offsets: Sequence[int] = (
            range(ranges[0], ranges[1]) if len(ranges) == 2 else list(chain.from_iterable(map(range, *_pairs(ranges))))
        )
        """Offset of each message."""
        self.append_time_us = delivery.append_time_us
        """When the broker stored the batch: microseconds since the epoch."""
        self.attempt = delivery.attempt
        """1 for the first delivery."""
        self.producer = delivery.producer_name
        """Name of the producer; empty if its messages were sent one at a time, each with its own producer."""
        self.publish_time_us = publish_time_us
        """When the producer created the batch: microseconds since the epoch."""
        self._payloads: list[bytes] | None = cast("list[bytes]", opened) if plain else None
        self._records: list[Record] | None = None if plain else cast("list[Record]", opened)

    @property
    def topic(self) -> str:
        """The topic; of a partitioned topic, the partition."""
        return self.feed.topic

    @property
    def partition(self) -> int:
        """Index of the partition; 0 in a plain topic."""
        return self.feed.partition

    def payloads(self) -> list[bytes]:
        """Return the payloads, without creating messages. The list belongs to the batch: do not change it."""
        if self._payloads is None:
            self._payloads = [record.payload for record in self._records or ()]
        return self._payloads

    def keys(self) -> list[str | None]:
        """Return the key of each message as text; see :attr:`BareMessage.key` for those that are not UTF-8."""
        keys = self.keys_bytes()
        try:
            return list(map(bytes.decode, keys))  # type: ignore[arg-type]
        except (TypeError, UnicodeDecodeError):  # messages without a key, or with one that is no text
            return [None if key is None else key_to_text(key) for key in keys]

    def keys_bytes(self) -> list[bytes | None]:
        """Return the key of each message as bytes."""
        if self._records is None:
            return [None] * len(self.offsets)
        return [record.key for record in self._records]

    def decode(self, payload: bytes, offset: int) -> Any:
        """Return the value of one of the payloads.

        Raises:
            SchemaError: it cannot be decoded; the message names its offset.
        """
        if self.decoder is None:
            return payload
        try:
            return self.decoder(payload)
        except SchemaError as error:
            raise SchemaError(f"{self.topic}, offset {offset}: {error.message}", error.details) from error.__cause__

    def decode_all(self) -> list[Any]:
        """Return the values of all payloads; errors as of :meth:`decode`."""
        payloads = self.payloads()
        if self.decoder is None:
            return payloads
        try:
            return list(map(self.decoder, payloads))
        except SchemaError:
            return list(map(self.decode, payloads, self.offsets))  # which reports the offset

    def __len__(self) -> int:
        return len(self.offsets)

    def build(self, kind: type[M], offsets: Iterator[int] | None = None) -> Iterator[M]:
        """Create the messages one by one, as objects of ``kind``.

        ``offsets`` iterates over :attr:`offsets`; its owner reads the progress from it.
        """
        make: Any = kind
        where: Iterable[int] = self.offsets if offsets is None else offsets
        if self._records is None:
            return map(make, self._payloads or (), where, repeat(self))
        return map(
            make, self.payloads(), where, repeat(self), *zip(*map(_rest_of(self._records), self._records), strict=True)
        )

    def pick(self, kind: type[M], index: int | slice) -> M | list[M]:
        """Create the message at ``index``, or those of a slice, as objects of ``kind``."""
        if isinstance(index, slice):
            return [self._build_one(kind, position) for position in range(*index.indices(len(self)))]
        return self._build_one(kind, index)

    def _build_one(self, kind: type[M], index: int) -> M:
        make: Any = kind
        if self._records is None:
            return cast("M", make(self.payloads()[index], self.offsets[index], self))
        record = self._records[index]
        return cast("M", make(record.payload, self.offsets[index], self, *_rest_of(self._records)(record)))

    @classmethod
    def adopt(cls, other: DeliveredBatch, feed: Source) -> Self:
        """Return a batch of this kind with the contents of another one, acknowledging through ``feed``."""
        batch = cls.__new__(cls)
        for name in DeliveredBatch.__slots__:
            setattr(batch, name, getattr(other, name))
        batch.feed = feed
        return batch

    def ack_nowait(self) -> None:
        """Acknowledge all messages; the acknowledgement is sent at the end of this turn of the loop."""
        ranges = self.ranges
        for index in range(0, len(ranges), 2):
            self.feed.ack(ranges[index], ranges[index + 1], self.moves)


class OpenBatch(Generic[M_co]):
    """A batch whose messages are handed out one by one.

    The progress is read from the iterator over the offsets, so that it costs nothing per message.
    """

    __slots__ = ("_offsets", "batch", "messages", "renewed_from")

    def __init__(self, batch: DeliveredBatch, kind: type[M_co]) -> None:
        self.batch = batch
        self._offsets = iter(batch.offsets)
        self.messages: Iterator[M_co] = batch.build(kind, self._offsets)
        self.renewed_from: int | None = None
        """First offset handed out since the last renewal of leases; None if none was handed out."""

    @property
    def next_offset(self) -> int | None:
        """Offset of the next message to be handed out; None if none is left."""
        left = length_hint(self._offsets)
        return self.batch.offsets[-left] if left else None

    def drop(self) -> None:
        """Stop handing out messages."""
        self._offsets = iter(())
        self.messages = iter(())


B = TypeVar("B", bound=DeliveredBatch)


def open_delivery(kind: type[B], feed: Source, delivery: ConsumeBatch, max_batch_bytes: int) -> B:
    """Verify a delivery and decode it.

    Raises:
        CorruptBatchError: the checksum is wrong, the records do not decode, or the ranges do not fit.
    """
    header = check_part(delivery.part)
    opened: list[Any] = open_records(delivery.part, header, max_batch_bytes)
    base, count = delivery.base_offset, header.record_count
    ranges = delivery.ranges or [base, base + count]
    wanted = sum(ranges[1::2]) - sum(ranges[::2])
    if header.flags & BatchFlags.SLICE:
        if wanted != count:
            raise CorruptBatchError(f"the delivery names {wanted} offsets for {count} records")
    elif wanted != count or ranges[0] != base:
        if len(ranges) % 2 or ranges[0] < base or ranges[-1] > base + count:
            raise CorruptBatchError(f"the delivery names offsets outside its {count} records")
        opened = [
            record
            for start, end in zip(ranges[::2], ranges[1::2], strict=True)
            for record in opened[start - base : end - base]
        ]
    plain = bool(header.flags & BatchFlags.PAYLOADS_ONLY)
    schema = SchemaRef(header.schema_id, header.schema_version)
    return kind(feed, delivery, header.publish_time_us, ranges, opened, plain=plain, schema=schema)


def message_count(delivery: ConsumeBatch) -> int:
    """Return the number of messages in a delivery."""
    ranges = delivery.ranges
    if ranges:
        return sum(ranges[1::2]) - sum(ranges[::2])
    return read_header(delivery.part).record_count


def live_ranges(delivery: ConsumeBatch) -> list[int]:
    """Return the offsets of a delivery's messages as ``[start, end, start, end, ...]``."""
    return delivery.ranges or [delivery.base_offset, delivery.base_offset + message_count(delivery)]


def _pairs(flat: list[int]) -> tuple[Iterable[int], Iterable[int]]:
    return flat[::2], flat[1::2]


def _rest_of(records: Sequence[Record]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that extracts the remaining fields of a message, for records of one kind."""
    return _rest_of_composite if records and type(records[0]) is CompositeRecord else _rest


def _rest(record: Record) -> tuple[bytes | None, dict[str, str] | None, int]:
    return record.key, record.attributes, record.publish_delta_us


def _rest_of_composite(record: CompositeRecord) -> tuple[bytes | None, dict[str, str] | None, int, str]:
    return record.key, record.attributes, record.publish_delta_us, record.producer
