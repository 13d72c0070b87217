"""The bytes of a segment: round trips, lookups, and that no damage passes unseen."""

from __future__ import annotations

import re
import struct
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed import build, make_batch, make_batches, same

from danube.history.segment import (
    TRAILER_SIZE,
    ControlEntry,
    PartIndex,
    SegmentBuilder,
    SegmentFooter,
    SegmentKind,
    cut_batches,
    read_control,
    read_footer,
    read_header,
    read_index,
    read_trailer,
)
from danube.log import StoredBatch
from danube.model.batch import STAMP_SIZE, crc32c, write_stamp
from danube.model.errors import CorruptBatchError, DanubeError, DataLossError

WHERE = "memory://box/one.seg"


def cut_all(data: bytes, topic_id: int) -> list[StoredBatch]:
    """Every batch of a part's bytes; the bytes must end between two batches."""
    found = []
    for batch, position, missing in cut_batches(data, 0, len(data), topic_id):
        if batch is None:
            assert (position, missing) == (len(data), 0)
        else:
            found.append(batch)
    return found


def open_all(data: bytes) -> tuple[SegmentFooter, dict[int, list[StoredBatch]], list[ControlEntry]]:
    """Read an object from its bytes alone, and check all of it."""
    kind, epoch = read_header(data, WHERE)
    trailer = read_trailer(data[-TRAILER_SIZE:], WHERE)
    footer = read_footer(data[trailer.footer_start : trailer.footer_start + trailer.footer_length], trailer, WHERE)
    assert (kind, epoch) == (trailer.kind, footer.epoch)
    assert trailer.footer_start + trailer.footer_length + TRAILER_SIZE == len(data)
    found = {}
    for part in footer.parts:
        found[part.topic_id] = cut_all(data[part.start : part.end], part.topic_id)
        read_index(data[part.index_start : part.index_end], part, WHERE)
    control = []
    if footer.control_end:
        control = read_control(data[footer.control_start : footer.control_end], footer, WHERE)
    return footer, found, control


# Round trips


@pytest.mark.parametrize(
    ("topics", "count", "sizes"),
    [(1, 1, (0,)), (1, 40, (5, 80, 3000)), (30, 3, (1, 50)), (2, 5, (300_000, 10)), (3, 200, (0, 1))],
    ids=["one-empty-message", "mixed", "many-parts", "large", "tiny"],
)
def test_round_trip(topics: int, count: int, sizes: tuple[int, ...]) -> None:
    random = Random(topics * 1000 + count)
    parts = {
        topic_id: make_batches(random, topic_id, count, base=random.randrange(1000), sizes=sizes)
        for topic_id in random.sample(range(1, 1 << 63), topics)
    }
    data, footer = build(parts, epoch=9, created_us=123)
    read, found, control = open_all(data)
    assert read == footer
    assert (footer.epoch, footer.created_us, control) == (9, 123, [])
    assert footer.names == {topic_id: f"/default/t{topic_id}" for topic_id in parts}
    assert footer.producers == {1: "maker"}
    assert [part.topic_id for part in footer.parts] == list(parts)
    for part in footer.parts:
        batches = parts[part.topic_id]
        assert same(found[part.topic_id], batches)
        assert (part.base_offset, part.end_offset) == (batches[0].base_offset, batches[-1].end_offset)
        assert (part.first_time_us, part.last_time_us) == (batches[0].append_time_us, batches[-1].append_time_us)
        assert (part.batches, part.epoch) == (len(batches), 9)
        assert part.size_bytes == sum(STAMP_SIZE + len(batch.part) for batch in batches)
        assert part.crc == crc32c(data[part.start : part.end])
    assert read_trailer(data, WHERE).body_crc == crc32c(data[: read_trailer(data, WHERE).footer_start])


def test_control_entries_alone_and_behind_parts() -> None:
    entries = [ControlEntry(3, 7, b"cursor"), ControlEntry(4, 0, b""), ControlEntry(3, 1 << 63, bytes(range(256)))]
    for parts in ({}, {7: make_batches(Random(1), 7, 3)}):
        builder = SegmentBuilder(SegmentKind.COMMIT, 2, 5)
        for topic_id, batches in parts.items():
            builder.begin(topic_id, "/default/x")
            for batch in batches:
                builder.add(batch)
            builder.end({})
        builder.control(entries)
        data, _ = builder.finish()
        footer, found, control = open_all(bytes(data))
        assert control == entries
        assert read_header(bytes(data), WHERE) == (SegmentKind.COMMIT, 2)
        assert [part.topic_id for part in footer.parts] == list(parts)
        assert all(same(found[topic_id], batches) for topic_id, batches in parts.items())


