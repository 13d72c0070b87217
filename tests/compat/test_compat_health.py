"""Health answers, which clients request for their producers and consumers every few seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.broker_harness import wait_until
from compat_harness import calling, compat_broker
from consumer_harness import SHARED, health, receiving, subscribe

from danube.compat.proto import danube_api_pb2 as pb
from danube.model.errors import InvalidArgumentError

TOPIC = "/default/orders"
OK, CLOSE = pb.HealthCheckResponse.OK, pb.HealthCheckResponse.CLOSE
PRODUCER, CONSUMER = pb.HealthCheckRequest.Producer, pb.HealthCheckRequest.Consumer


async def test_producers(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, running.client() as client:
        async with calling(running) as caller:
            producer_id = (await caller.create(TOPIC)).producer_id
            assert await health(caller, PRODUCER, producer_id) == OK
            assert await health(caller, PRODUCER, producer_id ^ 1) == CLOSE
            assert await health(caller, CONSUMER, producer_id) == CLOSE
        await running.restart()
        async with calling(running) as caller:
            assert await health(caller, PRODUCER, producer_id) == OK
            await client.admin.delete_topic(TOPIC)
            assert await health(caller, PRODUCER, producer_id) == CLOSE


async def test_consumers(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running:
        async with calling(running) as caller:
            await caller.create(TOPIC)
            consumer_id = await subscribe(caller, TOPIC)
            assert await health(caller, CONSUMER, 0) == CLOSE
            assert await health(caller, CONSUMER, consumer_id ^ 1) == CLOSE
            assert await health(caller, PRODUCER, consumer_id) == CLOSE
            assert await health(caller, CONSUMER, consumer_id) == OK  # it has not opened its stream yet
            async with receiving(caller, consumer_id) as stream:
                await stream.silent(0.02)
                assert await health(caller, CONSUMER, consumer_id) == OK
            await wait_until(lambda: not running.topic(TOPIC).subscriptions["s"].consumers)
            assert await health(caller, CONSUMER, consumer_id) == CLOSE  # it has gone
            assert await subscribe(caller, TOPIC) == consumer_id
            assert await health(caller, CONSUMER, consumer_id) == OK
        await running.restart(crash=True)
        async with calling(running) as caller:
            assert await health(caller, CONSUMER, consumer_id) == OK  # it may still come


async def test_consumers_of_what_is_gone(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        await caller.create(TOPIC)
        first = await subscribe(caller, TOPIC)
        second = await subscribe(caller, TOPIC, subscription="t", kind=SHARED)
        await client.admin.delete_subscription(TOPIC, "s")
        assert await health(caller, CONSUMER, first) == CLOSE
        assert await health(caller, CONSUMER, second) == OK
        await client.admin.delete_topic(TOPIC)
        assert await health(caller, CONSUMER, second) == CLOSE


async def test_others_are_refused(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        with pytest.raises(InvalidArgumentError, match="client type 2 is unknown"):
            await health(caller, 2, 1)
