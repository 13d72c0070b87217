"""Confluent's wire format, as its documentation draws it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import SchemaPayloadError
from danube.schema.frames import Frame, decode_frame, encode_frame

INDEXES = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5).map(tuple)


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (Frame(7, (), b"xy"), b"\x00\x00\x00\x00\x07xy"),
        (Frame(2**31 - 1, (), b""), b"\x00\x7f\xff\xff\xff"),
        (Frame(7, (0,), b"xy"), b"\x00\x00\x00\x00\x07\x00xy"),
        (Frame(7, (1,), b"xy"), b"\x00\x00\x00\x00\x07\x02\x02xy"),
        (Frame(7, (1, 0), b"xy"), b"\x00\x00\x00\x00\x07\x04\x02\x00xy"),
        (Frame(7, (100,), b""), b"\x00\x00\x00\x00\x07\x02\xc8\x01"),
    ],
)
def test_frames_have_these_bytes(frame: Frame, data: bytes) -> None:
    assert encode_frame(frame.number, frame.payload, frame.indexes) == data
    assert decode_frame(data, is_protobuf=bool(frame.indexes)) == frame


@given(number=st.integers(0, 2**31 - 1), payload=st.binary(max_size=20), indexes=INDEXES)
def test_a_framed_payload_is_unframed(number: int, payload: bytes, indexes: tuple[int, ...]) -> None:
    assert decode_frame(encode_frame(number, payload, indexes), is_protobuf=True) == (number, indexes, payload)
    assert decode_frame(encode_frame(number, payload), is_protobuf=False) == (number, (), payload)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no Confluent frame"), (b"\x00\x00\x00\x00", "no Confluent frame"),
        (b"\x01\x00\x00\x00\x07", "no Confluent"),
        (b'{"a":1}', "no Confluent frame"), (b"\x00\x00\x00\x00\x07", "truncated or overlong message index"),
        (b"\x00\x00\x00\x00\x07\x04\x02", "truncated or overlong message index"),
        (b"\x00\x00\x00\x00\x07\xff\xff\xff\xff\xff\x01", "overlong message index"),
        (b"\x00\x00\x00\x00\x07\x01", "has -1 message indexes"), (b"\x00\x00\x00\x00\x07\xd0\x0f", "has 1000 message"),
        (b"\x00\x00\x00\x00\x07\x02\x01", "the negative message index -1"),
    ],
)  # fmt: skip
def test_payloads_without_a_frame_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(SchemaPayloadError, match=why):
        decode_frame(data, is_protobuf=True)


@given(data=st.binary(max_size=30), is_protobuf=st.booleans())
def test_nothing_but_a_payload_error_comes_of_any_bytes(data: bytes, is_protobuf: bool) -> None:
    try:
        frame = decode_frame(data, is_protobuf=is_protobuf)
    except SchemaPayloadError:
        return
    assert data.endswith(frame.payload)
