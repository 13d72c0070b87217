"""Lines become messages: whatever the block size, nothing is lost, merged or cut."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cli._lines import KeyField, repeat_texts, split_blocks
from danube.cli._positions import parse_position
from danube.model.errors import InvalidArgumentError


def lines_of(data, block_bytes):
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        return [line for block in split_blocks(file.fileno(), block_bytes) for line in block]


@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"."))), st.integers(1, 20), st.booleans())
def test_every_line_is_one_message(lines, block_bytes, newline_at_end):
    data = b"\n".join(lines)
    if lines and (newline_at_end or not lines[-1]):
        data += b"\n"
    assert lines_of(data, block_bytes) == lines


def test_a_pipe_gives_what_it_has():
    reader, writer = os.pipe()
    try:
        blocks = split_blocks(reader)
        os.write(writer, b"one\ntwo\nthr")
        assert next(blocks) == [b"one", b"two"]
        os.write(writer, b"ee\n")
        assert next(blocks) == [b"three"]
        os.close(writer)
        assert list(blocks) == []
    finally:
        os.close(reader)


def test_texts_go_round():
    blocks = list(repeat_texts([b"a", b"b"], 25_001))
    flat = [text for block in blocks for text in block]
    assert len(flat) == 25_001
    assert flat[:3] == [b"a", b"b", b"a"]
    assert flat[-1] == b"a"


def test_keys_come_from_a_json_field():
    lines = [b'{"id": 7, "x": {"y": []}}', b'{"id": "k"}', b'{"id": null}', b"{}", b'{"id": true}', b'{"id": 1.5}']
    assert KeyField("id").keys(lines, 1) == ["7", "k", None, None, "true", "1.5"]
    assert KeyField("a-b c").keys([b'{"a-b c": "v"}'], 1) == ["v"]


DEEP = b'{"x": ' + b"[" * 100_000
"""More than a decoder goes into, also to pass over it."""


@pytest.mark.parametrize("bad", [b"", b"not json", b"[1]", b'{"id": {}}', b'{"id": [1]}', DEEP])
def test_a_line_without_a_usable_key_is_named(bad):
    with pytest.raises(InvalidArgumentError, match=r"line 12: .*'id'"):
        KeyField("id").keys([b'{"id": 1}', b'{"id": 2}', bad], 10)


def test_positions():
    assert parse_position("earliest") == "earliest"
    assert parse_position("latest") == "latest"
    assert parse_position("17") == 17
    assert parse_position("2026-01-31T12:00:00").isoformat() == "2026-01-31T12:00:00+00:00"
    assert parse_position("2026-01-31T12:00:00+02:00").isoformat() == "2026-01-31T12:00:00+02:00"
    for wrong in ("first", "-1", "", "2026-13-01", "²"):
        with pytest.raises(InvalidArgumentError, match="position"):
            parse_position(wrong)
