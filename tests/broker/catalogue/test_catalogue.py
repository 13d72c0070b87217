"""The store and its copy in memory stay equal, also if callers are cancelled."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import running_broker

from danube.broker.catalogue.catalogue import Catalogue
from danube.cluster.membership import Membership
from danube.cluster.records import BrokerRecord, LastStart, SessionRecord
from danube.metadata import MemoryStore
from danube.model import Durability, Limits, SubscriptionPolicy, SubscriptionType
from danube.model.errors import AlreadyExistsError, OwnerFencedError, SubscriptionNotFoundError, UnavailableError
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"

CREATE: dict[str, Callable[[Catalogue], Awaitable[object]]] = {
    "namespace": lambda catalogue: catalogue.create_namespace("shop"),
    "topic": lambda catalogue: catalogue.creations.create(TOPIC, Durability.DISK, 0),
    "subscription": lambda catalogue: catalogue.subscriptions.create(
        1, "s", SubscriptionType.SHARED, 0, SubscriptionPolicy()
    ),
}


async def loaded(store: FaultyMetadataStore) -> Catalogue:
    record = SessionRecord(address="here:6650")
    member = Membership(
        store,
        cluster="danube",
        identity="one",
        record=record,
        storages=("default",),
        random=random.Random(1),
        ttl_s=3600,
    )
    found = await store.get("/brokers/b1")
    lives = msgspec.msgpack.decode(found.value, type=BrokerRecord).life if found is not None else 0
    await member.join(lives, LastStart(lives, 0), store_start)
    await member.assignments.load()
    await member._try_session()
    return await Catalogue.load(store, member, Limits(), random.Random(1), lambda: 0)


async def store_start(life: int, start: int) -> None:
    """There is no data directory."""


@pytest.mark.parametrize("kind", ["namespace", "topic"])
@pytest.mark.parametrize("after_s", [0.005, 0.06])
async def test_who_creates_something_may_go_away(kind: str, after_s: float) -> None:
    """Nothing is shielded: the outcome is settled by the next change."""
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.latency_s = 0.1
        begun = trio.current_time()
        with trio.move_on_after(after_s) as scope:  # in the middle of the call
            await CREATE[kind](catalogue)
        assert scope.cancelled_caught
        assert trio.current_time() - begun < after_s + 0.001
        store.latency_s = 0.0
        await catalogue.create_namespace("next")
        again = await loaded(store)
        assert catalogue.namespaces == again.namespaces
        assert list(catalogue.topics()) == list(again.topics())


@pytest.mark.parametrize("kind", CREATE)
async def test_what_was_created_although_the_answer_was_lost_is_there(kind: str) -> None:
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        store.lose_answer = 1.0
        with pytest.raises(UnavailableError):
            await CREATE[kind](catalogue)
        store.lose_answer = 0.0
        with suppress(AlreadyExistsError):
            await CREATE[kind](catalogue)
        again = await loaded(store)
        assert catalogue.namespaces == again.namespaces
        assert list(catalogue.topics()) == list(again.topics())


def tables(catalogue: Catalogue) -> tuple[object, ...]:
    policies = {name: catalogue.namespace_policies(name) for name in catalogue.namespaces}
    owners = dict(catalogue.membership.assignments.values)
    return list(catalogue.topics()), owners, policies, catalogue.broker_policies, catalogue.storage_identity("cold")


CHANGES: dict[str, Callable[[Catalogue], Awaitable[object]]] = {
    "create namespace": lambda catalogue: catalogue.create_namespace("new"),
    "delete namespace": lambda catalogue: catalogue.delete_namespace("old"),
    "create topic": lambda catalogue: catalogue.creations.create("/default/new", Durability.DISK, 0),
    "delete topic": lambda catalogue: catalogue.deletions.delete(TOPIC),
    "enlarge topic": lambda catalogue: catalogue.creations.enlarge("/default/parts", 5),
    "policies of a topic": lambda catalogue: catalogue.policy_changes.of_topic(TOPIC, {"message_ttl_s": 60}),
    "policies of a namespace": lambda catalogue: catalogue.policy_changes.of_namespace("old", {"message_ttl_s": 60}),
    "policies of the broker": lambda catalogue: catalogue.policy_changes.of_broker({"message_ttl_s": 60}),
    "identity of a storage": lambda catalogue: catalogue.remember_storage("cold", "two", replace=True),
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
async def test_a_failed_change_takes_effect_as_a_whole_or_not_at_all(
    kind: str, how: str, autojump_clock: object
) -> None:
    """Tables and store agree about it as soon as the store answers, and ever after."""
    async with AwayStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        await catalogue.create_namespace("old")
        await catalogue.creations.create(TOPIC, Durability.DISK, 0)
        await catalogue.creations.create("/default/parts", Durability.DISK, 2)
        await catalogue.policy_changes.of_broker({"message_ttl_s": 5})
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
        now = tables(catalogue)
        assert (now == before) is (how == "late"), "a late change finds the guard rewritten"
        assert tables(await loaded(store)) == now
        if how == "late":
            catalogue = await loaded(store)
            await CHANGES[kind](catalogue)
            assert tables(await loaded(store)) != before


@pytest.mark.parametrize("how", ["lost", "late"])
async def test_a_failed_creation_of_a_topic_of_a_bucket_is_undone(how: str, autojump_clock: object) -> None:
    async with AwayStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        before = tables(catalogue)
        store.how = how
        with pytest.raises(UnavailableError):
            await catalogue.creations.create("/default/new", Durability.REMOTE, 2, revocable=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(catalogue.run)
            await trio.sleep(5)
            store.refuse = 0.0
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        await store.arrive()
        assert tables(catalogue) == before
        assert tables(await loaded(store)) == before


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
        with pytest.RaisesGroup(OwnerFencedError), trio.fail_after(5):
            await catalogue.run()


async def test_the_identity_of_a_storage_is_the_first_one_unless_it_is_replaced() -> None:
    """Also if another broker has stored one that is not known here yet."""
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        catalogue = await loaded(store)
        changes: list[str | None] = []
        catalogue.on_storage = lambda change: changes.append(change.after)
        await store.put("/storages/cold", b"one")
        assert await catalogue.remember_storage("cold", "two") == "one"
        assert await catalogue.remember_storage("cold", "three", replace=True) == "three"
        assert (await loaded(store)).storage_identity("cold") == "three"
        assert changes == ["one", "three"]


async def test_who_deletes_a_subscription_may_go_away(tmp_path: Path) -> None:
    """Its consumers were left connected to nothing."""
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        topic = running.topic(TOPIC)
        async with client.consumer(TOPIC, subscription="s") as consumer:
            deleting = topic.level.catalogue.subscriptions.delete
            begun = trio.Event()

            async def slow(*arguments: object) -> None:
                begun.set()
                await trio.sleep(0.05)
                await deleting(*arguments)  # type: ignore[arg-type]

            topic.level.catalogue.subscriptions.delete = slow  # type: ignore[assignment,method-assign]
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

            topic.level.catalogue.subscriptions.delete = refused  # type: ignore[assignment,method-assign]
            with pytest.raises(UnavailableError, match="planted"):
                await topic.delete_subscription("s")
            async with client.producer(TOPIC) as producer:
                await producer.send(b"one")
            assert (await consumer.receive()).payload == b"one"
