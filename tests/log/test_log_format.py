"""The bytes of the journal: damage of any kind is detected."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from danube.log.format import (
    BLOCK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    TERMINATOR,
    Block,
    Ending,
    Entry,
    EntryType,
    Fault,
    encode_block,
    encode_file_header,
    find_block,
    parse_blocks,
    parse_entries,
    read_file_header,
)
from danube.model import Durability

GENERATION = 7

entries_strategy = st.lists(
    st.builds(
        lambda kind, topic, durability, pieces: Entry(kind, topic, durability, tuple(pieces)),
        st.sampled_from([EntryType.BATCH, EntryType.CURSOR, EntryType.PRODUCER, EntryType.TOPIC]),
        st.integers(0, 2**64 - 1),
        st.sampled_from([Durability.OS, Durability.DISK]),
        st.lists(st.one_of(st.binary(max_size=40), st.integers(0, 6000).map(bytes)), max_size=3),
    ),
    max_size=6,
)


def build(groups: list[list[Entry]], generation: int = GENERATION) -> bytes:
    data = b""
    for number, group in enumerate(groups):
        buffers, length = encode_block(
            group, file_id=generation, position=len(data), sequence=number + 1, watermark=number
        )
        block = b"".join(buffers)
        assert len(block) == length + len(TERMINATOR)
        data += block[:length]
    return data + TERMINATOR


def read(data: bytes, generation: int = GENERATION) -> tuple[list[tuple[int, list[tuple[int, int, bytes]]]], Ending]:
    blocks = []
    ending = None
    for item in parse_blocks(data, generation):
        if isinstance(item, Block):
            found = [(e.type, e.topic_id, data[e.start : e.end]) for e in parse_entries(data, item)]
            blocks.append((item.sequence, found))
        else:
            ending = item
    assert ending is not None
    return blocks, ending


def expected(groups: list[list[Entry]]) -> list[tuple[int, list[tuple[int, int, bytes]]]]:
    return [
        (number + 1, [(e.type, e.topic_id, b"".join(e.buffers)) for e in group]) for number, group in enumerate(groups)
    ]


@given(st.lists(entries_strategy, max_size=4))
@settings(deadline=None, max_examples=60)
def test_blocks_come_back_as_they_were_written(groups: list[list[Entry]]) -> None:
    data = build(groups)
    blocks, ending = read(data)
    assert blocks == expected(groups)
    assert ending == Ending(len(data) - len(TERMINATOR), Fault.END)
    for group in groups:
        for entry in group:
            assert data[entry.position] == entry.type
            assert data[entry.position + 16 :].startswith(b"".join(entry.buffers))


@given(st.lists(entries_strategy, min_size=1, max_size=3), st.data())
@settings(deadline=None, max_examples=150)
def test_no_truncation_and_no_flipped_bit_is_misread(groups: list[list[Entry]], data: st.DataObject) -> None:
    whole = build(groups)
    truth = expected(groups)
    cut = data.draw(st.integers(0, len(whole) - 1))
    blocks, ending = read(whole[:cut])
    assert blocks == truth[: len(blocks)]
    # A cut between two blocks looks like the end of the buffer, not like the end of the log.
    assert ending.fault is Fault.SHORT
    bit = data.draw(st.integers(0, (len(whole) - len(TERMINATOR)) * 8 - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    blocks, ending = read(bytes(damaged))
    assert blocks == truth[: len(blocks)]
    assert len(blocks) < len(truth)
    assert ending.fault is Fault.BAD
    assert ending.position <= bit // 8


def test_every_bit_of_a_small_block_is_covered() -> None:
    groups = [[Entry(EntryType.CURSOR, 3, Durability.DISK, (b"abc", b"d"))]]
    whole = build(groups)
    for bit in range((len(whole) - len(TERMINATOR)) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        blocks, _ = read(bytes(damaged))
        assert not blocks


def test_blocks_of_a_former_life_are_foreign() -> None:
    groups = [[Entry(EntryType.CURSOR, 3, Durability.DISK, (b"abc",))]]
    blocks, ending = read(build(groups, generation=6))
    assert not blocks
    assert ending == Ending(0, Fault.FOREIGN)


def test_the_next_block_is_found_behind_damage() -> None:
    groups = [[Entry(EntryType.CURSOR, n, Durability.DISK, (bytes(100),))] for n in range(3)]
    data = b"DNJB" + b"x" * 77 + build(groups)
    found = find_block(data, 0, GENERATION)
    assert found is not None
    assert (found.position, found.sequence) == (81, 1)
    found = find_block(data, 82, GENERATION)
    assert found is not None
    assert found.sequence == 2
    assert find_block(data, len(data) - BLOCK_HEADER_SIZE, GENERATION) is None


@given(
    st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)), max_size=200),
    st.integers(0, FILE_HEADER_SIZE - 1),
    st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_a_file_header_survives_the_damage_of_one_copy(
    live: list[tuple[int, int]], position: int, prelude: bool
) -> None:
    data = bytearray(
        encode_file_header(9, 100, 90, 80, live, file_size=9999, identity=2**64 - 1, metadata=5, prelude=prelude)
    )
    assert len(data) == FILE_HEADER_SIZE
    data[position] ^= 0x10
    header = read_file_header(bytes(data), 9)
    assert header is not None
    assert header[:4] == (9, 100, 90, 80)
    assert header.live == tuple(live[-len(header.live) :] if header.live else ())
    assert header.complete == (len(header.live) == len(live))
    assert header.prelude is prelude
    assert len(live) <= 123 or len(header.live) == 123
    assert read_file_header(bytes(data), 8) is None
    data[(position + 2048) % 4096] ^= 0x10
    assert read_file_header(bytes(data), 9) is None
