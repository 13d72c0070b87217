"""The decisions of ``send_many`` by themselves: batches of bare payloads, and groups of messages with keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.client._many import ANYWHERE, by_partition, checked_lengths, encoded_pieces
from danube.client._outbox import RECORD_OVERHEAD
from danube.model.batch import encode_records
from danube.model.errors import InvalidArgumentError, MessageTooLargeError

MIB = 1 << 20


@given(
    st.lists(st.integers(0, 300).map(bytes), min_size=1, max_size=60),
    st.integers(RECORD_OVERHEAD, 2_000),
    st.integers(1, 20),
)
def test_pieces_hold_all_messages_in_order_within_the_bounds(
    payloads: list[bytes], max_bytes: int, max_messages: int
) -> None:
    at = 0
    for body, count in encoded_pieces(payloads, max_bytes, max_messages, MIB):
        assert 1 <= count <= max_messages
        assert body == encode_records(payloads[at : at + count])
        assert len(body) <= max_bytes or count == 1
        at += count
    assert at == len(payloads)


def test_pieces_grow_while_they_are_less_than_half_full() -> None:
    payloads = [bytes(900), *[b""] * 1_000]
    counts = [count for _, count in encoded_pieces(payloads, 1_000, 64, MIB)]
    assert counts[:7] == [1, 1, 2, 4, 8, 16, 32]
    assert max(counts) <= 64


def test_the_first_payload_that_is_too_large_is_named_after_the_pieces_before_it() -> None:
    pieces = encoded_pieces([b"a", bytes(50), bytes(60)], 100, 1, 40)
    assert next(pieces)[1] == 1
    with pytest.raises(MessageTooLargeError, match="50"):
        next(pieces)
    with pytest.raises(MessageTooLargeError, match="50"):
        checked_lengths([b"a", bytes(50), bytes(60)], 40)
    assert checked_lengths([b"a", bytes(40)], 40) == [1, 40]
    assert checked_lengths([], 40) == []


def test_messages_are_grouped_by_the_partition_of_their_key() -> None:
    payloads = [bytes([number]) for number in range(5)]
    groups = by_partition(payloads, 10, None, ["a", None, b"b", "a", None], None, lambda key: key[0] % 2)
    found = {index: [record.payload for record in records] for index, records, _ in groups}
    assert found == {1: [b"\0", b"\3"], ANYWHERE: [b"\1", b"\4"], 0: [b"\2"]}
    sizes = {index: sizes for index, _, sizes in groups}
    assert sizes[ANYWHERE] == [sizes[ANYWHERE][0]] * 2
    assert sizes[1][0] > sizes[ANYWHERE][0], "a key takes room"


def test_a_topic_of_one_partition_has_one_group() -> None:
    ((index, records, _),) = by_partition([b"1", b"2"], 10, None, ["a", None], {"x": "y"}, None)
    assert index == 0
    assert [(each.key, each.attributes) for each in records] == [(b"a", {"x": "y"}), (None, {"x": "y"})]
    ((_, records, _),) = by_partition([b"1", b"2"], 10, "k", None, None, None)
    assert [each.key for each in records] == [b"k", b"k"]


def test_keys_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="either key"):
        by_partition([b"1"], 10, "k", ["k"], None, None)
    with pytest.raises(InvalidArgumentError, match="1 payloads and 2 keys"):
        by_partition([b"1"], 10, None, ["k", "k"], None, None)
