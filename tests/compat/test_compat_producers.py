"""Producers of the upstream protocol: their ids, their messages, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker
from compat_harness import DISK, NONE, Caller, calling, compat_broker

import danube
from danube.broker.intake.composer import Composer
from danube.compat.codec import PROTO
from danube.compat.errors import for_clients
from danube.compat.producers import Producers
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import Rate
from danube.model.batch import BatchFlags, CompositeRecord
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    JournalFullError,
    LimitExceededError,
    MetadataConflictError,
    NamespaceNotFoundError,
    NotFoundError,
    Status,
    StorageConflictError,
    UnavailableError,
)

TOPIC = "/default/orders"
POLICY = {"max_redelivery_count": 0, "poison": "dead_letter", "dead_letter_topic": "/default/dead"}


async def consumed(running: RunningBroker, count: int, topic: str = TOPIC) -> list[danube.Message]:
    """What a native consumer sees from the beginning."""
    messages: list[danube.Message] = []
    async with (
        running.client() as client,
        client.consumer(topic, subscription="all", start="earliest") as consumer,
    ):
        async for message in consumer:
            messages.append(message)
            if len(messages) == count:
                return messages
    raise AssertionError(f"only {len(messages)} messages came")


async def send_many(caller: Caller, topic: str, producer_id: int, count: int, **fields: Any) -> None:
    """Send messages at the same time, with request ids from 0."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(sending(caller, topic, producer_id, b"%d" % number, number, **fields))


def sending(*args: Any, **fields: Any) -> Any:
    caller, *rest = args

    async def send() -> None:
        answer = await caller.send(*rest, **fields)
        assert answer.request_id == rest[3]

    return send


# --- Creating ---