def test_a_builder_keeps_account() -> None:
    builder = SegmentBuilder(SegmentKind.SEGMENT, 1, 0)
    empty = builder.size_bytes
    batch = make_batch(1, 0, [b"x"])
    builder.begin(1, "/default/x")
    builder.add(batch)
    with pytest.raises(AssertionError, match="does not continue"):
        builder.add(make_batch(1, 2, [b"x"]))
    builder.end({})
    assert builder.part_count == 1
    assert builder.size_bytes == empty + STAMP_SIZE + len(batch.part)
    builder.begin(2, "/default/y")
    with pytest.raises(AssertionError, match="at least one batch"):
        builder.end({})
    with pytest.raises(AssertionError, match="not ended"):
        builder.finish()


# The index


@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(0, 2**32))
def test_an_index_finds_offsets_and_times(data: st.DataObject, seed: int) -> None:
    random = Random(seed)
    sizes = random.choice(((0, 3), (900, 3000), (2, 10_000)))
    batches = make_batches(random, 5, random.randrange(1, 60), base=random.randrange(50), sizes=sizes)
    if random.random() < 0.3:  # a clock that steps back
        batches = [
            make_batch(
                5, batch.base_offset, [b"x" * 1500] * (batch.end_offset - batch.base_offset), random.randrange(99)
            )
            for batch in batches
        ]
    stored, footer = build({5: batches})
    (part,) = footer.parts
    index = read_index(stored[part.index_start : part.index_end], part, WHERE)
    run = stored[part.start : part.end]
    for batch in batches:
        assert part.first_time_us <= part.last_time_us
        assert batch.append_time_us <= part.last_time_us

    offset = data.draw(st.integers(part.base_offset, part.end_offset - 1), "offset")
    at, following = index.find(offset)
    assert following > at or following < 0
    tail = cut_all(run[at:], 5)
    assert tail[0].base_offset <= offset
    # Near: the batch wanted begins less than one step and one batch behind.
    skipped = [batch for batch in tail if batch.end_offset <= offset]
    assert sum(STAMP_SIZE + len(batch.part) for batch in skipped[:-1]) < 4096

    time_us = data.draw(st.integers(0, part.last_time_us + 1), "time")
    base, at = index.before_time(time_us)
    tail = cut_all(run[at:], 5)
    assert tail[0].base_offset == base
    model = next((batch.base_offset for batch in batches if batch.append_time_us >= time_us), part.end_offset)
    assert next((batch.base_offset for batch in tail if batch.append_time_us >= time_us), part.end_offset) == model


def test_small_batches_share_index_entries() -> None:
    batches = make_batches(Random(1), 1, 1000, sizes=(1,))
    _, footer = build({1: batches})
    (part,) = footer.parts
    assert part.size_bytes // 4096 - 20 < part.index_count <= part.size_bytes // 4096 + 1


def test_an_index_beyond_4_gib_of_offsets() -> None:
    data = struct.pack("<QQI", 2**62, 2**52, 0) + struct.pack("<QQI", 2**62 + 5, 2**52 + 1, 2**32 - 1)
    index = PartIndex(data)
    assert index.find(2**62 + 4) == (0, 2**32 - 1)
    assert index.find(2**63 - 1) == (2**32 - 1, -1)
    assert index.before_time(2**52 + 1) == (2**62, 0)
    assert index.size_bytes > len(data)


# Damage


def object_with_everything() -> bytes:
    builder = SegmentBuilder(SegmentKind.SEGMENT, 3, 99)
    for topic_id in (1, 2):
        builder.begin(topic_id, f"/default/t{topic_id}")
        for batch in make_batches(Random(topic_id), topic_id, 3, sizes=(5, 20)):
            builder.add(batch)
        builder.end({1: "maker"})
    builder.control([ControlEntry(3, 1, b"cursor")])
    return bytes(builder.finish()[0])


def test_every_flipped_byte_is_noticed_and_named() -> None:
    data = object_with_everything()
    open_all(data)
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= mask
            with pytest.raises((DataLossError, CorruptBatchError)) as caught:
                open_all(bytes(damaged))
            if isinstance(caught.value, DataLossError):
                assert WHERE in str(caught.value)


