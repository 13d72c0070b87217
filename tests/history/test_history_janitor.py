"""The janitor finds missing, damaged and orphaned objects, and deletes none that a reader may need."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from history_lives import GRACE_S, Life, World, run_lives, wall_clock_us

from danube.history.objects import object_name
from danube.history.packing import segment_prefix
from danube.history.parts import GarbageRecord, ObjectRef
from danube.model.errors import DanubeError, OwnerFencedError, StorageError
from danube.storage import StorageBackend
from danube.testing.metadata import FaultyMetadataStore
from danube.testing.storage_faults import FaultyStorage


def segments(world: World) -> list[str]:
    return sorted(key for key in world.space.objects if key.startswith(segment_prefix("c")))


def test_missing_and_damaged_objects_are_named() -> None:
    async def work(life: Life) -> None:
        world = life.world
        for _ in range(3):
            await life.append(1, 8, (900,))
            await life.append(2, 2, (100,))
            await life.seal(1, 2)
        janitor = life.history.janitor
        report = await janitor.check("default", deep=True)
        assert report.ok
        assert report.objects == report.referenced == len(segments(world))
        assert report.size_bytes == sum(len(world.space.objects[key][0]) for key in segments(world))
        assert await janitor.check_manifests("default") >= 3

        for record in list(life.catalogue.all_parts()):
            part = record.part
            kept, time_us = world.space.objects[record.object]
            for at in (part.start, part.end - 1, part.index_start, part.index_end - 1):
                world.space.store(record.object, kept[:at] + bytes([kept[at] ^ 8]) + kept[at + 1 :], time_us)
                assert (await janitor.check("default")).ok  # sizes and names are right
                (damaged,) = (await janitor.check("default", deep=True)).damaged
                assert f"topic {part.topic_id:016x}, offsets [{part.base_offset}, {part.end_offset})" in damaged
                assert record.object in damaged
            world.space.store(record.object, kept, time_us)

        short, gone = segments(world)[:2]
        kept, time_us = world.space.objects[short]
        world.space.store(short, kept[:-1], time_us)
        world.space.remove(gone)
        report = await janitor.repair("default")
        assert not report.ok
        assert report.missing == [f"{short}: {len(kept) - 1} bytes instead of {len(kept)}", f"{gone}: not there"]
        assert report.deleted == 0
        assert short in segments(world)

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


def test_orphans_are_deleted_when_no_reader_can_need_them() -> None:
    async def work(life: Life) -> None:
        world, epoch = life.world, life.catalogue.tenure.life
        await life.append(1, 8)
        await life.seal(1)
        wanted = segments(world)
        await trio.sleep(GRACE_S)
        old_us, new_us = wall_clock_us(), wall_clock_us() + int(GRACE_S * 1e6)
        names = {
            "mine": object_name("c", old_us, "b1", epoch, world.random),
            "my predecessor's": object_name("c", old_us, "b1", epoch - 1, world.random),
            "under way": object_name("c", new_us, "b1", epoch, world.random),
            "my successor's": object_name("c", old_us, "b1", epoch + 1, world.random),
            "another cluster's": object_name("d", old_us, "b1", epoch, world.random),
            "the user's": "segments/c/README.txt",
        }
        for key in names.values():
            world.space.store(key, b"x", 0)
        await trio.sleep(1.5 * GRACE_S)
        orphans = sorted((names["mine"], names["my predecessor's"]))
        report = await life.history.janitor.check("default")
        assert report.orphans == orphans
        assert report.recent == 3
        assert report.ok
        assert (await life.history.janitor.repair("default")).deleted == 2
        assert not set(orphans) & world.space.objects.keys()
        assert set(names.values()) - set(orphans) < world.space.objects.keys()
        assert set(wanted) < world.space.objects.keys()
        await life.check_content("orphans")

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


@pytest.mark.parametrize("metadata", ["away", "back"])
def test_an_object_that_may_have_been_entered_is_no_orphan(metadata: str) -> None:
    """The answer to its transaction was lost, more than the grace ago: the store may know what memory does not."""

    async def scenario(world: World) -> None:
        stores: list[FaultyMetadataStore] = []

        async def work(life: Life) -> None:
            await life.append(1, 8)
            stores[0].lose_answer = 1.0
            with pytest.raises(StorageError):
                await life.seal(1)
            await trio.sleep(2 * GRACE_S)
            if metadata == "back":
                stores[0].lose_answer = 0.0
                await life.history.janitor.repair("default")
            else:
                with pytest.raises(DanubeError):
                    await life.history.janitor.repair("default")
            stores[0].lose_answer = 0.0
            with suppress(StorageError):  # it may find out on the way that it was entered
                await life.seal(1)
            await life.seal(1)
            report = await life.history.janitor.check("default", deep=True)
            assert report.ok, report
            life.topics[1].log._cached.clear()
            await life.check_content("doubt")

        assert await world.live(work, bad_metadata=stores.append)

    run_lives(scenario, 3)


def test_an_object_on_its_way_is_no_orphan_whatever_the_clock_says() -> None:
    async def scenario(world: World) -> None:
        class Slow(FaultyStorage):
            async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
                if key.startswith("segments/") and not released.is_set():
                    uploaded.set()
                    await released.wait()  # it is being verified
                return await super().get(key, start, end)

        uploaded, released = trio.Event(), trio.Event()

        async def work(life: Life) -> None:
            await life.append(1, 8)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(life.seal, 1)
                await uploaded.wait()
                life.history.janitor._clock_us = lambda: wall_clock_us() + int(1e12)  # the machine's clock was stepped
                report = await life.history.janitor.repair("default")
                assert (report.deleted, report.recent) == (0, 1)
                released.set()
            assert (await life.history.janitor.check("default", deep=True)).ok

        assert await world.live(work, wrap=lambda backend: Slow(backend, world.random))

    run_lives(scenario, 3)


def test_a_former_owner_that_has_slept_deletes_nothing_of_its_successor() -> None:
    """Everything is older than the grace when it wakes up, and it has never heard of any of it."""

    async def scenario(world: World) -> None:
        async def former(life: Life) -> None:
            await life.append(1, 8)
            await life.seal(1)
            own = len(segments(world))

            async def successor(later: Life) -> None:
                await later.append(2, 8)
                await later.seal(2)
                known = segments(world)
                assert len(known) > own
                await trio.sleep(3 * GRACE_S)
                report = await life.history.janitor.check("default")
                assert (report.orphans, report.recent) == ([], len(known) - own)
                with pytest.raises(OwnerFencedError, match="a later broker owns this history"):
                    await life.history.janitor.repair("default")
                assert segments(world) == known
                await later.check_content("successor")

            elsewhere = World(5, world.metadata)
            elsewhere.space, elsewhere.topics = world.space, world.topics
            assert await elsewhere.live(successor)

        assert await world.live(former)

    run_lives(scenario, 4)


@pytest.mark.parametrize("trouble", ["not configured", "denied"])
def test_garbage_that_cannot_be_deleted_causes_no_busy_loop(trouble: str) -> None:
    async def scenario(world: World) -> None:
        faults: list[FaultyStorage] = []

        def wrap(backend: StorageBackend) -> StorageBackend:
            faults.append(FaultyStorage(backend, world.random))
            return faults[0]

        async def work(life: Life) -> None:
            await life.append(1, 8)
            await life.seal(1)
            if trouble == "denied":
                await life.drop(1)
                faults[0].denied = True
            else:
                ref = ObjectRef("former", "segments/c/x.seg")
                life.catalogue.garbage[ref] = GarbageRecord("b1", 1, 1, 1)
            await trio.sleep(2 * GRACE_S)
            rounds = 0
            keep = life.history.keep

            async def counted() -> None:
                nonlocal rounds
                rounds += 1
                await keep()

            life.history.keep = counted  # type: ignore[method-assign]
            await trio.sleep(600)
            assert 15 <= rounds <= 21  # each half minute
            faults[0].denied = False
            await trio.sleep(60)
            assert trouble != "denied" or not life.catalogue.garbage

        assert await world.live(work, wrap=wrap)

    run_lives(scenario, 3)
