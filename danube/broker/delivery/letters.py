"""Dead letters: the copies of messages that a subscription gave up on. Pure.

A copy has the payload, key, attributes, schema and publish time of its original, and further attributes that state its
origin and cause::

    x-original-topic              topic or partition
    x-original-subscription
    x-original-topic-offset
    x-original-producer           name
    x-original-producer-id
    x-original-broker-addr        where the broker listens
    x-poison-policy               dead_letter
    x-delivery-attempt            deliveries so far
    x-failure-reason              of the last failure: what the nack said, "nack" or "ack timeout"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from danube.broker.runtime.opened_batches import OpenedBatch
from danube.dispatch import Poisoned
from danube.log.cache import StoredBatch
from danube.model import Limits, PoisonPolicy
from danube.model.batch import PART_OVERHEAD, BatchFlags, CompositeRecord, Record
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CorruptBatchError
from danube.model.ids import ProducerId
from danube.model.names import route_key

__all__ = ["Letter", "Origin", "letters_of", "sort_letters", "within"]

_ARRAY_HEAD: Final = 5
"""Bytes of a msgpack array header."""
_CALL_OVERHEAD: Final = 4096
"""At least as many bytes as a call to the owner of the topic has beside the letters."""

_encode = msgspec.msgpack.Encoder().encode
_PAYLOAD = msgspec.msgpack.Decoder(bytes)
_RECORD = msgspec.msgpack.Decoder(Record)
_COMPOSITE = msgspec.msgpack.Decoder(CompositeRecord)


class Letter(NamedTuple):
    """A copy, and the offsets of its originals."""

    start: int
    end: int
    record: Record


class Origin(NamedTuple):
    """Where the messages of a batch come from."""

    topic: str
    subscription: str
    producer: str
    """Name of the producer of the batch; messages of a composite batch name their own."""
    producer_id: ProducerId
    addresses: str
    """Addresses of the broker, separated by commas."""


def within(batch: StoredBatch, found: Sequence[Poisoned]) -> list[Poisoned]:
    """Return the parts of poisoned ranges that lie in a batch."""
    return [
        item._replace(start=max(item.start, batch.base_offset), end=min(item.end, batch.end_offset))
        for item in found
        if item.start < batch.end_offset and item.end > batch.base_offset
    ]


def letters_of(
    batch: StoredBatch, opened: OpenedBatch | CorruptBatchError, found: Sequence[Poisoned], origin: Origin
) -> list[Letter]:
    """Return the copies of poisoned messages of a batch.

    Args:
        batch, opened: the batch, and its records, or why it cannot be opened: then one letter stands for all of it.
        found: the poisoned messages; all of them are in the batch.
        origin: of the batch.
    """
    if isinstance(opened, CorruptBatchError):
        reason = f"the batch cannot be opened, so the payload is its raw bytes: {opened}"
        attributes = _attributes(origin, found[0]._replace(start=batch.base_offset, reason=reason))
        return [Letter(batch.base_offset, batch.end_offset, Record(batch.part, attributes=attributes))]
    flags = batch.header.flags
    decode: Callable[[msgspec.Raw], Record] = _plain if flags & BatchFlags.PAYLOADS_ONLY else _RECORD.decode
    if flags & BatchFlags.COMPOSITE:
        decode = _COMPOSITE.decode
    letters = []
    for item in found:
        for offset in range(item.start, item.end):
            raw = opened.raws[offset - batch.base_offset]
            about = item._replace(start=offset)
            try:
                record = decode(raw)
            except UNDECODABLE as error:
                record = Record(bytes(raw))
                about = about._replace(reason=f"the record does not decode, so the payload is its raw bytes: {error}")
            attributes = {**(record.attributes or {}), **_attributes(origin, about)}
            if isinstance(record, CompositeRecord):
                attributes |= _producer(record.producer, record.producer_id)
            record = Record(record.payload, record.key, attributes, record.publish_delta_us)
            letters.append(Letter(offset, offset + 1, record))
    return letters


def _attributes(origin: Origin, item: Poisoned) -> dict[str, str]:
    return {
        "x-original-topic": origin.topic,
        "x-original-subscription": origin.subscription,
        "x-original-topic-offset": str(item.start),
        **_producer(origin.producer, origin.producer_id),
        "x-original-broker-addr": origin.addresses,
        "x-poison-policy": PoisonPolicy.DEAD_LETTER.value,
        "x-delivery-attempt": str(item.attempt),
        "x-failure-reason": item.reason,
    }


def _producer(name: str, producer_id: ProducerId) -> dict[str, str]:
    return {"x-original-producer": name, "x-original-producer-id": str(producer_id)}


def _plain(raw: msgspec.Raw) -> Record:
    return Record(_PAYLOAD.decode(raw))


def sort_letters(
    letters: Sequence[Letter], partitions: int, turn: int, limits: Limits
) -> Iterator[tuple[int, list[Letter]]]:
    """Distribute letters to partitions, and cut them into batches of bounded size.

    Args:
        letters: in the order of their offsets.
        partitions: of the dead-letter topic; 1 for a plain one.
        turn: selects the partition of letters without a key.
        limits: on batches, and on calls between brokers. A letter that is too large because of its added attributes is
            a batch of its own.

    Yields:
        The index of a partition, and a batch for it.
    """
    shares: dict[int, list[Letter]] = {}
    for letter in letters:
        key = letter.record.key
        share = route_key(key, partitions) if key else turn % partitions
        shares.setdefault(share, []).append(letter)
    most = min(limits.max_batch_bytes - PART_OVERHEAD, limits.max_peer_message_bytes - _CALL_OVERHEAD) - _ARRAY_HEAD
    for share, mine in shares.items():
        begin = size = 0
        for index, letter in enumerate(mine):
            cost = len(_encode(letter.record))
            full = size + cost > most
            if index > begin and (full or index - begin >= limits.max_batch_records):
                yield share, mine[begin:index]
                begin, size = index, 0
            size += cost
        yield share, mine[begin:]