def test_batches_cut_before_the_damage_are_intact() -> None:
    batches = make_batches(Random(4), 8, 20, sizes=(5, 60))
    data, footer = build({8: batches})
    (part,) = footer.parts
    run = bytearray(data[part.start : part.end])
    positions = [0]
    for batch in batches:
        positions.append(positions[-1] + STAMP_SIZE + len(batch.part))
    for at in range(0, len(run), 7):
        damaged = bytes(run[:at]) + bytes([run[at] ^ 0x10]) + bytes(run[at + 1 :])
        found: list[StoredBatch] = []
        cut = (batch for batch, _, _ in cut_batches(damaged, 0, len(damaged), 8) if batch is not None)
        with pytest.raises(CorruptBatchError):
            found.extend(cut)  # a list keeps what came before the error
        assert same(found, [batch for batch, end in zip(batches, positions[1:], strict=True) if end <= at])


def test_a_batch_of_another_topic_is_not_delivered() -> None:
    stray = make_batch(2, 0, [b"x"])
    for data in (stray.stamp + stray.part, write_stamp(0, 1, 0, 0, 0)):
        with pytest.raises(CorruptBatchError, match="another topic"):
            cut_all(data, 1)


def test_truncations() -> None:
    data = object_with_everything()
    for size in range(len(data)):
        with pytest.raises(DataLossError, match=re.escape(WHERE)):
            open_all(data[:size])
    batches = make_batches(Random(4), 8, 4, sizes=(5, 60))
    run = b"".join(batch.stamp + batch.part for batch in batches)
    for size in range(len(run) + 1):
        *whole, (last, position, missing) = cut_batches(run[:size], 0, size, 8)
        assert last is None
        assert position == sum(STAMP_SIZE + len(batch.part) for batch in batches[: len(whole)])
        assert position <= size
        if position < size:
            # So many more bytes give at least the stamp, and then the batch.
            assert missing > 0
            *more, (_, _, again) = cut_batches(run, 0, min(size + missing, len(run)), 8)
            assert len(more) > len(whole) or again > 0
        else:
            assert missing == 0


def test_cutting_in_the_middle_of_a_buffer() -> None:
    batches = make_batches(Random(5), 8, 4, sizes=(5, 60))
    run = b"".join(batch.stamp + batch.part for batch in batches)
    buffer = b"\xff" * 13 + run + b"\xff" * 100
    found = list(cut_batches(buffer, 13, 13 + len(run), 8))
    assert same([batch for batch, _, _ in found if batch is not None], batches)
    assert found[-1] == (None, 13 + len(run), 0)


# Other versions


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (1, r"format version 1 is that of Danube 0.1, .* reads 2 only; read it with Danube 0.1"),
        (3, r"format version 3 is newer than 2.*upgrade Danube"),
    ],
)
def test_another_version_is_refused_with_a_sentence(version: int, sentence: str) -> None:
    data = object_with_everything()
    head = struct.pack("<8sHHIQI", b"DNB-SEG\n", version, 9, 0, 3, 0)
    other = head + struct.pack("<I", crc32c(head))
    with pytest.raises(DataLossError, match=sentence) as caught:
        read_header(other + data[32:], WHERE)
    assert WHERE in str(caught.value)
    tail = struct.pack("<QIIIHH", 0, 0, 0, 0, version, 9)
    with pytest.raises(DataLossError, match=sentence):
        read_trailer(tail + struct.pack("<I", crc32c(tail)) + b"DNB-END\n", WHERE)


def test_errors_are_ours_whatever_the_bytes() -> None:
    random = Random(3)
    data = object_with_everything()
    for _ in range(300):
        garbage = bytearray(data)
        for _ in range(random.randrange(1, 40)):
            garbage[random.randrange(len(garbage))] = random.randrange(256)
        with pytest.raises(DanubeError):
            open_all(bytes(garbage[random.randrange(3) :]) if random.random() < 0.5 else bytes(garbage))


def test_footer_of_another_object_is_refused() -> None:
    one, other = object_with_everything(), build({1: make_batches(Random(9), 1, 2)})[0]
    trailer, theirs = read_trailer(one, WHERE), read_trailer(other, WHERE)
    footer = other[theirs.footer_start : theirs.footer_start + theirs.footer_length]
    with pytest.raises(DataLossError, match="footer is damaged"):
        read_footer(footer, trailer, WHERE)
    assert msgspec.msgpack.decode(footer)
