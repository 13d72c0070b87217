"""The faulty backend: each fault occurs as configured, a seed repeats a run, and ``Storage`` survives all of them."""

from __future__ import annotations

from random import Random

import pytest
import trio

from danube.model.errors import (
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import Limits
from danube.storage import MemoryBackend, Storage
from danube.testing.storage import StorageConformance
from danube.testing.storage_faults import FaultyStorage


class TestWithoutFaults(StorageConformance):
    lacks = frozenset({"durable", "shared"})
    # Here the answer takes its time after the work, so a cancelled put may have happened.
    test_cancelled_put_leaves_no_object = None

    @pytest.fixture(autouse=True)
    def _memory(self):
        self.memory = MemoryBackend()

    def open_backend(self):
        return Opened(FaultyStorage(self.memory, Random(1), latency_s=0.0005))

    async def leave_upload(self, backend, key):
        backend.parts.append((key, trio.current_time()))


class Opened:
    def __init__(self, backend):
        self.backend = backend

    async def __aenter__(self):
        return self.backend

    async def __aexit__(self, *details):
        return None


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ({"throttle": 1}, StorageThrottledError),
        ({"unavailable": 1}, StorageUnavailableError),
        ({"conflict": 1}, StorageConflictError),
    ],
)
async def test_faults_before_the_work(fault, error):
    memory = MemoryBackend()
    faulty = FaultyStorage(memory, Random(1), **fault)
    with pytest.raises(error):
        await faulty.put("a", b"1", if_absent=True)
    assert memory.space.objects == {}
    assert faulty.faults[next(iter(fault))] == 1
    assert faulty.calls["put"] == 1


async def test_a_lost_answer_comes_after_the_work():
    memory = MemoryBackend()
    faulty = FaultyStorage(memory, Random(1), lose_answer=1, lose_answer_of=frozenset({"put"}))
    with pytest.raises((StorageTimeoutError, StorageUnavailableError)):
        await faulty.put("a", b"1")
    assert memory.space.objects["a"][0] == b"1"
    assert await faulty.get("a") == b"1"


async def test_standing_faults(autojump_clock):
    faulty = FaultyStorage(MemoryBackend(), Random(1))
    await faulty.put("a", b"1")
    for attribute, error in (
        ("down", StorageUnavailableError),
        ("denied", StorageDeniedError),
        ("bucket_gone", StorageNotFoundError),
    ):
        setattr(faulty, attribute, True)
        for call in (
            lambda: faulty.put("b", b""),
            lambda: faulty.get("a"),
            lambda: faulty.get_ranges("a", [(0, 1)]),
            lambda: faulty.head("a"),
            lambda: faulty.list(),
            lambda: faulty.delete(["a"]),
            lambda: faulty.abandon_uploads("", 0),
        ):
            with pytest.raises(error):
                await call()
        assert faulty.faults[attribute] == 7
        setattr(faulty, attribute, False)
        assert await faulty.get("a") == b"1"


async def test_windows(autojump_clock):
    faulty = FaultyStorage(MemoryBackend(), Random(1))
    faulty.down_between(10, 20)
    faulty.deny_between(30, 40)
    seen = []
    for _ in range(10):
        try:
            await faulty.list()
        except StorageError as error:
            seen.append(type(error))
        else:
            seen.append(None)
        await trio.sleep(5)
    down, denied = StorageUnavailableError, StorageDeniedError
    assert seen == [None, None, down, down, None, None, denied, denied, None, None]


async def test_storage_outlasts_an_outage(autojump_clock):
    faulty = FaultyStorage(MemoryBackend(), Random(1))
    storage = Storage(faulty, random=Random(2), limits=Limits(storage_max_attempts=50))
    faulty.down_between(0, 60)
    start = trio.current_time()
    await storage.put("a", b"1", if_absent=True)
    assert 60 <= trio.current_time() - start < 66
    assert storage.stats().operations["put"].retries == faulty.faults["down"]


async def test_a_call_that_hangs_meets_the_deadline(autojump_clock):
    faulty = FaultyStorage(MemoryBackend(), Random(1), hang=1)
    with pytest.raises(StorageTimeoutError):
        await Storage(faulty, random=Random(1)).head("a")
    assert faulty.faults["hang"] >= 4


async def test_one_bit_is_flipped():
    memory = MemoryBackend()
    data = Random(1).randbytes(1000)
    await memory.put("a", data)
    faulty = FaultyStorage(memory, Random(1), corrupt=1)
    for _ in range(20):
        (got,) = await faulty.get_ranges("a", [(0, 1000)])
        wrong = int.from_bytes(got) ^ int.from_bytes(data)
        assert wrong.bit_count() == 1
    assert await memory.get("a") == data


async def test_parts_are_left_behind_and_abandoned(autojump_clock):
    faulty = FaultyStorage(MemoryBackend(), Random(1), unavailable=0.5, leave_parts=1)
    storage = Storage(faulty, random=Random(1), limits=Limits(storage_max_attempts=100))
    for number in range(20):
        await storage.put(f"p/{number}", b"x")
    assert len(faulty.parts) == faulty.faults["leave_parts"] > 5
    assert len((await storage.list()).objects) == 20
    faulty.unavailable = 0
    await trio.sleep(100)
    assert await storage.abandon_uploads("q/", 50) == 0
    assert await storage.abandon_uploads("p/", 500) == 0
    assert await storage.abandon_uploads("p/", 50) > 5
    assert faulty.parts == []


async def race(seed):
    """Writers that race for keys through every fault; each key has exactly one that believes to have won, or none
    that knows."""
    memory = MemoryBackend()
    random = Random(seed)
    trace = []
    start = trio.current_time()
    winners = {}
    unsure = set()

    async def write(writer):
        faulty = FaultyStorage(
            memory, Random(random.random()), latency_s=0.2, throttle=0.1, unavailable=0.1, conflict=0.1, hang=0.02,
            lose_answer=0.3, leave_parts=0.5,
        )  # fmt: skip
        storage = Storage(faulty, random=Random(random.random()), limits=Limits(storage_attempt_timeout_s=2))
        for number in range(10):
            key, data = f"k/{number}", b"writer %d" % writer
            try:
                await storage.put(key, data, if_absent=True)
            except StorageExistsError:
                outcome = "lost"
            except (StorageTimeoutError, StorageUnavailableError, StorageThrottledError, StorageConflictError):
                outcome = "unsure"
                unsure.add(key)
            else:
                outcome = "won"
                winners.setdefault(key, []).append(data)
            trace.append((round(trio.current_time() - start, 6), writer, key, outcome))

    async with trio.open_nursery() as nursery:
        for writer in range(8):
            nursery.start_soon(write, writer)
    for key, (data, _) in memory.space.objects.items():
        assert winners.get(key, [data] if key in unsure else []) == [data]
    assert len(memory.space.objects) == 10
    return trace


@pytest.mark.parametrize("seed", range(10))
async def test_exactly_one_winner_through_all_faults(seed, autojump_clock):
    trace = await race(seed)
    assert sum(outcome == "won" for *_, outcome in trace) <= 10
    assert len(trace) == 80
