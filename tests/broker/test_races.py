"""Concurrent operations: none may undo the other, or hide its result."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio
from broker.broker_harness import raw_consumer, raw_producer, running_broker, wait_until

from danube.broker.topic.recovered import TopicSnapshot
from danube.dispatch import Cursor, encode_entry
from danube.model import Durability, api
from danube.model.errors import StorageUnavailableError, SubscriptionNotFoundError, TopicNotFoundError
from danube.storage import SHARED_SPACES

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


@pytest.mark.real("slows its disk down")
async def test_a_topic_that_is_created_again_while_the_old_one_ends_lives(tmp_path: Path) -> None:
    """Its partitions were ended by name, one after the other, also if another topic had the name by then."""
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC, partitions=3)
        async with raw_producer(channel, f"{TOPIC}-part-0") as producer:
            running.broker.runtime.journal._disk._sync_delay_s = 0.2  # type: ignore[attr-defined]
            producer.send(0, b"on its way")
            await wait_until(lambda: bool(running.topic(f"{TOPIC}-part-0").intake._pending))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.admin.delete_topic, TOPIC)
                await wait_until(lambda: running.broker.directory.catalogue.find(TOPIC) is None)
                await running.broker.directory.create(TOPIC, None, 3)
        running.broker.runtime.journal._disk._sync_delay_s = 0.0  # type: ignore[attr-defined]
        async with client.producer(TOPIC) as sender:
            await sender.send_many([b"%d" % number for number in range(30)], keys=[str(n) for n in range(30)])
        (info,) = await client.admin.list_topics()
        assert (info.partitions, info.end_offset) == (3, 30)


@pytest.mark.real("holds a storage of its own")
async def test_a_remote_topic_that_is_deleted_before_it_is_there_never_comes(tmp_path: Path) -> None:
    """It then took messages that the next life did not have."""
    url = "memory://races?durable=true"
    try:
        async with running_broker(tmp_path, storage=url) as running:
            broker = running.broker
            await broker.directory.create("/default/first", Durability.REMOTE, 0)  # its journal is open
            journal = broker.directory.levels.bucket.claims.journals["default"]
            held, put = trio.Event(), journal._storage._backend.put

            async def slow(*arguments: object, **options: object) -> None:
                await held.wait()
                await put(*arguments, **options)  # type: ignore[arg-type]

            journal._storage._backend.put = slow  # type: ignore[assignment,method-assign]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.directory.create, TOPIC, Durability.REMOTE, 0)
                await wait_until(lambda: broker.directory.catalogue.find(TOPIC) is not None)
                await trio.testing.wait_all_tasks_blocked(0.01)
                nursery.start_soon(broker.directory.delete, TOPIC)
                await wait_until(lambda: broker.directory.levels.bucket._deleting)
                held.set()
            with pytest.raises(TopicNotFoundError):
                broker.directory.find(TOPIC)
            assert not broker.directory.levels.bucket._deleting
            assert [topic.name for topic in broker.directory.levels.bucket.by_id.values()] == ["/default/first"]
    finally:
        SHARED_SPACES.forget("races")


async def test_a_busy_subscription_can_be_moved(tmp_path: Path) -> None:
    """Messages were acknowledged during each commit, and the cursor never settled."""
    async with running_broker(tmp_path, sync_delay_ms=5) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 20_000)
        async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(20_000)
            await consumer.reply_of(api.ConsumeBatch)

            async def acknowledge() -> None:
                for offset in range(15_000):
                    consumer.send(api.Ack([offset, offset + 1]))
                    await trio.sleep(0.001)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(acknowledge)
                await trio.sleep(0.1)
                with trio.fail_after(8):
                    await client.admin.seek_subscription(TOPIC, "s", 17_000)
                nursery.cancel_scope.cancel()
            await consumer.flush()
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == 17_000
        await running.restart(crash=True)
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == 17_000


async def test_topics_are_listed_while_one_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/away", partitions=2)
        async with client.producer(TOPIC) as producer:
            await producer.send(b"one")
        reach = running.broker.directory.find

        def topic(name: str) -> object:
            if "away" in name:
                raise StorageUnavailableError("its storage does not answer")
            return reach(name)

        monkeypatch.setattr(running.broker.directory, "find", topic)
        away, here = await client.admin.list_topics()
        assert (away.topic, away.partitions, here.topic, here.end_offset) == ("/default/away", 2, TOPIC, 1)


async def test_a_cursor_that_was_set_back_stays_there(tmp_path: Path) -> None:
    """Offsets that were lost are given out again; a snapshot must not say that their new messages are acknowledged."""
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(80)])
        async with client.consumer(TOPIC, subscription="s", start="earliest"):
            pass
        broker = running.broker
        subscription_id = broker.directory.find(TOPIC).subscriptions["s"].subscription_id
        await running.crash()
        # As if a power loss had taken the last 20 of 100 messages, all of them acknowledged in a snapshot.
        await running.start()
        topic = running.topic(TOPIC)
        ahead = encode_entry(Cursor(100).snapshot(subscription_id))
        state = TopicSnapshot(80, topic.producers.snapshot(), [ahead])
        await running.broker.runtime.journal.save({topic.topic_id: msgspec.msgpack.encode(state)})
        await running.restart(crash=True)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(80, 120)])
        await running.restart(crash=True)
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == 80
        assert info.backlog_messages == 40


async def test_no_consumer_joins_a_deleted_subscription(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        topic = running.topic(TOPIC)
        subscribe = topic.subscribe

        async def slow(request: api.ConsumeOpen) -> object:
            found = await subscribe(request)
            await topic.delete_subscription("s")
            return found

        topic.subscribe = slow  # type: ignore[assignment,method-assign]
        with pytest.raises(SubscriptionNotFoundError):
            async with raw_consumer(channel, TOPIC):
                pass
