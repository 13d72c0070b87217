"""Lookups of topics and partitions, and calls that are not supported yet."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from compat_harness import calling, compat_broker

from danube.broker import load_config
from danube.compat.codec import PROTO
from danube.compat.discovery import broker_url
from danube.compat.proto import danube_api_pb2 as pb
from danube.model.errors import ConfigurationError, InvalidNameError, NotFoundError, UnimplementedError
from danube.wire import Context


async def test_a_topic_is_here(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create("/default/orders")
        found = await caller.lookup("/default/orders")
        url = f"http://127.0.0.1:{running.port}"
        assert found.request_id == 7
        assert found.response_type == pb.TopicLookupResponse.Connect
        assert (found.connect_url, found.broker_url, found.proxy) == (url, url, False)


@pytest.mark.parametrize(
    ("advertised", "url"),
    [
        ("broker.example.org", "http://broker.example.org:6650"),
        ("10.0.0.7:7000", "http://10.0.0.7:7000"),
        ("[::1]:7000", "http://[::1]:7000"),
        ("https://broker.example.org/", "https://broker.example.org"),
    ],
)
async def test_the_advertised_address_is_what_clients_are_told(tmp_path: Path, advertised: str, url: str) -> None:
    async with compat_broker(tmp_path, advertised_address=advertised) as running, calling(running) as caller:
        await caller.create("/default/orders")
        assert (await caller.lookup("/default/orders")).connect_url == url


@pytest.mark.parametrize(
    ("authority", "url"),
    [
        ("mapped.example.org:16650", "http://mapped.example.org:16650"),
        ("[fd00::7]:6650", "http://[fd00::7]:6650"),
        ("proxy", "http://proxy"),
        ("evil/?:1", None),
        ("", None),
    ],
)
async def test_clients_stay_where_they_have_come(tmp_path: Path, authority: str, url: str | None) -> None:
    async with compat_broker(tmp_path) as running:
        context = Context("", "", 1, {}, math.inf, PROTO, authority)
        assert broker_url(running.broker, context) == (url or f"http://127.0.0.1:{running.port}")


def test_an_advertised_address_must_be_one() -> None:
    for wrong in ("broker:port", "http://broker:99999", ":6650"):
        with pytest.raises(ConfigurationError, match="host:port"):
            load_config(None, {"advertised_address": wrong})


async def test_lookups_that_are_refused(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create("/default/parts-part-0")
        for unknown in ("/default/missing", "/default/parts", "/default/parts-part-1"):
            with pytest.raises(NotFoundError):
                await caller.lookup(unknown)
        for malformed in ("", "orders", "/default", "/default/a/b"):
            with pytest.raises(InvalidNameError):
                await caller.lookup(malformed)
            with pytest.raises(InvalidNameError):
                await caller.partitions(malformed)


async def test_partitions_are_exact(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        await client.admin.create_topic("/default/foo", partitions=3)
        await client.admin.create_topic("/default/foobar")
        names = [f"/default/foo-part-{index}" for index in range(3)]
        assert await caller.partitions("/default/foo") == names
        assert await caller.partitions("/default/foo-part-1") == names[1:2]
        assert await caller.partitions("/default/foobar") == ["/default/foobar"]
        for unknown in ("/default/fo", "/default/foo-part-3", "/default/foo-part", "/default/foobar-part-0"):
            assert await caller.partitions(unknown) == []


async def test_a_service_that_is_not_here_says_so(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        with pytest.raises(UnimplementedError, match="another format than upstream's"):
            await caller.unary(
                "/danube.StorageService/ListSegmentDescriptors",
                pb.ListSegmentDescriptorsRequest(topic="/default/orders"),
                pb.ListSegmentDescriptorsResponse,
            )


async def test_native_methods_are_not_for_protobuf(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.channel() as native:
        with pytest.raises(UnimplementedError, match="msgpack only"):
            await caller.unary("/danube.native.v1.Topics/List", pb.TopicLookupRequest(), pb.TopicLookupResponse)
        assert not native.closed
