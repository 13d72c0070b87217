"""The store and its copy in memory stay equal, also if callers are cancelled."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker

from danube.broker.catalogue.catalogue import Catalogue
from danube.metadata import MemoryStore
from danube.model import Durability, Limits, SubscriptionPolicy, SubscriptionType
from danube.model.errors import OwnerFencedError, SubscriptionNotFoundError, UnavailableError
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


def tables(catalogue: Catalogue) -> tuple[object, ...]:
    policies = {name: catalogue.namespace_policies(name) for name in catalogue.namespaces}
    return list(catalogue.topics()), policies, catalogue.broker_policies, catalogue.storage_identity("cold")


CHANGES: dict[str, Callable[[Catalogue], Awaitable[object]]] = {
    "create namespace": lambda catalogue: catalogue.create_namespace("new"),
    "delete namespace": lambda catalogue: catalogue.delete_namespace("old"),
    "create topic": lambda catalogue: catalogue.create_topic("/default/new", Durability.DISK, 0),
    "delete topic": lambda catalogue: catalogue.delete_topic(TOPIC),
    "enlarge topic": lambda catalogue: catalogue.enlarge_topic("/default/parts", 5),
    "policies of a topic": lambda catalogue: catalogue.change_topic_policies(TOPIC, {"message_ttl_s": 60}),
    "policies of a namespace": lambda catalogue: catalogue.change_namespace_policies("old", {"message_ttl_s": 60}),
    "policies of the broker": lambda catalogue: catalogue.change_broker_policies({"message_ttl_s": 60}),
    "identity of a storage": lambda catalogue: catalogue.remember_storage("cold", "two"),
}


class AwayStore(FaultyMetadataStore):
    """Loses an answer, or holds a change back, and is away from then on."""

    how = ""

    async def _change(self, what: str, call: Callable[[], Any]) -> Any:
        how, self.how = self.how, ""
        if not how:
            return await super()._change(what, call)
        self.refuse = 1.0
        if how == "lost":
            await call()
        else:
            self._held.append(call)
        raise UnavailableError("no answer")


@pytest.mark.parametrize("how", ["lost", "late"])
@pytest.mark.parametrize("kind", CHANGES)
async def test_a_failed_change_has_not_happened_or_is_undone(kind: str, how: str, autojump_clock: object) -> None:
    """The broker goes on with a topic whose deletion has failed: it must not be gone after a restart."""
    async with AwayStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        await catalogue.create_namespace("old")
        await catalogue.create_topic(TOPIC, Durability.DISK, 0)
        await catalogue.create_topic("/default/parts", Durability.DISK, 2)
        await catalogue.change_broker_policies({"message_ttl_s": 5})
        await catalogue.remember_storage("cold", "one")
        before = tables(catalogue)
        store.how = how
        with pytest.raises(UnavailableError):
            await CHANGES[kind](catalogue)
        assert tables(catalogue) == before
        async with trio.open_nursery() as nursery:
            nursery.start_soon(catalogue.run)
            await trio.sleep(5)
            store.refuse = 0.0
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        await store.arrive()
        assert tables(catalogue) == before
        assert tables(await loaded(store)) == before
        catalogue = await loaded(store)
        await CHANGES[kind](catalogue)
        assert tables(await loaded(store)) != before


async def test_a_broker_that_was_displaced_stops(autojump_clock: object) -> None:
    async with AwayStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.how = "late"
        with pytest.raises(UnavailableError):
            await catalogue.create_namespace("new")
        store.refuse = 0.0
        successor = await loaded(store)
        await store.arrive()
        assert tables(await loaded(store)) == tables(successor)
        with pytest.raises(OwnerFencedError), trio.fail_after(5):
            await catalogue.run()


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
