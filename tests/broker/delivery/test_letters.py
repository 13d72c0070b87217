"""Copies of dead messages, without a broker: their contents, and their distribution."""

from __future__ import annotations

import msgspec
import pytest

from danube.broker.delivery.forwarding import SendLetters
from danube.broker.delivery.letters import Letter, Origin, letters_of, sort_letters, within
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.dispatch import Poisoned
from danube.log import StoredBatch
from danube.model import Limits
from danube.model.batch import (
    PART_OVERHEAD,
    CompositeRecord,
    Record,
    encode_composite,
    encode_part,
    encode_records,
    pack_part,
    read_header,
)
from danube.model.errors import CorruptBatchError
from danube.model.names import route_key

BASE = 10
ORIGIN = Origin("/d/t", "s", "maker", 7, "host:1,host:2")


def stored(part: bytes) -> StoredBatch:
    header = read_header(part)
    return StoredBatch(BASE, BASE + header.record_count, b"", part, header, 0)


def encoded(records: list[Record] | list[bytes]) -> bytes:
    return encode_part(records, producer_id=7, producer_epoch=1, base_sequence=0, publish_time_us=0)


def copies(part: bytes, *found: Poisoned) -> list[Letter]:
    batch = stored(part)
    return letters_of(batch, OpenedBatches(Limits()).open(batch), found, ORIGIN)


def poison(start: int, end: int, reason: str = "bad") -> Poisoned:
    return Poisoned(start, end, 3, 3, reason)


def test_a_copy_has_all_of_its_original_and_says_why_it_is_there() -> None:
    records = [Record(b"a"), Record(b"b", b"k", {"x-mine": "1", "x-failure-reason": "forged"}, 5), Record(b"c")]
    (letter,) = copies(encoded(records), poison(11, 12))
    assert (letter.start, letter.end) == (11, 12)
    record = letter.record
    assert (record.payload, record.key, record.publish_delta_us) == (b"b", b"k", 5)
    assert record.attributes == {
        "x-mine": "1",
        "x-original-topic": "/d/t",
        "x-original-subscription": "s",
        "x-original-topic-offset": "11",
        "x-original-producer": "maker",
        "x-original-producer-id": "7",
        "x-original-broker-addr": "host:1,host:2",
        "x-poison-policy": "dead_letter",
        "x-delivery-attempt": "3",
        "x-failure-reason": "bad",
    }


def test_bare_payloads_have_copies_too() -> None:
    found = copies(encoded([b"a", b"b", b"c"]), poison(10, 11), poison(12, 13, "worse"))
    assert [(each.start, each.record.payload, each.record.key) for each in found] == [
        (10, b"a", None),
        (12, b"c", None),
    ]
    assert [(each.record.attributes or {})["x-failure-reason"] for each in found] == ["bad", "worse"]


def test_a_message_of_a_composite_batch_names_its_own_producer() -> None:
    records = [
        CompositeRecord(b"a", producer="one", producer_id=1),
        CompositeRecord(b"b", producer="two", producer_id=2),
    ]
    found = [
        each.record.attributes or {} for each in copies(encode_composite(records, publish_time_us=0), poison(10, 12))
    ]
    assert [(each["x-original-producer"], each["x-original-producer-id"]) for each in found] == [
        ("one", "1"),
        ("two", "2"),
    ]


def test_a_batch_that_cannot_be_opened_has_one_letter_with_its_raw_bytes() -> None:
    batch = stored(encoded([b"a", b"b"]))
    (letter,) = letters_of(batch, CorruptBatchError("torn"), [poison(11, 12)], ORIGIN)
    assert (letter.start, letter.end, letter.record.payload) == (10, 12, batch.part)
    attributes = letter.record.attributes or {}
    assert attributes["x-original-topic-offset"] == "10"
    assert attributes["x-failure-reason"].endswith("its raw bytes: torn")


def test_a_record_that_does_not_decode_is_copied_as_its_raw_bytes() -> None:
    body = encode_records([Record(b"a"), Record(b"b")]).replace(b"\xc4\x01b", b"\xcd\x01b", 1)  # a number as payload
    part = pack_part(body, 2, plain=False, producer_id=7, producer_epoch=1, base_sequence=0, publish_time_us=0)
    good, bad = copies(part, poison(10, 12))
    assert good.record.payload == b"a"
    assert b"\xcd\x01b" in bad.record.payload
    assert "does not decode" in (bad.record.attributes or {})["x-failure-reason"]


def test_ranges_are_cut_to_the_batch() -> None:
    batch = stored(encoded([b"a", b"b", b"c"]))  # offsets 10 to 12
    found = within(batch, [poison(0, 10), poison(5, 11), poison(12, 20), poison(13, 14)])
    assert [(each.start, each.end) for each in found] == [(10, 11), (12, 13)]


def letters(*keys: bytes | None, payload: bytes = b"x") -> list[Letter]:
    return [Letter(number, number + 1, Record(payload, key)) for number, key in enumerate(keys)]


@pytest.mark.parametrize("turn", [0, 1, 5])
def test_letters_go_by_key_or_else_in_turn(turn: int) -> None:
    keyed, bare = letters(b"k", None)
    expected: dict[int, list[Letter]] = {}
    for share, letter in ((route_key(b"k", 3), keyed), (turn % 3, bare)):
        expected.setdefault(share, []).append(letter)
    assert dict(sort_letters([keyed, bare], 3, turn, Limits())) == expected


def test_batches_of_letters_are_bounded_by_number_and_by_size() -> None:
    found = letters(*[None] * 5)
    by_number = [len(batch) for _, batch in sort_letters(found, 1, 0, Limits(max_batch_records=2))]
    assert by_number == [2, 2, 1]
    cost = len(encode_records([Record(b"x")])) - 1
    limits = Limits(max_batch_bytes=PART_OVERHEAD + 5 + 3 * cost)
    assert [len(batch) for _, batch in sort_letters(found, 1, 0, limits)] == [3, 2]


def test_batches_of_letters_fit_into_a_call_to_another_broker() -> None:
    found = letters(*[None] * 64, payload=bytes(1_000))
    limits = Limits(max_peer_message_bytes=20_000)
    batches = [batch for _, batch in sort_letters(found, 1, 0, limits)]
    assert [letter for batch in batches for letter in batch] == found
    for batch in batches:
        call = SendLetters("/n/" + "t" * 250, "p" * 250, 2**53, [letter.record for letter in batch])
        assert len(msgspec.msgpack.encode(call)) < 20_000 - 1_000
    assert len(batches) < 8


def test_a_letter_that_is_too_large_is_a_batch_of_its_own() -> None:
    found = letters(None, payload=b"x" * 1000) + letters(None)
    assert [len(batch) for _, batch in sort_letters(found, 1, 0, Limits(max_batch_bytes=PART_OVERHEAD + 100))] == [1, 1]