async def test_creating_again_gives_the_same_id(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, calling(running) as other:
        first = await caller.create(TOPIC, "a", request_id=5)
        assert (first.request_id, first.producer_name) == (5, "a")
        assert first.producer_id != 0
        assert (await other.create(TOPIC, "a", request_id=6)).producer_id == first.producer_id
        assert (await caller.create(TOPIC, "b")).producer_id != first.producer_id
        # Neither was fenced: both connections may send.
        await caller.send(TOPIC, first.producer_id, b"1")
        await other.send(TOPIC, first.producer_id, b"2")
        assert [message.payload for message in await consumed(running, 2)] == [b"1", b"2"]


async def test_creating_at_the_same_time_gives_the_same_id(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        ids = set()

        async def create() -> None:
            ids.add((await caller.create(TOPIC, "a")).producer_id)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(create)
        assert len(ids) == 1


@pytest.mark.parametrize("crash", [False, True])
async def test_ids_outlive_the_broker(tmp_path: Path, crash: bool) -> None:
    async with compat_broker(tmp_path) as running:
        async with calling(running) as caller:
            producer_id = (await caller.create(TOPIC, "a")).producer_id
            unused = (await caller.create(TOPIC, "b")).producer_id
            await caller.send(TOPIC, producer_id, b"before")
        await running.restart(crash=crash)
        async with calling(running) as caller:
            await caller.send(TOPIC, producer_id, b"after")
            await caller.send(TOPIC, unused, b"another")
            assert (await caller.create(TOPIC, "a")).producer_id == producer_id
        assert [message.payload for message in await consumed(running, 3)] == [b"before", b"after", b"another"]


async def test_a_native_producer_of_the_same_name_is_not_fenced(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        async with client.producer(TOPIC, name="shared") as native:
            await native.send(b"1")
            producer_id = (await caller.create(TOPIC, "shared")).producer_id
            await caller.send(TOPIC, producer_id, b"2")
            await native.send(b"3")
        messages = await consumed(running, 3)
        assert [(message.payload, message.producer) for message in messages] == [
            (b"1", "shared"),
            (b"2", "shared"),
            (b"3", "shared"),
        ]


async def test_the_dispatch_strategy_decides_about_durability(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, durability="none") as running, calling(running) as caller:
        await caller.create("/default/kept", strategy=DISK)
        await caller.create("/default/lost", strategy=NONE)
        durability = {topic.name: topic.durability for topic in running.broker.directory._topics.values()}
        assert durability == {"/default/kept": "disk", "/default/lost": "none"}
        for topic, strategy in (("/default/kept", NONE), ("/default/lost", DISK)):
            with pytest.raises(FailedPreconditionError, match="fixed when a topic is created"):
                await caller.create(topic, "another", strategy)


async def test_reliable_topics_have_the_default_durability(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, durability="os") as running, calling(running) as caller:
        await caller.create(TOPIC)
        assert running.topic(TOPIC).durability == "os"


async def test_partitions_are_created_one_by_one(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        ids: dict[int, int] = {}

        async def create(index: int) -> None:
            ids[index] = (await caller.create(f"{TOPIC}-part-{index}", f"p-{index}")).producer_id

        async with trio.open_nursery() as nursery:
            for index in (2, 0, 4, 1, 3):
                nursery.start_soon(create, index)
        assert await caller.partitions(TOPIC) == [f"{TOPIC}-part-{index}" for index in range(5)]
        for index, producer_id in ids.items():
            await caller.send(f"{TOPIC}-part-{index}", producer_id, b"%d" % index)
        messages = await consumed(running, 5)
        assert sorted((message.partition, message.payload) for message in messages) == [
            (index, b"%d" % index) for index in range(5)
        ]
        await running.restart(crash=True)
        async with calling(running) as again:
            assert len(await again.partitions(TOPIC)) == 5
            await again.send(f"{TOPIC}-part-3", ids[3], b"later")


async def test_a_plain_and_a_partitioned_topic_do_not_share_a_name(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create("/default/plain")
        await caller.create("/default/parts-part-0")
        for clash in ("/default/plain-part-0", "/default/parts"):
            with pytest.raises(AlreadyExistsError, match="beside it"):
                await caller.create(clash)


async def test_producers_that_cannot_be_created(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        for topic in ("orders", "/default", "/default/a/b", "", "/default/a b"):
            with pytest.raises(InvalidArgumentError):
                await caller.create(topic)
        for name in ("", "a b", "x" * 300):
            with pytest.raises(InvalidArgumentError):
                await caller.create(TOPIC, name)
        with pytest.raises(InvalidArgumentError, match="dispatch strategy 7"):
            await caller.create(TOPIC, strategy=7)
        with pytest.raises(InvalidArgumentError, match="max_partitions"):
            await caller.create(f"{TOPIC}-part-1000000")
        with pytest.raises(NamespaceNotFoundError):
            await caller.create("/nowhere/orders")
        schema = pb.SchemaReference(subject="orders-value", use_latest=True)
        with pytest.raises(FailedPreconditionError, match="orders-value"):
            await caller.create(TOPIC, schema_ref=schema)
        assert await caller.partitions(TOPIC) == []
        await caller.create(TOPIC, schema_ref=pb.SchemaReference())


async def test_without_auto_creation_topics_have_to_be_there(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, auto_create_topics=False) as running, calling(running) as caller:
        async with running.client() as client:
            await client.admin.create_topic("/default/parts", partitions=2)
        await caller.create("/default/parts-part-1")
        for missing in (TOPIC, "/default/parts-part-2", "/default/others-part-0"):
            with pytest.raises(NotFoundError):
                await caller.create(missing)


async def test_too_many_producers(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path, limits={"max_producers_per_topic": 2}) as running,
        calling(running) as caller,
        running.client() as client,
    ):
        await caller.create(TOPIC, "a")
        async with client.producer(TOPIC, name="native"):
            await caller.create(TOPIC, "a")
            with pytest.raises(LimitExceededError, match="max_producers_per_topic = 2"):
                await caller.create(TOPIC, "b")
        await caller.create(TOPIC, "b")
        described = await client.admin.describe_topic(TOPIC)
        assert [producer.name for producer in described.producers] == ["a", "b"]


async def test_an_idle_producer_gives_its_place_away_and_keeps_its_id(tmp_path: Path) -> None:
    limits = {"max_producers_per_topic": 1, "unary_producer_idle_s": 0.05}
    async with compat_broker(tmp_path, limits=limits) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC, "a")).producer_id
        intake = running.topic(TOPIC).intake
        await trio.sleep(0.1)
        intake._expired_us = 0  # idle ones are looked for now and then
        await caller.create(TOPIC, "b")
        await caller.send(TOPIC, producer_id, b"x")


async def test_an_exclusive_producer_keeps_others_out(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC, "a")).producer_id
        async with client.producer(TOPIC, name="boss", access="exclusive"):
            with pytest.raises(FailedPreconditionError, match="exclusive producer 'boss'"):
                await caller.create(TOPIC, "b")
            with pytest.raises(FailedPreconditionError, match="exclusive producer 'boss'"):
                await caller.send(TOPIC, producer_id)
        await caller.send(TOPIC, producer_id, b"x")
        assert [message.payload for message in await consumed(running, 1)] == [b"x"]


# --- Sending ---


async def test_everything_that_was_sent_arrives(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC, "a")).producer_id
        answer = await caller.send(
            TOPIC, producer_id, b"payload", 2**64 - 1, routing_key="user-7", attributes={"v": "1", "w": ""}
        )
        assert answer.request_id == 2**64 - 1
        await caller.send(TOPIC, producer_id, b"", 2, publish_time=0)
        first, second = await consumed(running, 2)
        assert (first.payload, first.key, first.attributes) == (b"payload", "user-7", {"v": "1", "w": ""})
        assert (first.producer, first.publish_time_us, first.offset) == ("a", 1_700_000_000_123_000, 0)
        assert (second.payload, second.key, second.attributes, second.offset) == (b"", None, None, 1)
        assert second.publish_time_us == 0


async def test_messages_of_one_commit_are_one_batch(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, sync_delay_ms=20.0) as running, calling(running) as caller:
        ids = [(await caller.create(TOPIC, name)).producer_id for name in ("a", "b")]
        async with trio.open_nursery() as nursery:
            for index, producer_id in enumerate(ids):
                nursery.start_soon(send_many, caller, TOPIC, producer_id, 50 + index)
        log = running.topic(TOPIC).log
        batches = await log.read(0, 10**9)
        assert all(batch.header.flags == BatchFlags.COMPOSITE for batch in batches)
        assert sum(batch.header.record_count for batch in batches) == 101
        assert len(batches) <= 6, "what comes within one commit belongs together"
        messages = await consumed(running, 101)
        assert [message.offset for message in messages] == list(range(101))
        for name, count in (("a", 50), ("b", 51)):
            mine = [message.payload for message in messages if message.producer == name]
            assert sorted(mine, key=int) == [b"%d" % number for number in range(count)]


async def test_another_schema_begins_another_batch(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, sync_delay_ms=20.0) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        async with trio.open_nursery() as nursery:
            for number, fields in enumerate([{}, {"schema_id": 3, "schema_version": 2}, {"schema_id": 4}, {}]):
                nursery.start_soon(sending(caller, TOPIC, producer_id, b"x", number, **fields))
        batches = await running.topic(TOPIC).log.read(0, 10**9)
        found = [(batch.header.schema_id, batch.header.schema_version) for batch in batches]
        assert sorted(set(found)) == [(0, 0), (3, 2), (4, 0)]


async def test_a_full_batch_does_not_wait(tmp_path: Path) -> None:
    limits = {"max_batch_records": 10}
    async with compat_broker(tmp_path, sync_delay_ms=20.0, limits=limits) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        await send_many(caller, TOPIC, producer_id, 100)
        batches = await running.topic(TOPIC).log.read(0, 10**9)
        assert max(batch.header.record_count for batch in batches) == 10
        assert running.broker.runtime.journal.usage().commits < 8


async def test_topics_that_keep_nothing_deliver_at_once(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC, "a", NONE)).producer_id
        async with client.consumer(TOPIC, subscription="live") as consumer:
            await send_many(caller, TOPIC, producer_id, 20)
            found = [await anext(consumer) for _ in range(20)]
            assert sorted(message.payload for message in found) == sorted(b"%d" % number for number in range(20))
            assert {message.producer for message in found} == {"a"}


