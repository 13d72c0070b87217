"""Names and offset ranges against simple models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model import RangeSet, partition_name, route_key, validate_name, validate_namespace, validate_topic
from danube.model.errors import (
    ClusterConfigurationError,
    DanubeError,
    InvalidArgumentError,
    InvalidNameError,
    NotOwnerError,
    PeerRefusedError,
    Status,
    TopicNotFoundError,
    UnavailableError,
    exit_code,
    from_wire,
    to_wire,
)
from danube.model.names import fnv1a_64, split_partition, validate_identifier
from danube.model.ranges import check_flat


@pytest.mark.parametrize("name", ["/default/orders", "/a/b-c_d", "/ns/t-part-3", "/1/2"])
def test_good_topics(name: str) -> None:
    assert str(validate_topic(name)) == name


@pytest.mark.parametrize(
    "name",
    ["", "orders", "/orders", "/a/b/c", "default/orders", "/a/", "//b", "/a/b c", "/a/b.c", "/a/b\n", None, 7, b"/a/b"],
)
def test_bad_topics_say_what_they_should_be(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="topic"):
        validate_topic(name)


def test_names_have_a_length() -> None:
    assert validate_namespace("n" * 255)
    with pytest.raises(InvalidNameError):
        validate_namespace("n" * 256)


ALIKE = {
    "cyrillic": "\u043erders",
    "full width": "\uff4frders",
    "greek": "\u03bfrders",
    "mathematical": "\U0001d428rders",
    "digits": "orders-\u0661",
    "letters with marks": "gr\u00f6\u00dfe",
    "half a character": "orders\udcff",
}


@pytest.mark.parametrize("name", ALIKE.values(), ids=list(ALIKE))
def test_topics_that_look_like_others_are_refused(name: str) -> None:
    with pytest.raises(InvalidNameError, match="ASCII") as caught:
        validate_topic(f"/default/{name}")
    assert caught.value.message.isascii()  # what is wrong can be seen
    with pytest.raises(InvalidNameError, match="ASCII"):
        validate_namespace(name)
    with pytest.raises(InvalidNameError, match="ASCII"):
        validate_identifier("cluster", name)


@pytest.mark.parametrize("name", ["orders", "gr\u00f6\u00dfe", "\u0437\u0430\u043a", "a.b@c", "\u6ce8\u6587"])
def test_names_of_clients_may_be_in_any_script(name: str) -> None:
    assert validate_name("consumer", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a/b",
        "a\tb",
        "a\u00a0b",
        "gro\u0308\u00dfe",
        "orders\u200b",
        "a\u202eb",
        "a\x00",
        "\udcff",
        "x" * 256,
        None,
        7,
    ],
)
def test_names_of_clients_can_be_seen_and_have_one_spelling(name: Any) -> None:
    with pytest.raises(InvalidNameError, match="consumer"):
        validate_name("consumer", name)


def test_clusters_and_storages_name_folders() -> None:
    assert validate_identifier("cluster", "prod.eu-1") == "prod.eu-1"
    for name in ("", ".", "..", ".a", "a.", "a/b", "a b", "x" * 256):
        with pytest.raises(InvalidNameError, match="cluster"):
            validate_identifier("cluster", name)


def test_partitions_have_names() -> None:
    assert partition_name("/a/b", 3) == "/a/b-part-3"
    assert split_partition("/a/b-part-3") == ("/a/b", 3)
    assert split_partition("/a/b-part-03") is None
    assert split_partition("/a/b-part-x") is None


@pytest.mark.parametrize(
    ("text", "digest"),
    [(b"", 0xCBF29CE484222325), (b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)],
)
def test_published_vectors_of_fnv1a(text: bytes, digest: int) -> None:
    assert fnv1a_64(text) == digest
    assert route_key(text.decode(), 7) == digest % 7


pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), max_size=12)


@given(pairs, pairs)
def test_a_range_set_is_a_set(added: list[tuple[int, int]], removed: list[tuple[int, int]]) -> None:
    ranges, model = RangeSet(), set[int]()
    for start, length in added:
        ranges.add(start, start + length)
        model |= set(range(start, start + length))
    for start, length in removed:
        ranges.remove(start, start + length)
        model -= set(range(start, start + length))
    assert {offset for start, end in ranges for offset in range(start, end)} == model
    assert ranges.count() == len(model)
    assert all((offset in ranges) == (offset in model) for offset in range(70))
    flat = ranges.to_flat()
    check_flat(flat, "test")
    assert flat == sorted(set(flat)), "ranges are disjoint and do not touch"
    assert RangeSet.from_flat(flat) == ranges
    low, high = 10, 40
    assert {o for s, e in ranges.overlap(low, high) for o in range(s, e)} == model & set(range(low, high))
    assert {o for s, e in ranges.gaps(low, high) for o in range(s, e)} == set(range(low, high)) - model
    floor = ranges.copy().pop_front(5)
    assert floor >= 5
    assert floor not in ranges


@pytest.mark.parametrize("flat", [[1], [3, 2], [2, 2], [0, 5, 4, 6]])
def test_wrong_ranges_are_refused(flat: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="Ack"):
        check_flat(flat, "Ack")


def test_errors_travel_as_themselves() -> None:
    error = TopicNotFoundError("topic '/a/b' does not exist")
    again = from_wire(*to_wire(error))
    assert type(again) is TopicNotFoundError
    assert str(again) == str(error)
    assert exit_code(again) == 66


def test_details_travel_with_their_error() -> None:
    error = NotOwnerError("topic '/a/b' belongs to broker b2", {"address": "b:6650"})
    again = from_wire(*to_wire(error))
    assert isinstance(again, NotOwnerError)
    assert again.address == "b:6650"
    assert again.details == error.details
    assert type(from_wire(14, "a-later-code", "text", {"address": "b:6650"})) is UnavailableError
    assert from_wire(14, "a-later-code", "text", {"address": "b:6650"}).details == {"address": "b:6650"}


def test_an_error_without_details_has_none() -> None:
    error = NotOwnerError("topic '/a/b' belongs to another broker")
    assert error.address == ""
    assert dict(error.details) == {}
    assert to_wire(error).details == {}
    assert dict(copy.deepcopy(NotOwnerError("x", {"address": "b:6650"})).details) == {"address": "b:6650"}


@pytest.mark.parametrize(
    ("sent", "epoch"),
    [("7", 7), ("0", 0), ("", 0), ("-7", 0), ("7.0", 0), ("\u0667", 0), ("9" * 20, 10**20 - 1), ("9" * 21, 0)],
)
def test_the_epoch_in_a_redirect_is_a_number_or_unknown(sent: str, epoch: int) -> None:
    assert NotOwnerError("x", {"epoch": sent}).epoch == epoch


def test_not_owner_is_an_unavailability_that_may_pass() -> None:
    error = NotOwnerError("x")
    assert to_wire(error)[:2] == (Status.UNAVAILABLE, "not-owner")
    assert error.retryable
    assert isinstance(error, UnavailableError)
    assert exit_code(error) == 69


@pytest.mark.parametrize(
    ("error", "code", "exits"),
    [
        (PeerRefusedError("x"), "peer-refused", 78),
        (ClusterConfigurationError("x"), "cluster-configuration", 78),
    ],
)
def test_errors_of_a_cluster_that_end_a_start(error: DanubeError, code: str, exits: int) -> None:
    assert to_wire(error)[:2] == (Status.FAILED_PRECONDITION, code)
    assert not error.retryable
    assert exit_code(error) == exits


def test_foreign_errors_keep_their_details_to_themselves() -> None:
    status, code, message, details = to_wire(ValueError("secret"))
    assert details == {}
    assert status is Status.INTERNAL
    assert code == "internal"
    assert "secret" not in message
    assert type(from_wire(99, "what", "?")) is DanubeError
