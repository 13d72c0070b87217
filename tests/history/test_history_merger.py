"""Merging continues beside damaged or missing objects, and so do later operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from history_lives import GRACE_S, LIMITS, Life, World, run_lives

from danube.model.errors import OwnerFencedError, StorageUnavailableError


async def three_small_parts(life: Life) -> dict[int, list[str]]:
    """Seal as much as is due to be merged, one part to an object; return the objects of each topic."""
    objects: dict[int, list[str]] = {}
    for topic_id in life.topics:
        for _ in range(LIMITS.segment_merge_parts):
            await life.append(topic_id, 1, (300,))
            await life.seal(topic_id)
        objects[topic_id] = [record.object for record in life.catalogue.topic(topic_id).parts]
        assert len(set(objects[topic_id])) == LIMITS.segment_merge_parts
    return objects


def lose(world: World, key: str) -> None:
    world.space.remove(key)


def cut_off(world: World, key: str) -> None:
    kept, time_us = world.space.objects[key]
    world.space.store(key, kept[:40], time_us)


def damage(world: World, key: str) -> None:
    kept, time_us = world.space.objects[key]
    world.space.store(key, kept[:60] + bytes([kept[60] ^ 1]) + kept[61:], time_us)


@pytest.mark.parametrize("harm", [lose, cut_off, damage])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("topic_id", [1, 2, 3])
def test_damaged_parts_stay_and_the_others_are_merged(
    harm: Callable[[World, str], None], number: int, topic_id: int
) -> None:
    async def work(life: Life) -> None:
        objects = await three_small_parts(life)
        harm(life.world, objects[topic_id][number])
        life.history.reader._footers.clear()
        for _ in range(2):
            await life.history.keep()
        assert {each: len(life.catalogue.topic(each).parts) for each in life.topics} == {
            each: len(objects[each]) if each == topic_id else 1 for each in life.topics
        }
        await trio.sleep(2 * GRACE_S)
        await life.history.keep()  # what was merged had its grace; what is harmed is still referenced
        harmed = {objects[topic_id][number]} if harm is lose else set()
        assert life.world.space.objects.keys() & {key for keys in objects.values() for key in keys} == (
            set(objects[topic_id]) - harmed
        )
        del life.topics[topic_id]
        await life.check_content("beside the damage")  # an abandoned copy has no effect

    async def scenario(world: World) -> None:
        assert await world.live(work)

    run_lives(scenario, 3)


def test_garbage_goes_although_merging_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(life: Life) -> None:
        objects = await three_small_parts(life)
        await life.history.keep()
        assert life.catalogue.garbage_until(1 << 60)
        await trio.sleep(2 * GRACE_S)

        async def fail(*_arguments: object) -> int:
            raise StorageUnavailableError("no writing today")

        async def fenced(*_arguments: object) -> int:
            raise OwnerFencedError("another broker has taken over")

        monkeypatch.setattr(life.history.merger, "merge", fail)
        before = set(life.world.space.objects)
        pending = life.history.manifests["default"]
        pending.note(topics={"/default/other": b"record"})
        with pytest.raises(StorageUnavailableError, match="no writing today"):
            await life.history.keep()
        assert not pending.pending
        assert not life.catalogue.garbage_until(1 << 60)
        assert before - set(life.world.space.objects) >= {key for keys in objects.values() for key in keys}
        # A former owner deletes nothing.
        monkeypatch.setattr(life.history.merger, "merge", fenced)
        monkeypatch.setattr(life.history.janitor, "collect", None)
        with pytest.raises(OwnerFencedError):
            await life.history.keep()
        monkeypatch.undo()

    async def scenario(world: World) -> None:
        # The keeper of the broker has to stay out of the way: it would have collected long ago.
        monkeypatch.setattr("danube.history.history._KEEP_INTERVAL_S", 1e9)
        monkeypatch.setattr("danube.history.history.History._pause_s", lambda _history, _begun_us: 1e9)
        assert await world.live(work)

    run_lives(scenario, 3)
