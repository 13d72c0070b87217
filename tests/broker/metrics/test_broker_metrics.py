"""Metrics of a broker: the same numbers as its clients counted, whatever became of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RawProducer, RunningBroker, raw_producer, running_broker, wait_until
from metrics_text import Series, parse

import danube
from danube.broker.metrics import topics as topics_module
from danube.model.errors import ConnectionLostError, DanubeError, JournalFencedError, MessageTooLargeError
from danube.model.limits import KIB

pytestmark = pytest.mark.virtual

T = "/default/orders"
SUB = {"topic": T, "subscription": "billing"}


async def scrape(running: RunningBroker, **request: Any) -> Series:
    async with running.client() as client:
        return parse(await client.admin.metrics(**request))


async def send(client: danube.Client, topic: str, count: int, **options: Any) -> None:
    async with client.producer(topic, **options) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


@pytest.mark.parametrize("kind", ["exclusive", "shared", "key_shared"])
async def test_counters_equal_what_the_clients_have_counted(tmp_path: Path, kind: str) -> None:
    received = acked = nacked = 0
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(T) as producer:
            for number in range(20):  # a failed message takes back those behind it with its key
                await producer.send(b"x", key=str(number))
        for name in ("ann", "bob"):  # bob gets what ann has left
            policy = {"redelivery_delay_s": 0.0, "max_redelivery_count": -1}
            async with client.consumer(
                T, subscription="billing", name=name, type=kind, start="earliest", policy=policy
            ) as consumer:
                while True:
                    with trio.move_on_after(1.0) as waiting:
                        message = await consumer.receive()
                    if waiting.cancelled_caught:
                        break
                    received += 1
                    if message.offset % 3 == 0 and message.attempt == 1 and name == "ann":
                        await message.nack(reason="odd")
                        nacked += 1
                    elif message.offset < 12 or name == "bob":
                        await message.ack()
                        acked += 1
                await consumer.flush_acks()
        series = await scrape(running)
    assert nacked
    assert acked == 20
    delivered = series.one("danube_subscription_delivered_messages_total", **SUB)
    assert delivered == received
    assert series.one("danube_subscription_acked_messages_total", **SUB) == acked
    assert series.one("danube_subscription_nack_total", **SUB) == nacked
    assert series.one("danube_subscription_redelivery_total", **SUB) == delivered - 20
    assert series.one("danube_subscription_lag_messages", **SUB) == 0
    assert series.one("danube_subscription_state", **SUB, state="no-consumer") == 1
    assert series.all("danube_subscription_oldest_unacked_age_seconds", **SUB) == {}
    assert series.one("danube_topic_messages_in_total", topic=T) == 20
    assert series.one("danube_producer_send_total", topic=T, result="ok") == 20


async def test_numbers_that_come_from_offsets_survive_a_kill(tmp_path: Path) -> None:
    async with running_broker(tmp_path, patience_s=5000) as running:
        async with running.client() as client:
            await send(client, T, 30)
            async with client.consumer(T, subscription="billing", start="earliest") as consumer:
                for _ in range(10):
                    await (await consumer.receive()).ack()
                await consumer.flush_acks()
        await trio.sleep(50)
        await running.restart(crash=True)
        series = await scrape(running)
        assert series.one("danube_topic_messages_in_total", topic=T) == 30
        assert series.one("danube_subscription_lag_messages", **SUB) == 20
        age_s = series.one("danube_subscription_oldest_unacked_age_seconds", **SUB)
        assert 50 <= age_s < 70
        # Not stuck for longer than this broker has known.
        assert series.one("danube_subscription_stuck_seconds", **SUB) < 10
        async with running.client() as client:
            await send(client, T, 5)
            series = parse(await client.admin.metrics())
            assert series.one("danube_topic_messages_in_total", topic=T) == 35
            assert series.one("danube_producer_send_total", topic=T, result="ok") == 5


async def test_acknowledgements_of_what_was_delivered_before_a_kill_count(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await send(client, T, 3)
        async with client.consumer(T, subscription="billing", start="earliest") as consumer:
            messages = [await consumer.receive() for _ in range(3)]
            await running.restart(crash=True)
            for message in messages:
                await message.ack()
            await consumer.flush_acks()
            series = parse(await client.admin.metrics())
    assert series.one("danube_subscription_acked_messages_total", **SUB) == 3
    assert series.one("danube_subscription_lag_messages", **SUB) == 0


async def test_a_subscription_that_does_not_move_is_stuck(tmp_path: Path) -> None:
    async with running_broker(tmp_path, patience_s=5000) as running, running.client() as client:
        await client.admin.create_topic(T)
        async with client.consumer(T, subscription="billing", policy={"ack_timeout_s": 1000.0}) as consumer:
            await trio.sleep(500)
            await send(client, T, 1)
            message = await consumer.receive()
            await trio.sleep(200)
            series = parse(await client.admin.metrics())
            assert 200 <= series.one("danube_subscription_stuck_seconds", **SUB) < 202  # not 700: there was nothing
            assert 200 <= series.one("danube_subscription_oldest_unacked_age_seconds", **SUB) < 202
            assert series.one("danube_subscription_state", **SUB, state="waiting-for-acks") == 1
            assert series.one("danube_subscription_in_flight_messages", **SUB) == 1
            await message.ack()
            await consumer.flush_acks()
            series = parse(await client.admin.metrics())
            assert series.one("danube_subscription_stuck_seconds", **SUB) == 0
            assert series.one("danube_subscription_state", **SUB, state="caught-up") == 1


async def test_what_is_due_later_is_not_stuck(tmp_path: Path) -> None:
    async with running_broker(tmp_path, patience_s=5000) as running, running.client() as client:
        await client.admin.create_topic(T)
        async with client.consumer(T, subscription="billing"), client.producer(T) as producer:
            await producer.send(b"later", deliver_after_s=1000)
            await trio.sleep(100)
            series = parse(await client.admin.metrics())
    assert series.one("danube_subscription_delayed_messages", **SUB) == 1
    assert series.one("danube_subscription_state", **SUB, state="waiting-for-delivery-time") == 1
    assert series.one("danube_subscription_stuck_seconds", **SUB) == 0


async def test_the_idle_state_is_what_the_explanation_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T)
        async with client.consumer(T, subscription="connected"):
            async with client.consumer(T, subscription="left"):
                pass
            short = await scrape(running)
            monkeypatch.setattr(topics_module, "_is_calm", lambda _: False)
            whole = await scrape(running)
    name = "danube_subscription_state"
    assert short.all(name) == whole.all(name)
    assert short.labels(name, "state") == {"caught-up", "no-consumer"}


async def test_the_busiest_topics_are_shown_and_the_others_summed(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, patience_s=5000, limits={"metrics_topics": 2}) as running,
        running.client() as client,
    ):
        for number, topic in enumerate("abcd", 1):
            await send(client, f"/default/{topic}", number)
            await client.admin.metrics()
        async with client.consumer("/default/a", subscription="s", start="earliest"):
            pass
        first = parse(await client.admin.metrics())
        assert first.labels("danube_topic_messages_in_total", "topic") == {"/default/b", "/default/c", "_other"}
        await send(client, "/default/c", 5)
        await trio.sleep(60)
        series = parse(await client.admin.metrics())
        assert series.labels("danube_topic_messages_in_total", "topic") == {"/default/c", "/default/d", "_other"}
        assert series.one("danube_metrics_omitted_topics") == 2
        assert series.one("danube_subscription_lag_messages", topic="_other", subscription="_other") == 1
        before = series.one("danube_topic_messages_in_total", topic="_other")
        await send(client, "/default/a", 5)
        await client.admin.delete_topic("/default/b")
        series = parse(await client.admin.metrics())
        assert series.one("danube_topic_messages_in_total", topic="_other") == before + 5
        assert series.one("danube_producer_send_total", topic="_other", result="ok") == 5
        await client.admin.delete_topic("/default/c")
        series = parse(await client.admin.metrics())
        assert series.one("danube_metrics_omitted_topics") == 0
        assert "_other" not in series.labels("danube_topic_messages_in_total", "topic")


async def test_details_have_partitions_and_consumers(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T, partitions=2)
        await client.admin.create_topic("/default/other")
        await send(client, T, 10)
        async with client.consumer(T, subscription="billing", name="ann", start="earliest") as consumer:
            received = [await consumer.receive() for _ in range(10)]
            for message in received[:4]:
                await message.ack()
            await consumer.flush_acks()
            series = parse(await client.admin.metrics(detailed=True, topic="/default/ord*"))
            whole = parse(await client.admin.metrics())
    parts = {f"{T}-part-0", f"{T}-part-1"}
    assert series.labels("danube_topic_messages_in_total", "topic") == parts
    assert series.sum("danube_topic_messages_in_total") == 10
    assert series.sum("danube_topic_end_offset") == 10
    assert series.sum("danube_consumer_messages_out_total", consumer="ann", subscription="billing") == 10
    assert series.sum("danube_consumer_acked_messages_total", consumer="ann") == 4
    assert series.sum("danube_consumer_in_flight_messages", consumer="ann") == 6
    assert series.sum("danube_consumer_bytes_out_total", consumer="ann") > 0
    assert series.all("danube_journal_used_bytes") == {}
    assert whole.one("danube_topic_messages_in_total", topic=T) == 10
    assert whole.one("danube_subscription_acked_messages_total", **SUB) == 4
    assert whole.sum("danube_subscription_state", **SUB) == 2
    assert whole.one("danube_topic_active_consumers", topic=T) == 2
    assert whole.all("danube_topic_end_offset", topic=T) == {}
    assert whole.one("danube_broker_topics_owned") == 3
    assert whole.all("danube_consumer_messages_out_total") == {}


async def test_details_are_bounded(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"metrics_series": 30}) as running, running.client() as client:
        for number in range(5):
            topic = f"/default/t{number}"
            await client.admin.create_topic(topic)
            for name in "ab":
                async with client.consumer(topic, subscription=name):
                    pass
        series = parse(await client.admin.metrics(detailed=True))
    assert series.labels("danube_topic_stopped", "topic") == {"/default/t0"}
    assert series.labels("danube_subscription_lag_messages", "subscription") == {"a", "b"}
    assert series.one("danube_metrics_omitted_topics") == 4
    assert len(series) < 30 + 20


async def test_refusals_and_repeats_are_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T)
        async with client.producer(T) as producer:
            with pytest.raises(MessageTooLargeError):
                await producer.send(b"x" * 600 * KIB)
        async with running.channel() as channel, raw_producer(channel, T) as raw:
            await publish_twice(raw)
        series = parse(await client.admin.metrics())
    assert series.one("danube_publish_duplicates_total") == 3
    assert series.one("danube_producer_send_total", topic=T, result="ok") == 3
    assert series.one("danube_topic_messages_in_total", topic=T) == 3


async def publish_twice(raw: RawProducer) -> None:
    for _ in range(2):
        raw.send(0, b"a", b"b", b"c")
        assert await raw.acked() == [(0, 0, 3)]


async def test_refused_messages_have_the_code_of_their_error(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T)
        async with client.producer(T) as producer:
            await producer.send(b"first")
            await client.admin.change_policies(T, max_message_bytes=10)
            with pytest.raises(DanubeError):
                await producer.send(b"x" * 100)
        series = parse(await client.admin.metrics())
    assert series.one("danube_producer_send_total", topic=T, error_code=MessageTooLargeError.code) == 1


async def test_time_that_publishers_wait_is_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T)
        await client.admin.change_policies(T, publish_rate={"messages_per_s": 10})
        async with client.producer(T) as producer:
            for _ in range(60):
                await producer.send(b"x")
        series = parse(await client.admin.metrics())
    assert series.one("danube_publish_paused_seconds_total", by="publish_rate") > 1
    assert series.one("danube_publish_paused_seconds_total", by="namespace_rate") == 0


async def test_connections_calls_and_streams(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T)
        async with client.consumer(T, subscription="s") as consumer, client.producer(T) as producer:
            await producer.send(b"x")
            await consumer.receive()
            series = await scrape(running)
            assert series.one("danube_streams", kind="publish") == 1
            assert series.one("danube_streams", kind="consume") == 1
            assert series.one("danube_connections", protocol="native") >= 2
        with pytest.raises(DanubeError):
            await client.admin.describe_topic("/default/none")
        series = await scrape(running)
        assert series.one("danube_streams", kind="publish") == 0
        path = "/danube.native.v1.Broker/Publish"
        assert series.one("danube_broker_rpc_total", method=path, code="OK") == 1
        assert series.sum("danube_broker_rpc_total", code="NOT_FOUND") >= 1
        received = series.sum("danube_received_bytes_total")
        assert (received, series.sum("danube_sent_bytes_total")) < (
            running.broker._server.received_bytes + 1,
            running.broker._server.sent_bytes + 1,
        )
        assert received > 0
        later = await scrape(running)
        assert later.sum("danube_received_bytes_total") > received  # also after connections have ended
        assert later.one("danube_rpc_duration_seconds_count", method="/danube.native.v1.Broker/Metrics") == 2


async def test_refused_connections_are_counted(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_connections": 1}) as running, running.client() as client:
        await client.admin.info()
        with pytest.raises(ConnectionLostError):
            await scrape(running)
        series = parse(await client.admin.metrics())
    assert series.one("danube_connections_refused_total", reason="max_connections") >= 1


async def test_commits_and_durations_of_publishing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await send(client, T, 5)
        await client.admin.create_topic("/default/os", durability="os")
        await send(client, "/default/os", 5)
        series = parse(await client.admin.metrics())
        usage = running.broker.runtime.journal.usage()
    assert (
        series.one("danube_journal_commits_total", lane="disk") + series.one("danube_journal_commits_total", lane="os")
        <= usage.commits
    )
    assert series.one("danube_journal_commits_total", lane="os") >= 1
    assert series.one("danube_journal_sync_duration_seconds_count") >= series.one(
        "danube_journal_commits_total", lane="disk"
    )
    for durability in ("disk", "os"):
        assert series.one("danube_publish_duration_seconds_count", durability=durability) == 1
        assert 0 <= series.one("danube_publish_duration_seconds_sum", durability=durability) < 5
    assert series.one("danube_journal_fenced") == 0
    assert series.one("danube_metadata_duration_seconds_count", operation="transact") > 0


async def test_a_topic_without_durability(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T, durability="none")
        async with client.consumer(T, subscription="billing") as consumer:
            await send(client, T, 5)
            for _ in range(5):
                await consumer.receive()
        await send(client, T, 2)
        series = parse(await client.admin.metrics())
    assert series.one("danube_topic_messages_in_total", topic=T) == 7
    assert series.one("danube_subscription_delivered_messages_total", **SUB) == 5
    assert series.one("danube_producer_send_total", topic=T, result="ok") == 7


async def test_openmetrics_is_asked_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.info()
        text = await client.admin.metrics(openmetrics=True)
        pieces = [piece async for piece in running.broker.operations.metrics.metrics(openmetrics=True)]
    assert text.endswith("# EOF\n")
    assert "# TYPE danube_broker_rpc counter\n" in text
    assert pieces[-1] == b"# EOF\n"
    assert len(pieces) > 20


async def test_health_follows_the_life_of_a_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running:
        broker = running.broker
        assert broker.health() == ((True, ()), (True, ()), (True, ()))
        broker.runtime.journal._commits.failure = JournalFencedError("the disk is gone")
        health = broker.health()
        broker.runtime.journal._commits.failure = None
        assert not health.live.ok
        assert health.ready.reasons == ("the journal has failed: the disk is gone",)
        broker.drain()
        health = broker.health()
        assert health.live.ok
        assert health.started.ok
        assert health.ready.reasons == ("the broker is shutting down",)
        await wait_until(lambda: _true(running._ended.is_set()))


async def _true(value: bool) -> bool:
    await trio.lowlevel.checkpoint()
    return value
