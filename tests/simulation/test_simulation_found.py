"""Defects found by the simulation, each as the smallest world that shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import msgspec
import pytest
import trio

from danube.broker.broker import Broker
from danube.broker.topic.recovered import TopicSnapshot
from danube.client import Client, Consumer
from danube.dispatch import CursorReset, encode_entry
from danube.model import Durability, Retention, SubscriptionType
from danube.model.errors import DanubeError, DataLossError
from danube.model.limits import KIB
from danube.testing.simulation import World, draw_plan
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.trace import Trace
from danube.testing.simulation.workload import ConsumerPlan, TopicPlan
from danube.testing.simulation.world import _SpinWatch

TOPIC = "/default/found"


@asynccontextmanager
async def world_of(seed: int, kind: str) -> AsyncIterator[World]:
    """A world in which only the broker runs, without faults."""
    world = World(draw_plan(seed, kind=kind), Trace())
    async with world.machines():
        trio.lowlevel.add_instrument(_SpinWatch(world))
        await world.node.ready.wait()
        yield world
    assert world.history.violations == []


def simulate(work: Callable[[World], Awaitable[None]], *, kind: str = "single") -> None:
    async def main() -> None:
        async with world_of(1, kind) as world:
            with trio.fail_after(1_000_000):
                await work(world)

    run_seeded(main, 1)


def test_retention_overtakes_a_consumer() -> None:
    """What retention had taken was read for again and again, without a pause: the whole broker stood still."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            await client.admin.create_topic(TOPIC, retention=Retention(max_bytes=64 * KIB))
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                async with client.producer(TOPIC, batch_max_bytes=8 * KIB) as producer:
                    await producer.send(b"never acknowledged")
                    assert (await consumer.receive()).offset == 0
                    for _ in range(60):
                        await producer.send_many([bytes(1000)] * 8)
                        await trio.sleep(0.5)
                    last = (await producer.send(b"last")).offset
                await client.admin.unload_topic(TOPIC)
                info = await client.admin.describe_topic(TOPIC)
                assert info.start_offset > 0, "retention has taken nothing"
            async with client.consumer(TOPIC, subscription="s") as consumer:
                async for message in consumer:
                    await message.ack()
                    if message.offset == last:
                        break
            (row,) = await client.admin.describe_subscription(TOPIC, "s")
            assert row.backlog_messages == 0

    simulate(work)


def test_acknowledgements_repeated_after_a_crash_count() -> None:
    """A client repeats what was not confirmed; the new broker confirmed it, ignored it, and delivered it again."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"%d" % number for number in range(10)])
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                for _ in range(10):
                    message = await consumer.receive()
                    if message.offset != 3:
                        message.ack_nowait()
                world.node.crash(power_loss=False)
                await consumer.flush_acks()
                again = await consumer.receive()
                assert again.offset == 3
                with trio.move_on_after(1.0):
                    raise AssertionError(f"{(await consumer.receive()).offset} was acknowledged, and confirmed")
            (row,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (row.floor, row.backlog_messages) == (3, 1)

    simulate(work)


def test_the_keep_alive_of_a_client_does_not_spin() -> None:
    """Sleeping until a sum and comparing a difference may round apart; then the client was busy at one moment."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            random = Random(3)
            for power in range(3, 11):
                # The keep-alive of 2 s ends behind a power of two, where floats get coarser and sums are rounded.
                await trio.sleep_until(2.0**power - random.uniform(0.1, 1.9))
                await client.admin.info()
                await trio.sleep(2.5)

    simulate(work)


