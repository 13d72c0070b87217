from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import InvalidArgumentError, Status, UnimplementedError
from danube.wire._grpc import decode_message, encode_message, format_timeout, parse_timeout, status_from_http
from danube.wire.codec import DEFAULT_CODECS, MSGPACK, choose_codec


@given(st.floats(min_value=0, max_value=10**8, allow_nan=False))
def test_a_timeout_is_rounded_up_and_never_by_much(seconds: float) -> None:
    text = format_timeout(seconds)
    assert len(text) <= 9
    parsed = parse_timeout(text)
    assert parsed >= seconds * (1 - 1e-7)
    assert parsed <= seconds * 1.0000101 + 2e-9


def test_timeouts_of_the_specification() -> None:
    assert parse_timeout("2H") == 7200
    assert parse_timeout("3M") == 180
    assert parse_timeout("100m") == pytest.approx(0.1)
    assert format_timeout(0) == "0n"
    assert format_timeout(10**13) == "99999999H"


@pytest.mark.parametrize("text", ["", "5", "S", "123456789S", "-1S", "1s", "1.5S", "1S ", "\u0661S"])
def test_a_timeout_that_is_none_is_named(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="grpc-timeout"):
        parse_timeout(text)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_message_survives_percent_encoding(text: str) -> None:
    encoded = encode_message(text)
    assert encoded.isascii()
    assert encoded == encoded.strip()
    assert all(" " <= char <= "~" for char in encoded)
    assert decode_message(encoded) == text


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_decoding_a_foreign_message_never_fails(text: str) -> None:
    assert isinstance(decode_message(text), str)


def test_http_statuses_map_as_grpc_says() -> None:
    assert status_from_http(503) is Status.UNAVAILABLE
    assert status_from_http(404) is Status.UNIMPLEMENTED
    assert status_from_http(418) is Status.UNKNOWN


class Point(msgspec.Struct):
    x: int
    y: int


def test_codec_round_trip_and_errors() -> None:
    assert MSGPACK.decode(Point, MSGPACK.encode(Point(1, 2))) == Point(1, 2)
    with pytest.raises(InvalidArgumentError, match=r"not a Point: .*y"):
        MSGPACK.decode(Point, MSGPACK.encode({"x": 1}))
    with pytest.raises(InvalidArgumentError, match="3 bytes is not a Point"):
        MSGPACK.decode(Point, b"\xc1\xc1\xc1")
    with pytest.raises(InvalidArgumentError, match="object cannot be encoded"):
        MSGPACK.encode(object())


@given(st.binary(max_size=64))
def test_hostile_bytes_only_make_invalid_argument(data: bytes) -> None:
    rejected = 0
    for kind in (Point, dict[str, int], list[bytes]):
        try:
            MSGPACK.decode(kind, data)
        except InvalidArgumentError:
            rejected += 1
    assert 0 <= rejected <= 3


def test_codecs_are_chosen_by_content_subtype() -> None:
    assert choose_codec("application/grpc+msgpack; charset=x", DEFAULT_CODECS) is MSGPACK
    for content_type in ("application/grpc", "application/grpc+proto", "application/grpc+json"):
        with pytest.raises(UnimplementedError, match=r"grpc\+msgpack"):
            choose_codec(content_type, DEFAULT_CODECS)
    assert choose_codec("application/grpc", {"proto": MSGPACK}) is MSGPACK


@pytest.mark.parametrize("text", [" ", "  ", " a", "a ", "there is no key ", "a" * 3000 + " "])
def test_a_message_with_spaces_at_its_ends_is_a_valid_header(text: str) -> None:
    encoded = encode_message(text)
    assert encoded == encoded.strip()
    if len(text) < 2048:
        assert decode_message(encoded) == text
