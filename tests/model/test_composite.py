"""Composite batches: each record names its producer, and code that does not need it is not affected."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.runtime.opened_batches import OpenedBatch
from danube.client._delivered import open_delivery
from danube.client._message import Batch, Message
from danube.log import ProducerTable, StoredBatch
from danube.log.index import Location
from danube.log.recovered import RecoveredTopic
from danube.model import Limits, Stamp, api
from danube.model.batch import (
    BatchFlags,
    CompositeRecord,
    Record,
    check_part,
    encode_composite,
    encode_part,
    open_raw,
    open_records,
    slice_part,
)
from danube.model.errors import CorruptBatchError

MAX = 1 << 24

composites = st.lists(
    st.builds(
        CompositeRecord,
        payload=st.binary(max_size=50),
        key=st.none() | st.binary(max_size=10),
        attributes=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        publish_delta_us=st.integers(-(10**12), 10**12),
        producer=st.text(min_size=1, max_size=8),
        producer_id=st.integers(1, 2**63 - 1),
        sequence=st.integers(0, 2**64 - 1),
    ),
    min_size=1,
    max_size=20,
)


class Source:
    topic = "/default/orders"
    partition = 0
    generation = 0
    moves = 0

    def ack(self, start: int, end: int, moves: int) -> None:
        raise AssertionError((start, end, moves))

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        raise AssertionError((ranges, delay_s, reason, moves))

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        raise AssertionError((ranges, lease_s, moves))


def delivered(part: bytes, ranges: list[int] | None = None) -> Batch:
    count = check_part(part).record_count
    delivery = api.ConsumeBatch(100, 5_000, 1, ranges or [100, 100 + count], "", len(part), part)
    return open_delivery(Batch, Source(), delivery, MAX)


@given(composites)
def test_records_come_back_with_their_producers(items: list[CompositeRecord]) -> None:
    part = encode_composite(items, publish_time_us=1_000, schema_id=3, schema_version=4)
    header = check_part(part)
    assert open_records(part, header, MAX) == items
    assert header.flags == BatchFlags.COMPOSITE
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (0, 0, 0)
    assert (header.record_count, header.schema_id, header.schema_version) == (len(items), 3, 4)


@given(composites, st.data())
def test_the_client_shows_the_producer_of_each_message(items: list[CompositeRecord], data: st.DataObject) -> None:
    batch = delivered(encode_composite(items, publish_time_us=1_000))
    assert [message.producer for message in batch] == [item.producer for item in items]
    index = data.draw(st.integers(0, len(items) - 1))
    message, item = batch[index], items[index]
    assert isinstance(message, Message)
    assert (message.payload, message.key_bytes, message.attributes) == (item.payload, item.key, item.attributes)
    assert (message.producer, message.publish_time_us) == (item.producer, 1_000 + item.publish_delta_us)
    assert message.offset == 100 + index


def test_a_slice_stays_composite() -> None:
    items = [CompositeRecord(b"%d" % n, producer=f"p{n}", producer_id=n + 1, sequence=n) for n in range(5)]
    part = encode_composite(items, publish_time_us=0)
    raws = open_raw(part, check_part(part), MAX)
    batch = delivered(slice_part(check_part(part), [raws[1], raws[3]]), [101, 102, 103, 104])
    assert [(message.offset, message.producer) for message in batch] == [(101, "p1"), (103, "p3")]


def test_messages_of_one_producer_have_that_of_their_batch() -> None:
    part = encode_part(
        [Record(b"x", b"k"), Record(b"y")], producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=0
    )
    delivery = api.ConsumeBatch(0, 0, 1, [0, 2], "native", len(part), part)
    assert [message.producer for message in open_delivery(Batch, Source(), delivery, MAX)] == ["native", "native"]


def test_who_does_not_care_reads_plain_records() -> None:
    part = encode_composite([CompositeRecord(b"x", b"k", {"a": "b"}, 7, "p", 1, 2)], publish_time_us=0)
    (raw,) = open_raw(part, check_part(part), MAX)
    assert msgspec.msgpack.decode(raw, type=Record) == Record(b"x", b"k", {"a": "b"}, 7)


def test_a_message_without_a_key_has_the_name_of_its_producer_as_key() -> None:
    items = [CompositeRecord(b"x", producer="a"), CompositeRecord(b"y", b"key", producer="b")]
    opened = opened_batch(encode_composite(items, publish_time_us=0))
    assert opened.keys(b"nobody") == [b"a", b"key"]


def opened_batch(part: bytes) -> OpenedBatch:
    header = check_part(part)
    batch = StoredBatch(0, header.record_count, b"", part, header, 0)
    return OpenedBatch(batch, open_raw(part, header, MAX))


def test_keys_of_records_that_do_not_decode() -> None:
    part = encode_composite([CompositeRecord(b"x")], publish_time_us=0)
    bare = msgspec.Raw(msgspec.msgpack.encode(b"x"))
    with pytest.raises(CorruptBatchError, match="do not decode"):
        OpenedBatch(StoredBatch(0, 1, b"", part, check_part(part), 0), [bare]).keys(b"nobody")


def test_recovery_passes_them_by_and_counts_their_offsets() -> None:
    topic = RecoveredTopic(9, 40)
    header = check_part(encode_composite([CompositeRecord(b"x"), CompositeRecord(b"y")], publish_time_us=0))
    assert topic.add(Stamp(0, 9, 40, 5, 0, 0), header, Location(1, 2)) == 42
    assert (topic.next_offset, topic.producers, topic.damaged) == (42, {}, [])
    table = ProducerTable(Limits())
    table.apply_batches(topic.producers)
    assert len(table) == 0