async def test_key_shared_falls_back_to_the_name_of_the_producer(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, sync_delay_ms=5.0) as running, calling(running) as caller:
        ids = {name: (await caller.create(TOPIC, name)).producer_id for name in ("a", "b", "c", "d")}
        async with trio.open_nursery() as nursery:
            for producer_id in ids.values():
                nursery.start_soon(send_many, caller, TOPIC, producer_id, 10)
        seen: dict[str, set[str]] = {}

        async def consume(name: str, scope: trio.CancelScope) -> None:
            with scope:
                async with (
                    running.client() as client,
                    client.consumer(
                        TOPIC, subscription="keys", name=name, type="key_shared", start="earliest"
                    ) as consumer,
                ):
                    async for message in consumer:
                        seen.setdefault(message.producer, set()).add(name)
                        await message.ack()
                        counted.append(message.offset)
                        if len(counted) == 40:
                            for each in scopes:
                                each.cancel()

        counted: list[int] = []
        scopes = [trio.CancelScope() for _ in range(2)]
        async with trio.open_nursery() as nursery:
            for index, scope in enumerate(scopes):
                nursery.start_soon(consume, f"c{index}", scope)
        assert set(seen) == set(ids)
        assert sorted(counted) == list(range(40))


async def test_messages_outlive_a_crash_and_a_seal(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running:
        async with calling(running) as caller:
            producer_id = (await caller.create(TOPIC, "a")).producer_id
            await send_many(caller, TOPIC, producer_id, 30, routing_key="k")
        await running.restart(crash=True)
        await running.broker.directory.unload(TOPIC)
        await running.restart()
        messages = await consumed(running, 30)
        assert {(message.producer, message.key) for message in messages} == {("a", "k")}
        assert [message.offset for message in messages] == list(range(30))


async def test_dead_letters_name_the_producer_of_the_message(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC, "a")).producer_id
        await caller.send(TOPIC, producer_id, b"bad", routing_key="k", attributes={"v": "1"})
        async with client.consumer(TOPIC, subscription="s", start="earliest", type="shared", policy=POLICY) as consumer:
            await (await anext(consumer)).nack(reason="no")
            with trio.fail_after(5):
                while running.broker.directory.catalogue.find("/default/dead") is None:
                    await running.broker.runtime.commits.next_commit()
        (letter,) = await consumed(running, 1, "/default/dead")
        assert (letter.payload, letter.key) == (b"bad", "k")
        assert letter.attributes is not None
        about = {name: letter.attributes[name] for name in ("v", "x-original-producer", "x-original-producer-id")}
        assert about == {"v": "1", "x-original-producer": "a", "x-original-producer-id": str(producer_id)}


