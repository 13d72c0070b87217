"""The small pure parts: addresses, retry delays, routing, retry limits."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.client._lane import frame_batch
from danube.client._options import Backoff, ClientOptions, Environment
from danube.client._router import Router
from danube.client._url import Address, parse_url
from danube.model import api
from danube.model.errors import ConfigurationError
from danube.model.names import route_key


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("danube://localhost", [("localhost", 6650)]),
        ("danube://127.0.0.1:7000/", [("127.0.0.1", 7000)]),
        ("danube://a:1,b, [::1]:3,a:1", [("a", 1), ("b", 6650), ("::1", 3)]),
    ],
)
def test_urls(url: str, addresses: list[tuple[str, int]]) -> None:
    assert parse_url(url) == addresses


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://a", "danube://", "danube://a:b", "danube://a:0", "danube://a,,b", "danube://u@a",
     "danube://a/path", "danube://a:70000"],
)  # fmt: skip
def test_wrong_urls(url: str) -> None:
    with pytest.raises(ConfigurationError, match="danube://"):
        parse_url(url)


def test_addresses_print_as_in_urls() -> None:
    assert [str(Address("::1", 5)), str(Address("a", 5))] == ["[::1]:5", "a:5"]


def test_backoff_doubles_within_bounds() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(1))
    delays = [backoff.next_delay_s() for _ in range(8)]
    for delay, full in zip(delays, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert full / 2 <= delay <= full
    backoff.reset()
    assert backoff.next_delay_s() <= 0.1


def test_options_are_checked() -> None:
    with pytest.raises(ConfigurationError, match="connect_timeout_s = 0 is not a number of seconds, more than 0"):
        ClientOptions(connect_timeout_s=0)


def test_names_come_from_the_environment() -> None:
    first, second = (Environment(random=random.Random(7)).random_name("producer") for _ in range(2))
    assert first == second
    assert Environment().random_name("x") != Environment().random_name("x")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(max_size=12), max_size=40), st.integers(1, 50))
def test_routing_is_that_of_the_upstream_clients(keys: list[str], partitions: int) -> None:
    router = Router(partitions)
    for key in keys + keys:
        assert router.partition(key) == route_key(key, partitions)


def test_the_cache_of_routes_is_bounded() -> None:
    router = Router(3)
    for index in range(70_000):
        router.partition(str(index))
    assert len(router._cache) <= 65_536


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=70_000))
def test_a_framed_batch_decodes_as_publish_batch(part: bytes) -> None:
    message = b"".join(frame_batch(part))
    assert msgspec.msgpack.decode(message, type=api.PublishRequest) == api.PublishBatch(part)
