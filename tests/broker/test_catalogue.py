"""The store and the copy of it in memory say the same, whoever goes away meanwhile."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from broker_harness import running_broker

from danube.broker.catalogue.catalogue import Catalogue
from danube.metadata import MemoryStore
from danube.model import Durability, Limits, SubscriptionPolicy, SubscriptionType
from danube.model.errors import SubscriptionNotFoundError, UnavailableError
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"

CREATE: dict[str, Callable[[Catalogue], Awaitable[object]]] = {
    "namespace": lambda catalogue: catalogue.create_namespace("shop"),
    "topic": lambda catalogue: catalogue.create_topic(TOPIC, Durability.DISK, 0),
    "subscription": lambda catalogue: catalogue.create_subscription(
        1, "s", SubscriptionType.SHARED, 0, SubscriptionPolicy()
    ),
}


async def loaded(store: FaultyMetadataStore) -> Catalogue:
    return await Catalogue.load(store, Limits(), random.Random(1), lambda: 0)


@pytest.mark.parametrize("kind", CREATE)
async def test_who_creates_something_may_go_away(kind: str) -> None:
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.latency_s = 0.05
        done = False
        with trio.move_on_after(0.005):  # in the middle of the call
            await CREATE[kind](catalogue)
            done = True
        assert done, "what was begun is done, and known"
        store.latency_s = 0.0
        again = await loaded(store)
        assert catalogue.namespaces == again.namespaces
        assert list(catalogue.topics()) == list(again.topics())


@pytest.mark.parametrize("kind", CREATE)
async def test_a_lost_answer_blocks_no_name(kind: str) -> None:
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.lose_answer = 1.0
        with pytest.raises(UnavailableError):
            await CREATE[kind](catalogue)
        store.lose_answer = 0.0
        await CREATE[kind](catalogue)
        again = await loaded(store)
        assert catalogue.namespaces == again.namespaces
        assert list(catalogue.topics()) == list(again.topics())


async def test_who_deletes_a_subscription_may_go_away(tmp_path: Path) -> None:
    """Its consumers were left connected to nothing."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        topic = running.topic(TOPIC)
        async with client.consumer(TOPIC, subscription="s") as consumer:
            deleting = topic.level.catalogue.delete_subscription
            begun = trio.Event()

            async def slow(*arguments: object) -> None:
                begun.set()
                await trio.sleep(0.05)
                await deleting(*arguments)  # type: ignore[arg-type]

            topic.level.catalogue.delete_subscription = slow  # type: ignore[assignment,method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(topic.delete_subscription, "s")
                await begun.wait()
                nursery.cancel_scope.cancel()
            with pytest.raises(SubscriptionNotFoundError):
                await consumer.receive()
        assert topic.subscriptions == {}
        await running.restart(crash=True)
        assert running.topic(TOPIC).subscriptions == {}


async def test_a_subscription_that_cannot_be_deleted_is_still_there(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        topic = running.topic(TOPIC)
        async with client.consumer(TOPIC, subscription="s") as consumer:

            async def refused(*_arguments: object) -> None:
                raise UnavailableError("planted")

            topic.level.catalogue.delete_subscription = refused  # type: ignore[assignment,method-assign]
            with pytest.raises(UnavailableError, match="planted"):
                await topic.delete_subscription("s")
            async with client.producer(TOPIC) as producer:
                await producer.send(b"one")
            assert (await consumer.receive()).payload == b"one"
