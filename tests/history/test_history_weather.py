"""Lives of a broker with a bad network to bucket and metadata, with deaths in between, and beside its own successor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from history_lives import GRACE_S, Cut, Life, World, run_lives, wall_clock_us
from sealed import check_catalogue, claim

from danube.history import read_bucket
from danube.history.packing import segment_prefix
from danube.model.errors import MetadataConflictError, OwnerFencedError, StorageError, UnavailableError
from danube.storage import StorageBackend
from danube.testing.metadata import FaultyMetadataStore
from danube.testing.storage_faults import FaultyStorage

# Weather


def day_in_bad_weather(random: Random) -> Callable[[Life], Awaitable[None]]:
    """A day whose seals may fail; they are tried again."""

    async def work(life: Life) -> None:
        for _ in range(random.randrange(3, 9)):
            topic = random.choice(list(life.topics.values()))
            await life.append(topic.topic_id, random.choice((1, 4, 12)))
            topic.truth.floor = max(topic.truth.floor, topic.log.end_offset - random.choice((8, 60)))
            try:
                with trio.move_on_after(random.choice((0.05, 1, 60))):
                    await life.seal(*life.topics)
                    await life.history.keep()
            except (StorageError, UnavailableError, MetadataConflictError):
                pass  # reported to the caller; the sealer continues by itself
            await trio.sleep(random.choice((0, 0.01, 3, 2 * GRACE_S)))

    return work


@pytest.mark.parametrize("seed", range(8))
def test_lives_in_bad_weather(seed: int) -> None:
    async def scenario(world: World) -> None:
        random = world.random
        faults = []

        def wrap(backend: StorageBackend) -> StorageBackend:
            faulty = FaultyStorage(backend, random, latency_s=0.02)
            for name in ("throttle", "unavailable", "lose_answer", "conflict", "hang"):
                setattr(faulty, name, random.choice((0, 0.05, 0.2)))
            faults.append(faulty)
            return faulty

        def bad_metadata(store: FaultyMetadataStore) -> None:
            store.latency_s = 0.005
            store.refuse, store.lose_answer = random.choice((0, 0.1)), random.choice((0, 0.1))

        for life in range(4):
            cut = Cut(random.choice((10, 40, 1 << 60)))
            await world.live(day_in_bad_weather(random), cut, wrap=wrap, bad_metadata=bad_metadata)
            await world.check(f"seed {seed}, life {life}")
        assert sum(sum(faulty.faults.values()) for faulty in faults)

    run_lives(scenario, seed)


def test_lost_answers_of_puts_are_no_failure() -> None:
    async def scenario(world: World) -> None:
        def wrap(backend: StorageBackend) -> StorageBackend:
            return FaultyStorage(backend, world.random, lose_answer=1.0, lose_answer_of=frozenset({"put"}))

        async def work(life: Life) -> None:
            await life.append(1, 12)
            await life.seal(1)
            assert life.topics[1].log.journal_start == life.topics[1].log.end_offset
            await life.check_content("lost")
            await life.check_order("lost")

        assert await world.live(work, wrap=wrap)
        await world.check("lost")

    run_lives(scenario, 1)


def test_batches_whose_object_reads_back_different_stay_in_the_journal() -> None:
    async def scenario(world: World) -> None:
        faulty: FaultyStorage

        def wrap(backend: StorageBackend) -> StorageBackend:
            nonlocal faulty
            faulty = FaultyStorage(backend, world.random, corrupt=1.0)
            return faulty

        async def work(life: Life) -> None:
            await life.append(1, 30)
            with pytest.raises(StorageError, match="differs from the object that was written"):
                await life.seal(1)
            await trio.sleep(100)
            assert "differs from" in life.history.sealer.status().last_error
            assert life.topics[1].log.journal_start == 0
            assert not list(life.catalogue.all_parts())
            faulty.corrupt = 0.0
            await trio.sleep(100)
            assert life.topics[1].log.journal_start > 0
            assert not life.history.sealer.status().last_error
            await life.check_content("corrupt")
            await life.check_order("corrupt")

        assert await world.live(work, wrap=wrap)
        await world.check("corrupt")

    run_lives(scenario, 1)


def test_retention_in_the_middle_of_a_batch_loses_nothing_behind_it() -> None:
    async def scenario(world: World) -> None:
        faulty: FaultyStorage

        def wrap(backend: StorageBackend) -> StorageBackend:
            nonlocal faulty
            faulty = FaultyStorage(backend, world.random)
            faulty.down = True
            return faulty

        async def work(life: Life) -> None:
            topic = life.topics[1]
            await life.append(1, 30, (900,))  # several segments
            middle = next(b for b in topic.truth.batches if b.base_offset > 8 and b.end_offset - b.base_offset > 1)
            topic.truth.floor = middle.base_offset + 1
            await life.history.expire(topic)
            assert topic.log.start_offset == topic.log.journal_start == middle.base_offset + 1
            faulty.down = False
            await trio.sleep(60)
            await life.seal(1)
            parts = life.catalogue.topic(1).parts
            assert len(parts) > 2
            assert parts[0].part.base_offset == middle.base_offset
            await life.check_content("middle")
            await life.check_order("middle")

        assert await world.live(work, wrap=wrap)
        await world.check("middle")

    run_lives(scenario, 1)


# Two owners


@pytest.mark.parametrize("seed", range(6))
def test_a_former_owner_that_goes_on_changes_nothing(seed: int) -> None:
    """Paused in the middle of its work, it wakes up beside its successor. Its objects become orphans, no more."""

    async def scenario(world: World) -> None:
        random = world.random
        fenced = trio.Event()

        async def work(life: Life) -> None:
            await life.append(1, 12, (10,))
            await life.append(2, 6, (10,))
            await life.seal(1, 2)
            await life.append(1, 12, (10,))  # less than a segment: it waits
            owner = await claim(world.metadata, "one")
            picture = await world.metadata.list("/")
            manifests = {key for key in world.space.objects if key.startswith("manifests")}
            attempts = [
                lambda: life.history.sealer._sealers["default"]._seal([life.topics[1], life.topics[2]], {1, 2}),
                lambda: life.history.drop_topic(2, "/default/t2"),
                lambda: life.catalogue.expire(1, 5, wall_clock_us()),
            ]
            random.shuffle(attempts)
            for attempt in attempts:
                with pytest.RaisesGroup(OwnerFencedError, allow_unwrapped=True, flatten_subgroups=True):
                    await attempt()
            assert await world.metadata.list("/") == picture
            assert {key for key in world.space.objects if key.startswith("manifests")} == manifests
            assert life.topics[1].log.journal_start < life.topics[1].log.end_offset
            await check_catalogue(world.metadata, owner)
            fenced.set()

        await world.live(work)
        assert fenced.is_set()
        await world.check(f"seed {seed}")

    run_lives(scenario, seed)


def test_the_sealer_of_a_former_owner_ends() -> None:
    async def scenario(world: World) -> None:
        async def work(life: Life) -> None:
            await life.append(1, 12)
            await claim(world.metadata, "one")
            await life.seal(1)

        with pytest.RaisesGroup(OwnerFencedError, flatten_subgroups=True):
            await world.live(work)
        assert any(key.startswith(segment_prefix("c")) for key in world.space.objects)  # an orphan

    run_lives(scenario, 0)


# The bucket alone


@pytest.mark.parametrize("seed", range(4))
def test_the_bucket_always_tells_of_everything_that_has_left_the_journal(seed: int) -> None:
    async def scenario(world: World) -> None:
        async def look(life: Life) -> None:
            while True:
                await trio.sleep(world.random.random() * 0.05)
                starts = {topic.topic_id: topic.log.journal_start for topic in life.topics.values()}
                bucket = await read_bucket(life.storage, "c")
                for topic_id, start in starts.items():
                    ends = [part.end_offset for _, part in bucket.parts.get(topic_id, {}).values()]
                    assert max(ends, default=0) >= start

        async def work(life: Life) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(look, life)
                for _ in range(12):
                    await life.append(world.random.choice((1, 2, 3)), world.random.choice((2, 9)))
                    await life.seal(1, 2, 3)
                    await life.history.keep()
                nursery.cancel_scope.cancel()

        def wrap(backend: StorageBackend) -> StorageBackend:
            return FaultyStorage(backend, world.random, latency_s=0.02, lose_answer=0.1)

        assert await world.live(work, wrap=wrap)
        await world.check(f"seed {seed}")

    run_lives(scenario, seed)
