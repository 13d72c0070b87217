"""Staged publishing through a real broker and the real client."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import read_all, running_broker, wait_until

import danube
from danube.broker.stages.aborted import AbortedWrites, Write
from danube.client import sync
from danube.metadata import MemoryStore
from danube.model import Rate, stage_api
from danube.model.batch import Record, encode_part
from danube.model.errors import (
    ClosedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    MessageTooLargeError,
)
from danube.model.limits import KIB, Limits
from danube.model.stage_api import StagedBatch
from danube.wire.client import ClientStream

pytestmark = pytest.mark.virtual

TOPIC = "/default/a"


async def stage(
    client: danube.Client,
    batch_id: int,
    payloads: list[bytes],
    *,
    topic: str = TOPIC,
    producer: str = "job",
    attempt: str = "",
    write_id: str = "",
) -> StagedBatch:
    opening = client.stages.open(topic, producer=producer, batch_id=batch_id, attempt=attempt, write_id=write_id)
    async with opening as one:
        await one.add(payloads)
        return await one.finish()


def rows(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}-{index}".encode() for index in range(count)]


async def nothing_staged(client: danube.Client) -> bool:
    """Whether all stages are gone, and what they took counts no more."""
    answer = await client.stages.describe()
    return not answer.total and not answer.size_bytes


def stage_files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "stages").glob("*"))


# --- What it promises ---


async def test_stages_become_visible_together_when_they_are_committed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/p", partitions=2)
        stages = [
            await stage(client, 0, rows("a", 10)),
            await stage(client, 0, rows("p0", 3), topic="/default/p-part-0"),
            await stage(client, 0, rows("p1", 4), topic="/default/p-part-1"),
        ]
        assert [one.records for one in stages] == [10, 3, 4]
        assert await read_all(client, TOPIC) == []
        outcome = await client.stages.commit("job", 0, pickle.loads(pickle.dumps(stages)))
        assert outcome.committed
        assert outcome.offsets == {TOPIC: (0, 10), "/default/p-part-0": (0, 3), "/default/p-part-1": (0, 4)}
        assert await read_all(client, TOPIC) == rows("a", 10)
        assert sorted(await read_all(client, "/default/p")) == sorted(rows("p0", 3) + rows("p1", 4))
        again = await client.stages.commit("job", 0, stages)
        assert not again.committed
        assert again.offsets == outcome.offsets
        assert await client.stages.last_batch("job") == 0
        assert (await client.stages.describe()).stages == []
        assert await read_all(client, TOPIC) == rows("a", 10)
        await wait_until(lambda: stage_files(tmp_path) == [])


async def test_the_named_attempts_count_and_the_others_are_dropped(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        lost = await stage(client, 4, rows("first", 2), attempt="0.0")
        won = await stage(client, 4, rows("second", 2), attempt="0.1")
        ahead = await stage(client, 5, rows("next", 1))
        assert [
            (one.batch_id, one.attempt, one.state, one.records) for one in (await client.stages.describe("job")).stages
        ] == [
            (4, "0.0", "staged", 2),
            (4, "0.1", "staged", 2),
            (5, "", "staged", 1),
        ]
        # A task that is still at it when the batch is decided is told so.
        async with client.stages.open(TOPIC, producer="job", batch_id=4, attempt="0.2") as slow:
            await slow.add(rows("third", 1))
            assert (await client.stages.commit("job", 4, [won])).committed
            with pytest.raises(FailedPreconditionError, match="committed without it"):
                await slow.finish()
        assert [one.stage_id for one in (await client.stages.describe()).stages] == [ahead.stage_id]
        assert (await client.stages.commit("job", 5, [ahead])).committed
        assert await read_all(client, TOPIC) == [*rows("second", 2), *rows("next", 1)]
        assert lost.stage_id != won.stage_id


async def test_a_batch_that_is_committed_takes_no_more_rows(tmp_path: Path) -> None:
    """A driver that was killed before it noted its commit stages everything again, at no cost and to no effect."""
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        assert (await client.stages.commit("job", 7, [await stage(client, 7, rows("a", 3))])).committed
        async with client.stages.open(TOPIC, producer="job", batch_id=7) as one:
            assert one.committed
            await one.add(rows("a", 3))
            staged = await one.finish()
        assert staged == StagedBatch(0, TOPIC, 3, 0, "danube")
        outcome = await client.stages.commit("job", 7, [staged])
        assert (outcome.committed, outcome.offsets) == (False, {TOPIC: (0, 3)})
        assert (await client.stages.commit("job", 3, [])).offsets == {}
        assert await client.stages.abort("job", 7, [staged])
        assert await read_all(client, TOPIC) == rows("a", 3)
        with pytest.raises(FailedPreconditionError, match="lost or forgotten"):
            await client.stages.commit("other", 7, [staged])


async def test_a_batch_without_rows_counts_as_committed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        assert (await client.stages.commit("job", 0, [])).committed
        async with client.stages.open(TOPIC, producer="job", batch_id=1) as one:
            await one.add([])
            empty = await one.finish()
        outcome = await client.stages.commit("job", 1, [empty])
        assert (outcome.committed, outcome.offsets) == (True, {})
        assert await client.stages.last_batch("job") == 1
        assert await client.stages.last_batch("nobody") is None


@pytest.mark.real("counts on time that passes")
async def test_it_survives_restarts_staged_and_committed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        async with broker.client() as client:
            await client.admin.create_topic(TOPIC)
            first = await stage(client, 0, rows("a", 5))
            await client.stages.commit("job", 0, [first])
            second = await stage(client, 1, rows("b", 5))
            async with client.stages.open(TOPIC, producer="job", batch_id=1) as unfinished:
                await unfinished.add([bytes(500 * KIB)] * 3)
                await wait_until(lambda: len(stage_files(tmp_path)) == 2)
                await broker.crash()
        await broker.start()
        async with broker.client() as client:
            assert [one.stage_id for one in (await client.stages.describe()).stages] == [second.stage_id]
            await wait_until(lambda: len(stage_files(tmp_path)) == 1)
            assert (await client.stages.commit("job", 0, [first])).offsets == {TOPIC: (0, 5)}
            assert (await client.stages.commit("job", 1, [second])).committed
            await broker.restart()
            assert await client.stages.last_batch("job") == 1
            assert await read_all(client, TOPIC) == rows("a", 5) + rows("b", 5)


async def test_the_abort_of_a_write_drops_stages_that_its_tasks_add_afterwards(tmp_path: Path) -> None:
    """A job has failed, and tasks of it are still at work: one that writes, one that has not begun."""
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        await stage(client, 3, rows("done", 2), write_id="first")
        other = await stage(client, 3, rows("other", 2), write_id="second")
        unnamed = await stage(client, 3, rows("unnamed", 2))
        async with client.stages.open(TOPIC, producer="job", batch_id=3, write_id="first") as slow:
            await slow.add(rows("slow", 2))
            assert not await client.stages.abort("job", 3, write_id="first")
            with pytest.raises(FailedPreconditionError, match="aborted"):
                await slow.finish()
        with pytest.raises(FailedPreconditionError, match="batch 3 of 'job' by write 'first': it was aborted"):
            await stage(client, 3, rows("late", 2), write_id="first")
        assert [one.stage_id for one in (await client.stages.describe()).stages] == [other.stage_id, unnamed.stage_id]
        # The id is that of one write: another batch and another producer may have it, too.
        for batch, producer in ((4, "job"), (3, "another")):
            await stage(client, batch, rows("x", 1), producer=producer, write_id="first")
            assert not await client.stages.abort(producer, batch)
        await broker.restart()
        with pytest.raises(FailedPreconditionError, match="it was aborted"):
            await stage(client, 3, rows("late", 2), write_id="first")
        assert not await client.stages.abort("job", 3, write_id="first")
        assert (await client.stages.commit("job", 3, [other])).committed
        assert await client.stages.abort("job", 3, write_id="second")
        # What was committed is told as ever, also to a late task of the write that was aborted.
        assert (await stage(client, 3, rows("late", 2), write_id="first")).stage_id == 0
        assert (await client.stages.describe()).stages == []
        assert await read_all(client, TOPIC) == rows("other", 2)


@pytest.mark.parametrize("named", ["first", ""])
async def test_a_stage_that_is_finished_while_it_is_aborted_is_dropped(tmp_path: Path, named: str) -> None:
    """The last bytes of a stage are on their way to the disk when its write is aborted, and cannot be called back."""
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        stages = broker.broker.stages
        append, begun, go_on = stages._store.append, trio.Event(), trio.Event()

        async def slow_append(*args: Any, finish: bool = False) -> None:
            with trio.CancelScope(shield=True):
                if finish:
                    begun.set()
                    await go_on.wait()
                await append(*args, finish=finish)

        stages._store.append = slow_append  # type: ignore[method-assign]

        async def task() -> None:
            with pytest.raises(FailedPreconditionError, match="aborted"):
                await stage(client, 3, rows("slow", 2), write_id="first")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(task)
            await begun.wait()
            assert not await client.stages.abort("job", 3, write_id=named)
            go_on.set()
        await wait_until(lambda: nothing_staged(client))
        assert stage_files(tmp_path) == []


async def test_aborted_writes_are_remembered_for_a_time_and_up_to_a_number(tmp_path: Path) -> None:
    now_us = 10**12
    async with MemoryStore() as store:
        limits = Limits(max_aborted_writes=3, aborted_write_expiry_s=60.0)
        memory = AbortedWrites(store, limits, lambda: now_us)
        writes = [Write("a/é", number, f"w-{number}") for number in range(5)]
        for write in writes:
            now_us += 1_000_000
            await memory.remember(write)
        await memory.remember(writes[2])
        again = AbortedWrites(store, limits, lambda: now_us)
        await again.load()
        for one in (memory, again):
            assert [write in one for write in writes] == [False, False, True, True, True]
        assert len((await store.list("/stages/"))[0]) == 3
        now_us += 59_500_000
        await again.expire()
        assert [write in again for write in writes] == [False, False, True, False, True]
        now_us += 60_000_000
        await again.expire()
        assert len(again) == 0
        assert (await store.list("/stages/"))[0] == []


@pytest.mark.parametrize("durability", ["os", "disk", "remote"])
async def test_every_durability_that_keeps_anything(tmp_path: Path, durability: str) -> None:
    async with running_broker(tmp_path) as broker:
        async with broker.client() as client:
            await client.admin.create_topic(TOPIC, durability=durability)
            outcome = await client.stages.commit("job", 0, [await stage(client, 0, rows("a", 100))])
            assert outcome.offsets == {TOPIC: (0, 100)}
        await broker.restart(crash=True)
        async with broker.client() as client:
            assert not (await client.stages.commit("job", 0, [])).committed
            assert await read_all(client, TOPIC) == rows("a", 100)


async def test_large_stages_keep_their_order_among_other_producers(tmp_path: Path) -> None:
    async with running_broker(tmp_path, patience_s=30) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        payloads = [b"%07d" % number + bytes(993) for number in range(10_000)]
        stages = []
        for start in range(0, 10_000, 2_500):
            async with client.stages.open(
                TOPIC, producer="job", batch_id=0, compression="lz4" if start else None
            ) as one:
                for first in range(start, start + 2_500, 100):
                    await one.add(payloads[first : first + 100])
                stages.append(await one.finish())
        async with client.producer(TOPIC) as producer, trio.open_nursery() as nursery:

            async def chatter() -> None:
                while True:
                    await producer.send(b"chatter")

            nursery.start_soon(chatter)
            outcome = await client.stages.commit("job", 0, stages)
            nursery.cancel_scope.cancel()
        found = await read_all(client, TOPIC)
        assert [row for row in found if row != b"chatter"] == payloads
        start, end = outcome.offsets[TOPIC]
        assert found[start] == payloads[0]
        assert found[end - 1] == payloads[-1]


async def test_records_keep_keys_attributes_and_times(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        async with client.stages.open(TOPIC, producer="job", batch_id=0) as one:
            await one.add([Record(b"1", b"k", {"a": "b"}), Record(b"2", None, None, 5)], publish_time_us=1_000_000)
            await one.add([b"plain"])
            assert one.records == 3
            staged = await one.finish()
            with pytest.raises(ClosedError):
                await one.add([b"late"])
        await client.stages.commit("job", 0, [staged])
        async with client.reader(TOPIC, start="earliest") as reader:
            first, second, third = [await reader.receive() for _ in range(3)]
        assert (first.payload, first.key, first.attributes) == (b"1", "k", {"a": "b"})
        assert (second.payload, second.publish_time) == (b"2", second.publish_time)
        assert first.publish_time.timestamp() == 1.0
        assert second.publish_time.timestamp() == 1.000005
        assert third.payload == b"plain"


def test_the_blocking_facade_stages_too(tmp_path: Path) -> None:
    def work(url: str) -> None:
        with sync.connect(url) as client:
            client.admin.create_topic(TOPIC)
            with client.stages.open(TOPIC, producer="job", batch_id=0) as one:
                one.add([b"x"] * 10)
                assert (one.records, one.topic, one.committed) == (10, TOPIC, False)
                staged = one.finish()
                assert one.size_bytes == staged.size_bytes
            assert [info.stage_id for info in client.stages.describe("job").stages] == [staged.stage_id]
            assert client.stages.commit("job", 0, [staged]).committed
            assert client.stages.last_batch("job") == 0
            with client.stages.open(TOPIC, producer="job", batch_id=1) as one:
                one.add([b"x"])
                staged = one.finish()
            assert not client.stages.abort("job", 1, [staged])
            assert client.stages.describe().stages == []

    async def main() -> None:
        async with running_broker(tmp_path) as broker:
            await trio.to_thread.run_sync(work, broker.url)

    trio.run(main)


# --- What is refused ---


async def test_stages_that_cannot_be_committed_are_named(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        good = await stage(client, 0, rows("a", 1))
        other = await stage(client, 0, rows("b", 1), producer="other")
        later = await stage(client, 1, rows("c", 1))
        gone = StagedBatch(12345, TOPIC, 1, 1, "danube")
        for wrong in (other, later, gone):
            with pytest.raises(FailedPreconditionError, match=f"{wrong.stage_id:016x}.*nothing was committed"):
                await client.stages.commit("job", 0, [good, wrong])
        with pytest.raises(InvalidArgumentError, match=f"{good.stage_id:016x} twice"):
            await client.stages.commit("job", 0, [good, good])
        assert await client.stages.last_batch("job") is None
        assert (await client.stages.commit("job", 0, [good])).committed
        assert await read_all(client, TOPIC) == rows("a", 1)


async def test_a_topic_that_was_deleted_takes_its_stage_along(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/b")
        stages = [await stage(client, 0, rows("a", 1)), await stage(client, 0, rows("b", 1), topic="/default/b")]
        await client.admin.delete_topic(TOPIC)
        with pytest.raises(FailedPreconditionError, match=r"'/default/a' was deleted"):
            await client.stages.commit("job", 0, stages)
        await client.admin.create_topic(TOPIC)  # another one of the same name
        with pytest.raises(FailedPreconditionError, match=r"'/default/a' was deleted"):
            await client.stages.commit("job", 0, stages)
        assert await read_all(client, "/default/b") == []
        assert (await client.stages.commit("job", 0, stages[1:])).committed


async def test_invalid_stages_are_refused(tmp_path: Path) -> None:
    limits = {"max_message_bytes": 100 * KIB}
    async with running_broker(tmp_path, limits=limits) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.create_topic("/default/none", durability="none")
        await client.admin.create_topic("/default/p", partitions=1)
        with pytest.raises(FailedPreconditionError, match="durability 'none'"):
            await stage(client, 0, [b"x"], topic="/default/none")
        with pytest.raises(InvalidArgumentError, match="partitions"):
            await stage(client, 0, [b"x"], topic="/default/p")
        with pytest.raises(InvalidNameError):
            await stage(client, 0, [b"x"], producer="a/b")
        with pytest.raises(InvalidArgumentError, match="batch_id = -1"):
            await stage(client, -1, [b"x"])
        with pytest.raises(MessageTooLargeError, match="max_message_bytes"):
            await stage(client, 0, [b"x", bytes(100 * KIB + 1)])
        with pytest.raises(InvalidArgumentError, match="bytes or Records, not str"):
            await stage(client, 0, ["text"])  # type: ignore[list-item]
        with pytest.raises(InvalidNameError, match="write name 'a b'"):
            await client.stages.abort("job", 0, write_id="a b")
        with pytest.raises(InvalidArgumentError, match="either stages or the write"):
            await client.stages.abort("job", 0, [StagedBatch(1, TOPIC, 1, 1, "danube")], write_id="a")
        with pytest.raises(InvalidArgumentError, match="attempt"):
            await stage(client, 0, [b"x"], attempt="a" * 256)
        with pytest.raises(InvalidArgumentError, match="compression 'gzip' is unknown"):
            await client.stages.open(TOPIC, producer="job", batch_id=0, compression="gzip").__aenter__()  # type: ignore[arg-type]
        async with client.stages.open(TOPIC, producer="job", batch_id=0) as one:
            await one.add([b"left behind"])
        await wait_until(lambda: nothing_staged(client))
        assert stage_files(tmp_path) == []


def _part(**changed: Any) -> bytes:
    fields: dict[str, Any] = {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0, "publish_time_us": 1}
    return encode_part([b"x"], **(fields | changed))


async def _to_its_end(stream: ClientStream) -> None:
    while await stream.receive() is not None:
        pass


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([stage_api.StageBatch(b"")], "begins with StageOpen"),
        ([stage_api.StageOpen(TOPIC, "job", 2**63)], "batch id"),
        ([stage_api.StageOpen(TOPIC, "job", 0, "", "a/b")], "write name 'a/b'"),
        ([stage_api.StageOpen(TOPIC, "job", 0), stage_api.StageOpen(TOPIC, "job", 0)], "StageOpen once"),
        ([stage_api.StageOpen(TOPIC, "job", 0), stage_api.StageBatch(_part(producer_id=5))], "leave them 0"),
        ([stage_api.StageOpen(TOPIC, "job", 0), stage_api.StageBatch(_part()[:-1] + b"!")], "checksum"),
        (
            [
                stage_api.StageOpen(TOPIC, "job", 0),
                stage_api.StageBatch(_part(deliver_at_us=2**62)),
            ],
            "max_delivery_delay_s",
        ),
        ([stage_api.CommitStages("job", 0, [])], "does not decode"),
    ],
)
async def test_a_peer_that_says_nonsense_leaves_nothing(tmp_path: Path, requests: list[Any], said: str) -> None:
    async with running_broker(tmp_path) as broker, broker.channel() as channel, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        async with channel.open_stream(stage_api.StageMethod.STAGE) as stream:
            for request in requests:
                stream.send_nowait(stream.encode(request))
            with pytest.raises(InvalidArgumentError, match=said):
                await _to_its_end(stream)
        await wait_until(lambda: nothing_staged(client))


async def test_limits_of_stages(tmp_path: Path) -> None:
    limits = {"max_stages": 2, "max_staged_bytes": 200 * KIB, "max_stage_producers": 1}
    async with (
        running_broker(tmp_path, limits=limits) as broker,
        broker.client() as client,
        broker.client(request_timeout_s=1.0) as hasty,
    ):
        await client.admin.create_topic(TOPIC)
        with pytest.raises(LimitExceededError, match="max_staged_bytes"):
            await stage(client, 0, [bytes(201 * KIB)])
        await wait_until(lambda: nothing_staged(client))
        first = await stage(client, 0, [bytes(100 * KIB)])
        async with client.stages.open(TOPIC, producer="job", batch_id=0):
            with pytest.raises(LimitExceededError, match="max_stages = 2"):
                await stage(hasty, 0, [b"x"])
        await client.stages.commit("job", 0, [first])
        await wait_until(lambda: nothing_staged(client))
        await stage(client, 1, [bytes(150 * KIB)])
        async with broker.channel() as channel:
            with pytest.raises(LimitExceededError, match="max_stage_producers = 1"):
                await channel.unary(
                    stage_api.StageMethod.COMMIT, stage_api.CommitStages("another", 0, []), stage_api.StageCommit
                )


@pytest.mark.real("compares with the real wall clock")
async def test_a_stage_expires_and_so_does_the_memory_of_a_producer(tmp_path: Path) -> None:
    limits = {"stage_expiry_s": 0.2, "stage_producer_expiry_s": 0.2}
    async with running_broker(tmp_path, limits=limits) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.stages.commit("job", 0, [])
        staged = await stage(client, 1, rows("a", 1))
        async with client.stages.open(TOPIC, producer="job", batch_id=1) as slow:
            await wait_until(lambda: not stage_files(tmp_path))
            await trio.sleep(0.5)  # the first one is gone; this one was opened later
            with pytest.raises(FailedPreconditionError, match="stage_expiry_s"):
                await slow.finish()
        with pytest.raises(FailedPreconditionError, match="expired"):
            await client.stages.commit("job", 1, [staged])

        async def forgotten() -> bool:
            return await client.stages.last_batch("job") is None

        await wait_until(forgotten)

        async def removed() -> bool:  # a moment later: what has expired is not named, and then deleted
            return (await broker.broker.directory.catalogue.store.list("/stages/"))[0] == []

        await wait_until(removed)


async def test_the_publish_rate_holds_back_who_stages_and_not_the_commit(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        await client.admin.change_policies(TOPIC, publish_rate=Rate(messages_per_s=200))
        began = trio.current_time()
        staged = [await stage(client, 0, rows("a", 200)) for _ in range(3)]  # a burst, one on credit, one that waits
        assert trio.current_time() - began > 0.9
        with trio.fail_after(2):  # it would take three seconds if it were counted again
            await client.stages.commit("job", 0, staged)
        assert broker.broker.directory.find(TOPIC).end_offset == 600


# --- When things fail ---


async def test_a_commit_whose_caller_goes_away_goes_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        stages = [await stage(client, 0, rows("a", 10)) for _ in range(3)]
        with trio.move_on_after(0.001):
            await client.stages.commit("job", 0, stages)

        async def committed() -> bool:
            return not (await client.stages.commit("job", 0, stages)).committed

        await wait_until(committed)
        assert await read_all(client, TOPIC) == rows("a", 10) * 3


async def test_an_exclusive_producer_is_not_driven_out(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        staged = await stage(client, 0, rows("a", 2))
        async with client.producer(TOPIC, access="exclusive", name="mine"):
            with pytest.raises(FailedPreconditionError, match="exclusive"):
                await client.stages.commit("job", 0, [staged])
        assert (await client.stages.commit("job", 0, [staged])).committed


@pytest.mark.real("damages a file")
async def test_damage_is_found_before_anything_is_decided(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, broker.client() as client:
        await client.admin.create_topic(TOPIC)
        staged = await stage(client, 0, rows("a", 1000))
        (name,) = stage_files(tmp_path)
        path = tmp_path / "stages" / name
        data = bytearray(path.read_bytes())
        data[-500] ^= 1
        path.write_bytes(data)
        with pytest.raises(DataLossError, match=f"{staged.stage_id:016x}.*stage again"):
            await client.stages.commit("job", 0, [staged])
        path.unlink()
        with pytest.raises(DataLossError, match="is missing"):
            await client.stages.commit("job", 0, [staged])
        assert await client.stages.last_batch("job") is None
        again = await stage(client, 0, rows("a", 5))
        assert (await client.stages.commit("job", 0, [again])).committed
