"""Places of official clients' consumers: a consumer keeps its place, and no other one gets it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from compat_harness import calling, compat_broker
from consumer_harness import health, receiving, subscribe

from danube.compat.consumers import Consumers
from danube.compat.proto import danube_api_pb2 as pb
from danube.metadata import MemoryStore
from danube.model import Limits
from danube.model.errors import (
    ConsumerDisplacedError,
    LimitExceededError,
    PermissionDeniedError,
    StorageUnavailableError,
)

TOPIC = "/default/orders"


async def test_subscribing_again_keeps_the_place(tmp_path: Path) -> None:
    """The end of the former stream came after the new reservation, and took it away."""
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create(TOPIC)
        consumer_id = await subscribe(caller, TOPIC, "a")
        async with receiving(caller, consumer_id) as former:
            await former.silent(0.02)
            assert await subscribe(caller, TOPIC, "a") == consumer_id
            with pytest.raises(ConsumerDisplacedError):
                await former.next()
        await trio.sleep(0.05)  # the former has come to its end
        assert await health(caller, pb.HealthCheckRequest.Consumer, consumer_id) == pb.HealthCheckResponse.OK
        with pytest.raises(PermissionDeniedError, match="'a'"):
            await subscribe(caller, TOPIC, "b")
        async with receiving(caller, consumer_id) as latter:
            await caller.send(TOPIC, (await caller.create(TOPIC)).producer_id, b"one")
            assert await latter.payloads(1) == [b"one"]


async def test_of_two_that_subscribe_at_once_one_is_refused(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create(TOPIC)
        await subscribe(caller, TOPIC, "owner", "other")
        told: list[str] = []

        async def come(name: str) -> None:
            try:
                await subscribe(caller, TOPIC, name)
            except PermissionDeniedError:
                told.append("refused")
            else:
                told.append("taken")

        async with trio.open_nursery() as nursery:
            for name in ("a", "b", "c"):
                nursery.start_soon(come, name)
        assert sorted(told) == ["refused", "refused", "taken"]


async def test_ids_are_kept_while_the_storage_of_their_topic_is_away(tmp_path: Path) -> None:
    """The broker did not start until it was back."""
    known: dict[str, Any] = {}
    async with MemoryStore() as store:

        async def consumers(topic: Any) -> Consumers:
            ids = iter(range(1, 100))
            runtime = SimpleNamespace(limits=Limits(), new_id=lambda: next(ids))
            directory = SimpleNamespace(find=topic, broker="b1")
            broker = SimpleNamespace(runtime=runtime, directory=directory, metadata=store)
            face = Consumers(broker)  # type: ignore[arg-type]
            async with trio.open_nursery() as nursery:
                await nursery.start(face.run)
                nursery.cancel_scope.cancel()
            return face

        async with compat_broker(tmp_path) as running, calling(running) as caller:
            await caller.create(TOPIC)
            known["id"] = await subscribe(caller, TOPIC, "a")
            for item in (await running.broker.directory.catalogue.store.list("/compat/"))[0]:
                await store.put(item.key, item.value)

        def away(_name: str) -> None:
            raise StorageUnavailableError("the storage does not answer")

        assert (await consumers(away)).ids.find(known["id"]) is not None


async def test_calls_in_progress_are_answered_when_the_broker_drains(tmp_path: Path) -> None:
    """A client that was told that it failed would send it once more."""
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        running.broker.runtime.journal._disk._sync_delay_s = 0.3  # type: ignore[attr-defined]
        answers: list[int] = []

        async def send(number: int) -> None:
            answers.append((await caller.send(TOPIC, producer_id, b"%d" % number, request_id=number)).request_id)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(send, number)
            await wait_until(lambda: bool(running.topic(TOPIC).intake._pending))
            await running.drain()
        assert sorted(answers) == list(range(5))
        await running.start()
        assert running.topic(TOPIC).end_offset == 5


async def test_receiving_takes_a_place_among_the_connections_of_a_namespace(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path) as running,
        running.client() as client,
        calling(running) as first,
        calling(running) as second,
    ):
        await client.admin.create_namespace("shop")
        await client.admin.create_topic("/shop/a")
        await client.admin.change_quota("shop", max_connections=1)
        mine = await subscribe(first, "/shop/a", "a", "mine")
        other = await subscribe(second, "/shop/a", "b", "other")
        async with receiving(first, mine) as stream:
            producer_id = (await second.create("/shop/a")).producer_id  # it has no stream, and takes no place
            await second.send("/shop/a", producer_id, b"one")
            assert await stream.payloads(1) == [b"one"]
            assert (await client.admin.quota("shop")).connections == 1
            async with receiving(second, other) as refused:
                with pytest.raises(LimitExceededError, match=r"used by 1 connections .* max_connections is 1"):
                    await refused.next()

        async def is_free() -> bool:
            return (await client.admin.quota("shop")).connections == 0

        await wait_until(is_free)
        async with receiving(second, other) as stream:
            assert await stream.payloads(1) == [b"one"]