def test_a_commit_in_front_of_sealed_ones_is_not_forgotten() -> None:
    """Recovery took everything below the last sealed offset for sealed, and dropped commits too large to be merged."""

    async def work(world: World) -> None:
        small = world.node.config.limits.segment_bytes // 4
        async with world.applications.client("here", Random(1), "broker") as client:
            await client.admin.create_topic(TOPIC, durability="remote")
            sent: list[bytes] = []
            async with client.producer(TOPIC) as producer:
                for size in (small * 2 // 3, small * 2 // 3, 10, 10, 10, 10):
                    payloads = [bytes([len(sent) + index]) + bytes(size) for index in range(2)]
                    await producer.send_many(payloads)
                    sent += payloads
                assert world.node.life is not None
                assert await world.node.life.broker.directory.history.merger.merge("default") > 0
            world.node.crash(power_loss=True)
            await trio.sleep(1)
            async with client.reader(TOPIC, start="earliest") as reader:
                found = [message.payload async for batch in reader.batches(until_caught_up=True) for message in batch]
            assert found == sent

    simulate(work)


def test_a_refused_batch_is_sent_again_when_those_behind_it_are_acknowledged_last() -> None:
    """The pause after a refusal was forgotten if its last answer was an acknowledgement: the producer was stuck."""

    async def work(world: World) -> None:
        async with (
            world.applications.client("here", Random(1), "broker") as client,
            client.producer(TOPIC, durability="remote", batch_max_messages=1) as producer,
        ):
            await producer.send(b"0")
            world.node.set_storage_faults(down=True)
            pending = []
            for number in range(1, 4):
                pending.append(producer.send_nowait(b"%d" % number))
                await trio.sleep(1.5)  # waiting is measured in quarters of the stall
            (lane,) = producer._lanes
            while not lane.outbox._refused:  # noqa: ASYNC110 - there is no event
                await trio.sleep(0.01)
            world.node.set_storage_faults(down=False)
            assert len(lane.outbox.flight) > 1
            with trio.fail_after(60):
                assert [(await each).offset for each in pending] == [1, 2, 3]

    simulate(work)


def test_a_deletion_that_is_cut_off_leaves_nothing_alive() -> None:
    """A topic without a record stayed in the history; merging it failed from then on, and everything else with it."""

    async def work(world: World) -> None:
        assert world.node.life is not None
        broker, random = world.node.life.broker, Random(2)
        async with world.applications.client("here", random, "broker") as client:
            for number in range(24):
                topic = f"{TOPIC}-{number}"
                await client.admin.create_topic(topic, durability="remote" if number % 2 else "disk")
                async with client.producer(topic) as producer:
                    await producer.send(b"x")
                async with client.consumer(topic, subscription="s", start="earliest") as consumer:
                    await (await consumer.receive()).ack()
                if number % 2:
                    history = broker.directory.history
                    await history.merger.merge("default", frozenset(history.catalogue.topics))
                world.node.set_metadata_faults(refuse=0.3, latency_s=0.002)
                with suppress(DanubeError), trio.move_on_after(random.choice((0.0015, 0.003, 0.01, 60.0))):
                    await client.admin.delete_topic(topic)
                world.node.set_metadata_faults(refuse=0.0, latency_s=0.0)
                await trio.sleep(3)
            records = {topic_id for _, record in broker.directory.catalogue.topics() for topic_id in record.topic_ids}
            assert set(broker.directory.history.catalogue.topics) <= records
            assert {topic.topic_id for topic in broker.directory.kept_topics()} == records
            assert len(records) < 24, "no deletion has succeeded"

    simulate(work)


def test_a_topic_that_was_deleted_at_the_end_does_not_hold_the_bucket_back() -> None:
    """The manifests still had it, so a new machine took the bucket for another broker's and sealed nothing any more."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            for topic in (TOPIC, f"{TOPIC}-deleted"):
                async with client.producer(topic, durability="remote") as producer:
                    await producer.send(b"x")
            for topic in (TOPIC, f"{TOPIC}-deleted"):
                await client.admin.seal_topic(topic)
            space = world.buckets["memory://bucket"]
            manifests = {key: value for key, value in space.objects.items() if key.startswith("manifests/")}
            await client.admin.delete_topic(f"{TOPIC}-deleted")
            world.crash(world.node, power_loss=True)
            for key in [key for key in space.objects if key.startswith("manifests/")]:
                space.remove(key)  # as if the last one had not been written any more
            for key, (data, modified_us) in manifests.items():
                space.store(key, data, modified_us)
            await world.replace(world.node).ready.wait()
            async with client.producer(TOPIC) as producer:
                await producer.send(b"y")
            await client.admin.seal_topic(TOPIC)
            assert [info.topic for info in await client.admin.list_topics()] == [TOPIC]

    simulate(work, kind="moving")


@pytest.mark.parametrize("down_s", [0.0, 10.0])
@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_a_cumulative_acknowledgement_that_is_repeated_takes_no_delayed_message(kind: str, down_s: float) -> None:
    """The broker that was started again took everything below for delivered; the client, for acknowledged."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"later", deliver_after_s=5)
                await producer.send_many([b"1", b"2", b"3"])
            async with client.consumer(TOPIC, subscription="s", type=kind, start="earliest") as consumer:
                messages = [await consumer.receive() for _ in range(3)]
                await consumer.ack_cumulative(messages[1])
                world.node.crash(power_loss=False)
                world.network.set_cut("here", "broker", True)
                await trio.sleep(down_s)  # it may become due meanwhile
                world.network.set_cut("here", "broker", False)
                await consumer.flush_acks()
                with trio.fail_after(60):
                    last = [await consumer.receive() for _ in range(2)]
                assert sorted(message.payload for message in last) == [b"3", b"later"]
                # One that comes late, for a message of the broker's former life, is no better.
                await consumer.ack_cumulative(messages[2])
                for message in last:
                    message.ack_nowait()

    simulate(work)


def test_a_cumulative_acknowledgement_takes_nothing_that_waits_unseen() -> None:
    """A delayed message precedes it in the log, and waits in the client: the application has not received it yet."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            async with client.producer(TOPIC) as producer:
                await producer.send(b"later", deliver_after_s=5)
                await producer.send(b"now")
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                message = await consumer.receive()
                await trio.sleep(10)
                await consumer.ack_cumulative(message)
                await consumer.flush_acks()
                (row,) = await client.admin.describe_subscription(TOPIC, "s")
                assert (row.floor, row.backlog_messages) == (0, 1)
                waiting = await consumer.receive()
                assert waiting.payload == b"later"
                await consumer.ack_cumulative(waiting)
                await consumer.flush_acks()
                (row,) = await client.admin.describe_subscription(TOPIC, "s")
                assert (row.floor, row.backlog_messages) == (2, 0)

    simulate(work)


def test_a_damaged_topic_does_not_take_the_journal_from_the_others() -> None:
    """What it had in the journal could not be sealed and filled it, so all topics waited for space, for good."""

    async def work(world: World) -> None:
        node, broken = world.node, f"{TOPIC}-broken"
        async with world.applications.client("here", Random(1), "broker") as client:
            for topic in (broken, TOPIC):
                await client.admin.create_topic(topic, durability="disk")
            node.set_storage_faults(down=True)  # nothing is sealed
            async with client.producer(broken) as one, client.producer(TOPIC) as other:
                assert node.life is not None
                journal = node.life.broker.runtime.journal
                while journal.used_bytes < node.config.limits.journal_max_bytes * 0.9:
                    await one.send(bytes(8 * KIB))
                    await other.send(bytes(8 * KIB))
                    await trio.sleep(0.01)
                node.life.broker.directory.find(broken).stop(DataLossError("damaged"))  # as its sealer does
                node.set_storage_faults(down=False)
                with trio.fail_after(60):
                    for _ in range(100):
                        await other.send(bytes(8 * KIB))
                        await trio.sleep(0.01)
                assert journal.used_bytes <= node.config.limits.journal_max_bytes

    simulate(work)


def test_an_acknowledgement_of_what_a_power_loss_took_settles_nothing_else() -> None:
    """A client repeats what was not confirmed; it settled the message that has the offset of the lost one since."""

    async def work(world: World) -> None:
        lost = 0
        async with world.applications.client("here", Random(1), "broker") as client:
            await client.admin.create_topic(TOPIC, durability="os")
            async with (
                client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
                client.producer(TOPIC, name="p") as producer,
            ):
                await producer.send(b"first")
                await (await consumer.receive()).ack()
                await trio.sleep(10)  # a power loss does not take the session of the producer
                for number in range(40):
                    stored = await producer.send(b"%d" % number)
                    taken = await consumer.receive()
                    assert (taken.offset, taken.payload) == (stored.offset, b"%d" % number)
                    world.crash(world.node, power_loss=True)
                    taken.ack_nowait()
                    again = await producer.send(b"%d again" % number)
                    lost += again.offset <= stored.offset
                    with trio.fail_after(60):
                        while (message := await consumer.receive()).offset < again.offset:
                            await message.ack()
                    assert message.payload == b"%d again" % number
                    await message.ack()
                    await consumer.flush_acks()
            (row,) = await client.admin.describe_subscription(TOPIC, "s")
            assert row.backlog_messages == 0
        assert lost, "no power loss has taken a message"

    simulate(work)


def test_a_producer_whose_name_was_damaged_is_not_told_that_it_has_stored_nothing() -> None:
    """What it repeated, because of that, was stored twice."""

    async def work(world: World) -> None:
        node = world.node
        async with world.applications.client("here", Random(1), "broker") as client:
            for name in ("maker", "other"):
                async with client.producer(TOPIC, name=name, durability="disk") as producer:
                    for _ in range(5):
                        await producer.send(b"x")
            (journal,) = (each for each in node.disk.names() if b"maker" in node.disk.held(each))
            node.disk.flip(journal, node.disk.held(journal).index(b"maker"), 1)
            world.crash(node, power_loss=False)
            await trio.sleep(2)
            with pytest.raises(DataLossError, match="whether producer 'maker' has stored anything"):
                async with client.producer(TOPIC, name="maker"):
                    pass
            async with client.producer(TOPIC, name="other") as producer:
                assert (await producer.send(b"y")).offset == 10
            async with client.producer(TOPIC) as producer:
                assert (await producer.send(b"z")).offset == 11

    simulate(work)


@pytest.mark.parametrize("stored", ["sealed", "snapshot"])
def test_nothing_is_ahead_of_the_journal_after_a_power_loss(stored: str) -> None:
    """What was sealed, or in a snapshot, of an ``os`` topic was not synced, and outlived the end of the journal.

    Then a producer was told of fewer messages than the topic had, so that it stored some twice, or of more.
    """

    async def work(world: World) -> None:
        lost = 0
        async with world.applications.client("here", Random(1), "broker") as client:
            await client.admin.create_topic(TOPIC, durability="os")
            for _ in range(8):
                async with client.producer(TOPIC, name="p") as producer:
                    known = len(await read(client))
                    assert producer.stored_before == [known]
                    await producer.send_many([b"x"] * 20)
                    world.node.disk.sync_delay_s = 20.0
                    for _ in range(20):
                        await producer.send(b"y")
                assert world.node.life is not None
                broker = world.node.life.broker
                with trio.move_on_after(1):
                    if stored == "sealed":
                        await broker.directory.history.sealer.seal_now([broker.directory.find(TOPIC)])
                    else:
                        await snapshot_all(broker)
                world.crash(world.node, power_loss=True)
                world.node.disk.sync_delay_s = 0.002
                await trio.sleep(12)  # the client notices the silence, within the time that a call has in all
                lost += len(await read(client)) < known + 40
        assert lost, "no power loss has taken a message"

    simulate(work)


def test_readers_pass_over_a_hole_up_to_the_end() -> None:
    """If the journal has lost all that a snapshot tells of, its end was never reached: a reader made it spin."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            await client.admin.create_topic(TOPIC, durability="os")
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                assert world.node.life is not None
                broker = world.node.life.broker
                topic = broker.directory.find(TOPIC)
                state = TopicSnapshot(20, topic.producers.snapshot())
                await broker.runtime.journal.save({topic.topic_id: msgspec.msgpack.encode(state)})
                world.crash(world.node, power_loss=True)
                info = await client.admin.describe_topic(TOPIC)
                assert (info.end_offset, await read(client)) == (20, [])
                async with client.producer(TOPIC) as producer:
                    await producer.send(b"y")
                while (message := await consumer.receive()).payload != b"y":
                    await message.ack()
                assert message.offset == 20

    simulate(work)


def test_what_is_sent_to_a_consumer_that_is_being_opened_is_no_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker took it for one: a partition sent a message long before the consumer had all its partitions."""
    plan = ConsumerPlan(
        "late", "s", SubscriptionType.SHARED, TopicPlan(TOPIC, Durability.DISK, 0, Retention()), 1.0, 1000.0
    )

    @asynccontextmanager
    async def open_slowly(client: Client, *args: Any, **options: Any) -> AsyncIterator[Consumer]:
        async with open_consumer(client, *args, **options) as consumer:
            # As if the owner of another partition were away; less than the ack timeout, after which it gives back.
            await trio.sleep(2.5)
            yield consumer

    open_consumer = Client.consumer

    async def work(world: World) -> None:
        history, applications = world.history, world.applications
        history.topic(TOPIC, Durability.DISK, home="broker")
        for number in range(2):
            history.publish("p", 1, number, TOPIC, b"%d" % number, None)
        async with (
            applications.client("here", Random(1), "broker") as client,
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", type="shared", start="earliest", credit_messages=1) as consumer,
        ):
            session = history.session("s", SubscriptionType.SHARED, [TOPIC])
            await producer.send(b"0")
            first = await consumer.receive()
            history.deliver(session, 1, TOPIC, first.offset, first.payload, None)
            await first.nack(delay_s=1.0)
            await producer.send(b"1")  # takes the credit of this consumer, so that the other one gets the first
            async with trio.open_nursery() as nursery:
                monkeypatch.setattr(Client, "consumer", open_slowly)
                nursery.start_soon(applications.consume, plan, Random(2))
                await trio.sleep(2)
                monkeypatch.undo()
                spot = history.given(session, TOPIC, first.offset, first.payload)
                first.ack_nowait()
                await consumer.flush_acks()
                history.confirmed(session, TOPIC, [spot], 1, (0, 0))
                await trio.sleep(3)
                applications.finished.set()
        assert any(f"taken late {TOPIC} [0, 1] 2" in line for line in world.trace.lines)

    simulate(work)


async def snapshot_all(broker: Broker) -> None:
    """Write snapshots of all topics, as if the files of all their entries were to be freed."""
    await broker.runtime.journal.save({each.topic_id: each.whole_snapshot() for each in broker.directory.topics()})


async def read(client: Client) -> list[bytes]:
    """Return what a topic holds; its offsets are dense."""
    async with client.reader(TOPIC, start="earliest") as reader:
        found = [message async for batch in reader.batches(until_caught_up=True) for message in batch]
    assert [message.offset for message in found] == list(range(len(found)))
    return [message.payload for message in found]


def test_a_seek_that_is_lost_with_damage_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Seed 20261129000199: no start of the broker succeeded any more."""

    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"x"] * 20)
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                for _ in range(10):
                    await (await consumer.receive()).ack()
                await consumer.flush_acks()
                await client.admin.seek_subscription(TOPIC, "s", 15)
                await trio.sleep(1.0)  # what was delivered before the seek is void, and its acknowledgement, too
                while (message := await consumer.receive()).offset != 15:
                    pass
                await message.ack()
                await consumer.flush_acks()
            assert world.node.life is not None
            found = world.node.life.broker.directory.find(TOPIC).subscriptions["s"]
            world.crash(world.node, power_loss=False)
            seek = encode_entry(CursorReset(found.subscription_id, found.cursor.generation, 15))
            files = [world.node.disk.content(name) for name in world.node.disk.names() if name.startswith("journal")]
            places = [(file, file.find(seek)) for file in files]
            assert any(at >= 0 for _, at in places)
            for file, at in places:
                if at >= 0:
                    file[at] ^= 1
            async with client.consumer(TOPIC, subscription="s") as consumer:
                offsets = [(await consumer.receive()).offset for _ in range(9)]
            assert offsets == [10, 11, 12, 13, 14, 16, 17, 18, 19]
            told = f"a seek of subscription 's' of topic '{TOPIC}' is lost with a part of the journal"
            assert told in caplog.text
            caplog.clear()
            world.crash(world.node, power_loss=True)
            async with client.consumer(TOPIC, subscription="s") as consumer:
                assert (await consumer.receive()).offset == 10
            assert told not in caplog.text, "a snapshot with the cursor was written before anything was served"

    simulate(work)


