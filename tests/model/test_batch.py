"""The batch format: encoding and decoding are inverse, and damage is always detected."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model import batch as b
from danube.model.batch import BatchFlags, Codec, Record
from danube.model.errors import CorruptBatchError, InvalidArgumentError, MessageTooLargeError, UnsupportedBatchError

MAX = 1 << 24

payloads = st.lists(st.binary(max_size=200), min_size=1, max_size=30)
records = st.lists(
    st.builds(
        Record,
        payload=st.binary(max_size=50),
        key=st.none() | st.binary(max_size=10),
        attributes=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
        publish_delta_us=st.integers(0, 10**9),
    ),
    min_size=1,
    max_size=20,
)
codecs = st.sampled_from(Codec)


def encode(items: list[bytes] | list[Record], codec: Codec = Codec.NONE, sequence: int = 7) -> bytes:
    return b.encode_part(items, producer_id=1, producer_epoch=2, base_sequence=sequence, publish_time_us=3, codec=codec)


@given(payloads | records, codecs)
def test_records_come_back_as_they_were(items: list[bytes] | list[Record], codec: Codec) -> None:
    part = encode(items, codec)
    header = b.check_part(part)
    assert b.open_records(part, header, MAX) == items
    assert bool(header.flags & BatchFlags.PAYLOADS_ONLY) == isinstance(items[0], bytes)
    assert (header.record_count, header.base_sequence, header.codec) == (len(items), 7, codec)
    assert b.crc32c(part) == b.CRC_RESIDUE


@given(payloads, codecs, st.data())
def test_no_flipped_bit_passes(items: list[bytes], codec: Codec, data: st.DataObject) -> None:
    part = bytearray(encode(items, codec))
    position = data.draw(st.integers(0, len(part) - 1))
    part[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatchError):
        b.check_part(bytes(part))


@given(payloads, st.data())
def test_no_truncation_passes(items: list[bytes], data: st.DataObject) -> None:
    part = encode(items)
    cut = data.draw(st.integers(0, len(part) - 1))
    with pytest.raises(CorruptBatchError):
        b.check_part(part[:cut])


@given(st.binary(max_size=300))
def test_garbage_is_only_ever_a_corrupt_batch(garbage: bytes) -> None:
    sealed = garbage + b.crc32c(garbage).to_bytes(4, "little")  # a right checksum over nonsense
    with pytest.raises((CorruptBatchError, MessageTooLargeError)):
        b.open_records(sealed, b.check_part(sealed), MAX)


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**62), st.data())
def test_stamps_come_back_and_flipped_bits_do_not(topic: int, base: int, time_us: int, data: st.DataObject) -> None:
    stamp = b.write_stamp(100, topic, base, time_us, 5)
    assert len(stamp) == b.STAMP_SIZE
    read = b.read_stamp(stamp + b"anything behind it")
    assert (read.total_size, read.topic_id, read.base_offset, read.append_time_us, read.owner_epoch) == (
        b.STAMP_SIZE + 100, topic, base, time_us, 5,
    )  # fmt: skip
    damaged = bytearray(stamp)
    damaged[data.draw(st.integers(0, b.STAMP_SIZE - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatchError):
        b.read_stamp(bytes(damaged))


@given(records, st.data())
def test_a_slice_holds_exactly_its_records(items: list[Record], data: st.DataObject) -> None:
    part = encode(items, Codec.LZ4)
    header = b.check_part(part)
    start = data.draw(st.integers(0, len(items) - 1))
    end = data.draw(st.integers(start + 1, len(items)))
    sliced = b.slice_part(header, b.open_raw(part, header, MAX)[start:end])
    sliced_header = b.check_part(sliced)
    assert sliced_header.flags & BatchFlags.SLICE
    assert b.open_records(sliced, sliced_header, MAX) == items[start:end]


def test_a_batch_that_claims_to_unpack_to_more_is_stopped_at_the_bound() -> None:
    part = encode([bytes(5_000_000)], Codec.ZSTD)
    assert len(part) < 5000
    with pytest.raises(MessageTooLargeError, match="max_batch_bytes = 1000000"):
        b.open_records(part, b.check_part(part), 1_000_000)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_a_lie_about_the_unpacked_size_is_found(codec: Codec) -> None:
    part = encode([bytes(1000)], codec)
    header = b.check_part(part)
    lie = b.seal_part(header._replace(unpacked_size=header.unpacked_size - 1), part[b.PART_HEADER_SIZE : -4])
    with pytest.raises(CorruptBatchError):
        b.open_records(lie, b.check_part(lie), MAX)


def test_a_wrong_record_count_is_found() -> None:
    part = encode([b"a", b"b"])
    lie = b.seal_part(b.check_part(part)._replace(record_count=3), part[b.PART_HEADER_SIZE : -4])
    with pytest.raises(CorruptBatchError, match="gives 3 records, but the batch has 2"):
        b.open_records(lie, b.check_part(lie), MAX)


def test_an_unknown_version_or_codec_is_named() -> None:
    part = encode([b"a"])
    header = b.check_part(part)
    with pytest.raises(UnsupportedBatchError, match="version 9, and its receiver reads version 2; upgrade the older"):
        b.check_part(b.seal_part(header._replace(version=9), part[b.PART_HEADER_SIZE : -4]))
    odd = b.seal_part(header._replace(codec=9), part[b.PART_HEADER_SIZE : -4])
    with pytest.raises(CorruptBatchError, match="codec 9"):
        b.open_records(odd, b.check_part(odd), MAX)


# Growth: what this version does with batches of a later one


def later(part: bytes, *, fields: bytes = b"", flags: int = 0) -> bytes:
    """Return a part with fields appended to its header, and further flags."""
    header = b.check_part(part)
    header = header._replace(header_size=header.header_size + len(fields), flags=header.flags | flags)
    return b.seal_part(header, fields + part[b.PART_HEADER_SIZE : -4])


optional_flags = st.sets(st.integers(16, 31)).map(lambda bits: sum(1 << bit for bit in bits))


@given(payloads | records, codecs, st.binary(max_size=300), optional_flags)
def test_fields_and_flags_of_a_later_version_are_skipped(
    items: list[bytes] | list[Record], codec: Codec, fields: bytes, flags: int
) -> None:
    plain = encode(items, codec)
    part = later(plain, fields=fields, flags=flags)
    header, known = b.check_part(part), b.check_part(plain)
    assert header == known._replace(header_size=b.PART_HEADER_SIZE + len(fields), flags=known.flags | flags)
    assert b.header_at(b"??" + part, 2) == header
    assert b.open_records(part, header, MAX) == items
    raws = b.open_raw(part, header, MAX)
    sliced = b.slice_part(header, raws)
    assert b.check_part(sliced).header_size == b.PART_HEADER_SIZE, "a slice has only what its maker knows"
    assert b.check_part(sliced).flags == known.flags | BatchFlags.SLICE
    assert b.open_records(sliced, b.check_part(sliced), MAX) == items


@given(payloads, st.binary(max_size=50))
def test_another_sender_in_the_header_keeps_what_a_later_version_added(items: list[bytes], fields: bytes) -> None:
    part = later(encode(items), fields=fields, flags=1 << 20)
    header = b.check_part(part)._replace(producer_id=99, producer_epoch=3, base_sequence=12)
    again = b.replace_header(part, header)
    assert b.check_part(again) == header
    assert again[64:-4] == part[64:-4]


FIRST = struct.pack("<BBHIIIIIQQQQII", 2, 0, 64, 1, 1, 3, 3, 5, 6, 0, 7, 8, 9, 10) + b"\x91\xc4\x00"
"""The smallest part of version 2 (one empty payload), with the header that the first release of the version writes."""


@pytest.mark.parametrize("added", [0, 8, 100], ids=["this Danube", "a later one", "a much later one"])
def test_the_first_header_of_the_version_stays_readable(monkeypatch: pytest.MonkeyPatch, added: int) -> None:
    """A Danube whose own header is larger reads the batches that were stored before."""
    monkeypatch.setattr(b, "PART_HEADER_SIZE", 64 + added)
    monkeypatch.setattr(b, "PART_OVERHEAD", 68 + added)
    part = FIRST + b.crc32c(FIRST).to_bytes(4, "little")
    header = b.check_part(part)
    assert (header.header_size, header.record_count, header.producer_id, header.schema_version) == (64, 1, 7, 10)
    assert b.header_at(b"??" + part, 2) == header
    assert b.open_records(part, header, MAX) == [b""]
    again = b.replace_header(part, header._replace(producer_id=11))
    assert b.open_records(again, b.check_part(again), MAX) == [b""]
    assert len(part) > b.MIN_PART_SIZE == 68


@pytest.mark.parametrize("bit", range(3, 16))
def test_a_feature_that_must_be_understood_is_refused(bit: int) -> None:
    part = later(encode([b"a"]), flags=1 << bit)
    with pytest.raises(UnsupportedBatchError, match=rf"flags {1 | 1 << bit:#x}: {1 << bit:#x} stands for a feature"):
        b.check_part(part)


@pytest.mark.parametrize("size", [0, 63, 68, 1000])
def test_a_header_size_that_does_not_fit_is_corrupt(size: int) -> None:
    part = encode([b"a"])
    header = b.check_part(part)._replace(header_size=size)
    with pytest.raises(CorruptBatchError, match=f"gives {size} bytes of header"):
        b.check_part(b.seal_part(header, part[b.PART_HEADER_SIZE : -4]))


def test_the_flags_of_a_stamp_follow_the_same_rule() -> None:
    def stamp(flags: int) -> bytes:
        head = b.write_stamp(100, 1, 2, 3, 4)[:40] + flags.to_bytes(4, "little")
        return head + b.crc32c(head).to_bytes(4, "little")

    assert b.read_stamp(stamp(1 << 16)).flags == 1 << 16
    with pytest.raises(UnsupportedBatchError, match="flags 0x8000 name a feature"):
        b.read_stamp(stamp(1 << 15))


def test_a_batch_of_version_1_is_refused() -> None:
    """Its header had 60 bytes; this is one of Danube 0.1, with the payload b"x"."""
    head = struct.pack("<BBHIIIQQQIQII", 1, 0, 1, 1, 4, 4, 3, 0, 1, 2, 7, 0, 0) + b"\x91\xc4\x01x"
    with pytest.raises(UnsupportedBatchError, match="batch of version 1, and its receiver reads version 2; upgrade"):
        b.check_part(head + b.crc32c(head).to_bytes(4, "little"))


DEEP = b"\x91" * 3000 + b"\xc0"
"""So many arrays, one in the other."""


@pytest.mark.parametrize("flags", [0, BatchFlags.PAYLOADS_ONLY, BatchFlags.COMPOSITE])
@pytest.mark.parametrize(
    "record",
    [
        pytest.param(DEEP, id="deep"),
        pytest.param(b"\x95\xc4\x01x\xc4\x01k\x80\x00" + DEEP, id="deep beyond the fields"),
        pytest.param(b"\x92\xc4\x01x\xa1k", id="a key that is text"),
        pytest.param(b"\xc1", id="nothing"),
    ],
)
def test_records_that_do_not_decode_are_corrupt(record: bytes, flags: int) -> None:
    """Decoding raises errors of three kinds; opening raises one."""
    body = b"\x91" + record
    header = b.check_part(encode([b"x"]))._replace(flags=flags, unpacked_size=len(body), packed_size=len(body))
    part = b.seal_part(header, body)
    with pytest.raises(CorruptBatchError):
        b.open_records(part, b.check_part(part), MAX)
    if record[-len(DEEP) :] == DEEP:
        with pytest.raises(CorruptBatchError):
            b.open_raw(part, b.check_part(part), MAX)


@pytest.mark.parametrize("items", [[], [b"a", Record(b"b")], ["text"]])
def test_a_batch_is_of_one_kind(items: list[bytes]) -> None:
    with pytest.raises(InvalidArgumentError):
        encode(items)


def test_a_record_is_an_array_that_may_be_shorter() -> None:
    assert msgspec.msgpack.encode(Record(b"a", b"k")) == b"\x94\xc4\x01a\xc4\x01k\xc0\x00"
    assert msgspec.msgpack.decode(b"\x91\xc4\x01a", type=Record) == Record(b"a")
