"""Keys: bytes in every format, and text without loss for people and for programs that want text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.cli._format import compile_format
from danube.client._delivered import open_delivery
from danube.client._message import Batch
from danube.client._payloads import encoded_key, encoded_keys
from danube.client._router import Router
from danube.compat.messages import BASE64, KEY_ENCODING, key_of
from danube.compat.messages import _set_key as set_key
from danube.compat.proto import danube_api_pb2 as pb
from danube.dispatch.globs import Glob
from danube.model import api, route_key
from danube.model.batch import Record, check_part, encode_part
from danube.model.errors import InvalidArgumentError
from danube.model.keys import key_from_text, key_to_text, show_key

texts = st.text(max_size=10)
keys = st.binary(max_size=10) | texts.map(str.encode)


@given(keys)
def test_bytes_survive_as_text(key: bytes) -> None:
    text = key_to_text(key)
    assert key_from_text(text) == encoded_key(text) == encoded_key(key) == encoded_key(memoryview(key)) == key


@given(texts)
def test_a_text_is_its_utf_8(text: str) -> None:
    assert key_from_text(text) == text.encode()
    assert key_to_text(text.encode()) == text
    assert show_key(text.encode()) == repr(text)


@given(st.lists(st.none() | keys | texts))
def test_many_keys_are_encoded_as_one(given_keys: list[str | bytes | None]) -> None:
    assert encoded_keys(given_keys) == [None if key is None else encoded_key(key) for key in given_keys]


@pytest.mark.parametrize("wrong", ["\ud800", "a\udfff", 5, ["a"]])
def test_other_types_of_keys_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a key is"):
        encoded_key(wrong)
    with pytest.raises(InvalidArgumentError, match="a key is"):
        encoded_keys(["a", wrong])


@given(st.lists(st.none() | keys, min_size=1))
def test_the_client_gives_keys_as_bytes_and_as_text(stored: list[bytes | None]) -> None:
    part = encode_part(
        [Record(b"x", key) for key in stored], producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1
    )
    delivery = api.ConsumeBatch(5, 1, 1, [], "p", 0, part)
    source: Any = SimpleNamespace(topic="/default/t", partition=0, generation=0, moves=0)
    batch = open_delivery(Batch, source, delivery, 1 << 20)
    assert check_part(part).record_count == len(batch)
    texts_of = [None if key is None else key_to_text(key) for key in stored]
    assert (batch.keys_bytes(), batch.keys()) == (stored, texts_of)
    assert [message.key_bytes for message in batch] == stored
    assert [message.key for message in batch] == texts_of
    assert [batch[index].key for index in range(len(batch))] == texts_of
    assert encoded_keys(batch.keys()) == stored, "what was received can be published again"


@given(keys)
def test_text_and_bytes_go_to_the_same_partition(key: bytes) -> None:
    assert route_key(key_to_text(key), 7) == route_key(key, 7) == Router(7).partition(key)


@given(keys)
def test_upstream_messages_carry_any_key(key: bytes) -> None:
    message = pb.StreamMessage()
    attributes = {KEY_ENCODING: BASE64} if set_key(message, key) else {}
    received = pb.StreamMessage.FromString(message.SerializeToString())
    assert key_of(received.routing_key, attributes) == key
    assert attributes == {}
    with pytest.raises(InvalidArgumentError, match="the encoding must be 'base64'"):
        key_of(received.routing_key, {KEY_ENCODING: "hex"})


@given(keys)
def test_a_format_prints_the_bytes_of_a_key(key: bytes) -> None:
    message: Any = SimpleNamespace(key_bytes=key)
    assert compile_format("%k")(message) == key + b"\n"


def test_a_filter_counts_a_byte_that_is_no_text_as_one_character() -> None:
    text = key_to_text(b"eu-\xff1")
    assert [Glob(pattern).matches(text) for pattern in ("eu-*", "eu-?1", "eu-1", "eu-??1")] == [
        True,
        True,
        False,
        False,
    ]
