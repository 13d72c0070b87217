"""Opened batches: which key each record counts as, and which batch an offset is of."""

from __future__ import annotations

from danube.broker.runtime.opened_batches import OpenedBatches
from danube.log import MemoryLog, StoredBatch
from danube.model import Limits
from danube.model.batch import CompositeRecord, Record, check_part, encode_composite, encode_part
from danube.model.ids import OwnerEpoch, TopicId


def keys_of(part: bytes, default: bytes = b"maker") -> list[bytes]:
    header = check_part(part)
    batch = StoredBatch(7, 7 + header.record_count, b"", part, header, 1)
    opened = OpenedBatches(Limits()).open(batch)
    found = list(opened.keys(default))
    assert list(opened.keys(default)) == found, "the second time as the first"
    return found


def plain(*records: bytes | Record) -> bytes:
    return encode_part(list(records), producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)


def test_a_record_without_a_key_counts_as_one_of_its_producer() -> None:
    assert keys_of(plain(b"a", b"b")) == [b"maker", b"maker"]
    assert keys_of(plain(Record(b"a", b"k"), Record(b"b"), Record(b"c", b""))) == [b"k", b"maker", b"maker"]


def test_records_of_a_composite_batch_have_producers_of_their_own() -> None:
    """All without a key were once taken for one key: what one producer's poison blocked, it blocked for all."""
    records = [
        CompositeRecord(b"a", producer="ann", producer_id=1, sequence=5),
        CompositeRecord(b"b", b"k", producer="bob", producer_id=2, sequence=5),
        CompositeRecord(b"c", b"", {"x": "y"}, producer="bob", producer_id=2, sequence=6),
        CompositeRecord(b"d", publish_delta_us=9, producer="ann", producer_id=1, sequence=6),
    ]
    assert keys_of(encode_composite(records, publish_time_us=1), default=b"") == [b"ann", b"k", b"bob", b"ann"]


def test_another_batch_at_the_same_offset_is_not_taken_for_the_former_one() -> None:
    """A topic without durability that comes back to a broker begins anew: its offsets do, too."""
    opened = OpenedBatches(Limits())
    found = []
    for epoch, part in ((1, plain(b"a", b"b")), (3, plain(b"c", b"d", b"e"))):
        log = MemoryLog(TopicId(7), OwnerEpoch(epoch))
        batch = log.append(part, check_part(part), 1)
        assert batch.base_offset == 0
        found.append([bytes(raw) for raw in opened.open(batch).raws])
        assert opened.open(batch) is opened.open(batch)
    assert [len(raws) for raws in found] == [2, 3]
