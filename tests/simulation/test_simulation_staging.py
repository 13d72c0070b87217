"""Staged publishing against a model, in a simulated world: crashes anywhere, commits again and again.

Metadata and storage refuse, lose answers, and are away for a while; one of the topics has durability ``remote``.

What has to hold: a batch that a commit was answered for is there once and whole; a batch that was never committed is
never seen, not one row of it; a repeated commit changes nothing and tells the same offsets; nothing is staged of a
write that was given up, whatever its tasks still do; and in the end no file is left of what was dropped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import danube
from danube.model.errors import DanubeError, FailedPreconditionError
from danube.model.stage_api import StageCommit, StagedBatch
from danube.testing.simulation import World, draw_plan
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.trace import Trace

pytestmark = pytest.mark.timeout(300)

PLAIN, BASE, FAR = "/default/plain", "/default/parts", "/default/far"
TOPICS = (PLAIN, f"{BASE}-part-0", f"{BASE}-part-1", FAR)
PRODUCERS = ("one", "two")
EXPIRY_S = 60.0


@asynccontextmanager
async def world_of(seed: int) -> AsyncIterator[World]:
    """A world in which only the broker runs."""
    plan = draw_plan(seed, kind="single")
    (home,) = plan.configs
    config = plan.configs[home]
    limits = msgspec.structs.replace(config.limits, stage_expiry_s=EXPIRY_S)
    plan.configs[home] = msgspec.structs.replace(config, limits=limits)
    world = World(plan, Trace())
    async with world.machines():
        await world.node.ready.wait()
        yield world
    assert world.history.violations == []


class Job:
    """One producer of staged batches, as the model sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last = -1
        self.staged: dict[int, list[tuple[StagedBatch, list[bytes]]]] = {}
        """Finished stages by batch."""
        self.aborted: list[tuple[int, str]] = []
        """Batch and id of the writes that were given up."""
        self.committed: list[tuple[int, dict[str, list[bytes]], StageCommit]] = []
        self.count = 0

    def rows(self, count: int) -> list[bytes]:
        self.count += count
        return [f"{self.name} {number}".encode() for number in range(self.count - count, self.count)]


