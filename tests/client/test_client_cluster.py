# ruff: noqa: SIM117 - a nested "async with" shows what is inside of what
"""The client in a cluster: owners, redirects, brokers that die, and how many connections there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import trio
import trio.testing
from fake_broker import wait_until
from fake_cluster import FakeCluster, cluster_client, cluster_in_threads, memory_cluster

import danube
from danube.client import Client
from danube.client._pool import UNUSED_S
from danube.model.errors import (
    ConnectionLostError,
    DanubeError,
    NotOwnerError,
    OwnerAwayError,
    TopicNotFoundError,
)
from danube.model.names import partition_name
from danube.model.stage_api import StagedBatch

Clock = trio.testing.MockClock
TOPIC = "/default/orders"
OTHER = "/default/others"


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % index for index in range(start, start + count)]


def cluster_of(count: int, **owners: str) -> FakeCluster:
    cluster = FakeCluster(count)
    for topic, broker in owners.items():
        cluster.topics[f"/default/{topic}"] = cluster.brokers["b1"].topic(f"/default/{topic}")
        cluster.owner[f"/default/{topic}"] = broker, 1
    return cluster


async def test_a_lookup_leads_to_the_owner_at_once(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2")
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
    assert [len(broker.opens) for broker in cluster.brokers.values()] == [0, 1, 0]
    assert cluster.dialled == {"b1": 1, "b2": 1}


async def test_a_redirect_leads_to_the_owner(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2")
    cluster.names_owners = False
    async with cluster_client(cluster) as client:
        began = trio.current_time()
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                assert (await consumer.receive()).payload == b"x"
                async with client.reader(TOPIC, start="earliest") as reader:
                    assert (await reader.receive()).payload == b"x"
        assert trio.current_time() == began, "a redirect needs no pause"
        assert [len(broker.opens) for broker in cluster.brokers.values()] == [1, 3, 0]
        assert (await client.admin.describe_topic(TOPIC)).end_offset == 1


async def test_many_topics_share_a_connection_for_each_broker(autojump_clock: Clock) -> None:
    cluster = FakeCluster(3)
    names = [partition_name(TOPIC, index) for index in range(1_000)]
    for index, name in enumerate(names):
        cluster.brokers["b1"].topic(name)
        cluster.owner[name] = f"b{index % 3 + 1}", 1
    for broker in cluster.brokers.values():
        broker.partitioned[TOPIC] = 1_000
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send_many(numbered(1_000), keys=[str(index) for index in range(1_000)])
        assert cluster.dialled == {"b1": 1, "b2": 1, "b3": 1}
        assert {len(broker.opens) for broker in cluster.brokers.values()} == {333, 334}


async def test_a_producer_follows_its_topic_and_nothing_is_stored_twice(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b1")
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC, batch_max_messages=10) as producer:
            sent = 0
            for to in ("b2", "b3", "b1", "b2"):
                pending = [producer.send_nowait(payload) for payload in numbered(100, sent)]
                sent += 100
                await trio.lowlevel.checkpoint()
                cluster.move(TOPIC, to)
                for one in pending:
                    await one
            assert len(cluster.brokers["b2"].opens) == 2
    assert cluster.topics[TOPIC].payloads() == numbered(400)


async def test_a_batch_that_is_refused_by_a_former_owner_goes_to_the_new_one(autojump_clock: Clock) -> None:
    cluster = cluster_of(2, orders="b1")
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            cluster.owner[TOPIC] = "b2", 2  # the stream stays open
            cluster.brokers["b1"].before_store = lambda _: cluster.brokers["b1"].not_mine(TOPIC)
            assert (await producer.send(b"1")).offset == 1
    assert cluster.topics[TOPIC].payloads() == [b"0", b"1"]


async def test_a_batch_whose_answer_was_lost_is_stored_once_by_the_next_owner(autojump_clock: Clock) -> None:
    cluster = cluster_of(2, orders="b1")

    def lose(_: object) -> bool:
        cluster.owner[TOPIC] = "b2", 2
        cluster.brokers["b1"].lose_answer = lambda _: False
        return True

    cluster.brokers["b1"].lose_answer = lose
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"0")).offset == 0
            assert (await producer.send(b"1")).offset == 1
    assert cluster.topics[TOPIC].payloads() == [b"0", b"1"]
    assert [request.resume_epoch for request in cluster.brokers["b2"].opens] == [1]


async def test_a_consumer_and_a_reader_follow_their_topic(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b1")
    async with cluster_client(cluster) as client:
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription="s", start="earliest") as consumer,
            client.reader(TOPIC, start="earliest") as reader,
        ):
            for index, to in enumerate(("b2", "b3", "b1")):
                await producer.send(b"%d" % index)
                message = await consumer.receive()
                await message.ack()
                assert message.payload == (await reader.receive()).payload == b"%d" % index
                cluster.move(TOPIC, to)
                await trio.sleep(1)


async def test_the_death_of_the_first_broker_does_not_disturb_streams_at_others(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2")
    cluster.name_each_other()
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                await producer.send(b"0")
                assert (await consumer.receive()).payload == b"0"
                await cluster.stop("b1")
                began = trio.current_time()
                await producer.send(b"1")
                assert (await consumer.receive()).payload == b"1"
                assert [topic.topic for topic in await client.admin.list_topics()] == [TOPIC]
                assert trio.current_time() == began
                assert client.connected
        async with client.producer(TOPIC) as producer:
            await producer.send(b"2")
        assert len(cluster.brokers["b2"].opens) == 3


async def test_a_topic_of_the_first_broker_is_found_at_its_successor(autojump_clock: Clock) -> None:
    """The only seed dies, and owned the topic; its brokers were named in the lookup."""
    cluster = cluster_of(3, orders="b1")
    cluster.name_each_other()
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            await cluster.stop("b1")
            cluster.owner[TOPIC] = "b3", 2
            assert (await producer.send(b"1")).offset == 1
    assert cluster.topics[TOPIC].payloads() == [b"0", b"1"]


@pytest.mark.parametrize("seeds", ["b1,b2,b3", "b3,b1,b2", "nowhere,b2"])
async def test_a_seed_that_is_dead_at_the_start_is_passed_over(seeds: str, autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2")
    cluster.away.add(seeds.split(",")[0])
    async with cluster_client(cluster, seeds) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")


async def test_no_seed_answers(autojump_clock: Clock) -> None:
    cluster = FakeCluster(2)
    cluster.away.update(("b1", "b2"))
    async with memory_cluster(cluster) as environment:
        began = trio.current_time()
        with pytest.raises(ConnectionLostError, match=r"b1:6650: .*b1 refuses.*b2:6650: .*b2 refuses"):
            async with danube.connect("danube://b1,b2", environment=environment):
                pass
        assert trio.current_time() == began


async def test_a_loop_of_redirects_ends_with_an_error_that_names_the_brokers(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b1")
    cluster.views = {"b1": {TOPIC: ("b2", 1)}, "b2": {TOPIC: ("b3", 1)}, "b3": {TOPIC: ("b1", 1)}}
    async with cluster_client(cluster, request_timeout_s=3.0) as client:
        for opening in (client.producer(TOPIC), client.consumer(TOPIC, subscription="s"), client.reader(TOPIC)):
            began = trio.current_time()
            with pytest.raises(NotOwnerError, match=r"asked in turn: b\d:6650, .*b1:6650.*none of them owns it"):
                async with opening:
                    pass
            assert 1.0 < trio.current_time() - began <= 3.0
        with pytest.raises(NotOwnerError, match=r"asked in turn: .*b2:6650"):
            await client.admin.describe_topic(TOPIC)


async def test_the_topic_of_a_broker_that_is_away_waits_for_it_by_name(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="")
    async with cluster_client(cluster, request_timeout_s=5.0) as client:
        for opening in (client.producer(TOPIC), client.reader(TOPIC)):
            with pytest.raises(OwnerAwayError, match="waits for broker b9"):
                async with opening:
                    pass
        began = trio.current_time()
        with pytest.raises(OwnerAwayError, match="waits for broker b9"):
            await client.admin.describe_topic(TOPIC)
        assert trio.current_time() - began > 2

        async def come_back() -> None:
            await trio.sleep(2)
            cluster.owner[TOPIC] = "b3", 2

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            async with client.producer(TOPIC) as producer:
                await producer.send(b"x")


async def test_a_running_producer_waits_for_its_owner_and_then_gives_up_with_the_last_error(
    autojump_clock: Clock,
) -> None:
    cluster = cluster_of(3, orders="b2")
    async with cluster_client(cluster, reconnect_timeout_s=20.0) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            cluster.owner[TOPIC] = "", 1
            await cluster.stop("b2")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, b"1")
                await trio.sleep(10)
                cluster.away.clear()
                cluster.owner[TOPIC] = "b2", 1
            cluster.owner[TOPIC] = "", 1
            await cluster.stop("b2")
            began = trio.current_time()
            with pytest.raises(OwnerAwayError, match="waits for broker b9"):
                await producer.send(b"2")
            assert 10 < trio.current_time() - began <= 20
    assert cluster.topics[TOPIC].payloads() == [b"0", b"1"]


async def test_an_address_that_no_broker_answers_is_not_asked_for_ever(autojump_clock: Clock) -> None:
    """The cluster names an address that this client cannot reach, until the topic moves."""
    cluster = cluster_of(2, orders="b2")
    cluster.addresses["b2"] = "inside:6650"
    async with cluster_client(cluster, request_timeout_s=30.0) as client:

        async def repair() -> None:
            await trio.sleep(5)
            cluster.addresses["b2"] = "b2:6650"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(repair)
            async with client.producer(TOPIC) as producer:
                await producer.send(b"x")
        assert cluster.dialled["inside"] < 20


async def test_many_lanes_of_a_dead_owner_dial_it_rarely(autojump_clock: Clock) -> None:
    cluster = FakeCluster(2)
    names = [partition_name(TOPIC, index) for index in range(50)]
    for name in names:
        cluster.brokers["b1"].topic(name)
        cluster.owner[name] = "b2", 1
    for broker in cluster.brokers.values():
        broker.partitioned[TOPIC] = 50
    async with cluster_client(cluster) as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"x")
            await cluster.stop("b2")
            await trio.sleep(10)
            assert cluster.dialled["b2"] < 150, "lanes share attempts, at most one in 50 ms"
            cluster.away.clear()
            await producer.send_many(numbered(100), keys=[str(index) for index in range(100)])
            assert sum(len(topic.payloads()) for topic in cluster.topics.values()) == 101


async def test_unused_connections_are_closed_and_the_first_one_is_kept(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2", others="b3")
    async with cluster_client(cluster) as client:
        async with client.producer(OTHER):
            async with client.producer(TOPIC) as producer:
                await producer.send(b"x")
            await trio.sleep(UNUSED_S * 2.5)
            assert list(map(str, client._pool._lines)) == ["b1:6650", "b3:6650"]
            async with client.producer(TOPIC) as producer:
                await producer.send(b"y")
    assert cluster.dialled == {"b1": 1, "b2": 2, "b3": 1}


async def test_calls_about_a_topic_find_its_owner(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b3")
    cluster.brokers["b1"].topics[TOPIC].append(b"", _header(3), "maker")
    async with cluster_client(cluster) as client:
        for _ in range(2):
            assert (await client.admin.describe_topic(TOPIC)).end_offset == 3
        assert cluster.dialled == {"b1": 1, "b3": 1}
        cluster.move(TOPIC, "b2")
        assert (await client.admin.describe_topic(TOPIC)).end_offset == 3


def _header(count: int) -> object:
    from danube.model.batch import check_part, encode_part

    part = encode_part([b"x"] * count, producer_id=1, producer_epoch=1, base_sequence=0, publish_time_us=1)
    return check_part(part)


def _token(cluster: FakeCluster, broker: str) -> trio.lowlevel.TrioToken:
    token = cluster.brokers[broker].token
    assert token is not None
    return token


@pytest.mark.parametrize("run", [trio.run, lambda main: asyncio.run(main())], ids=["trio", "asyncio"])
def test_both_event_loops_follow_topics_and_survive_their_seed(run: Callable[..., object]) -> None:
    with cluster_in_threads(3) as cluster:
        cluster.name_each_other()
        for name, broker in (("orders", "b2"), ("others", "b1")):
            cluster.brokers["b1"].topic(f"/default/{name}")
            cluster.owner[f"/default/{name}"] = broker, 1

        async def main() -> None:
            async with danube.connect(f"danube://{cluster.addresses['b1']}", reconnect_initial_s=0.02) as client:
                async with client.producer(TOPIC) as producer, client.producer(OTHER) as other:
                    async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                        await other.send(b"0")
                        await producer.send_many(numbered(100))
                        _token(cluster, "b2").run_sync_soon(cluster.move, TOPIC, "b3")
                        await producer.send_many(numbered(100, 100))
                        cluster.owner[OTHER] = "b2", 2
                        cluster.brokers["b1"].accepting = False
                        cut = cluster.brokers["b1"].cut
                        _token(cluster, "b1").run_sync_soon(trio.lowlevel.spawn_system_task, cut)
                        await other.send(b"1")
                        await producer.send_many(numbered(100, 200))
                        seen: set[bytes] = set()
                        while len(seen) < 300:
                            batch = await consumer.receive_batch()
                            seen.update(batch.payloads())
                            await batch.ack()
                assert len(await client.admin.list_topics()) == 2

        run(main)
        assert cluster.topics[TOPIC].payloads() == numbered(300)
        assert cluster.topics[OTHER].payloads() == [b"0", b"1"]


async def test_closing_the_client_ends_calls_that_wait_for_a_broker(autojump_clock: Clock) -> None:
    cluster = cluster_of(2, orders="b2")
    async with memory_cluster(cluster) as environment:
        async with trio.open_nursery() as nursery:
            errors: list[BaseException] = []

            async def publish(client: Client) -> None:
                try:
                    async with client.producer(TOPIC) as producer:
                        await producer.send(b"x")
                except DanubeError as error:
                    errors.append(error)

            cluster.away.add("b2")
            async with danube.connect("danube://b1", environment=environment) as client:
                nursery.start_soon(publish, client)
                await trio.sleep(0.5)
            await wait_until(lambda: bool(errors))
        assert "closed" in str(errors[0])


# --- States of logs of several owners


async def _grown(client: Client, known: dict[str, int], timeout_s: float = 60.0) -> dict[str, int]:
    states = await client.logs.states(list(known), beyond=known, timeout_s=timeout_s)
    return {state.name: state.end_offset for state in states}


@pytest.mark.parametrize("named", [True, False], ids=["lookup", "redirect"])
async def test_the_ends_of_logs_are_gathered_from_their_owners(named: bool, autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b3", others="b2", mine="b1")
    names = ["/default/mine", "/default/orders", "/default/others"]
    for index, name in enumerate(names):
        for _ in range(index):
            cluster.topics[name].append(b"", _header(5), "maker")
    async with cluster_client(cluster) as client:
        if named:
            for name in names:
                await client.admin.lookup_topic(name)
        for _ in range(2):
            states = await client.logs.states(names[::-1])
            assert [(state.name, state.end_offset) for state in states] == list(
                zip(names[::-1], [10, 5, 0], strict=True)
            )
            assert [state.name for state in await client.logs.states()] == names
        cluster.move(names[0], "b2")
        assert [state.name for state in await client.logs.states()] == names
    assert cluster.dialled == {"b1": 1, "b2": 1, "b3": 1}


async def test_a_wait_for_logs_ends_when_any_owner_has_news(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b3", others="b2")
    async with cluster_client(cluster) as client:
        for name in (TOPIC, OTHER):
            await client.admin.lookup_topic(name)
        known = dict.fromkeys((TOPIC, OTHER), 0)
        for _ in range(20):

            async def append() -> None:
                await trio.sleep(1)
                cluster.topics[TOPIC].append(b"", _header(1), "maker")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(append)
                began = trio.current_time()
                known = await _grown(client, known)
                assert trio.current_time() - began < 1.1
        assert known == {TOPIC: 20, OTHER: 0}
        waits = [wait for _, wait in cluster.brokers["b2"].polls if wait]
        assert len(waits) == 1, "the poll of the idle owner goes on from one call to the next"
        began = trio.current_time()
        assert await _grown(client, known, timeout_s=5.0) == known
        assert 4.9 < trio.current_time() - began < 5.2


async def test_a_wait_for_all_logs_ends_when_a_topic_is_created(autojump_clock: Clock) -> None:
    cluster = cluster_of(2, orders="b2")
    async with cluster_client(cluster) as client:
        await client.admin.lookup_topic(TOPIC)

        async def create() -> None:
            await trio.sleep(3)
            cluster.brokers["b1"].topic(OTHER)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            began = trio.current_time()
            states = await client.logs.states(beyond={TOPIC: 0}, timeout_s=60.0)
            assert 3 <= trio.current_time() - began < 3.1
        assert [state.name for state in states] == [TOPIC, OTHER]


async def test_a_wait_for_logs_outlives_an_owner_that_dies(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b3", others="b2")
    async with cluster_client(cluster) as client:
        for name in (TOPIC, OTHER):
            await client.admin.lookup_topic(name)

        async def fail_over() -> None:
            await trio.sleep(2)
            await cluster.stop("b3")
            await trio.sleep(2)
            cluster.owner[TOPIC] = "b1", 2
            cluster.topics[TOPIC].append(b"", _header(1), "maker")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_over)
            assert await _grown(client, {TOPIC: 0, OTHER: 0}) == {TOPIC: 1, OTHER: 0}
            assert trio.current_time() < 30


async def test_the_ends_of_logs_of_a_lone_broker_take_one_call(autojump_clock: Clock) -> None:
    cluster = cluster_of(1, orders="b1", others="b1")
    cluster.names_owners = False
    async with cluster_client(cluster) as client:
        await client.admin.lookup_topic(TOPIC)
        assert len(await client.logs.states([TOPIC, OTHER])) == 2
    assert cluster.brokers["b1"].polls == [([TOPIC, OTHER], 0)]


async def test_a_log_that_does_not_exist_is_reported(autojump_clock: Clock) -> None:
    cluster = cluster_of(2, orders="b2", others="b2")
    async with cluster_client(cluster) as client:
        await client.logs.states([TOPIC, OTHER])
        with pytest.raises(TopicNotFoundError, match="none"):
            await client.logs.states([TOPIC, "/default/none"])
        del cluster.topics[OTHER]
        cluster.brokers["b2"].not_mine = lambda topic: None if topic == TOPIC else TopicNotFoundError(f"no {topic}")
        with pytest.raises(TopicNotFoundError):
            await client.logs.states([TOPIC, OTHER])
        assert [state.name for state in await client.logs.states()] == [TOPIC]


# --- Stages


async def _staged(client: Client, topic: str, batch_id: int = 7) -> StagedBatch:
    async with client.stages.open(topic, producer="job", batch_id=batch_id) as stage:
        return await stage.finish()


async def test_a_stage_is_opened_and_committed_at_the_owner_of_its_topic(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2", others="b2", mine="b1")
    cluster.names_owners = False
    async with cluster_client(cluster) as client:
        stages = [await _staged(client, topic) for topic in (TOPIC, OTHER)]
    cluster.names_owners = True
    async with cluster_client(cluster) as client:  # the driver is another process
        assert (await client.stages.commit("job", 7, stages)).committed
        assert not await client.stages.abort("job", 7, [await _staged(client, "/default/mine")])
    assert [broker.staged for broker in cluster.brokers.values()] == [["/default/mine"], [TOPIC, OTHER], []]
    assert [len(broker.commits) for broker in cluster.brokers.values()] == [0, 1, 0]
    assert [len(broker.aborts) for broker in cluster.brokers.values()] == [1, 0, 0]


async def test_all_stages_of_a_producer_go_to_its_home(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2", others="b3")
    cluster.home = "b3"
    async with cluster_client(cluster) as client:
        stages = [await _staged(client, topic) for topic in (TOPIC, OTHER, TOPIC)]
        assert (await client.stages.commit("job", 7, stages)).committed
    async with cluster_client(cluster) as client:  # the driver is another process
        assert (await client.stages.commit("job", 8, stages)).committed
    assert [broker.staged for broker in cluster.brokers.values()] == [[], [], [TOPIC, OTHER, TOPIC]]
    assert [len(broker.commits) for broker in cluster.brokers.values()] == [0, 0, 2]


async def test_a_producer_of_stages_is_known_to_the_whole_cluster(autojump_clock: Clock) -> None:
    cluster = cluster_of(3, orders="b2", others="b3")
    cluster.name_each_other()
    async with cluster_client(cluster) as client:
        assert await client.stages.last_batch("job") is None
        await client.stages.commit("job", 7, [await _staged(client, TOPIC)])
        await client.stages.commit("job", 5, [await _staged(client, OTHER, 5)])
        assert await client.stages.last_batch("job") == 7
        assert await client.stages.abort("job", 7, write_id="w")
        assert [len(broker.aborts) for broker in cluster.brokers.values()] == [1, 1, 1]
        found = await client.stages.describe()
        assert (found.total, found.size_bytes, found.limit_bytes) == (2, 30, 300)


async def test_a_commit_waits_for_the_broker_that_holds_its_stages(autojump_clock: Clock) -> None:
    cluster = cluster_of(2, orders="b2")
    cluster.home = "b2"
    async with cluster_client(cluster, reconnect_timeout_s=20.0) as client:
        stage = await _staged(client, TOPIC)
        await cluster.stop("b2")
        with pytest.raises(OwnerAwayError, match="waits for broker b2, which holds its stages"):
            await client.stages.commit("job", 7, [stage])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.stages.commit, "job", 7, [stage])
            await trio.sleep(5)
            cluster.away.clear()
    assert len(cluster.brokers["b2"].commits) == 1
