"""Dead letters: their contents, when a copy counts as an acknowledgement, and failures to write one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RawConsumer, RunningBroker, raw_consumer, raw_producer, running_broker, wait_until

import danube
from danube.broker.delivery import dead_letters
from danube.broker.delivery.subscription import Subscription
from danube.model import Durability, PoisonPolicy, SubscriptionPolicy, api
from danube.model.batch import encode_part, pack_part, read_header
from danube.model.dead_letters import dead_letter_topic, first_policy
from danube.model.errors import InvalidArgumentError, InvalidNameError, UnavailableError

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
LETTERS = "/default/t-s-dlq"
POLICY = {"redelivery_delay_s": 0.0, "max_redelivery_count": 0, "poison": "dead_letter"}


async def described(client: danube.Client, topic: str = TOPIC) -> api.SubscriptionInfo:
    (info,) = await client.admin.describe_subscription(topic, "s")
    return info


async def letters_of(client: danube.Client, count: int, topic: str = LETTERS) -> list[danube.Message]:
    """Return the first ``count`` messages of a dead-letter topic, which may not be there yet."""
    await wait_until(lambda: _exists(client, topic))
    async with client.reader(topic, start="earliest") as reader:
        return [await reader.receive() for _ in range(count)]


async def _exists(client: danube.Client, topic: str) -> bool:
    return topic in {info.topic for info in await client.admin.list_topics()}


async def ends(client: danube.Client, topic: str = LETTERS) -> int:
    return (await client.admin.describe_topic(topic)).end_offset


async def explained_as(client: danube.Client, state: str) -> bool:
    return (await client.admin.explain_subscription(TOPIC, "s")).state == state


async def floor_is(client: danube.Client, floor: int) -> bool:
    return (await described(client)).floor == floor


@asynccontextmanager
async def refusing(
    running: RunningBroker,
    offsets: Sequence[int],
    *,
    policy: dict[str, Any] = POLICY,
    kind: str = "exclusive",
    topic: str = TOPIC,
    reason: str = "cannot read it",
) -> AsyncGenerator[RawConsumer, None]:
    """A consumer that has acknowledged everything but ``offsets``, which it has refused."""
    async with running.channel() as channel, raw_consumer(channel, topic, kind=kind, policy=policy) as consumer:
        consumer.credit(10_000)
        end = consumer.opened.end_offset
        seen = 0
        while seen < end:
            delivery = await consumer.reply_of(api.ConsumeBatch)
            seen += read_header(delivery.part).record_count
        for offset in offsets:
            consumer.send(api.Nack([offset, offset + 1], reason=reason))
        rest = [n for n in range(end) if n not in offsets]
        consumer.send(api.Ack([bound for n in rest for bound in (n, n + 1)]))
        await consumer.flush()
        yield consumer


async def fill(client: danube.Client, count: int, topic: str = TOPIC) -> None:
    async with client.producer(topic, name="sensor") as producer:
        await producer.send_many([b"%d" % n for n in range(count)])


# --- Copies ---


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key_shared"])
async def test_a_copy_keeps_everything_and_says_where_it_is_from(tmp_path: Path, kind: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC, name="sensor") as producer:
            for n in range(5):
                await producer.send(b"payload %d" % n, key=f"k{n}", attributes={"unit": "K", "n": str(n)})
        async with client.reader(TOPIC, start="earliest") as reader:
            originals = [await reader.receive() for _ in range(5)]
        async with refusing(running, [1, 3], kind=kind):
            await wait_until(lambda: floor_is(client, 5))
            letters = await letters_of(client, 2)
            info = await described(client)
        assert (info.dead_lettered_messages, info.poisoned_messages, info.backlog_messages) == (2, 0, 0)
        producer_id = running.topic(TOPIC).kept.get_cached(1).header.producer_id
        for letter, original in zip(letters, (originals[1], originals[3]), strict=True):
            assert (letter.payload, letter.key) == (original.payload, original.key)
            assert letter.publish_time == original.publish_time
            assert letter.attributes == {
                "unit": "K",
                "n": str(original.offset),
                "x-original-topic": TOPIC,
                "x-original-subscription": "s",
                "x-original-topic-offset": str(original.offset),
                "x-original-producer": "sensor",
                "x-original-producer-id": str(producer_id),
                "x-original-broker-addr": f"127.0.0.1:{running.port}",
                "x-poison-policy": "dead_letter",
                "x-delivery-attempt": "1",
                "x-failure-reason": "cannot read it",
            }
        created = await client.admin.describe_topic(LETTERS)
        assert created.durability is Durability.DISK
        assert created.producers == []  # nothing stays open


async def test_schema_publish_times_and_reasons(tmp_path: Path) -> None:
    policy = {**POLICY, "max_redelivery_count": 1, "ack_timeout_s": 0.2}
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC) as producer:
            records = [danube.model.Record(b"%d" % n, publish_delta_us=n * 1_000) for n in range(3)]
            opened = producer.opened
            producer.send_part(
                encode_part(
                    records,
                    producer_id=opened.producer_id,
                    producer_epoch=opened.epoch,
                    base_sequence=0,
                    publish_time_us=5_000_000,
                    schema_id=7,
                    schema_version=2,
                    codec=danube.model.Codec.LZ4,
                )
            )
            await producer.acked()
        async with raw_consumer(channel, TOPIC, policy=policy) as consumer:
            consumer.credit(1_000)
            await consumer.reply_of(api.ConsumeBatch)
            consumer.send(api.Nack([0, 1]))
            consumer.send(api.Ack([1, 2]))
            await consumer.reply_of(api.ConsumeBatch)
            letters = await letters_of(client, 2)
        assert {letter.payload: letter.attributes["x-failure-reason"] for letter in letters} == {
            b"0": "ack timeout",
            b"2": "ack timeout",
        }
        assert {letter.attributes["x-delivery-attempt"] for letter in letters} == {"2"}
        times = {letter.payload: letter.publish_time for letter in letters}
        assert times[b"2"] - times[b"0"] == timedelta(microseconds=2_000)
        header = running.topic(LETTERS).kept.get_cached(0).header
        assert (header.schema_id, header.schema_version, header.codec) == (7, 2, danube.model.Codec.LZ4)


async def test_letters_of_a_nack_without_a_reason(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 3)
        async with refusing(running, [1], reason=""):
            (letter,) = await letters_of(client, 1)
        assert letter.attributes["x-failure-reason"] == "nack"


async def test_letters_go_to_partitions_by_key_or_in_turn(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/letters", partitions=3)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % n for n in range(30)], keys=[f"k{n % 10}" for n in range(30)])
            for n in range(3):
                await producer.send(b"%d" % (30 + n))
        policy = {**POLICY, "dead_letter_topic": "/default/letters"}
        async with refusing(running, range(33), policy=policy):
            await wait_until(lambda: floor_is(client, 33))
            letters = await letters_of(client, 33, "/default/letters")
        places: dict[str | None, set[str]] = {}
        for letter in letters:
            places.setdefault(letter.key, set()).add(letter.topic)
        assert len(places.pop(None)) == 3
        assert all(len(topics) == 1 for topics in places.values())
        assert len(set.union(*places.values())) == 3
        assert {letter.payload for letter in letters} == {b"%d" % n for n in range(33)}


async def test_letters_of_partitions_share_one_topic(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, partitions=2)
        for part in range(2):
            topic = f"{TOPIC}-part-{part}"
            async with running.channel() as channel, raw_producer(channel, topic) as producer:
                producer.send(0, b"x", b"y")
                await producer.acked()
            async with refusing(running, [1], topic=topic):
                await wait_until(lambda topic=topic: _copied(client, topic))
        letters = await letters_of(client, 2)
        assert {letter.attributes["x-original-topic"] for letter in letters} == {f"{TOPIC}-part-0", f"{TOPIC}-part-1"}


async def _copied(client: danube.Client, topic: str) -> bool:
    return (await described(client, topic)).dead_lettered_messages == 1


async def test_many_letters_go_in_batches_of_bounded_size(tmp_path: Path) -> None:
    limits = {"max_batch_records": 40, "max_message_bytes": 50_000, "max_batch_bytes": 100_000}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 40)  # with what is added, too large for one batch
            await producer.send(b"y" * 50_000)
        policy = {**POLICY, "dead_letter_topic": "/default/letters"}
        async with refusing(running, range(41), policy=policy):
            await wait_until(lambda: floor_is(client, 41))
            letters = await letters_of(client, 41, "/default/letters")
        assert sorted(len(letter.payload) for letter in letters) == [1] * 40 + [50_000]
        assert [int(letter.attributes["x-original-topic-offset"]) for letter in letters] == list(range(41))


async def test_letters_come_from_history_too(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"cache_bytes": 50_000}) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"first")
        async with running.channel() as channel, raw_consumer(channel, TOPIC, policy=POLICY) as consumer:
            consumer.credit(1)
            await consumer.reply_of(api.ConsumeBatch)
            async with client.producer(TOPIC) as producer:
                for _ in range(5):
                    await producer.send(bytes(50_000))
            await client.admin.unload_topic(TOPIC)  # sealed, and out of the cache
        assert running.topic(TOPIC).kept.get_cached(0) is None
        async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(1)
            await consumer.reply_of(api.ConsumeBatch)
            consumer.send(api.Nack([0, 1]))
            (letter,) = await letters_of(client, 1)
        assert letter.payload == b"first"


@pytest.mark.parametrize("durability", ["os", "remote"])
async def test_a_new_dead_letter_topic_is_as_durable_as_its_source(tmp_path: Path, durability: str) -> None:
    async with running_broker(tmp_path) as running:
        async with running.client() as client:
            await client.admin.create_topic(TOPIC, durability=durability)
            await fill(client, 3)
            async with refusing(running, [1]):
                await wait_until(lambda: floor_is(client, 3))
            assert (await client.admin.describe_topic(LETTERS)).durability == durability
        await running.restart(crash=True)
        async with running.client() as client:
            await wait_until(lambda: floor_is(client, 3))
            assert [letter.payload for letter in await letters_of(client, 1)] == [b"1"]


async def test_a_batch_that_does_not_open_is_one_letter(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC) as producer:
            opened = producer.opened
            part = pack_part(
                b"\xc1\xc1\xc1",
                3,
                plain=True,
                producer_id=opened.producer_id,
                producer_epoch=opened.epoch,
                base_sequence=0,
                publish_time_us=1,
            )
            producer.send_part(part)
            producer.send(3, b"good")
            await producer.acked(2)
        async with raw_consumer(channel, TOPIC, kind="key_shared", policy=POLICY) as consumer:
            consumer.credit(1_000)
            assert (await consumer.reply_of(api.ConsumeBatch)).base_offset == 3
            (letter,) = await letters_of(client, 1)
            await wait_until(lambda: floor_is(client, 3))
            assert (await described(client)).dead_lettered_messages == 3
        assert letter.payload == part
        assert "cannot be opened" in letter.attributes["x-failure-reason"]
        assert letter.attributes["x-original-topic-offset"] == "0"


async def test_a_record_that_does_not_decode_is_a_letter_as_it_is(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await client.admin.create_topic(TOPIC)
        async with raw_producer(channel, TOPIC) as producer:
            opened = producer.opened
            producer.send_part(
                pack_part(
                    b"\x92\x07\x91\xc4\x01g",  # 7 is no record; (b"g",) is one
                    2,
                    plain=False,
                    producer_id=opened.producer_id,
                    producer_epoch=opened.epoch,
                    base_sequence=0,
                    publish_time_us=1,
                )
            )
            await producer.acked()
        async with refusing(running, [0, 1]):
            bad, good = await letters_of(client, 2)
        assert (bad.payload, good.payload) == (b"\x07", b"g")
        assert "does not decode" in bad.attributes["x-failure-reason"]
        assert good.attributes["x-failure-reason"] == "cannot read it"


# --- When copying does not work ---


async def test_it_waits_until_it_can_copy_and_says_why(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 10)
        policy = {**POLICY, "dead_letter_topic": "/nowhere/letters"}
        async with refusing(running, [2, 5], policy=policy) as consumer:
            await wait_until(lambda: explained_as(client, "dead-lettering"))
            explanation = await client.admin.explain_subscription(TOPIC, "s")
            assert "2 messages wait" in explanation.sentence
            assert "namespace 'nowhere'" in explanation.sentence
            await fill(client, 5)
            delivery = await consumer.reply_of(api.ConsumeBatch)  # others pass it
            assert delivery.base_offset == 10
            consumer.send(api.Ack([5, 6, 10, 15]))  # a late acknowledgement counts
            await consumer.flush()
            assert (await described(client)).poisoned_messages == 1
            await client.admin.create_namespace("nowhere")
            (letter,) = await letters_of(client, 1, "/nowhere/letters")
            assert letter.payload == b"2"
            await wait_until(lambda: floor_is(client, 15))
            assert not await explained_as(client, "dead-lettering")


@pytest.mark.parametrize(
    "change", [{"dead_letter_topic": ""}, {"poison": "drop"}, {"poison": "block", "max_redelivery_count": 5}]
)
async def test_a_change_of_the_policy_counts_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(dead_letters, "_FIRST_PAUSE_S", 1_000.0)
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 3)
        policy = {**POLICY, "dead_letter_topic": "/nowhere/letters"}
        async with refusing(running, [1], policy=policy) as consumer:
            await wait_until(lambda: explained_as(client, "dead-lettering"))
            with trio.fail_after(10):
                await client.admin.change_subscription_policy(TOPIC, "s", **change)
                if change["poison" if "poison" in change else "dead_letter_topic"] == "block":
                    assert (await consumer.reply_of(api.ConsumeBatch)).ranges == [1, 2]
                else:
                    await wait_until(lambda: floor_is(client, 3))
            assert not await explained_as(client, "dead-lettering")
        assert await _exists(client, LETTERS) is ("dead_letter_topic" in change)


async def test_an_exclusive_producer_of_the_dead_letter_topic_keeps_letters_waiting(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, running.channel() as channel:
        await fill(client, 3)
        await client.admin.create_topic(LETTERS)
        async with raw_producer(channel, LETTERS, "alone", exclusive=True), refusing(running, [1]):
            await wait_until(lambda: explained_as(client, "dead-lettering"))
            assert "'alone'" in (await client.admin.explain_subscription(TOPIC, "s")).sentence
        await letters_of(client, 1)
        await wait_until(lambda: floor_is(client, 3))


async def test_a_topic_that_keeps_nothing_takes_no_letters(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 3)
        await client.admin.create_topic(LETTERS, durability="none")
        async with refusing(running, [1]):
            await wait_until(lambda: explained_as(client, "dead-lettering"))
            assert "keeps nothing" in (await client.admin.explain_subscription(TOPIC, "s")).sentence
            assert await floor_is(client, 1)


async def test_a_seek_while_a_copy_is_made_is_not_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 3)
        await client.admin.create_topic(LETTERS)
        held, go_on = trio.Event(), trio.Event()
        topic = running.topic(LETTERS)
        admit = topic.intake.admit

        async def slow(size: int) -> None:
            held.set()
            await go_on.wait()
            await admit(size)

        monkeypatch.setattr(topic.intake, "admit", slow)
        async with refusing(running, [1]):
            await held.wait()
            await client.admin.seek_subscription(TOPIC, "s", 0)
            go_on.set()
            await letters_of(client, 1)
            info = await described(client)
            assert (info.floor, info.backlog_messages, info.dead_lettered_messages) == (0, 3, 0)
            await wait_until(lambda: not running.topic(TOPIC).subscriptions["s"].dead_letters.is_publishing)


async def test_a_crash_between_copy_and_acknowledgement_repeats_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_reached(_subscription: Subscription, _ranges: list[int]) -> None:
        raise UnavailableError("the broker dies here")

    async with running_broker(tmp_path) as running:
        async with running.client() as client:
            await fill(client, 3)
            with monkeypatch.context() as patch:
                patch.setattr(Subscription, "settle", not_reached)
                async with refusing(running, [1]):
                    await letters_of(client, 1)
        await running.restart(crash=True)
        async with running.client() as client:
            assert (await described(client)).floor == 1
            async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
                consumer.credit(10)
                await consumer.reply_of(api.ConsumeBatch)
                consumer.send(api.Nack([1, 2], reason="again"))
                first, second = await letters_of(client, 2)
                await wait_until(lambda: floor_is(client, 3))
            assert first.payload == second.payload == b"1"
            assert second.attributes["x-failure-reason"] == "again"


@pytest.mark.parametrize("gone", ["subscription", "topic"])
async def test_with_its_subscription_the_task_ends(tmp_path: Path, gone: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await fill(client, 3)
        policy = {**POLICY, "dead_letter_topic": "/nowhere/letters"}
        async with refusing(running, [1], policy=policy):
            await wait_until(lambda: explained_as(client, "dead-lettering"))
        before = len(running.broker.runtime._nursery.child_tasks)
        if gone == "topic":
            await client.admin.delete_topic(TOPIC)
        else:
            await client.admin.delete_subscription(TOPIC, "s")
        await wait_until(lambda: len(running.broker.runtime._nursery.child_tasks) < before)
        await client.admin.create_namespace("nowhere")
        await trio.sleep(0.05)
        assert not await _exists(client, "/nowhere/letters")


async def test_poison_that_was_set_aside_is_delivered_again_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        async with running.client() as client:
            await fill(client, 3)
            async with refusing(running, [1], policy={**POLICY, "dead_letter_topic": "/nowhere/letters"}):
                await wait_until(lambda: explained_as(client, "dead-lettering"))
        await running.restart()
        async with running.channel() as channel, raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(10)
            assert (await consumer.reply_of(api.ConsumeBatch)).ranges == [1, 2]


# --- Names ---


def test_the_name_of_a_dead_letter_topic() -> None:
    policy = SubscriptionPolicy()
    assert dead_letter_topic("/ns/t", "billing", policy) == "/ns/t-billing-dlq"
    assert dead_letter_topic("/ns/t-part-3", "e.mail+", policy) == "/ns/t-e-mail--dlq"
    assert dead_letter_topic("/ns/t", "s", SubscriptionPolicy(dead_letter_topic="/x/y")) == "/x/y"


def test_dead_letters_of_dead_letters_need_an_explicit_policy() -> None:
    default = SubscriptionPolicy(poison=PoisonPolicy.DEAD_LETTER)
    assert first_policy("/ns/t", "s", default, {}).poison is PoisonPolicy.DEAD_LETTER
    assert first_policy("/ns/t-s-dlq", "s", default, {}).poison is PoisonPolicy.BLOCK
    assert first_policy("/ns/t-s-dlq-part-0", "s", default, {"poison": "drop"}).poison is PoisonPolicy.DROP
    asked = first_policy("/ns/t-s-dlq", "s", default, {"poison": "dead_letter"})
    assert asked.poison is PoisonPolicy.DEAD_LETTER


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidNameError):
        first_policy("/ns/" + "t" * 250, "subscription", SubscriptionPolicy(), {"poison": "dead_letter"})
    with pytest.raises(InvalidArgumentError, match="where they come from"):
        first_policy("/ns/t-part-1", "s", SubscriptionPolicy(), {"poison": "dead_letter", "dead_letter_topic": "/ns/t"})
