"""A storage is recognized by its marker: one that is away is neither empty, nor a place to write to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest
import trio

from danube.model.errors import StorageNotFoundError, StorageUnavailableError, UnavailableError
from danube.model.limits import MIB, Limits
from danube.storage import (
    Marker,
    MemoryBackend,
    MemorySpace,
    Storage,
    StorageBackend,
    StorageCapabilities,
    open_backend,
    open_disk,
)
from danube.testing.storage_faults import FaultyStorage

LIMITS = Limits(storage_max_attempts=1)
KEY = "markers/c"


class Lives:
    """A storage over lives of its broker, which remembers the identity."""

    def __init__(self, backend: StorageBackend) -> None:
        self.backend = backend
        self.remembered: list[str] = []
        self.refuses = False
        self.random = Random(1)

    async def remember(self, identity: str, replace: bool) -> str:
        if self.refuses:
            raise UnavailableError("the metadata is away")
        if replace or not self.remembered:
            self.remembered.append(identity)
        return self.remembered[-1]

    def life(self, limits: Limits = LIMITS) -> Storage:
        identity = self.remembered[-1] if self.remembered else ""
        marker = Marker("default", "c", random=self.random, remember=self.remember, identity=identity)
        return Storage(self.backend, random=Random(2), limits=limits, marker=marker)


class Mounted(MemoryBackend):
    """A directory: it may be missing, or empty, at any time."""

    @property
    def capabilities(self) -> StorageCapabilities:
        return msgspec.structs.replace(super().capabilities, mounted=True)


@asynccontextmanager
async def memory(tmp_path: Path) -> AsyncIterator[tuple[StorageBackend, Callable[[bool], None]]]:
    backend = Mounted(durable=True)
    real = backend.space

    def mount(there: bool) -> None:
        backend.space = real if there else MemorySpace()

    yield backend, mount


@asynccontextmanager
async def directory(tmp_path: Path) -> AsyncIterator[tuple[StorageBackend, Callable[[bool], None]]]:
    async with open_disk(tmp_path / "store") as backend:
        yield backend, mounting(tmp_path)


@asynccontextmanager
async def generic(tmp_path: Path) -> AsyncIterator[tuple[StorageBackend, Callable[[bool], None]]]:
    (tmp_path / "store").mkdir()
    async with open_backend(f"fsspec+file://{tmp_path / 'store'}?durable=true") as backend:
        yield backend, mounting(tmp_path)


def mounting(tmp_path: Path) -> Callable[[bool], None]:
    """Return a function that mounts, or takes away, a directory; an empty one is in its place then."""
    store, real, empty = tmp_path / "store", tmp_path / "real", tmp_path / "empty"
    (empty / ".uploads").mkdir(parents=True)

    def mount(there: bool) -> None:
        store.rename(empty if there else real)
        (real if there else empty).rename(store)

    return mount


@pytest.mark.parametrize("place", [memory, directory, generic])
async def test_a_place_that_is_away_is_neither_believed_nor_written_to(tmp_path: Path, place: object) -> None:
    async with place(tmp_path) as (backend, mount):  # type: ignore[operator]
        lives = Lives(backend)
        first = lives.life()
        await first.put("segments/c/1", b"one")
        assert len(lives.remembered) == 1
        mount(False)
        for storage in (first, lives.life()):
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda storage=storage: storage.get("segments/c/1"),  # type: ignore[misc]
                lambda storage=storage: storage.get_ranges("segments/c/1", [(0, 1)]),  # type: ignore[misc]
                lambda storage=storage: storage.head("segments/c/1"),  # type: ignore[misc]
                lambda storage=storage: storage.list(),  # type: ignore[misc]
                lambda storage=storage: storage.delete(["segments/c/1"]),  # type: ignore[misc]
                lambda storage=storage: storage.put("segments/c/2", b"two"),  # type: ignore[misc]
            ]
            for call in calls:
                with pytest.raises(StorageUnavailableError, match="has no marker"):
                    await call()
        assert (await backend.list()).objects == []
        mount(True)
        for storage in (first, lives.life()):
            assert await storage.get("segments/c/1") == b"one"
            assert [item.key for item in (await storage.list("segments/c/1")).objects] == ["segments/c/1"]
            with pytest.raises(StorageNotFoundError):
                await storage.get("segments/c/9")
            await storage.put("segments/c/2", b"two")
        assert len(lives.remembered) == 1


async def test_an_object_that_went_beside_the_storage_is_not_believed(tmp_path: Path) -> None:
    async with memory(tmp_path) as (backend, mount):
        lives = Lives(backend)
        storage = lives.life()
        await storage.put("a", b"1")

        class Unmounts(FaultyStorage):
            async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
                mount(False)
                await super().put(key, data, if_absent=if_absent)

        lives.backend = Unmounts(backend, Random(1))
        with pytest.raises(StorageUnavailableError, match="has no marker"):
            await lives.life().put("b", b"2")
        mount(True)
        assert [item.key for item in (await backend.list()).objects] == ["a", KEY]


async def test_a_marker_that_is_missing_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    async with memory(tmp_path) as (backend, mount), trio.open_nursery() as nursery:
        storage = Lives(backend).life(Limits(storage_max_attempts=100))
        await storage.put("a", b"1")
        mount(False)

        async def come_back() -> None:
            await trio.sleep(0.2)
            mount(True)

        nursery.start_soon(come_back)
        assert await storage.get("a") == b"1"


async def test_a_service_is_asked_now_and_then(autojump_clock: trio.abc.Clock) -> None:
    backend = FaultyStorage(MemoryBackend(durable=True), Random(1))
    storage = Lives(backend).life()
    for number in range(200):
        await storage.put(f"a/{number}", b"1")
        await trio.sleep(0.5)
    assert 9 <= backend.calls["get"] <= 12


async def test_a_storage_is_not_written_to_before_its_identity_is_remembered() -> None:
    backend = MemoryBackend(durable=True)
    lives = Lives(backend)
    lives.refuses = True
    storage = lives.life()
    with pytest.raises(StorageUnavailableError, match="the metadata is away"):
        await storage.put("a", b"1")
    assert list(backend.space.objects) == [KEY]
    lives.refuses = False
    await storage.put("a", b"1")
    assert lives.remembered == [backend.space.objects[KEY][0].split()[-1].decode()]


async def test_another_life_finds_the_marker_that_is_there() -> None:
    """A machine that has lost its metadata, and two that begin at once."""
    backend = MemoryBackend(durable=True, latency_s=0.001)
    lives = [Lives(backend), Lives(backend), Lives(backend)]
    async with trio.open_nursery() as nursery:
        for number, each in enumerate(lives[:2]):
            nursery.start_soon(each.life().put, f"a/{number}", b"1")
    await lives[2].life().put("a/2", b"1")
    assert lives[0].remembered == lives[1].remembered == lives[2].remembered


async def test_a_place_with_another_marker_is_refused_until_it_is_adopted() -> None:
    lives = Lives(MemoryBackend(durable=True))
    lives.remembered = [f"{7:032x}"]
    other = Lives(lives.backend)
    await other.life().put("a", b"1")
    storage = lives.life()
    with pytest.raises(StorageUnavailableError, match="marker of another storage"):
        await storage.list()
    await storage.adopt()
    assert [item.key for item in (await storage.list("a")).objects] == ["a"]
    assert lives.remembered[-1] == other.remembered[-1]


@pytest.mark.parametrize("mounted", [False, True])
async def test_the_first_of_two_that_share_a_storage_decides_what_it_is(mounted: bool) -> None:
    """The second one, which began before, has an empty directory in its place."""
    make = Mounted if mounted else MemoryBackend
    real, wrong = make(durable=True), make(durable=True)
    lives = Lives(wrong)
    second = lives.life()
    lives.backend = real
    await lives.life().put("a", b"1")
    (identity,) = lives.remembered
    for _ in range(2):
        with pytest.raises(StorageUnavailableError, match="marker of another storage"):
            await second.put("b", b"2")
    assert lives.remembered == [identity]
    assert list(wrong.space.objects) == [KEY]
    wrong.space = real.space
    await second.put("b", b"2")
    assert {"a", "b"} < set(real.space.objects)


async def test_a_marker_expects_what_another_broker_has_stored(autojump_clock: trio.abc.Clock) -> None:
    """Also while a service that was looked at a moment ago is trusted."""
    lives = Lives(MemoryBackend(durable=True))
    marker = Marker("default", "c", random=Random(1), remember=lives.remember)
    storage = Storage(lives.backend, random=Random(2), limits=LIMITS, marker=marker)
    await storage.put("a", b"1")
    marker.expect(f"{7:032x}")
    with pytest.raises(StorageUnavailableError, match="marker of another storage"):
        await storage.put("b", b"2")


async def test_a_damaged_marker_is_not_taken_for_any_storage() -> None:
    backend = MemoryBackend(durable=True)
    lives = Lives(backend)
    await lives.life().put("a", b"1")
    backend.space.store(KEY, b"DNB-MARK 1 ...", 0)
    with pytest.raises(StorageUnavailableError, match="is damaged"):
        await lives.life().get("b")
    assert await lives.life().get("a") == b"1"


async def test_a_directory_without_the_folders_beside_its_objects_is_used(tmp_path: Path) -> None:
    """As one that was brought back by a copy of what is visible."""
    async with open_disk(tmp_path) as backend:
        await backend.put("a/small", b"1")
        await backend.put("a/large", bytes(5 * MIB))
        (tmp_path / ".uploads").rmdir()
        (tmp_path / ".deleted").rmdir()
        await backend.put("a/more", b"1")
        await backend.delete(["a/large"])
        assert [item.key for item in (await backend.list()).objects] == ["a/more", "a/small"]
