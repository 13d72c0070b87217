"""The sparse index, the cache and the bytes of files: the very numbers, where other tests allow for some."""

from __future__ import annotations

import google_crc32c
import pytest
from log_lives import make_part

from danube.log import BatchCache, Entry, EntryType, Location, StoredBatch, TopicIndex
from danube.log.cache import TopicCache
from danube.log.format import (
    FILE_HEADER_SIZE,
    Block,
    Fault,
    encode_block,
    encode_block_header,
    encode_file_header,
    entry_at,
    find_block,
    parse_entries,
    read_block,
    read_block_header,
    read_file_header,
)
from danube.log.index import REGION_BYTES
from danube.model import Durability
from danube.model.batch import check_part
from danube.model.errors import DataDirectoryError, InternalError

PART = make_part([b"x" * 40])
HEADER = check_part(PART)


def index_of(*entries: tuple[int, int, int, int, int]) -> TopicIndex:
    index = TopicIndex()
    for entry in entries:
        index.add(*entry)
    return index


def regions(count: int) -> TopicIndex:
    """Entries at offsets 10, 20, ...; times 100, 200, ...; 1000, 2000, ... bytes; two files."""
    return index_of(
        *((10 * n, 1 + n // 4, n % 4 * REGION_BYTES, 100 * n, 1000 * n) for n in range(1, count + 1)),
    )


def test_an_empty_index_knows_nothing() -> None:
    index = TopicIndex()
    assert len(index) == 0
    assert (index.find(0), index.after(Location(0, 0)), index.before_time(5), index.first_time()) == (None,) * 4
    assert (index.bytes_from(0), index.offset_keeping(0)) == (0, 0)
    index.drop_before(5)
    index.drop_file(0)


def test_one_entry_for_each_region_of_a_file() -> None:
    last = REGION_BYTES - 1
    index = index_of((1, 1, 0, 5, 10), (2, 1, last, 6, 10), (3, 1, REGION_BYTES, 7, 10), (4, 2, REGION_BYTES, 8, 10))
    assert len(index) == 3
    assert [index.find(offset) for offset in (0, 1, 2, 3, 4, 9)] == [
        Location(1, 0),
        Location(1, 0),
        Location(1, 0),
        Location(1, REGION_BYTES),
        Location(2, REGION_BYTES),
        Location(2, REGION_BYTES),
    ]
    assert index.after(Location(1, 0)) == (3, Location(1, REGION_BYTES))
    assert index.after(Location(1, REGION_BYTES - 1)) == (3, Location(1, REGION_BYTES))
    assert index.after(Location(1, REGION_BYTES)) == (4, Location(2, REGION_BYTES))
    assert index.after(Location(2, REGION_BYTES)) is None
    assert index.after(Location(0, 2**32 - 1)) == (1, Location(1, 0))


def test_a_time_leads_to_batches_appended_before_it() -> None:
    index = regions(3)
    assert index.first_time() == 100
    assert [index.before_time(at) for at in (99, 100, 101, 200, 201, 300, 301)] == [None, None, 10, 10, 20, 20, 30]
    index.add(40, 9, 0, 250, 1)
    assert index.before_time(300) == 20, "a clock that steps back counts as one that stands still"
    assert index.before_time(301) == 40


def test_bytes_from_an_offset_and_offsets_that_keep_bytes() -> None:
    index = regions(3)
    assert [index.bytes_from(offset) for offset in (0, 10, 19, 20, 29, 30, 99)] == [
        6000,
        6000,
        6000,
        5000,
        5000,
        3000,
        3000,
    ]
    assert [index.offset_keeping(size) for size in (0, 1, 3000, 3001, 5000, 5001, 6000)] == [30, 30, 30, 20, 20, 10, 10]
    assert index.offset_keeping(6001) == 0
    index.drop_before(20)
    assert index.offset_keeping(5001) == 0, "what was before is forgotten"
    assert index.offset_keeping(5000) == 20


def test_regions_that_no_reader_needs_are_dropped() -> None:
    for offset, left in ((0, 5), (10, 5), (19, 5), (20, 4), (25, 4), (30, 3), (50, 1), (999, 1)):
        index = regions(5)
        index.drop_before(offset)
        assert len(index) == left
        first = index.find(0)
        assert first == regions(5).find(min(max(offset, 10), 50))
        assert index.bytes_from(50) == 5000


def test_a_file_is_forgotten_and_its_last_region_counts_again() -> None:
    index = regions(6)  # offsets 10 to 30 are in file 1, 40 to 60 in file 2
    index.drop_file(1)
    assert len(index) == 3
    assert index.find(0) == Location(2, 0)
    index.drop_file(3)
    assert len(index) == 3
    index.add(70, 2, 2 * REGION_BYTES + 5, 900, 10)
    assert len(index) == 3, "that region has an entry"
    index.drop_file(2)
    assert len(index) == 0
    index.add(80, 2, 2 * REGION_BYTES + 9, 900, 10)
    assert len(index) == 1, "and now it has none"


def test_a_cache_counts_the_cost_of_batches_and_keeps_those_that_fit() -> None:
    part = make_part([bytes(1000)])
    batches = [StoredBatch(n, n + 1, b"", part, check_part(part), 0) for n in range(4)]
    cost = len(part) + len(part) // 2 + 700
    cache, topic = BatchCache(2 * cost), TopicCache()
    for batch in batches[:2]:
        cache.append(topic, batch)
    assert (cache.used_bytes, len(topic)) == (2 * cost, 2), "what fits exactly fits"
    cache.append(topic, batches[2])
    assert (cache.used_bytes, len(topic)) == (2 * cost, 2)
    assert topic.get(0) is None
    assert topic.get(1) is batches[1]
    tight, other = BatchCache(2 * cost - 1), TopicCache()
    for batch in batches[:2]:
        tight.append(other, batch)
    assert (tight.used_bytes, len(other)) == (cost, 1)


def test_a_cache_frees_evicted_batches() -> None:
    cache, topic = BatchCache(20 * 1000), TopicCache()
    for number in range(500):
        cache.append(topic, StoredBatch(number, number + 1, b"", PART, HEADER, 0))
        assert len(topic._bases) == len(topic._batches) <= 2 * len(topic) + 1
    assert len(topic) > 20
    assert [topic.get(500 - 1 - at) is not None for at in range(len(topic) + 1)] == [True] * len(topic) + [False]


def test_a_topic_that_was_cleared_is_cached_from_its_beginning() -> None:
    cache, topic = BatchCache(5000), TopicCache()
    for number in range(20):
        cache.append(topic, StoredBatch(number, number + 1, b"", PART, HEADER, 0))
    topic.clear()
    assert len(topic) == 0
    cache.append(topic, StoredBatch(90, 95, b"", PART, HEADER, 0))
    found = topic.get(94)
    assert found is not None
    assert found is topic.get(90)
    assert (topic.get(95), topic.get(89), len(topic)) == (None, None, 1)


# --- Bytes ---


def test_a_new_entry_is_nowhere_and_knows_its_size() -> None:
    entry = Entry(EntryType.CURSOR, 1, Durability.OS, (b"abc", b"de"))
    assert (entry.file, entry.position, entry.sequence, entry.size) == (-1, -1, -1, 5)
    assert (entry.end_offset, entry.owner, entry.batch) == (0, None, None)
    assert Entry(EntryType.CURSOR, 1, Durability.OS, (b"abc",), size=9).size == 9


def head_of(**changes: int) -> bytes:
    """A block header of 48 bytes with these fields."""
    fields = {"length": 100, "file_id": 7, "sequence": 3, "watermark": 2, "count": 1, "body_crc": 5} | changes
    return encode_block_header(**fields)


def test_a_block_header_is_read_as_it_was_written() -> None:
    assert read_block_header(b"xyz" + head_of(), 3, 7) == Block(3, 100, 7, 3, 2, 1, 5)
    assert read_block_header(head_of()[:47], 0, 7) is Fault.SHORT
    assert read_block_header(bytes(48), 0, 7) is Fault.END
    assert read_block_header(head_of(), 0, 8) is Fault.FOREIGN
    assert read_block_header(head_of(length=47), 0, 7) is Fault.BAD, "shorter than itself"
    assert isinstance(read_block_header(head_of(length=48), 0, 7), Block)
    for at, value in ((0, b"X"), (36, b"\1")):  # another magic; something reserved; both with their checksum
        head = head_of()[:44]
        head = head[:at] + value + head[at + 1 :]
        head += google_crc32c.value(head).to_bytes(4, "little")
        assert read_block_header(head, 0, 7) is Fault.BAD


def test_a_block_is_whole_or_short_or_bad() -> None:
    entries = [Entry(EntryType.CURSOR, 4, Durability.OS, (b"abc",)), Entry(EntryType.TOPIC, 5, Durability.DISK, (b"",))]
    buffers, length = encode_block(entries, file_id=7, position=1000, sequence=3, watermark=2)
    data = b"".join(buffers)
    assert (length, len(data)) == (48 + 16 + 3 + 16, 48 + 16 + 3 + 16 + 48)
    assert [(e.file, e.position, e.sequence) for e in entries] == [(7, 1048, 3), (7, 1067, 3)]
    block = read_block(b"--" + data[:length], 2, 7)
    assert isinstance(block, Block)
    assert (block.position, block.length, block.entry_count) == (2, length, 2)
    assert read_block(data[: length - 1], 0, 7) is Fault.SHORT
    assert read_block(data[: length - 1] + b"\1", 0, 7) is Fault.BAD
    assert read_block(data, 0, 8) is Fault.FOREIGN
    found = list(parse_entries(data, read_block(data, 0, 7)))  # type: ignore[arg-type]
    assert [tuple(item) for item in found] == [(2, 1, 4, 48, 64, 67), (4, 2, 5, 67, 83, 83)]
    assert entry_at(data, 48) == found[0]
    assert find_block(data, 0, 7) is not None
    assert find_block(data, 1, 7) is None


@pytest.mark.parametrize("count", [1, 3])
def test_entries_that_do_not_fill_their_block_are_refused(count: int) -> None:
    entries = [Entry(EntryType.CURSOR, 4, Durability.OS, (bytes(20),))] * 2
    data = b"".join(encode_block(entries, file_id=7, position=0, sequence=3, watermark=2)[0])
    block = read_block_header(data, 0, 7)
    assert isinstance(block, Block)
    assert len(list(parse_entries(data, block))) == 2
    with pytest.raises(InternalError, match="journal block 3"):
        list(parse_entries(data + bytes(100), block._replace(entry_count=count)))


def file_header(live: int = 0) -> bytes:
    older = [(number, 10 * number) for number in range(1, live + 1)]
    return encode_file_header(9, 100, 90, 80, older, file_size=9999, identity=5, metadata=6)


def changed(half: bytes, at: int, value: bytes) -> bytes:
    """Another field in one copy of a file header, with the right checksum."""
    half = half[:at] + value + half[at + len(value) : -4]
    return half + google_crc32c.value(half).to_bytes(4, "little")


def test_a_file_header_has_room_for_123_older_files() -> None:
    for live, complete in ((0, True), (122, True), (123, True), (124, False)):
        header = read_file_header(file_header(live), 9)
        assert header is not None
        assert (header.complete, len(header.live)) == (complete, min(live, 123))
        assert header.live[-1:] == (((live, 10 * live),) if live else ())
        assert header[:4] == (9, 100, 90, 80)
        assert header[7:] == (9999, 5, 6)


def test_a_copy_of_a_file_header_that_makes_no_sense_is_passed_over() -> None:
    half = file_header(3)[: FILE_HEADER_SIZE // 2]
    for at, value in ((0, b"X"), (8, b"\7"), (40, (124).to_bytes(4, "little"))):
        odd = changed(half, at, value)
        for copies in (odd + half, half + odd):
            found = read_file_header(copies, 9)
            assert found is not None
            assert len(found.live) == 3
        assert read_file_header(odd + odd, 9) is None
    assert read_file_header(half, 9) is not None
    assert read_file_header(half[:-1], 9) is None
    with pytest.raises(DataDirectoryError, match="has format 5, and this Danube reads format 4 only; nothing"):
        read_file_header(changed(half, 4, b"\5") + half, 9)
    with pytest.raises(DataDirectoryError, match=r"has format 2 \(Danube 0\.1\), .* start the Danube that wrote it"):
        read_file_header(changed(half, 4, b"\2") + half, 9)
