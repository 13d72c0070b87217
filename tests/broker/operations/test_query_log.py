"""Queries of engines: states of logs, waiting for changes, sealed parts, offsets by time, raw batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker, wait_until
from broker.sealed_topics import bucket, publish

import danube
from danube.client._log_pages import join_parts
from danube.model import Durability
from danube.model.batch import BatchFlags, CompositeRecord, open_records, read_header
from danube.model.errors import (
    BrokerDrainingError,
    ConnectionLostError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    TopicNotFoundError,
)
from danube.model.query_api import (
    GetLogParts,
    GetLogStates,
    LogPart,
    LogPartsPage,
    LogStates,
    QueryMethod,
    RawBatch,
    gaps_of,
)

pytestmark = pytest.mark.virtual

T = "/default/t"


async def seal_in_pieces(client: danube.Client, topic: str, pieces: int, count: int = 10) -> list[bytes]:
    sent = []
    for piece in range(pieces):
        sent += await publish(client, topic, count, seed=piece)
        await client.admin.seal_topic(topic)
    return sent


async def read(client: danube.Client, topic: str, start: int, end: int, **options: Any) -> list[RawBatch]:
    async with client.logs.read(topic, start, end, **options) as batches:
        return [batch async for batch in batches]


def payloads(batches: list[RawBatch]) -> list[bytes]:
    found: list[Any] = []
    for batch in batches:
        found += open_records(batch.part, read_header(batch.part), 1 << 24)
    return [record if isinstance(record, bytes) else record.payload for record in found]


# --- States ---


async def test_states_of_plain_and_partitioned_topics(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=2)
        await client.admin.create_topic("/default/none", durability="none")
        await publish(client, T, 10)
        await client.admin.seal_topic(T)
        await publish(client, T, 5)
        (state,) = await client.logs.states([T])
        assert (state.topic, state.partition, state.name, state.storage) == (T, 0, T, "default")
        assert (state.start_offset, state.sealed_offset, state.end_offset) == (0, 10, 15)
        assert state.topic_id == (await client.admin.describe_topic(T)).topic_id
        assert state.storage_url == url
        both = await client.logs.states(["/default/p", T])
        assert [(row.topic, row.partition, row.name) for row in both] == [
            ("/default/p", 0, "/default/p-part-0"),
            ("/default/p", 1, "/default/p-part-1"),
            (T, 0, T),
        ]
        assert [row.name for row in await client.logs.states(["/default/p-part-1"])] == ["/default/p-part-1"]
        assert [row.topic for row in await client.logs.states()] == ["/default/none", "/default/p", "/default/p", T]
        assert [row.name for row in await client.logs.states(pattern="/default/(t|x.*)")] == [T]
        assert await client.logs.states(pattern="/default/") == []  # the whole name has to match
        (none,) = await client.logs.states(["/default/none"])
        assert none.durability is Durability.NONE
        with pytest.raises(TopicNotFoundError):
            await client.logs.states([T, "/default/missing"])
        with pytest.raises(InvalidNameError):
            await client.logs.states(["missing"])
        with pytest.raises(InvalidArgumentError, match="exclude each other"):
            await client.logs.states([T], pattern=".*")
        with pytest.raises(InvalidArgumentError, match="not a regular expression"):
            await client.logs.states(pattern="(")
        with pytest.raises(InvalidArgumentError, match="not a list of names"):
            await client.logs.states(T)


async def test_too_many_states_are_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_log_states": 3}) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=3)
        await client.admin.create_topic(T)
        assert len(await client.logs.states(["/default/p"])) == 3
        with pytest.raises(LimitExceededError, match="max_log_states = 3"):
            await client.logs.states()


async def test_where_the_storage_is_for_other_processes(tmp_path: Path) -> None:
    storages = {
        "s": {"url": "memory://other?durable=true", "options": {"x": 1}},
        "d": {"url": f"disk://{tmp_path}/elsewhere"},
    }
    storages["s"].pop("options")
    async with running_broker(tmp_path / "a", storages=storages) as running, running.client() as client:
        await client.admin.create_topic(T)
        await client.admin.create_topic("/default/d", storage="d")
        (state,) = await client.logs.states([T])
        assert state.storage_url == f"disk://{tmp_path}/a/storage"
        (state,) = await client.logs.states(["/default/d"])
        assert state.storage_url == f"disk://{tmp_path}/elsewhere"


# --- Waiting for news ---


async def beyond(client: danube.Client, **options: Any) -> dict[str, int]:
    return {state.name: state.end_offset for state in await client.logs.states(**options)}


async def test_a_long_poll_is_answered_when_a_log_grows(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for topic in (T, "/default/u"):
            await publish(client, topic, 3)
        known = await beyond(client)
        found: list[dict[str, int]] = []

        async def poll() -> None:
            found.append({row.name: row.end_offset for row in await client.logs.states([T], beyond=known, timeout_s=5)})

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await wait_until(lambda: running.topic(T).watchers)
            await publish(client, "/default/u", 1)
            await trio.sleep(0.02)
            assert not found  # other events do not matter here
            began = trio.current_time()
            await publish(client, T, 2)
        assert found == [{T: 5}]
        assert trio.current_time() - began < 4
        assert not running.topic(T).watchers
        assert not running.broker.directory.watchers
        # What is known already is not waited for; time limits hold.
        assert await client.logs.states([T], beyond=known, timeout_s=5)
        began = trio.current_time()
        (state,) = await client.logs.states([T], beyond={T: 5}, timeout_s=0.1)
        assert state.end_offset == 5
        assert 0.1 <= trio.current_time() - began < 4


async def test_a_long_poll_goes_on_beyond_the_longest_wait_of_the_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits={"max_log_wait_s": 0.05}) as running, running.client() as client:
        await publish(client, T, 1)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.sleep(0.2)
                await publish(client, T, 1)

            nursery.start_soon(later)
            (state,) = await client.logs.states([T], beyond={T: 1}, timeout_s=5)
        assert state.end_offset == 2
        assert trio.current_time() - began >= 0.2


@pytest.mark.parametrize("how", ["topic", "partition"])
async def test_a_long_poll_is_answered_when_a_topic_or_partition_comes(tmp_path: Path, how: str) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/p", partitions=1)
        found: list[str] = []

        async def poll() -> None:
            options: dict[str, Any] = {"pattern": "/default/[pq]"} if how == "topic" else {"topics": ["/default/p"]}
            states = await client.logs.states(**options, beyond={"/default/p-part-0": 0}, timeout_s=5)
            found.extend(state.name for state in states)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await wait_until(lambda: running.broker.directory.watchers)
            await client.admin.create_topic("/default/unwanted")
            await trio.sleep(0.02)
            assert not found
            if how == "topic":
                await client.admin.create_topic("/default/q")
            else:
                await running.broker.directory.catalogue.creations.enlarge("/default/p", 2)
                record = running.broker.directory.catalogue.find("/default/p")
                assert record is not None
                running.broker.directory.level(record).revive("/default/p", record, {})
        assert found == ["/default/p-part-0", "/default/q" if how == "topic" else "/default/p-part-1"]


async def test_a_long_poll_ends_with_its_topic_its_caller_and_its_broker(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as running,
        running.client() as client,
        running.client(request_timeout_s=1.0, reconnect_timeout_s=0.3) as hasty,
    ):
        await publish(client, T, 1)
        failures: list[BaseException] = []

        async def poll(caller: danube.Client) -> None:
            try:
                await caller.logs.states([T], beyond={T: 1}, timeout_s=30)
            except Exception as error:  # noqa: BLE001 - the test looks at it
                failures.append(error)

        watched = lambda: bool(running.broker.directory.watchers)  # noqa: E731
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, client)
            await wait_until(watched)
            await client.admin.delete_topic(T)
        assert isinstance(failures[0], TopicNotFoundError)
        await publish(client, T, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, client)
            await wait_until(watched)
            nursery.cancel_scope.cancel()
        await wait_until(lambda: not running.broker.directory.watchers and not running.topic(T).watchers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, hasty)
            await wait_until(watched)
            with trio.fail_after(8):
                await running.drain()  # a poll does not hold it up
        assert isinstance(failures[1], BrokerDrainingError | ConnectionLostError)
        await running.start()


async def test_a_long_poll_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await publish(client, T, 1)
        found = []

        async def poll() -> None:
            found.extend(await client.logs.states(pattern=".*", beyond={T: 1}, timeout_s=30))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await wait_until(lambda: running.broker.directory.watchers)
            await running.restart(crash=True)
            await wait_until(lambda: running.broker.directory.watchers)
            await publish(client, T, 1)
        assert [state.end_offset for state in found] == [2]


# --- Parts ---


async def test_parts_of_a_range(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await seal_in_pieces(client, T, 4)
        await publish(client, T, 3)
        whole = await client.logs.parts(T)
        assert (whole.topic, whole.start, whole.end, whole.sealed_offset, whole.end_offset) == (T, 0, 40, 40, 43)
        assert [(part.base_offset, part.end_offset) for part in whole.parts] == [(0, 10), (10, 20), (20, 30), (30, 40)]
        assert whole.gaps == []
        assert whole.storages == {"default": url}
        catalogue = running.broker.directory.history.catalogue
        for part, record in zip(whole.parts, catalogue.topics[whole.topic_id].parts, strict=True):
            assert (part.object, part.start, part.end, part.crc) == (
                record.object,
                record.part.start,
                record.part.end,
                record.part.crc,
            )
            assert part.object_bytes == catalogue.objects[record.ref].size_bytes
        for start, end, first, last in (
            (0, 1, 0, 10),
            (9, 10, 0, 10),
            (10, 20, 10, 20),
            (5, 31, 0, 40),
            (39, 99, 30, 40),
        ):
            found = await client.logs.parts(T, start, end)
            assert (found.parts[0].base_offset, found.parts[-1].end_offset) == (first, last)
            assert (found.start, found.end, found.gaps) == (start, min(end, 40), [])
        for start, end in ((7, 7), (40, 43), (50, 60)):
            found = await client.logs.parts(T, start, end)
            assert (found.parts, found.gaps) == ([], [])
            assert found.start == found.end
        with pytest.raises(InvalidArgumentError, match="not a range"):
            await client.logs.parts(T, 7, 3)
        with pytest.raises(TopicNotFoundError):
            await client.logs.parts("/default/missing")


async def test_parts_are_listed_in_pages_without_expired_ones(tmp_path: Path) -> None:
    url, _ = bucket()
    limits = {"max_log_parts": 2}
    async with running_broker(tmp_path, storage=url, limits=limits) as running, running.client() as client:
        await seal_in_pieces(client, T, 5)
        found = await client.logs.parts(T, 3)
        assert [part.base_offset for part in found.parts] == [0, 10, 20, 30, 40]
        async with running.channel() as channel:
            page = await channel.unary(QueryMethod.PARTS, GetLogParts(T, 12, 45), LogPartsPage)
        assert ([part.base_offset for part in page.parts], page.more) == ([10, 20], True)
        catalogue = running.broker.directory.history.catalogue
        topic = running.topic(T)
        await catalogue.expire(topic.topic_id, 15, 1)
        topic.log.expire(15)
        found = await client.logs.parts(T)
        assert (found.start_offset, found.start, found.end) == (15, 15, 50)
        assert [part.base_offset for part in found.parts] == [10, 20, 30, 40]
        assert found.gaps == []
        # A hole in the catalogue (after a loss of power, say) is told.
        topic_history = catalogue.topics[topic.topic_id]
        topic_history.remove([topic_history.parts[1]])
        found = await client.logs.parts(T, 0, 45)
        assert found.gaps == [(20, 30)]
        topic_history.remove(topic_history.parts[-1:])
        found = await client.logs.parts(T, 0, 45)
        assert (found.end, found.gaps) == (40, [(20, 30)])


def part_of(base: int, end: int) -> LogPart:
    return LogPart("default", "segments/x", 0, base, end, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1)


def test_parts_that_were_merged_between_two_pages_count_once() -> None:
    pages = [[part_of(0, 10), part_of(10, 20), part_of(20, 30)], [part_of(10, 40), part_of(40, 50)]]
    joined = join_parts(pages)
    assert [(part.base_offset, part.end_offset) for part in joined] == [(0, 10), (10, 40), (40, 50)]
    assert gaps_of(joined, 5, 60) == [(50, 60)]
    assert gaps_of(joined, 5, 50) == gaps_of([], 5, 5) == []
    assert gaps_of([part_of(10, 20)], 0, 15) == [(0, 10)]


async def test_parts_of_a_remote_topic_are_its_commits(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await client.admin.create_topic(T, durability="remote")
        for piece in range(3):
            await publish(client, T, 10, seed=piece)
        found = await client.logs.parts(T)
        assert (found.start, found.end, found.gaps) == (0, 30, [])
        assert all(part.object.startswith("wal/") and part.object_bytes for part in found.parts)


# --- Times ---


async def test_offsets_by_time(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        times = []
        for piece in range(4):
            await publish(client, T, 10, seed=piece)
            batch = running.topic(T).kept.get_cached(10 * piece)
            assert batch is not None
            times.append(batch.append_time_us)
            if piece == 1:
                await client.admin.seal_topic(T)
        for piece, time_us in enumerate(times):
            assert await client.logs.offset_at(T, time_us) == 10 * piece
            assert await client.logs.offset_at(T, time_us + 1) == 10 * piece + 10
        assert await client.logs.offset_at(T, 0) == 0
        with pytest.raises(InvalidArgumentError, match="at least 0"):
            await client.logs.offset_at(T, -1)
        await client.admin.create_topic("/default/none", durability="none")
        with pytest.raises(FailedPreconditionError, match="stores nothing"):
            await client.logs.offset_at("/default/none", 0)


# --- Batches ---


async def test_raw_batches_from_cache_journal_and_history(tmp_path: Path) -> None:
    url, _ = bucket()
    limits = {"cache_bytes": 30_000}
    async with running_broker(tmp_path, storage=url, limits=limits) as running, running.client() as client:
        sent = await seal_in_pieces(client, T, 3)
        for piece in range(3):
            sent += await publish(client, T, 10, seed=10 + piece)
        sent += await publish(client, T, 1, size=40_000)
        for start, end in ((0, 61), (3, 7), (25, 35), (29, 30), (30, 60), (60, 61), (5, 5)):
            batches = await read(client, T, start, end)
            assert [batch.end_offset for batch in batches[:-1]] == [batch.base_offset for batch in batches[1:]]
            if start == end:
                assert batches == []
                continue
            first, last = batches[0], batches[-1]
            assert first.base_offset <= start < first.end_offset
            assert last.base_offset < end <= last.end_offset
            assert payloads(batches) == sent[first.base_offset : last.end_offset]
            assert all(batch.append_time_us > 0 and batch.producer for batch in batches)
        assert not running.topic(T).readers


async def test_raw_batches_ignore_expiry_and_delays(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(T) as producer:
            await producer.send(b"now")
            await producer.send(b"later", deliver_after_s=3600)
            await producer.send(b"last")
        await client.admin.change_policies(T, message_ttl_s=0.01)
        await trio.sleep(0.02)
        assert payloads(await read(client, T, 0, 3)) == [b"now", b"later", b"last"]


async def test_a_slow_reader_gets_only_its_credit(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for piece in range(20):
            await publish(client, T, 10, size=1000, seed=piece)
        async with client.logs.read(T, 0, 200, credit_bytes=15_000) as batches:
            first = await anext(batches)
            assert first.base_offset == 0
            await trio.sleep(0.05)
            (reader,) = running.topic(T).readers
            assert reader.machine.position < 60
            rest = [batch async for batch in batches]
        assert [batch.base_offset for batch in rest] == list(range(10, 200, 10))


async def test_it_stops_at_the_end_and_leaves_no_reader_behind(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for piece in range(10):
            await publish(client, T, 10, seed=piece)
        async with client.logs.read(T, 0, 100) as batches:
            await anext(batches)  # left half-way
        await wait_until(lambda: not running.topic(T).readers)
        async with client.logs.read(T, 15, 32) as batches:
            offsets = [batch.base_offset async for batch in batches]
            assert offsets == [10, 20, 30]
            (reader,) = running.topic(T).readers
            assert reader.machine.position == 40  # no further, though there is more


async def test_expired_messages_show_as_a_gap(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await seal_in_pieces(client, T, 3)
        topic = running.topic(T)

        async def expire(offset: int) -> None:
            await running.broker.directory.history.catalogue.expire(topic.topic_id, offset, 1)
            topic.log.expire(offset)

        async with client.logs.read(T, 0, 30, credit_bytes=100) as batches:
            assert (await anext(batches)).base_offset == 0
            await expire(20)
            assert [batch.base_offset async for batch in batches][-1] == 20
        assert [batch.base_offset for batch in await read(client, T, 5, 30)] == [20]
        assert await read(client, T, 5, 15) == []
        async with client.logs.read(T, 20, 30) as batches:
            await expire(30)  # before it has begun
            assert [batch async for batch in batches] == []


async def test_everything_expires_under_a_reader(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path, storage=url) as running, running.client() as client:
        await seal_in_pieces(client, T, 4)
        topic = running.topic(T)
        async with client.logs.read(T, 0, 40, credit_bytes=100) as batches:
            assert (await anext(batches)).base_offset == 0
            await running.broker.directory.history.catalogue.expire(topic.topic_id, 40, 1)
            topic.log.expire(40)
            with trio.fail_after(3):
                rest = [batch.base_offset async for batch in batches]
        assert rest == [] or rest[-1] < 40


async def test_the_end_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await publish(client, T, 3)
        with pytest.raises(DataLossError, match=r"offsets \[3, 5\) are not there: its log ends at 3"):
            await read(client, T, 1, 5)
        with pytest.raises(InvalidArgumentError, match="not a range"):
            await read(client, T, 5, 1)
        with pytest.raises(TopicNotFoundError):
            await read(client, "/default/missing", 0, 1)
        await client.admin.create_topic("/default/none", durability="none")
        with pytest.raises(FailedPreconditionError, match="stores nothing"):
            await read(client, "/default/none", 0, 1)


async def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        sent = []
        for piece in range(10):
            sent += await publish(client, T, 10, size=1000, seed=piece)
        async with client.logs.read(T, 5, 95, credit_bytes=12_000) as batches:
            found = [await anext(batches), await anext(batches)]
            await running.restart(crash=True)
            found += [batch async for batch in batches]
        assert [batch.base_offset for batch in found] == list(range(0, 100, 10))
        assert payloads(found) == sent


async def test_another_incarnation_is_not_read(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for piece in range(10):
            await publish(client, T, 10, seed=piece)
        (state,) = await client.logs.states([T])
        assert len(await read(client, T, 0, 20, topic_id=state.topic_id)) == 2
        async with client.logs.read(T, 0, 100, credit_bytes=100) as batches:
            await anext(batches)
            await client.admin.delete_topic(T)
            for piece in range(10):
                await publish(client, T, 10, seed=piece)
            with pytest.raises((FailedPreconditionError, TopicNotFoundError)):
                _ = [batch async for batch in batches]
        with pytest.raises(FailedPreconditionError, match="was deleted and created again"):
            await read(client, T, 0, 20, topic_id=state.topic_id)


async def test_composite_batches_come_as_they_are(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(T)
        composer = running.broker.composing.of(running.topic(T))
        told: list[object] = []
        for name in ("one", "two"):
            composer.add(CompositeRecord(name.encode(), producer=name, producer_id=7), 1_000, 10, told.append)
        await wait_until(lambda: told == [None, None])
        (batch,) = await read(client, T, 1, 2)
        header = read_header(batch.part)
        assert header.flags & BatchFlags.COMPOSITE
        assert (batch.base_offset, batch.end_offset, batch.producer) == (0, 2, "")
        assert [record.producer for record in open_records(batch.part, header, 1 << 20)] == ["one", "two"]


async def test_states_need_only_names_that_are_valid(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.channel() as channel:
        answer = await channel.unary(QueryMethod.STATE, GetLogStates([]), LogStates)
        assert answer.states == []
        assert answer.version