class Model:
    """A driver and its tasks, and what has to be true."""

    def __init__(self, world: World, client: danube.Client) -> None:
        self.world = world
        self.client = client
        self.jobs = {name: Job(name) for name in PRODUCERS}
        self.foreign: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.crashes = 0
        self.doubtful = False
        """Whether answers were lost that may be those to a commit, or a commit was decided and then held up."""

    # --- Steps ---

    async def stage(self, name: str, ahead: int, topic: str, rows: int, finish: bool) -> None:
        """A task stages some rows of the next batch (or one after it, or the one before)."""
        job = self.jobs[name]
        batch = max(0, job.last + ahead)
        payloads = job.rows(rows)
        try:
            async with self.client.stages.open(topic, producer=name, batch_id=batch, attempt=str(job.count)) as stage:
                await stage.add(payloads[: rows // 2])
                await stage.add(payloads[rows // 2 :])
                assert stage.committed == (batch <= job.last)
                if finish:
                    staged = await stage.finish()
                    assert staged.records == rows
                    if not stage.committed:
                        job.staged.setdefault(batch, []).append((staged, payloads))
        except DanubeError as error:
            if not error.retryable:  # else the task would be tried again
                raise

    async def commit(self, name: str, skip: int, twice: bool) -> None:
        """The driver commits the next batch: all stages that it knows but one."""
        job = self.jobs[name]
        batch = job.last + 1
        known = job.staged.pop(batch, [])
        chosen = [each for index, each in enumerate(known) if index != skip]
        stages = [staged for staged, _ in chosen]
        crashes = self.crashes
        outcomes: list[StageCommit] = []

        async def ask() -> None:
            outcomes.append(await self.client.stages.commit(name, batch, stages))

        async with trio.open_nursery() as nursery:
            for _ in range(2 if twice else 1):
                nursery.start_soon(ask)
        wins = sum(outcome.committed for outcome in outcomes)
        assert wins <= 1
        assert wins == 1 or self.crashes > crashes or self.doubtful
        assert len({str(outcome.offsets) for outcome in outcomes}) == 1
        rows: dict[str, list[bytes]] = {}
        for staged, payloads in chosen:
            rows.setdefault(staged.topic, []).extend(payloads)
        assert set(outcomes[0].offsets) == {topic for topic, found in rows.items() if found}
        job.last = batch
        job.committed.append((batch, rows, outcomes[0]))
        job.staged = {number: found for number, found in job.staged.items() if number > batch}

    async def repeat(self, name: str, back: int) -> None:
        """A batch that was committed is committed again, by a driver that did not hear of it."""
        job = self.jobs[name]
        if job.committed:
            batch, _, outcome = job.committed[max(0, len(job.committed) - 1 - back)]
            again = await self.client.stages.commit(name, batch, [])
            assert not again.committed
            assert again.offsets == (outcome.offsets if batch == job.last else {})
            assert await self.client.stages.last_batch(name) == job.last

    async def abort(self, name: str, ahead: int) -> None:
        """The driver gives a batch up, or says so of one that is committed."""
        job = self.jobs[name]
        batch = max(0, job.last + ahead)
        assert await self.client.stages.abort(name, batch) == (batch <= job.last)
        gone = job.staged.pop(batch, [])
        if gone:
            await self.refused(name, batch, [staged for staged, _ in gone])

    async def give_up(self, name: str, ahead: int, topic: str, tasks: int, pause: int, after: int) -> None:
        """A job fails while its tasks are at work; some of them go on behind the abort of their driver."""
        job = self.jobs[name]
        batch = max(0, job.last + ahead)
        write = f"{name}-write-{len(job.aborted)}"

        async def task(number: int) -> None:
            await trio.sleep(number * pause * 0.001)
            await self.stage_for(name, batch, topic, write, pause * 0.001)

        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(task, number)
            await trio.sleep(after * 0.001)
            assert await self.client.stages.abort(name, batch, write_id=write) == (batch <= job.last)
        job.aborted.append((batch, write))
        await self.nothing_of_aborted_writes()

    async def late(self, name: str, back: int, topic: str) -> None:
        """A task stages for a write that was given up some time ago."""
        job = self.jobs[name]
        if job.aborted:
            batch, write = job.aborted[max(0, len(job.aborted) - 1 - back)]
            assert not await self.stage_for(name, batch, topic, write, 0.0)
            await self.nothing_of_aborted_writes()

    async def stage_for(self, name: str, batch: int, topic: str, write: str, pause_s: float) -> bool:
        """Stage for a write that is given up now or was before; return whether the broker took it."""
        job = self.jobs[name]
        opening = self.client.stages.open(topic, producer=name, batch_id=batch, attempt=write, write_id=write)
        try:
            async with opening as stage:
                await stage.add(job.rows(3))
                await trio.sleep(pause_s)
                await stage.finish()
                return not stage.committed
        except DanubeError as error:
            aborted = isinstance(error, FailedPreconditionError) and "aborted" in error.message
            if not aborted and not error.retryable:
                raise
        return False

    async def nothing_of_aborted_writes(self) -> None:
        given_up = {write for job in self.jobs.values() for _, write in job.aborted}
        assert given_up.isdisjoint(one.attempt for one in (await self.client.stages.describe()).stages)

    async def refused(self, name: str, batch: int, stages: list[StagedBatch]) -> None:
        """Stages that are gone cannot be committed, and nothing of the others is either."""
        with pytest.raises(FailedPreconditionError, match=f"{stages[0].stage_id:016x}"):
            await self.client.stages.commit(name, batch, stages)

    async def publish(self, topic: str, count: int) -> None:
        """Another producer publishes there."""
        payloads = [f"foreign {len(self.foreign[topic]) + number}".encode() for number in range(count)]
        async with self.client.producer(topic) as producer:
            await producer.send_many(payloads)
        self.foreign[topic] += payloads

    async def expire(self) -> None:
        """No client does anything for a long time."""
        await trio.sleep(2 * EXPIRY_S)
        for job in self.jobs.values():
            for batch, found in job.staged.items():
                await self.refused(job.name, batch, [staged for staged, _ in found])
            job.staged.clear()

    async def crash(self, power_loss: bool) -> None:
        """The broker dies between two steps."""
        self.strike(power_loss)
        await self.up()

    async def up(self) -> None:
        """Wait until a broker listens that is not about to die."""
        await trio.sleep(0.01)
        while not self.world.node.ready.is_set():  # noqa: ASYNC110 - each life has an event of its own
            await trio.sleep(0.1)

    async def trap(self, touches: int, passes: int, power_loss: bool) -> None:
        """The broker dies in one of the next steps, a little after it has touched a disk."""
        left = touches

        async def strike() -> None:
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            self.strike(power_loss)

        def touched(_what: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                self.world._machines.start_soon(strike)

        self.world.node.on_touch = touched

    def strike(self, power_loss: bool) -> None:
        self.world.node.on_touch = lambda what: None
        self.crashes += 1
        self.world.crash(self.world.node, power_loss=power_loss)

    async def metadata(self, refuse: float, lose_answer: float) -> None:
        """Metadata calls are refused, or lose their answers, from now on, as long as this broker lives."""
        store = self.world.node._metadata_store
        if store is not None:
            store.refuse, store.lose_answer = refuse, lose_answer
            self.doubtful = self.doubtful or bool(refuse or lose_answer)

    async def storage(self, refuse: float, lose_answer: float, away_s: float) -> None:
        """Calls of storages are refused, or lose their answers, as long as this broker lives; or they are away."""
        for each in self.world.node._storages:
            each.unavailable, each.throttle, each.lose_answer = refuse, refuse / 2, lose_answer
            if away_s:
                each.down_between(0, away_s)
        self.doubtful = self.doubtful or bool(refuse or lose_answer or away_s)

    # --- The end ---

    async def check(self) -> None:
        world = self.world
        world.node.on_touch = lambda what: None
        await self.metadata(0.0, 0.0)
        await self.storage(0.0, 0.0, 0.0)
        await self.up()
        for topic in TOPICS:
            found: list[bytes] = []
            async with self.client.reader(topic, start="earliest") as reader:
                async for batch in reader.batches(until_caught_up=True):
                    found += batch.payloads()
            assert [row for row in found if row.startswith(b"foreign")] == self.foreign[topic]
            for job in self.jobs.values():
                expected = [row for _, rows, _ in job.committed for row in rows.get(topic, [])]
                assert [row for row in found if row.startswith(job.name.encode())] == expected
                for _, rows, outcome in job.committed:
                    if rows.get(topic):
                        start, end = outcome.offsets[topic]
                        places = [found.index(row) for row in rows[topic]]
                        assert start <= places[0]
                        assert places[-1] == end - 1
        for job in self.jobs.values():
            assert await self.client.stages.last_batch(job.name) == (job.last if job.last >= 0 else None)
        await self.nothing_of_aborted_writes()
        await self.expire()
        assert (await self.client.stages.describe()).stages == []
        assert world.node.stage_disk.names() == []


def simulate(seed: int, work: Callable[[Model], Awaitable[None]]) -> None:
    async def main() -> None:
        async with world_of(seed) as world:
            with trio.fail_after(10_000):
                async with world.applications.client("here", Random(seed), "broker") as client:
                    await client.admin.create_topic(PLAIN, durability="disk")
                    await client.admin.create_topic(BASE, partitions=2, durability="disk")
                    await client.admin.create_topic(FAR, durability="remote")
                    model = Model(world, client)
                    await work(model)
                    await model.check()

    run_seeded(main, seed)


names = st.sampled_from(PRODUCERS)
topics = st.sampled_from(TOPICS)
stage = st.tuples(st.just("stage"), names, st.integers(0, 2), topics, st.integers(0, 30), st.booleans())
good = st.tuples(st.just("stage"), names, st.just(1), topics, st.integers(1, 30), st.just(True))
commit = st.tuples(st.just("commit"), names, st.integers(-1, 2), st.booleans())
repeat = st.tuples(st.just("repeat"), names, st.integers(0, 2))
abort = st.tuples(st.just("abort"), names, st.integers(0, 2))
small = st.integers(0, 30)
give_up = st.tuples(st.just("give_up"), names, st.integers(0, 2), topics, st.integers(0, 4), small, small)
late = st.tuples(st.just("late"), names, st.integers(0, 2), topics)
publish = st.tuples(st.just("publish"), topics, st.integers(1, 5))
expire = st.tuples(st.just("expire"))
crash = st.tuples(st.just("crash"), st.booleans())
trap = st.tuples(st.just("trap"), st.integers(1, 12), st.integers(0, 40), st.booleans())
chances = st.sampled_from((0.0, 0.3))
metadata = st.tuples(st.just("metadata"), chances, chances)
storage = st.tuples(st.just("storage"), chances, chances, st.sampled_from((0.0, 0.0, 1.0, 15.0)))
steps = st.lists(
    st.one_of(
        *(good, good, stage, commit, commit, repeat, abort, give_up, give_up, late, publish, expire, crash, trap, trap),
        *(metadata, storage),
    ),
    min_size=4,
    max_size=24,
)


@given(steps=steps, seed=st.integers(1, 1000))
@settings(max_examples=20, deadline=None)
def test_every_committed_batch_is_there_once_and_nothing_else(steps: list[tuple[str, object]], seed: int) -> None:
    async def work(model: Model) -> None:
        for name, *arguments in steps:
            await getattr(model, name)(*arguments)

    simulate(seed, work)


def test_a_commit_survives_a_crash_at_each_of_its_steps() -> None:
    """Each touch of a disk during a commit of three topics, and the passes behind it, is once where the broker dies."""

    async def work(model: Model) -> None:
        for number in range(30):
            for topic in TOPICS:
                await model.stage("one", 1, topic, 5, True)
            await model.trap(1 + number % 10, number % 7 * 4, bool(number % 2))
            await model.commit("one", -1, False)
            await model.up()
        assert model.crashes > 20

    simulate(7, work)


def test_nothing_is_left_of_a_write_that_is_given_up_at_any_moment() -> None:
    """The broker dies here and there, before the abort is answered and after it; tasks stage before and behind it."""

    async def work(model: Model) -> None:
        for number in range(40):
            if number % 3 == 0:
                await model.trap(1 + number % 8, number % 5 * 4, bool(number % 2))
            await model.give_up("one", 1, TOPICS[number % 4], 4, number % 7, number % 11)
            await model.up()
            if number % 4 == 0:
                await model.crash(bool(number % 8))
            await model.late("one", number % 3, TOPICS[number % 4])
            if number % 10 == 9:
                await model.stage("one", 1, PLAIN, 5, True)
                await model.commit("one", -1, False)
        assert model.crashes > 15

    simulate(11, work)


def test_batches_that_an_os_topic_lost_do_not_stop_the_next_ones() -> None:
    """Batches of durability ``os`` may go with the power, and so may their sequences. The next ones still count."""

    async def work(model: Model) -> None:
        client = model.client
        await client.admin.create_topic("/default/os", durability="os")
        lost = 0
        for batch in range(20):
            payloads = [b"%d %d" % (batch, row) for row in range(5)]
            async with client.stages.open("/default/os", producer="os-job", batch_id=batch) as stage:
                await stage.add(payloads)
                staged = await stage.finish()
            if batch % 2:
                await model.trap(1 + batch % 5, batch, True)
            outcome = await client.stages.commit("os-job", batch, [staged])
            await model.up()
            if batch % 3 == 0:
                model.strike(True)
                await model.up()
            found = []
            async with client.reader("/default/os", start="earliest") as reader:
                async for one in reader.batches(until_caught_up=True):
                    found += one.payloads()
            mine = [row for row in found if row in payloads]
            assert mine in ([], payloads)
            assert sorted(set(found), key=found.index) == found
            lost += not mine
            assert set(outcome.offsets) <= {"/default/os"}
        assert 0 < lost < 20

    simulate(3, work)
