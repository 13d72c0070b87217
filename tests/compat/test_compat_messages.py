"""Stored messages as official clients get them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.broker.runtime.opened_batches import OpenedBatches
from danube.compat.messages import key_of, messages_of
from danube.compat.proto import danube_api_pb2 as pb
from danube.dispatch import Delivery
from danube.log import StoredBatch
from danube.model import Durability, Limits
from danube.model.batch import (
    Codec,
    CompositeRecord,
    Record,
    encode_composite,
    encode_part,
    pack_part,
    read_header,
)
from danube.model.errors import CorruptBatchError
from danube.model.limits import MIB

URL = "http://broker:6650"
NOW_US = 1_700_000_000_123_456


class FakeTopic:
    """What the messages of a topic need of it."""

    name = "/default/t"
    topic_id = 1

    def __init__(self, durability: Durability = Durability.DISK) -> None:
        self.durability = durability
        self.lossy = durability is Durability.NONE
        self.opened = OpenedBatches(Limits())

    def producer_name(self, producer_id: int) -> str:
        return f"producer {producer_id}"


def stored(part: bytes, base: int = 100) -> StoredBatch:
    header = read_header(part)
    return StoredBatch(base, base + header.record_count, b"", part, header, NOW_US)


def rendered(part: bytes, ranges: list[int] | None = None) -> list[pb.StreamMessage]:
    topic: Any = FakeTopic()
    batch = stored(part)
    whole = ranges is None
    flat = [batch.base_offset, batch.end_offset] if ranges is None else ranges
    count = sum(flat[1::2]) - sum(flat[::2])
    delivery = Delivery(1, batch, batch.base_offset, flat, 1, whole, count, 1)
    pairs = list(messages_of(topic, URL, batch, delivery, MIB))
    messages = [pb.StreamMessage.FromString(data) for _, data in pairs]
    assert [offset for offset, _ in pairs] == [message.msg_id.topic_offset for message in messages]
    return messages


def native(records: list[Any], **fields: Any) -> bytes:
    given = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 50, "publish_time_us": NOW_US}
    return encode_part(records, **(given | fields))


@pytest.mark.parametrize("part", ["payloads", "records", "composite"])
def test_messages_of_a_topic_that_keeps_nothing_have_the_offset_0(part: str) -> None:
    parts = {
        "payloads": native([b"a", b"b"]),
        "records": native([Record(b"a", key=b"k"), Record(b"b")]),
        "composite": encode_composite([CompositeRecord(b"a"), CompositeRecord(b"b")], publish_time_us=NOW_US),
    }
    topic: Any = FakeTopic(Durability.NONE)
    batch = stored(parts[part])
    delivery = Delivery(1, batch, batch.base_offset, [100, 102], 1, True, 2, 1)
    pairs = list(messages_of(topic, URL, batch, delivery, MIB))
    assert [offset for offset, _ in pairs] == [100, 101]
    assert [pb.StreamMessage.FromString(data).msg_id.topic_offset for _, data in pairs] == [0, 0]


@pytest.mark.parametrize("ranges", [None, [100, 101, 102, 103]])
@pytest.mark.parametrize("codec", list(Codec))
def test_payloads(codec: Codec, ranges: list[int] | None) -> None:
    found = rendered(native([b"a", b"b", b"c"], codec=codec, schema_id=3, schema_version=4), ranges)
    kept = [0, 1, 2] if ranges is None else [0, 2]
    assert found == [
        pb.StreamMessage(
            request_id=50 + index,
            msg_id=pb.MsgID(producer_id=9, topic_name="/default/t", broker_addr=URL, topic_offset=100 + index),
            payload=b"abc"[index : index + 1],
            publish_time=NOW_US // 1000,
            producer_name="producer 9",
            schema_id=3,
            schema_version=4,
        )
        for index in kept
    ]


@pytest.mark.parametrize("ranges", [None, [100, 104]])
def test_nothing_of_one_message_is_left_in_the_next(ranges: list[int] | None) -> None:
    records = [
        Record(b"a", b"key", {"x": "1", "y": "2"}, 5_000),
        Record(b"b", None, {"x": "3"}),
        Record(b"c", b"", None, -1_000_000),
        Record(b""),
    ]
    found = rendered(native(records), ranges)
    assert [(each.payload, dict(each.attributes)) for each in found] == [
        (b"a", {"x": "1", "y": "2"}),
        (b"b", {"x": "3"}),
        (b"c", {}),
        (b"", {}),
    ]
    assert [each.routing_key if each.HasField("routing_key") else None for each in found] == ["key", None, "", None]
    assert [each.publish_time * 1000 - NOW_US // 1000 * 1000 for each in found] == [5_000, 0, -1_000_000, 0]


def test_the_encoding_of_a_key_is_said_of_encoded_keys_only() -> None:
    """An attribute of that name, given by a native producer, made official clients decode a plain key."""
    said = {"x-danube-key-encoding": "base64", "x": "1"}
    found = rendered(native([Record(b"a", b"aaaa", said), Record(b"b", b"\xff", said)]), None)
    assert [dict(each.attributes) for each in found] == [{"x": "1"}, said]


@given(
    st.lists(
        st.builds(
            CompositeRecord,
            st.binary(max_size=20),
            st.none() | st.binary(max_size=5),
            st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3),
            st.integers(-(10**9), 10**9),
            st.text(min_size=1, max_size=5),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
        ),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_composites_say_who_has_sent_each(records: list[CompositeRecord], data: st.DataObject) -> None:
    part = encode_composite(records, publish_time_us=NOW_US)
    chosen = data.draw(st.none() | st.sets(st.integers(0, len(records) - 1), min_size=1))
    ranges = None if chosen is None else [at for index in sorted(chosen) for at in (100 + index, 101 + index)]
    found = rendered(part, ranges)
    for message, index in zip(found, range(len(records)) if chosen is None else sorted(chosen), strict=True):
        record = records[index]
        assert message.payload == record.payload
        attributes = dict(message.attributes)
        key = key_of(message.routing_key, attributes) if message.HasField("routing_key") else None
        assert (key, attributes) == (record.key, record.attributes or {})
        assert message.publish_time == (NOW_US + record.publish_delta_us) // 1000
        assert (message.producer_name, message.msg_id.producer_id) == (record.producer, record.producer_id)
        assert (message.request_id, message.msg_id.topic_offset) == (record.sequence, 100 + index)


def test_times_and_sequences_that_cannot_be() -> None:
    first, second = rendered(native([b"a", b"b"], base_sequence=2**64 - 1, publish_time_us=2**64 - 1))
    assert (first.request_id, second.request_id) == (2**64 - 1, 0)
    assert first.publish_time == (2**64 - 1) // 1000
    (third,) = rendered(native([Record(b"a", publish_delta_us=-(2**63))]))
    assert third.publish_time == 0


@pytest.mark.parametrize("ranges", [None, [100, 101]])
def test_batches_that_cannot_be_opened(ranges: list[int] | None) -> None:
    part = pack_part(
        b"\x91\x91\x01", 1, plain=False, producer_id=9, producer_epoch=1, base_sequence=0, publish_time_us=NOW_US
    )
    with pytest.raises(CorruptBatchError, match="do not decode"):
        rendered(part, ranges)
