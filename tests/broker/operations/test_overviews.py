"""Overviews: the subscriptions of all topics with state and age, what is not well, and the open connections."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import running_broker, small_config, wait_until
from broker.directory.cluster_harness import cluster

from danube.broker.operations.wellness import BrokerFacts, StorageFacts, is_well, of_broker, of_storage, of_topic
from danube.history.parts import PartRecord, TopicHistory
from danube.history.segment import SegmentPart
from danube.log.index import TopicIndex
from danube.model.connection_api import ConnectionList, ConnectionMethod, ListConnections
from danube.model.errors import DataLossError, InvalidArgumentError, NotFoundError, TopicNotFoundError
from danube.model.ids import Offset
from danube.model.overview_api import OverviewMethod, OverviewSubscriptions, SubscriptionOverview

pytestmark = pytest.mark.virtual

S = 1_000_000


@pytest.mark.parametrize(
    ("state", "backlog", "age_s", "well"),
    [
        ("caught-up", 0, 0.0, True),
        ("no-consumer", 0, 0.0, True),
        ("no-consumer", 1, 61.0, True),
        ("no-consumer", 10**6, 3_600.0, True),
        ("no-consumer", 1, 3_601.0, False),
        ("no-consumer", 1, -1.0, False),
        ("moving", 10**6, 59.0, True),
        ("moving", 1, 61.0, False),
        ("waiting-for-acks", 5, 61.0, False),
        ("waiting-for-delivery-time", 5, 10**6, True),
        ("failed", 0, 0.0, False),
        ("blocked", 1, 0.0, False),
        ("no-credit", 3, -1.0, True),
    ],
)
def test_well_is_what_moves_or_has_nothing_to_do(state, backlog, age_s, well):
    assert is_well(state, backlog, age_s, 60.0, 3_600.0) is well


def test_findings_about_a_broker():
    assert list(of_broker(BrokerFacts(broker="b1", journal_limit_bytes=100, max_connections=10))) == []
    bad = BrokerFacts(
        broker="b1",
        journal_used_bytes=83,
        journal_limit_bytes=100,
        disk_full=True,
        sealing_failing_s=200.0,
        sealing_error="no route",
        stranded_topics=1,
        stranded_bytes=5,
        connections=9,
        max_connections=10,
        loop_lag_s=0.3,
        certificate_ends_s=3 * 86_400.0,
    )
    found = {each.kind: each.sentence for each in of_broker(bad)}
    assert list(found) == [
        "disk-full",
        "journal-nearly-full",
        "sealing-failing",
        "stranded",
        "connections-nearly-full",
        "loop-lag",
        "certificate-expires",
    ]
    assert found["journal-nearly-full"].startswith("the journal is 83% full")
    assert found["sealing-failing"] == "sealing has been failing for 3 min: no route"
    assert found["certificate-expires"].endswith("expires in 3 days")
    assert all(each.subject == "b1" and each.remedy for each in of_broker(bad))


def test_findings_about_storages_and_topics():
    good = StorageFacts(storage="s3", url="s3://b", healthy=True, failing_for_s=0, last_error="")
    assert list(of_storage("b1", good)) == []
    (found,) = of_storage(
        "b1", StorageFacts(storage="s3", url="s3://b", healthy=False, failing_for_s=9, last_error="x")
    )
    assert found.sentence == "storage 's3' (s3://b) has been failing for 9 s: x"
    assert list(of_topic("b1", "/a/b")) == []
    (stopped,) = of_topic("b1", "/a/b", stopped="the journal is damaged")
    assert (stopped.kind, stopped.topic) == ("topic-stopped", "/a/b")


def test_times_between_entries_of_an_index_are_interpolated():
    index = TopicIndex()
    assert index.time_of(Offset(3), Offset(0), 0) == 0
    index.add(Offset(10), 1, 0, 100 * S, 50)
    index.add(Offset(20), 1, 70_000, 200 * S, 50)
    assert index.time_of(Offset(10), Offset(0), 0) == 100 * S
    assert index.time_of(Offset(15), Offset(0), 0) == 150 * S
    assert index.time_of(Offset(25), Offset(0), 0) == 200 * S
    assert index.time_of(Offset(25), Offset(30), 400 * S) == 300 * S
    assert index.time_of(Offset(3), Offset(0), 0) == 100 * S


def test_times_inside_a_sealed_part_are_interpolated():
    history = TopicHistory()
    assert history.appended_us(Offset(0)) == 0
    fields = {
        "topic_id": 1,
        "base_offset": 0,
        "end_offset": 10,
        "first_time_us": 100,
        "last_time_us": 200,
    }
    part = SegmentPart(**{name: fields.get(name, 0) for name in SegmentPart.__struct_fields__})
    names = PartRecord.__struct_fields__
    history.add(PartRecord(**{name: part if name == "part" else "" for name in names}))
    assert history.appended_us(Offset(5)) == 150
    assert history.appended_us(Offset(10)) == 0


async def test_the_subscriptions_of_all_topics_in_pages(tmp_path: Path) -> None:
    async with running_broker(small_config(tmp_path), patience_s=1_000) as broker, broker.client() as client:
        for topic, partitions in (("/default/a", 0), ("/default/b", 2), ("/default/silent", 0)):
            await client.admin.create_topic(topic, partitions=partitions)
            for name in ("s1", "s2"):
                async with client.consumer(topic, subscription=name, start="earliest"):
                    pass
        async with client.producer("/default/a") as producer:
            await producer.send(b"old")
            await trio.sleep(100)
            await producer.send(b"new")
        async with client.consumer("/default/a", subscription="s2") as consumer:
            await (await consumer.receive()).ack()
            await consumer.flush_acks()
        found = await client.admin.overview()
        names = ["/default/a", "/default/b-part-0", "/default/b-part-1", "/default/silent"]
        assert [(row.topic, row.subscription) for row in found.subscriptions] == [
            (topic, name) for topic in names for name in ("s1", "s2")
        ]
        assert found.silent == []
        first, second = found.subscriptions[:2]
        assert (first.state, first.well, first.backlog_messages) == ("no-consumer", True, 2)
        assert 100 <= first.oldest_age_s < 110
        assert (second.backlog_messages, second.floor, second.end_offset) == (1, 1, 2)
        assert second.oldest_age_s < 10
        assert all(row.well and row.oldest_age_s == 0 for row in found.subscriptions[2:])

        assert (await client.admin.overview(unwell_only=True)).subscriptions == [], "their consumers may be jobs"
        unwell = await client.admin.overview(unwell_only=True, absent_patience_s=50)
        assert [(row.topic, row.subscription) for row in unwell.subscriptions] == [("/default/a", "s1")]
        assert len((await client.admin.overview(topic="/default/b")).subscriptions) == 4
        assert len((await client.admin.overview(topic="/default/b-part-1")).subscriptions) == 2
        assert (await client.admin.overview(namespace="other")).subscriptions == []
        for absent in ("/default/none", "/default/b-part-7"):
            with pytest.raises(TopicNotFoundError):
                await client.admin.overview(topic=absent)

        seen, after = [], ("", "")
        async with broker.channel() as channel:
            for _ in range(10):
                request = OverviewSubscriptions(after=after, limit=3)
                page = await channel.unary(OverviewMethod.SUBSCRIPTIONS, request, SubscriptionOverview)
                seen += [(row.topic, row.subscription) for row in page.subscriptions]
                if page.next is None:
                    break
                after = page.next
            with pytest.raises(InvalidArgumentError, match="from 1 to 1000, not 0"):
                await channel.unary(OverviewMethod.SUBSCRIPTIONS, OverviewSubscriptions(limit=0), SubscriptionOverview)
        assert seen == [(row.topic, row.subscription) for row in found.subscriptions]


async def test_the_age_survives_a_restart(tmp_path: Path) -> None:
    async with running_broker(small_config(tmp_path), patience_s=1_000) as broker:
        async with (
            broker.client() as client,
            client.producer("/default/a") as producer,
            client.consumer("/default/a", subscription="s", start="earliest"),
        ):
            for _ in range(3):
                await producer.send(b"x")
                await trio.sleep(50)
        await broker.restart()
        async with broker.client() as client:
            (row,) = (await client.admin.overview()).subscriptions
            assert row.backlog_messages == 3
            assert 150 <= row.oldest_age_s < 160


async def test_a_stopped_topic_is_found(tmp_path: Path) -> None:
    async with running_broker(small_config(tmp_path), patience_s=1_000) as broker, broker.client() as client:
        await client.admin.create_topic("/default/a")
        assert (await client.admin.findings()).findings == []
        broker.topic("/default/a").stop(DataLossError("offset 3 is damaged"))
        (found,) = (await client.admin.findings()).findings
        assert found.sentence == "topic '/default/a' has stopped: offset 3 is damaged"
        assert found.topic == "/default/a"


async def test_connections_are_listed_and_ended(tmp_path: Path) -> None:
    async with (
        running_broker(small_config(tmp_path), patience_s=1_000) as broker,
        broker.client() as client,
        broker.client() as other,
        other.producer("/default/a") as producer,
    ):
        await producer.send(b"x")
        mine, victim = await client.admin.list_connections()
        assert (mine.id, victim.id, mine.protocol, mine.broker) == ("b1-1", "b1-2", "native", "b1")
        assert victim.client.startswith("danube-python/")
        assert victim.streams >= 1
        assert victim.received_bytes > 0
        assert victim.sent_bytes > 0
        await client.admin.kill_connection(victim.id)
        await producer.send(b"y")  # over another connection
        ids = [each.id for each in await client.admin.list_connections()]
        assert victim.id not in ids
        assert len(ids) == 2
        with pytest.raises(NotFoundError, match="b1-2"):
            await client.admin.kill_connection(victim.id)
        with pytest.raises(InvalidArgumentError, match="not the id of a connection"):
            await client.admin.kill_connection("2")
        async with broker.channel() as channel:
            page = await channel.unary(ConnectionMethod.LIST, ListConnections("", 1), ConnectionList)
            assert (page.connections[0].id, page.more) == ("b1-1", True)
            rest = await channel.unary(ConnectionMethod.LIST, ListConnections("b1-1", 5), ConnectionList)
            assert [each.id for each in rest.connections] == [*ids[1:], "b1-4"]
            assert not rest.more


async def test_any_broker_answers_for_the_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, cluster_secret="/simulated/secret") as world, world.machines[0].client() as client:
        await client.admin.create_topic("/default/many", partitions=6)
        async with client.consumer("/default/many", subscription="s", start="earliest"):
            pass
        for machine in world.machines:
            async with machine.client() as asking:
                found = await asking.admin.overview()
                assert [row.topic for row in found.subscriptions] == [f"/default/many-part-{n}" for n in range(6)]
                assert {row.broker for row in found.subscriptions} == {"b1", "b2", "b3"}
        world.machines[1].broker.directory.topics()[0].stop(DataLossError("damaged"))
        (finding,) = (await client.admin.findings()).findings
        assert finding.broker == world.machines[1].broker.directory.broker

        async with world.machines[2].client() as other:
            found = [row for row in await client.admin.list_connections() if row.protocol != "link"]
            victim = next(row for row in found if row.broker == world.machines[2].broker.directory.broker)
            assert victim.client
            await client.admin.kill_connection(victim.id)
            await wait_until(
                lambda: all(
                    str(each.connection_id) != victim.id.partition("-")[2]
                    for each in world.machines[2].broker._server.connection_list()
                )
            )
            assert await other.admin.info()

        await world.machines[1].kill()
        silent = await client.admin.overview()
        assert silent.silent == ["b2"] or {row.broker for row in silent.subscriptions} == {"b1", "b3"}
