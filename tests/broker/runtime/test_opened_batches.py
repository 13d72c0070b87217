"""Batches opened into records: the key of each record, from native and other producers."""

from __future__ import annotations

from danube.broker.runtime.opened_batches import OpenedBatches
from danube.log import StoredBatch
from danube.model import Limits
from danube.model.batch import CompositeRecord, Record, encode_composite, encode_records, pack_part, read_header


def opened_keys(part: bytes) -> list[bytes]:
    header = read_header(part)
    batch = StoredBatch(10, 10 + header.record_count, b"", part, header, 0)
    return list(OpenedBatches(Limits()).open(1, batch).keys(b"producer of the batch"))


def test_a_message_of_a_composite_batch_without_a_key_has_the_name_of_its_own_producer_as_key() -> None:
    records = [
        CompositeRecord(b"x", key, None, 0, producer, number, 1)
        for number, (key, producer) in enumerate([(None, "one"), (b"k", "one"), (None, "two"), (b"", "three")])
    ]
    assert opened_keys(encode_composite(records, publish_time_us=0)) == [b"one", b"k", b"two", b"three"]


def test_a_message_of_a_batch_without_a_key_has_the_name_of_the_batches_producer_as_key() -> None:
    records = [Record(b"x", key) for key in (b"k", None, b"")]
    part = pack_part(
        encode_records(records), 3, plain=False, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=0
    )
    assert opened_keys(part) == [b"k", b"producer of the batch", b"producer of the batch"]
