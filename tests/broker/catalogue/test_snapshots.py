"""Snapshots of any size: in one object or in parts, and interrupted at any call."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker

from danube.broker.catalogue.snapshots import Snapshots
from danube.metadata import MemoryStore
from danube.model.errors import DataLossError, LimitExceededError, UnavailableError
from danube.model.limits import KIB, Limits

pytestmark = pytest.mark.virtual

SMALL, LARGE, LARGER = b"small", random.Random(1).randbytes(700 * KIB), random.Random(2).randbytes(1700 * KIB)


async def keys(store: MemoryStore) -> list[str]:
    return [item.key for item in (await store.list("/"))[0]]


@pytest.mark.parametrize("values", [[SMALL, LARGE], [LARGE, SMALL, SMALL], [LARGE, LARGER, LARGE, b""]], ids=len)
async def test_a_snapshot_has_any_size(values: Sequence[bytes]) -> None:
    async with MemoryStore() as store:
        for value in values:
            await Snapshots(store).load("topics")  # as after a restart
            snapshots = Snapshots(store)
            assert set(await snapshots.load("topics")) <= {7}
            await snapshots.save([("topics", 7, value), ("cursors", 7, SMALL)])
            assert await Snapshots(store).load("topics") == {7: value}
            parts = [key for key in await keys(store) if key.startswith("/snapshot-parts/")]
            assert len(parts) == (-(-len(value) // (512 * KIB)) if len(value) >= 512 * KIB else 0)
        assert await snapshots.ids("topics") == {7}
        await snapshots.delete("topics", 7)
        assert await keys(store) == ["/snapshots/cursors/0000000000000007"]


class Broken(MemoryStore):
    """Refuses every change from the nth on."""

    left = 1_000_000

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise UnavailableError("planted")

    async def put(self, *arguments: Any, **options: Any) -> Any:
        self._spend()
        return await super().put(*arguments, **options)

    async def delete(self, *arguments: Any, **options: Any) -> Any:
        self._spend()
        return await super().delete(*arguments, **options)

    async def transact(self, *arguments: Any, **options: Any) -> Any:
        self._spend()
        return await super().transact(*arguments, **options)


@pytest.mark.parametrize(("old", "new"), [(LARGE, LARGER), (LARGER, SMALL), (SMALL, LARGER)])
async def test_what_is_cut_off_leaves_the_old_one_or_the_new_one(old: bytes, new: bytes) -> None:
    seen = set()
    for calls in range(12):
        async with Broken() as store:
            await Snapshots(store).save([("topics", 7, old)])
            snapshots = Snapshots(store)
            await snapshots.load("topics")
            store.left = calls
            try:
                await snapshots.save([("topics", 7, new)])
            except UnavailableError:
                seen.add("cut off")
            store.left = 1_000_000
            found = (await Snapshots(store).load("topics"))[7]
            assert found in (old, new)
            seen.add("old" if found == old else "new")
            if calls % 2:  # the same process tries again
                await snapshots.save([("topics", 7, new)])
                assert await Snapshots(store).load("topics") == {7: new}
            later = Snapshots(store)
            kept = await later.load("topics")
            assert await later.sweep("topics", {7}) == 0
            assert await Snapshots(store).load("topics") == kept
            parts = [key for key in await keys(store) if key.startswith("/snapshot-parts/")]
            assert len(parts) == (-(-len(kept[7]) // (512 * KIB)) if len(kept[7]) >= 512 * KIB else 0)
            assert await later.sweep("topics", ()) == 1
            assert await keys(store) == []
    assert seen == {"cut off", "old", "new"}


async def test_a_missing_part_is_told() -> None:
    async with MemoryStore() as store:
        await Snapshots(store).save([("cursors", 7, LARGE)])
        part = next(key for key in await keys(store) if key.startswith("/snapshot-parts/"))
        await store.delete(part)
        with pytest.raises(DataLossError, match=part):
            await Snapshots(store).load("cursors")


async def test_a_topic_with_many_producers_comes_back(tmp_path: Path) -> None:
    """Their table is larger than one value of the store may be: the checkpoint failed, and the broker with it."""
    names = [f"{number:04}".rjust(254, "x") for number in range(3_500)]
    async with running_broker(tmp_path, patience_s=60) as running, running.client() as client:
        await client.admin.create_topic("/default/t")

        async def register(names: Sequence[str]) -> None:
            for name in names:
                ids[name] = await running.topic("/default/t").intake.register(name)

        ids: dict[str, int] = {}
        async with trio.open_nursery() as nursery:
            for first in range(0, len(names), 100):
                nursery.start_soon(register, names[first : first + 100])
        assert len(running.topic("/default/t").snapshot()) > Limits().metadata_max_value_bytes
        await running.broker._checkpoint()
        for crash in (True, False):
            await running.restart(crash=crash)
            intake = running.topic("/default/t").intake
            assert [await intake.register(name) for name in names[::500]] == [ids[name] for name in names[::500]]


async def test_how_many_producers_are_remembered(tmp_path: Path) -> None:
    limits = {"max_known_producers_per_topic": 2}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        intake = running.topic("/default/t").intake
        known = await intake.register("a")
        async with client.producer("/default/t", name="b") as producer:
            await producer.send(b"one")
        with pytest.raises(LimitExceededError, match="max_known_producers_per_topic"):
            await intake.register("c")
        with pytest.raises(LimitExceededError, match="'d' cannot be registered"):
            async with client.producer("/default/t", name="d"):
                pass
        assert await intake.register("a") == known
        async with client.producer("/default/t", name="b") as producer:
            await producer.send(b"two")
