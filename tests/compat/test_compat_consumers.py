"""Consumers of the upstream protocol: delivery, acknowledgements and notifications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, raw_consumer, raw_producer, wait_until
from compat_harness import NONE, calling, compat_broker
from consumer_harness import EXCLUSIVE, FAILOVER, KEY_SHARED, SERVICE, SHARED, ack, nack, receiving, subscribe

from danube.broker.delivery.explain import explanation_of, info_of
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import api
from danube.model.batch import check_part, seal_part
from danube.model.errors import (
    ConsumerDisplacedError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    PermissionDeniedError,
    SubscriptionTypeMismatchError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.limits import KIB, MIB

TOPIC = "/default/orders"


async def info(running: RunningBroker, subscription: str = "s") -> api.SubscriptionInfo:
    return info_of(running.topic(TOPIC).subscriptions[subscription])


# --- What is received ---


async def test_a_message_is_delivered_as_it_was_sent(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC, "maker")).producer_id
        consumer_id = await subscribe(caller, TOPIC)
        async with receiving(caller, consumer_id) as stream:
            fields: dict[str, Any] = {"attributes": {"a": "1"}, "routing_key": "k", "schema_id": 7, "schema_version": 2}
            await caller.send(TOPIC, producer_id, b"first", 41, **fields)
            await caller.send(TOPIC, producer_id, b"second", 42)
            first, second = await stream.next(), await stream.next()
        assert first == pb.StreamMessage(
            request_id=41,
            msg_id=pb.MsgID(
                producer_id=producer_id,
                topic_name=TOPIC,
                broker_addr=f"http://127.0.0.1:{running.port}",
                topic_offset=0,
            ),
            payload=b"first",
            publish_time=1_700_000_000_123,
            producer_name="maker",
            **fields,
        )
        assert (second.request_id, second.payload, second.msg_id.topic_offset) == (42, b"second", 1)
        assert not second.attributes
        assert not any(second.HasField(name) for name in ("routing_key", "schema_id", "schema_version"))


async def test_a_batch_that_cannot_be_opened_affects_no_other_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        await client.admin.create_topic(TOPIC)
        consumer_id = await subscribe(caller, TOPIC)
        async with running.channel() as channel, raw_producer(channel, TOPIC) as producer:
            # A record with a field more, of so many arrays, one in the other.
            body = b"\x91\x95\xc4\x01x\xa1k\x80\x00" + b"\x91" * 3000 + b"\xc0"
            header = check_part(producer.part(0, [b"x"]))
            header = header._replace(flags=0, unpacked_size=len(body), packed_size=len(body))
            producer.send_part(seal_part(header, body))
            await producer.acked()
        with trio.move_on_after(0.3):
            async with receiving(caller, consumer_id) as stream:
                await stream.next()
                pytest.fail("there is nothing that could be received")
        assert (await info(running)).floor == 0
        async with client.producer("/default/other") as good:
            await good.send(b"on")
        assert "records do not decode" in caplog.text
        assert "Traceback" not in caplog.text


async def test_messages_of_a_native_producer(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC, name="native") as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC)
        await producer.send(b"a", key="k", attributes={"x": "y"})
        await producer.send_many([b"b", b"c"])
        async with receiving(caller, consumer_id) as stream:
            found = [await stream.next() for _ in range(3)]
    assert [(each.payload, each.routing_key, dict(each.attributes)) for each in found] == [
        (b"a", "k", {"x": "y"}),
        (b"b", "", {}),
        (b"c", "", {}),
    ]
    assert [each.request_id for each in found] == [0, 1, 2]
    assert [each.msg_id.topic_offset for each in found] == [0, 1, 2]
    assert {each.producer_name for each in found} == {"native"}
    assert len({each.msg_id.producer_id for each in found}) == 1
    assert all(1_600_000_000_000 < each.publish_time < 10_000_000_000_000 for each in found)


async def test_a_subscription_begins_with_what_comes_next_and_lasts(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        await caller.send(TOPIC, producer_id, b"before")
        consumer_id = await subscribe(caller, TOPIC)
        await caller.send(TOPIC, producer_id, b"after")
        async with receiving(caller, consumer_id) as stream:
            message = await stream.next()
            assert message.payload == b"after"
            await ack(caller, message)
        await caller.send(TOPIC, producer_id, b"later")
        async with receiving(caller, consumer_id) as stream:
            assert (await stream.next()).payload == b"later"


async def test_a_backlog_of_any_size(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        async with client.producer(TOPIC) as producer:
            consumer_id = await subscribe(caller, TOPIC)
            payloads = [b"%06d" % index for index in range(20_000)]
            await producer.send_many(payloads)
        async with receiving(caller, consumer_id) as stream:
            assert await stream.payloads(len(payloads)) == payloads


async def test_a_client_that_does_not_read_holds_little(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC) as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC, kind=SHARED)
        async with receiving(caller, consumer_id) as lazy:
            await lazy.silent(0.02)
            for _ in range(20):
                await producer.send_many([b"x" * 1000] * 400)
            await trio.sleep(0.1)
            (slow,) = (await info(running)).consumers
            held = slow.in_flight_messages
            # The window of our client is 4 MiB; our own buffer and the prefetched messages come on top.
            assert held * 1000 < 4 * MIB + 64 * KIB + 100 * 1000
            (receiver,) = running.topic(TOPIC).subscriptions["s"].consumers.values()
            assert receiver._stream.send_buffered < 64 * KIB + 2000
            other_id = await subscribe(caller, TOPIC, "other", kind=SHARED)
            async with calling(running) as second, receiving(second, other_id) as stream:
                await stream.payloads(8000 - held)
            assert len(await lazy.payloads(held)) == held


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
async def test_a_seek_makes_acknowledgements_of_earlier_deliveries_void(tmp_path: Path, kind: int) -> None:
    """They name the message only by its offset; in which generation it was delivered is told by its address."""
    async with compat_broker(tmp_path) as running, running.client() as client:
        async with calling(running) as caller:
            producer_id = (await caller.create(TOPIC)).producer_id
            consumer_id = await subscribe(caller, TOPIC, kind=kind)
            await caller.send(TOPIC, producer_id, b"m")
            async with receiving(caller, consumer_id) as stream:
                first = await stream.next()
                await client.admin.seek_subscription(TOPIC, "s", 0)
                second = await stream.next()
                assert second.msg_id.broker_addr == f"{first.msg_id.broker_addr}#1"
                await ack(caller, first)
                await nack(caller, first)
                assert await stream.silent(), "nothing that is in flight was refused"
                row = await info(running)
                assert (row.backlog_messages, row.in_flight_messages) == (1, 1)
        await running.restart(crash=True)
        async with calling(running) as caller:
            await ack(caller, first)
            assert (await info(running)).backlog_messages == 1
            nonsense = pb.StreamMessage.FromString(second.SerializeToString())
            nonsense.msg_id.broker_addr = "http://somewhere#else"
            await ack(caller, nonsense)
            assert (await info(running)).backlog_messages == 1
            await ack(caller, second)
            assert (await info(running)).backlog_messages == 0


async def test_messages_queued_for_a_slow_client_are_void_after_a_seek(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC) as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC)
        async with receiving(caller, consumer_id) as stream:
            await stream.silent(0.02)
            count = 700  # more than our client's window of 4 MiB
            sent = [b"%06d" % number * 1_500 for number in range(count)]
            for start in range(0, count, 50):
                await producer.send_many(sent[start : start + 50])
            await client.admin.seek_subscription(TOPIC, "s", count - 10)
            found = [await stream.next()]
            while found[-1].msg_id.topic_offset < count - 1:
                found.append(await stream.next())
            again = [each for each in found if each.msg_id.broker_addr.endswith("#1")]
            assert [each.payload for each in again] == sent[-10:]
            went_out = (len(found) - 10) * len(sent[0])
            assert went_out < 4 * MIB + 128 * KIB, "what had not gone out yet does not go out"


async def test_topics_that_keep_nothing(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC, strategy=NONE)).producer_id
        consumer_id = await subscribe(caller, TOPIC, kind=SHARED)
        async with receiving(caller, consumer_id) as stream:
            await wait_until(lambda: running.topic(TOPIC).subscriptions["s"].consumers)
            async with trio.open_nursery() as nursery:
                for index in range(300):  # more than the window of a topic that is kept
                    nursery.start_soon(caller.send, TOPIC, producer_id, b"%d" % index)
            found = [await stream.next() for _ in range(300)]
            assert {each.payload for each in found} == {b"%d" % index for index in range(300)}
            await ack(caller, found[0])
            await nack(caller, found[1])
        assert (await info(running)).dropped_messages == 0
        await running.restart()
        async with calling(running) as again, receiving(again, consumer_id) as stream:
            await wait_until(lambda: running.topic(TOPIC).subscriptions.get("s"))
            await again.send(TOPIC, (await again.create(TOPIC, strategy=NONE)).producer_id, b"anew")
            assert (await stream.next()).payload == b"anew"


async def test_messages_that_stock_clients_cannot_receive_fail(tmp_path: Path) -> None:
    policy = {"max_redelivery_count": 1, "redelivery_delay_s": 0.01, "poison": "drop"}
    async with (
        compat_broker(tmp_path, limits={"compat_max_message_bytes": 10_000}, subscription_policy=policy) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC) as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC)
        await producer.send_many([b"a", b"b" * 10_001, b"c"])
        async with receiving(caller, consumer_id) as stream:
            assert await stream.payloads(2) == [b"a", b"c"]
            await wait_until(lambda: running.topic(TOPIC).subscriptions["s"].machine.cursor.is_acked(1))
            assert await stream.silent()


async def test_a_blocking_message_says_why(tmp_path: Path) -> None:
    policy = {"max_redelivery_count": 0, "poison": "block"}
    async with (
        compat_broker(tmp_path, limits={"compat_max_message_bytes": 10_000}, subscription_policy=policy) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC) as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC)
        await producer.send(b"b" * 10_001)
        async with receiving(caller, consumer_id):
            subscription = running.topic(TOPIC).subscriptions["s"]
            await wait_until(lambda: subscription.machine.poisoned_messages())
            assert (
                "compat_max_message_bytes = 10000; read it with a native client"
                in explanation_of(subscription, trio.current_time()).sentence
            )


# --- Subscribing ---


async def test_a_name_keeps_its_id(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create(TOPIC)
        first = await subscribe(caller, TOPIC)
        assert await subscribe(caller, TOPIC) == first
        assert await subscribe(caller, TOPIC, subscription="t") != first
        assert await subscribe(caller, TOPIC, "d", "u", SHARED) != await subscribe(caller, TOPIC, "e", "u", SHARED)


@pytest.mark.parametrize("crash", [False, True])
async def test_ids_survive_a_restart(tmp_path: Path, crash: bool) -> None:
    async with compat_broker(tmp_path) as running:
        async with calling(running) as caller:
            producer_id = (await caller.create(TOPIC)).producer_id
            consumer_id = await subscribe(caller, TOPIC)
            await caller.send(TOPIC, producer_id, b"a")
            await caller.send(TOPIC, producer_id, b"b")
            async with receiving(caller, consumer_id) as stream:
                await ack(caller, await stream.next())
        await running.restart(crash=crash)
        async with calling(running) as caller:
            async with receiving(caller, consumer_id) as stream:
                assert (await stream.next()).payload == b"b"
            assert await subscribe(caller, TOPIC) == consumer_id


async def test_subscriptions_that_are_refused(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, policies={"max_subscriptions": 1}) as running, calling(running) as caller:
        await caller.create(TOPIC)
        with pytest.raises(TopicNotFoundError):
            await subscribe(caller, "/default/missing")
        for arguments in (("orders",), (TOPIC, ""), (TOPIC, "a/b"), (TOPIC, "c", "")):
            with pytest.raises(InvalidNameError):
                await subscribe(caller, *arguments)
        with pytest.raises(InvalidArgumentError, match="type 9 is unknown"):
            await subscribe(caller, TOPIC, kind=9)
        with pytest.raises(InvalidArgumentError, match="cannot be empty"):
            await subscribe(caller, TOPIC, kind=KEY_SHARED, key_filters=[""])
        await subscribe(caller, TOPIC, key_filters=["is not looked at"])
        with pytest.raises(SubscriptionTypeMismatchError):
            await subscribe(caller, TOPIC, kind=SHARED)
        with pytest.raises(PermissionDeniedError, match="max_subscriptions"):
            await subscribe(caller, TOPIC, subscription="t")


async def test_how_many_consumers_there_may_be(tmp_path: Path) -> None:
    policies = {"max_consumers": 3, "max_consumers_per_subscription": 2}
    async with compat_broker(tmp_path, policies=policies) as running, calling(running) as caller:
        await caller.create(TOPIC)
        for name in ("a", "b", "a"):
            await subscribe(caller, TOPIC, name, kind=SHARED)
        with pytest.raises(PermissionDeniedError, match="max_consumers_per_subscription"):
            await subscribe(caller, TOPIC, "c", kind=SHARED)
        await subscribe(caller, TOPIC, "c", "t")
        with pytest.raises(LimitExceededError, match="max_consumers = 3"):
            await subscribe(caller, TOPIC, "d", "u")


async def test_an_exclusive_subscription_is_for_one(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.channel() as native:
        await caller.create(TOPIC)
        first = await subscribe(caller, TOPIC, "a")
        with pytest.raises(PermissionDeniedError, match="'a'"):
            await subscribe(caller, TOPIC, "b")
        async with receiving(caller, first) as stream:
            await stream.silent(0.02)
            with pytest.raises(PermissionDeniedError, match="'a'"):
                await subscribe(caller, TOPIC, "b")
        await wait_until(lambda: not running.topic(TOPIC).subscriptions["s"].consumers)
        second = await subscribe(caller, TOPIC, "b")
        async with receiving(caller, second) as stream:
            await stream.silent(0.02)
            async with receiving(caller, first) as other:
                with pytest.raises(UnavailableError, match="has a consumer already"):
                    await other.next()
        await subscribe(caller, TOPIC, "native", "n")
        async with raw_consumer(native, TOPIC, "n", "native"):
            with pytest.raises(PermissionDeniedError, match="'native'"):
                await subscribe(caller, TOPIC, "c", "n")


async def test_the_newest_stream_counts(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        consumer_id = await subscribe(caller, TOPIC)
        await caller.send(TOPIC, producer_id, b"a")
        async with receiving(caller, consumer_id) as old:
            assert await old.payloads(1) == [b"a"]
            async with receiving(caller, consumer_id) as new:
                assert await new.payloads(1) == [b"a"]  # it was not acknowledged
                with pytest.raises(ConsumerDisplacedError):
                    await old.next()
                await subscribe(caller, TOPIC)
                with pytest.raises(ConsumerDisplacedError):
                    await new.next()
        async with receiving(caller, consumer_id) as third:
            assert await third.payloads(1) == [b"a"]


async def test_failover_promotes_the_next(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        first = await subscribe(caller, TOPIC, "a", kind=FAILOVER)
        second = await subscribe(caller, TOPIC, "b", kind=FAILOVER)
        async with receiving(caller, first) as active:
            await active.silent(0.02)
            async with receiving(caller, second) as standby:
                for payload in (b"1", b"2"):
                    await caller.send(TOPIC, producer_id, payload)
                message = await active.next()
                await ack(caller, message)
                assert await active.payloads(1) == [b"2"]
                assert await standby.silent()
                active.stream.cancel()
                assert await standby.payloads(1) == [b"2"]


async def test_keys_stay_together_and_filters_choose(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        first = await subscribe(caller, TOPIC, "a", kind=KEY_SHARED, key_filters=["eu-*"])
        second = await subscribe(caller, TOPIC, "b", kind=KEY_SHARED, key_filters=["us-?"])
        async with receiving(caller, first) as europe, receiving(caller, second) as america:
            for index in range(20):
                await caller.send(TOPIC, producer_id, b"%d" % index, routing_key=["eu-1", "us-2"][index % 2])
            assert await europe.payloads(1) == [b"0"]
            assert await america.payloads(1) == [b"1"]
            assert await europe.payloads(9) == [b"%d" % index for index in range(2, 20, 2)]
            assert await america.payloads(9) == [b"%d" % index for index in range(3, 20, 2)]


async def test_consumers_share_with_native_ones(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC)).producer_id
        consumer_id = await subscribe(caller, TOPIC, "official", kind=SHARED)
        async with (
            receiving(caller, consumer_id) as stream,
            client.consumer(TOPIC, subscription="s", type="shared", name="native") as native,
        ):
            await wait_until(lambda: len(running.topic(TOPIC).subscriptions["s"].consumers) == 2)
            found: list[bytes] = []

            async def from_native() -> None:
                async for message in native:
                    found.append(message.payload)
                    await message.ack()

            async def from_stream() -> None:
                while True:
                    message = await stream.next()
                    found.append(message.payload)
                    await ack(caller, message)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(from_native)
                nursery.start_soon(from_stream)
                for index in range(50):
                    await caller.send(TOPIC, producer_id, b"%d" % index)
                await wait_until(lambda: len(found) == 50)
                nursery.cancel_scope.cancel()
            assert sorted(found) == sorted(b"%d" % index for index in range(50))


# --- What ends a stream ---


async def test_ids_that_are_not_known(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        await caller.create(TOPIC)
        consumer_id = await subscribe(caller, TOPIC)
        async with receiving(caller, 12345) as stream:
            with pytest.raises(UnavailableError, match="12345 is unknown"):
                await stream.next()
        await client.admin.delete_subscription(TOPIC, "s")
        async with receiving(caller, consumer_id) as stream:
            with pytest.raises(UnavailableError, match="subscribe again"):
                await stream.next()
        assert await subscribe(caller, TOPIC) != consumer_id
        await running.restart()
        async with calling(running) as again, receiving(again, consumer_id) as stream:
            with pytest.raises(UnavailableError, match="subscribe again"):
                await stream.next()


async def test_stored_consumer_ids_are_deleted_with_their_subscription(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running:

        async def stored() -> set[int]:
            items, _ = await running.broker.directory.catalogue.store.list("/compat/consumers/")
            return {int(item.key.rpartition("/")[2], 16) for item in items}

        async with calling(running) as caller, running.client() as client:
            for topic in (TOPIC, "/default/other"):
                await caller.create(topic)
            kept = await subscribe(caller, TOPIC, "kept", "t")
            gone = {await subscribe(caller, TOPIC, f"c{index}", kind=SHARED) for index in range(3)}
            gone.add(await subscribe(caller, "/default/other"))
            assert await stored() == gone | {kept}
            await client.admin.delete_subscription(TOPIC, "s")
            await client.admin.delete_topic("/default/other")
        await running.restart()
        assert await stored() == {kept}


async def test_a_message_that_never_becomes_poison_is_not_tried_all_the_time(tmp_path: Path) -> None:
    policy = {"max_redelivery_count": -1, "redelivery_delay_s": 0.0}
    async with (
        compat_broker(tmp_path, limits={"compat_max_message_bytes": 10_000}, subscription_policy=policy) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC) as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC)
        await producer.send_many([b"b" * 10_001, b"c"])
        async with receiving(caller, consumer_id) as stream:
            assert await stream.payloads(1) == [b"c"]
            assert await stream.silent()
        assert (await info(running)).redelivered_messages <= 1


@pytest.mark.parametrize("what", ["unload", "delete topic", "delete subscription"])
async def test_streams_end_with_what_they_read(tmp_path: Path, what: str) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller, running.client() as client:
        producer_id = (await caller.create(TOPIC)).producer_id
        consumer_id = await subscribe(caller, TOPIC)
        async with receiving(caller, consumer_id) as stream:
            await caller.send(TOPIC, producer_id, b"a")
            await ack(caller, await stream.next())
            match what:
                case "unload":
                    await running.broker.directory.unload(TOPIC)
                case "delete topic":
                    await client.admin.delete_topic(TOPIC)
                case _:
                    await client.admin.delete_subscription(TOPIC, "s")
            with pytest.raises(UnavailableError, match="unloaded" if what == "unload" else "was deleted"):
                await stream.next()
        async with receiving(caller, consumer_id) as stream:
            if what == "unload":
                await caller.send(TOPIC, producer_id, b"b")
                assert (await stream.next()).payload == b"b"
            else:
                with pytest.raises(UnavailableError):
                    await stream.next()


# --- Acknowledging ---


async def test_acknowledged_means_durable(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running:
        async with calling(running) as caller:
            producer_id = (await caller.create(TOPIC)).producer_id
            consumer_id = await subscribe(caller, TOPIC)
            for index in range(10):
                await caller.send(TOPIC, producer_id, b"%d" % index)
            async with receiving(caller, consumer_id) as stream:
                found = [await stream.next() for _ in range(10)]
                async with trio.open_nursery() as nursery:
                    for message in found[::2]:
                        nursery.start_soon(ack, caller, message)
        await running.restart(crash=True)
        async with calling(running) as caller, receiving(caller, consumer_id) as stream:
            assert await stream.payloads(5) == [b"1", b"3", b"5", b"7", b"9"]


async def test_one_acknowledgement_takes_one_commit(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        consumer_id = await subscribe(caller, TOPIC)
        await caller.send(TOPIC, producer_id, b"a")
        async with receiving(caller, consumer_id) as stream:
            message = await stream.next()
            before = running.broker.runtime.journal.usage().commits
            await ack(caller, message)
            assert running.broker.runtime.journal.usage().commits == before + 1
            await ack(caller, message)
            assert running.broker.runtime.journal.usage().commits == before + 1


async def test_acknowledgements_that_change_nothing(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        await subscribe(caller, TOPIC)
        await caller.send(TOPIC, producer_id, b"a")
        for offset in (0, 1, 10, 2**64 - 1):
            unknown = pb.StreamMessage(msg_id=pb.MsgID(topic_name=TOPIC, topic_offset=offset), request_id=9)
            await ack(caller, unknown)
            await nack(caller, unknown)
        assert (await info(running)).backlog_messages == 1  # it was never delivered


async def test_acknowledgements_that_mean_nothing(tmp_path: Path) -> None:
    async with compat_broker(tmp_path) as running, calling(running) as caller:
        await caller.create(TOPIC)
        await subscribe(caller, TOPIC)
        for name, request in (("Ack", pb.AckRequest), ("Nack", pb.NackRequest)):
            with pytest.raises(InvalidArgumentError, match="msg_id"):
                await caller.unary(f"{SERVICE}{name}", request(request_id=1, subscription_name="s"), pb.AckResponse)
        for say in (ack, nack):
            with pytest.raises(InternalError, match="does not exist"):
                await say(caller, pb.StreamMessage(msg_id=pb.MsgID(topic_name="/default/missing")))
            with pytest.raises(InternalError, match="no subscription 'other'"):
                await say(caller, pb.StreamMessage(msg_id=pb.MsgID(topic_name=TOPIC)), "other")


async def test_a_refused_message_comes_again(tmp_path: Path) -> None:
    policy = {"redelivery_delay_s": 0.1, "max_redelivery_delay_s": 0.3, "backoff": "fixed", "max_redelivery_count": 4}
    async with compat_broker(tmp_path, subscription_policy=policy) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        consumer_id = await subscribe(caller, TOPIC)
        await caller.send(TOPIC, producer_id, b"a")
        async with receiving(caller, consumer_id) as stream:
            message = await stream.next()
            for asked_ms, least_s, most_s in ((None, 0.1, 0.2), (10, 0.1, 0.2), (200, 0.2, 0.3), (60_000, 0.3, 2.0)):
                began = trio.current_time()
                await nack(caller, message, reason="not now", **({} if asked_ms is None else {"delay_ms": asked_ms}))
                assert await stream.next() == message
                assert least_s <= trio.current_time() - began + 0.001 < most_s + 5.0
            await nack(caller, message, reason="never")
            assert await stream.silent(0.4)
            told = explanation_of(running.topic(TOPIC).subscriptions["s"], trio.current_time())
            assert "(the last: never)" in told.sentence


async def test_a_slow_client_keeps_what_it_has_not_worked_on_yet(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path, subscription_policy={"ack_timeout_s": 4.0}) as running,
        calling(running) as caller,
        running.client() as client,
        client.producer(TOPIC) as producer,
    ):
        consumer_id = await subscribe(caller, TOPIC, kind=SHARED)
        await producer.send_many([b"%d" % index for index in range(10)])
        async with receiving(caller, consumer_id) as stream:
            found = [await stream.next() for _ in range(10)]
            for message in found[1:]:  # the first one is forgotten
                await trio.sleep(0.5)
                await ack(caller, message)
            forgotten = await stream.next()
            assert forgotten.payload == b"0"
            await ack(caller, forgotten)
            assert await stream.silent(4.2)
        assert (await info(running)).redelivered_messages == 1


async def test_messages_that_a_client_never_acknowledges_go_to_another_one(tmp_path: Path) -> None:
    policy = {"ack_timeout_s": 0.2, "redelivery_delay_s": 0.0}
    async with compat_broker(tmp_path, subscription_policy=policy) as running, calling(running) as caller:
        producer_id = (await caller.create(TOPIC)).producer_id
        silent_id = await subscribe(caller, TOPIC, "silent", kind=SHARED)
        async with receiving(caller, silent_id) as silent:
            await caller.send(TOPIC, producer_id, b"a")
            assert await silent.payloads(1) == [b"a"]
            other_id = await subscribe(caller, TOPIC, "other", kind=SHARED)
            async with receiving(caller, other_id) as stream:
                message = await stream.next()
                assert message.payload == b"a"
                await ack(caller, message)


# --- Ids ---


async def test_ids_make_room_for_newer_ones(tmp_path: Path) -> None:
    async with compat_broker(tmp_path, limits={"max_compat_consumers": 3}) as running, calling(running) as caller:
        await caller.create(TOPIC)
        ids = [await subscribe(caller, TOPIC, f"c{index}", kind=SHARED) for index in range(3)]
        async with receiving(caller, ids[0]) as first:
            await first.silent(0.02)
            ids.append(await subscribe(caller, TOPIC, "c3", kind=SHARED))
            async with receiving(caller, ids[1]) as stream:
                with pytest.raises(UnavailableError):
                    await stream.next()
            async with receiving(caller, ids[2]) as second, receiving(caller, ids[3]) as third:
                await second.silent(0.02)
                await third.silent(0.02)
                with pytest.raises(LimitExceededError, match="max_compat_consumers = 3"):
                    await subscribe(caller, TOPIC, "c4", kind=SHARED)


async def test_unused_ids_expire(tmp_path: Path) -> None:
    async with (
        compat_broker(tmp_path, limits={"compat_consumer_expiry_s": 0.1}) as running,
        calling(running) as caller,
    ):
        await caller.create(TOPIC)
        used = await subscribe(caller, TOPIC, "used", kind=SHARED)
        await subscribe(caller, TOPIC, "unused", kind=SHARED)
        ids = consumer_ids(running)
        async with receiving(caller, used) as stream:
            await stream.silent(0.15)
            assert await ids.sweep() == 1
            assert len(ids) == 1
        stored, _ = await running.broker.directory.catalogue.store.list("/compat/consumers/")
        assert [item.key for item in stored] == [f"/compat/consumers/b1/{used:016x}"]


def consumer_ids(running: RunningBroker) -> Any:
    """The ids of the broker's face."""
    method = running.broker._server.methods["/danube.ConsumerService/Ack"]
    return method.start.__self__.ids