# --- What is wrong with a message ---


async def test_messages_that_cannot_be_sent(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        other_id = (await caller.create("/default/other")).producer_id
        with pytest.raises(InvalidArgumentError, match="msg_id"):
            await caller.unary(
                "/danube.ProducerService/SendMessage", pb.StreamMessage(payload=b"x"), pb.MessageResponse
            )
        for topic, number in ((TOPIC, 12345), (TOPIC, 0), (TOPIC, other_id), ("/default/missing", producer_id)):
            with pytest.raises(UnavailableError):
                await caller.send(topic, number)
        for time_ms in (253_402_300_800_000, 2**64 - 1):
            with pytest.raises(InvalidArgumentError, match="not a valid time"):
                await caller.send(TOPIC, producer_id, publish_time=time_ms)
        with pytest.raises(InvalidArgumentError, match="schema_id"):
            await caller.send(TOPIC, producer_id, schema_id=2**40)
        await caller.send(TOPIC, producer_id, b"fine", publish_time=253_402_300_799_999)
        (message,) = await consumed(running, 1)
        assert (message.payload, message.publish_time.year) == (b"fine", 9999)


async def test_messages_that_are_too_large(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, limits={"max_message_bytes": 1000}) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC, "a")).producer_id
        await caller.send(TOPIC, producer_id, bytes(999))
        for fields in ({"payload": bytes(1000)}, {"attributes": {"a": "x" * 1000}}, {"routing_key": "k" * 1000}):
            with pytest.raises(InvalidArgumentError, match="max_message_bytes = 1000"):
                await caller.send(TOPIC, producer_id, **fields)
        await caller.send(TOPIC, producer_id, b"fine")


async def test_messages_that_no_official_client_could_receive(tmp_path: Path) -> None:
    limits = {"compat_max_message_bytes": 20_000}
    async with compat_broker(tmp_path, limits=limits) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        await caller.send(TOPIC, producer_id, bytes(19_000))
        with pytest.raises(InvalidArgumentError, match="19744 bytes"):
            await caller.send(TOPIC, producer_id, bytes(20_000))


async def test_a_deleted_topic_sends_its_clients_back_to_look_it_up(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC)).producer_id
        await caller.send(TOPIC, producer_id)
        await client.admin.delete_topic(TOPIC)
        with pytest.raises(UnavailableError):
            await caller.send(TOPIC, producer_id)
        anew = (await caller.create(TOPIC)).producer_id
        assert anew != producer_id
        await caller.send(TOPIC, anew, b"anew")
        assert [message.payload for message in await consumed(running, 1)] == [b"anew"]


