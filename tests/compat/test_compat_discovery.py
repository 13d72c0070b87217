"""Lookups of topics and partitions, and what is not served yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from compat_harness import calling, compat_broker

from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.proto import danube_schema_pb2 as schema_pb
from danube.model.errors import InvalidNameError, NotFoundError, UnimplementedError


async def test_a_topic_is_here(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create("/default/orders")
        found = await caller.lookup("/default/orders")
        url = f"http://127.0.0.1:{running.port}"
        assert found.request_id == 7
        assert found.response_type == pb.TopicLookupResponse.Connect
        assert (found.connect_url, found.broker_url, found.proxy) == (url, url, False)


async def test_the_advertised_address_is_what_clients_are_told(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path, advertised_address="broker.example.org") as running,
        calling(running) as caller,
    ):
        await caller.create("/default/orders")
        assert (await caller.lookup("/default/orders")).connect_url == "http://broker.example.org:6650"


async def test_what_cannot_be_looked_up(tmp_path: Path) -> None:
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
        await client.create_topic("/default/foo", partitions=3)
        await client.create_topic("/default/foobar")
        names = [f"/default/foo-part-{index}" for index in range(3)]
        assert await caller.partitions("/default/foo") == names
        assert await caller.partitions("/default/foo-part-1") == names[1:2]
        assert await caller.partitions("/default/foobar") == ["/default/foobar"]
        for unknown in ("/default/fo", "/default/foo-part-3", "/default/foo-part", "/default/foobar-part-0"):
            assert await caller.partitions(unknown) == []


async def test_services_that_are_not_here_say_so(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        with pytest.raises(UnimplementedError, match="format of their own"):
            await caller.unary(
                "/danube.StorageService/ListSegmentDescriptors",
                pb.ListSegmentDescriptorsRequest(topic="/default/orders"),
                pb.ListSegmentDescriptorsResponse,
            )
        methods = schema_pb.DESCRIPTOR.services_by_name["SchemaRegistry"].methods
        assert len(methods) == 11
        for method in methods:
            request = getattr(schema_pb, method.input_type.name)()
            answer = getattr(schema_pb, method.output_type.name)
            with pytest.raises(UnimplementedError, match="no schema registry yet"):
                await caller.unary(f"/danube_schema.SchemaRegistry/{method.name}", request, answer)


async def test_native_methods_are_not_for_protobuf(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.channel() as native:
        with pytest.raises(UnimplementedError, match="msgpack only"):
            await caller.unary("/danube.native.v1.Topics/List", pb.TopicLookupRequest(), pb.TopicLookupResponse)
        assert not native.closed
