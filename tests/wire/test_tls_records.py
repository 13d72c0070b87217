"""Where the records of TLS begin, in fragments of any size."""

from __future__ import annotations

import random

import pytest

from danube.wire._tls_records import Records

HEADER = 5


def stream_of(lengths: list[int]) -> bytes:
    return b"".join(b"\x17\x03\x03" + length.to_bytes(2, "big") + bytes(length) for length in lengths)


def cut_all(records: Records, data: bytes, most: int) -> list[tuple[int, int]]:
    """Return the cuts in one piece of data."""
    cuts, position = [], 0
    while position < len(data):
        position, begun = records.cut(data, position, most)
        cuts.append((position, begun))
    return cuts


def test_whole_records() -> None:
    records, data = Records(), stream_of([22, 0, 16_640])
    assert cut_all(records, data, 64) == [(len(data), 3)]
    assert cut_all(records, data, 2) == [(27 + 5, 2), (len(data), 1)]
    assert cut_all(records, data, 1) == [(27, 1), (32, 1), (len(data), 1)]


@pytest.mark.parametrize("split", range(1, 27))
def test_a_record_in_two_pieces(split: int) -> None:
    records, data = Records(), stream_of([22])
    first, rest = data[:split], data[split:]
    begun = int(split >= HEADER)
    assert cut_all(records, first, 64) == [(split, begun)]
    assert cut_all(records, rest + data, 64) == [(27 - split + 27, 2 - begun)]


@pytest.mark.parametrize("seed", range(20))
def test_fragments_of_any_size(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [chance.choice([0, 1, 17, 22, 300, 16_640]) for _ in range(300)]
    data, most = stream_of(lengths), chance.choice([1, 2, 64])
    starts, position = set(), 0
    for length in lengths:
        starts.add(position)
        position += HEADER + length
    records, at, found = Records(), 0, 0
    while at < len(data):
        piece = data[at : at + chance.choice([1, 2, 3, 4, 6, 100, 16_640, 70_000])]
        for cut, begun in cut_all(records, piece, most):
            assert begun <= most
            assert cut == len(piece) or at + cut in starts, "a cut within a record"
            found += begun
        at += len(piece)
        assert found == sum(start + HEADER <= at for start in starts)