async def test_ids_of_what_is_gone_are_forgotten(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producers = Producers(running.broker)
        ids = [(await caller.create(topic)).producer_id for topic in (TOPIC, "/default/gone", "/default/swept")]
        for topic, producer_id in zip((TOPIC, "/default/gone", "/default/swept"), ids, strict=True):
            producers.topics[producer_id] = running.topic(topic)
        for topic in ("/default/gone", "/default/swept"):
            await running.broker.directory.delete(topic)
        assert [producers.is_known(producer_id) for producer_id in (*ids[:2], 12345)] == [True, False, False]
        assert list(producers.topics) == [ids[0], ids[2]]
        producers.sweep()
        assert list(producers.topics) == ids[:1]


async def test_a_publish_rate_delays_and_loses_nothing(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC)).producer_id
        await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=400))
        began = trio.current_time()
        for _ in range(7):  # a second's worth goes at once, and the sixth hundred on credit
            await send_many(caller, TOPIC, producer_id, 100)
        assert trio.current_time() - began > 0.45
        assert len(await consumed(running, 700)) == 700


async def test_a_namespace_that_stores_its_quota_tells_clients_to_try_again(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer = await caller.create(TOPIC)
        await client.admin.change_quota("default", max_stored_bytes=10_000)
        await caller.send(TOPIC, producer.producer_id, b"x" * 5_000)
        with pytest.raises(DanubeError, match="its quota max_stored_bytes is 10000") as refused:
            await caller.send(TOPIC, producer.producer_id, b"x" * 5_000)
        assert refused.value.status is Status.RESOURCE_EXHAUSTED
        await client.admin.change_quota("default", max_stored_bytes=20_000)
        await caller.send(TOPIC, producer.producer_id, b"x" * 5_000)
        assert len(await consumed(running, 2)) == 2


async def test_a_drain_does_not_wait_for_a_publish_rate(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC)).producer_id
        await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=1))
        outcomes: list[str] = []

        async def send(number: int) -> None:
            try:
                await caller.send(TOPIC, producer_id, request_id=number)
                outcomes.append("stored")
            except UnavailableError:
                outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(send, number)
                await trio.sleep(0.01)
            with trio.fail_after(3):
                await running.drain()
        assert set(outcomes) == {"stored", "refused"}
        stored = outcomes.count("stored")
        await running.start()
        assert running.topic(TOPIC).end_offset == stored


async def test_a_full_journal_tells_clients_to_try_again(tmp_path: Path) -> None:
    limits = {"journal_max_bytes": 4 * 2**20, "journal_full_wait_s": 0.2, "segment_journal_ratio": 1.0}
    async with compat_broker(tmp_path, storage="memory://", limits=limits) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        failure: DanubeError | None = None
        for _ in range(60):
            try:
                await caller.send(TOPIC, producer_id, bytes(200_000))
            except DanubeError as error:
                failure = error
                break
        assert isinstance(failure, JournalFullError)
        await running.broker.directory.delete(TOPIC)


async def test_a_caller_that_goes_away_loses_nothing_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Composer.add
    scope = trio.CancelScope()

    def add_and_cancel(composer: Composer, record: CompositeRecord, *rest: Any) -> None:
        add(composer, record, *rest)
        if record.payload == b"goes":
            scope.cancel()

    monkeypatch.setattr(Composer, "add", add_and_cancel)
    async with compat_broker(tmp_path, sync_delay_ms=50.0) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending(caller, TOPIC, producer_id, b"stays", 1))
            with scope:
                await caller.send(TOPIC, producer_id, b"goes", 2)
            assert scope.cancelled_caught
        messages = await consumed(running, 2)
        assert {message.payload for message in messages} == {b"stays", b"goes"}


def test_temporary_failures_have_a_status_that_clients_retry() -> None:
    retried = {Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED}
    kinds: list[type[DanubeError]] = [DanubeError]
    for kind in kinds:
        # A face may have errors of its own, which are made in another way and never leave it.
        kinds += [each for each in kind.__subclasses__() if each.__module__ == DanubeError.__module__]
        assert (for_clients(kind("why")).status in retried) == (kind.retryable or kind.status in retried)
    assert isinstance(for_clients(MetadataConflictError("why")), UnavailableError)
    assert for_clients(StorageConflictError("why")).message == "why"


def test_requests_that_are_no_protobuf_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not a StreamMessage"):
        PROTO.decode(pb.StreamMessage, b"\xff\xff\xff")