@pytest.mark.parametrize("end", ["drain", "kill"])
def test_a_broker_that_starts_without_descriptors_waits_for_them(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its journal was fenced, and its life ended with advice to check the disk."""

    async def work(world: World) -> None:
        node = world.node
        async with world.applications.client("here", Random(1), "broker") as client:
            async with client.producer(TOPIC) as producer:
                await producer.send_many([b"x"] * 20)
            node.disk.no_descriptors = True
            if end == "drain":
                node.drain()
            else:
                world.crash(node, power_loss=False)
            await trio.sleep(15)
            assert not node.ready.is_set()
            node.disk.no_descriptors = False
            await node.ready.wait()
            assert node.lives == 2, "it has waited, and was not started again and again"
            assert (await client.admin.describe_topic(TOPIC)).end_offset == 20

    simulate(work)
    assert "the start waits for a file descriptor" in caplog.text


@pytest.mark.parametrize("between", ["connections", "lives"])
def test_a_message_that_was_stored_keeps_its_sequence_although_it_has_become_too_large(between: str) -> None:
    """Its repeat was refused; the next message got its sequence, and was acknowledged as if it were that repeat."""

    async def work(world: World) -> None:
        sent: list[int] = []
        applications = world.applications
        async with (
            applications.client("here", Random(1), "broker") as client,
            applications.client("there", Random(1), "broker") as operator,
            client.producer(TOPIC, name="p") as producer,
            trio.open_nursery() as nursery,
        ):

            async def send(payload: bytes) -> None:
                sent.append((await producer.send(payload)).offset)

            await send(b"a")
            world.network.set_reading("here", "broker", reads=False)
            nursery.start_soon(send, bytes(2 * KIB))
            await trio.sleep(1)
            assert (await operator.admin.describe_topic(TOPIC)).end_offset == 2, "it has not arrived"
            await operator.admin.change_policies(TOPIC, max_message_bytes=KIB)
            if between == "lives":
                world.crash(world.node, power_loss=False)
            world.network.reset("here", "broker")
            await trio.sleep(10)
            await send(b"b")
            assert sent == [0, 1, 2]
            assert await read(operator) == [b"a", bytes(2 * KIB), b"b"]

    simulate(work)
