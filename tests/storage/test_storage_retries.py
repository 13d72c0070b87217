"""Additions of ``Storage`` to a backend: deadlines, retries, lost answers, concurrency, figures. Time is virtual."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
import trio
import trio.testing

from danube.model.errors import (
    InvalidArgumentError,
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import MIB, Limits
from danube.storage import ListPage, MemoryBackend, ObjectInfo, Storage, StorageCapabilities


class ScriptedBackend(MemoryBackend):
    """Each call takes the next entry of ``script``: an error to raise before the work, or (error,) after it, or seconds
    to sleep before it, or None to just work. An empty script just works."""

    def __init__(self, *script, most=5 * MIB):
        super().__init__()
        self.script = list(script)
        self.calls = []
        self.most = most

    @property
    def capabilities(self):
        return StorageCapabilities(durable=True, conditional_put=True, shared=True, max_object_bytes=self.most)

    async def _play(self, name, work):
        self.calls.append((name, trio.current_time()))
        step = self.script.pop(0) if self.script else None
        if isinstance(step, Exception):
            await trio.lowlevel.checkpoint()
            raise step
        if isinstance(step, int | float):
            await trio.sleep(step)
        result = await work
        if isinstance(step, tuple):
            raise step[0]
        return result

    async def put(self, key, data, *, if_absent=False):
        work = super().put(key, data, if_absent=if_absent)
        try:
            await self._play("put", work)
        finally:
            work.close()

    async def get(self, key, start=0, end=None):
        work = super().get(key, start, end)
        try:
            return await self._play("get", work)
        finally:
            work.close()

    async def head(self, key):
        work = super().head(key)
        try:
            return await self._play("head", work)
        finally:
            work.close()

    async def delete(self, keys):
        work = super().delete(keys)
        try:
            await self._play("delete", work)
        finally:
            work.close()

    @property
    def names(self):
        return [name for name, _ in self.calls]


def storage_over(backend, limits=None, seed=1, **options):
    return Storage(backend, random=Random(seed), limits=limits, **options)


async def test_retryable_errors_are_tried_again_with_growing_pauses(autojump_clock):
    backend = ScriptedBackend(*[StorageThrottledError("slow down")] * 6, None)
    storage = storage_over(backend)
    await storage.put("a", b"1")
    times = [at for _, at in backend.calls]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    assert len(pauses) == 6
    assert all(0 <= pause <= 0.05 * 2**number for number, pause in enumerate(pauses))
    assert len(set(pauses)) == 6
    stats = storage.stats()
    assert stats.operations["put"].calls == 1
    assert stats.operations["put"].retries == 6
    assert stats.operations["put"].failures == 0
    assert stats.health.ok
    assert stats.health.last_error == "StorageThrottledError: slow down"


async def test_pauses_are_bounded_and_come_from_the_seed(autojump_clock):
    async def pauses(seed):
        backend = ScriptedBackend(*[StorageUnavailableError("no")] * 100)
        limits = Limits(storage_max_attempts=20, storage_max_backoff_s=0.2)
        with pytest.raises(StorageUnavailableError, match=r"no \(after 20 attempts\)"):
            await storage_over(backend, limits, seed).get("a")
        times = [at for _, at in backend.calls]
        return [round(later - earlier, 9) for earlier, later in pairwise(times)]

    first = await pauses(3)
    assert len(first) == 19
    assert max(first) <= 0.2
    assert max(first[10:]) > 0.1
    assert await pauses(3) == first
    assert await pauses(4) != first


@pytest.mark.parametrize("error", [StorageDeniedError("no"), StorageNotFoundError("no"), StorageError("no"),
                                   StorageExistsError("no"), StorageRangeError("no")])  # fmt: skip
async def test_definite_errors_are_raised_at_once(error, autojump_clock):
    backend = ScriptedBackend(error)
    with pytest.raises(type(error)) as caught:
        await storage_over(backend).put("a", b"1", if_absent=True)
    assert caught.value is error
    assert backend.names == ["put"]


async def test_denied_while_retrying_is_raised(autojump_clock):
    backend = ScriptedBackend(StorageUnavailableError("x"), StorageDeniedError("expired"))
    storage = storage_over(backend)
    with pytest.raises(StorageDeniedError, match=r"expired \(after 2 attempts\)"):
        await storage.head("a")
    assert storage.stats().health.consecutive_failures == 2


async def test_an_attempt_has_a_deadline_that_grows_with_the_object(autojump_clock):
    backend = ScriptedBackend(1000, 1000, None, most=100 * MIB)
    limits = Limits(storage_attempt_timeout_s=3, storage_operation_timeout_s=100, storage_max_backoff_s=0.01)
    storage = storage_over(backend, limits)
    await storage.put("a", bytes(4 * MIB))
    times = [at for _, at in backend.calls]
    assert times[1] - times[0] == pytest.approx(7, abs=0.1)
    assert times[2] - times[1] == pytest.approx(7, abs=0.1)
    backend.script = [1000, None]
    start = trio.current_time()
    await storage.get("a", 0, 10)
    assert trio.current_time() - start == pytest.approx(3, abs=0.1)


async def test_an_operation_has_a_deadline(autojump_clock):
    backend = ScriptedBackend(*[1000] * 50)
    limits = Limits(storage_attempt_timeout_s=30, storage_operation_timeout_s=100)
    start = trio.current_time()
    with pytest.raises(StorageTimeoutError, match="head a: no answer within") as caught:
        await storage_over(backend, limits).head("a")
    assert trio.current_time() - start <= 100.001
    assert len(backend.calls) == 4
    assert caught.value.retryable
    start = trio.current_time()
    with pytest.raises(StorageTimeoutError):
        await storage_over(backend, limits).head("a", timeout_s=2)
    assert trio.current_time() - start == pytest.approx(2)


async def test_an_attempt_that_the_deadline_cuts_off_does_not_hide_what_was_wrong_before(autojump_clock):
    backend = ScriptedBackend(StorageUnavailableError("it is full"), 1000)
    with pytest.raises(StorageTimeoutError, match=r"no answer within [0-9.]+ s; before that: it is full \(after 2 att"):
        await storage_over(backend).head("a", timeout_s=10)


async def test_no_pause_that_would_outlast_the_deadline(autojump_clock):
    backend = ScriptedBackend(*[StorageUnavailableError("gone")] * 50)
    limits = Limits(storage_max_attempts=50, storage_max_backoff_s=60)
    start = trio.current_time()
    with pytest.raises(StorageUnavailableError, match="gone"):
        await storage_over(backend, limits).head("a", timeout_s=10)
    assert trio.current_time() - start < 10


@pytest.mark.parametrize("lost", [StorageTimeoutError("?"), StorageUnavailableError("?"), StorageThrottledError("?")])
async def test_lost_answer_of_a_conditional_put_is_found_out(lost, autojump_clock):
    backend = ScriptedBackend((lost,))
    await storage_over(backend).put("a", b"mine", if_absent=True)
    assert backend.names == ["put", "put", "head", "get"]
    assert backend.space.objects["a"][0] == b"mine"


async def test_lost_answer_by_our_own_deadline(autojump_clock):
    class Slow(MemoryBackend):
        async def put(self, key, data, *, if_absent=False):
            await super().put(key, data, if_absent=if_absent)
            if not hung:
                hung.append(key)
                await trio.sleep_forever()

    hung = []
    backend = Slow()
    await storage_over(backend).put("a", bytearray(b"mine"), if_absent=True)
    assert hung == ["a"]
    assert backend.space.objects["a"][0] == b"mine"


@pytest.mark.parametrize("others", [b"else", b"others and longer"])
async def test_a_key_that_another_writer_took_in_the_meantime(others, autojump_clock):
    backend = ScriptedBackend(StorageUnavailableError("?"))
    await MemoryBackend(backend.space).put("a", others)
    with pytest.raises(StorageExistsError, match=r"\(after 2 attempts\)"):
        await storage_over(backend).put("a", b"mine", if_absent=True)


async def test_taken_at_the_first_attempt_is_taken_whatever_it_holds(autojump_clock):
    backend = ScriptedBackend()
    await MemoryBackend(backend.space).put("a", b"mine")
    with pytest.raises(StorageExistsError):
        await storage_over(backend).put("a", b"mine", if_absent=True)
    # A conflict is a definite "not yet": it does not make our own bytes there thinkable.
    backend.script = [StorageConflictError("409")]
    with pytest.raises(StorageExistsError):
        await storage_over(backend).put("a", b"mine", if_absent=True)
    assert "get" not in backend.names


async def test_lost_answer_and_then_a_conflict_stays_uncertain(autojump_clock):
    backend = ScriptedBackend((StorageTimeoutError("?"),), StorageConflictError("409"))
    await storage_over(backend).put("a", b"mine", if_absent=True)
    assert backend.names == ["put", "put", "put", "head", "get"]


async def test_comparing_is_tried_again_too(autojump_clock):
    backend = ScriptedBackend((StorageTimeoutError("?"),), None, StorageUnavailableError("?"))
    await storage_over(backend).put("a", b"mine", if_absent=True)
    assert backend.names == ["put", "put", "head", "put", "head", "get"]


async def test_our_own_object_that_was_deleted_meanwhile_is_put_again(autojump_clock):
    class Deleting(ScriptedBackend):
        async def head(self, key):
            if "head" not in self.names:
                self.space.remove(key)
            return await super().head(key)

    backend = Deleting((StorageTimeoutError("?"),))
    await storage_over(backend).put("a", b"mine", if_absent=True)
    assert backend.names == ["put", "put", "head", "put"]
    assert backend.space.objects["a"][0] == b"mine"


async def test_an_uncertain_end_is_told_as_such(autojump_clock):
    backend = ScriptedBackend(*[(StorageTimeoutError("?"),)] + [StorageTimeoutError("?")] * 50)
    with pytest.raises(StorageTimeoutError, match=r"\(after 3 attempts\)") as caught:
        await storage_over(backend, Limits(storage_max_attempts=3)).put("a", b"mine", if_absent=True)
    assert caught.value.retryable
    assert backend.space.objects["a"][0] == b"mine"


async def test_concurrency_is_bounded_and_the_line_is_fair(autojump_clock):
    backend = MemoryBackend(latency_s=1)
    storage = storage_over(backend, Limits(storage_max_concurrency=4), max_concurrency=3)
    done = []

    async def put(number):
        await storage.put(f"k{number}", b"")
        done.append((number, trio.current_time() - start))

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(9):
            nursery.start_soon(put, number)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.5)
        stats = storage.stats()
        assert (stats.in_flight, stats.waiting, stats.max_concurrency) == (3, 6, 3)
    assert [(number // 3, round(at, 6)) for number, at in sorted(done)] == [
        (number // 3, 1.0 + number // 3) for number in range(9)
    ]
    assert (storage.stats().in_flight, storage.stats().waiting) == (0, 0)


async def test_waiting_in_line_counts_against_the_deadline(autojump_clock):
    storage = storage_over(MemoryBackend(latency_s=20), max_concurrency=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.put, "a", b"")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StorageTimeoutError, match=r"no free slot within 5.0 s.*storage_max_concurrency = 1"):
            await storage.head("b", timeout_s=5)


async def test_time_that_ends_in_line_tells_what_went_wrong_before(autojump_clock):
    """The lack of a place for one more attempt is not what a person has to know."""
    storage = storage_over(ScriptedBackend(StorageUnavailableError("no route"), 20), max_concurrency=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: storage.put("a", b"", timeout_s=30))
        with pytest.raises(StorageUnavailableError, match="no route"):
            await storage.head("b", timeout_s=5)
    assert (storage.stats().in_flight, storage.stats().waiting) == (0, 0)


async def test_cancelling_frees_the_place(autojump_clock):
    storage = storage_over(MemoryBackend(latency_s=20), max_concurrency=1)
    for _ in range(3):
        with trio.move_on_after(1) as scope:
            await storage.put("a", b"")
        assert scope.cancelled_caught
    assert storage.stats().in_flight == 0
    await storage.put("a", b"")


async def test_health_tells_since_when(autojump_clock):
    backend = ScriptedBackend(*[StorageUnavailableError("no route")] * 3)
    storage = storage_over(backend, Limits(storage_max_attempts=1))
    assert storage.stats().health.ok
    start = trio.current_time()
    for _ in range(3):
        await trio.sleep(10)
        with pytest.raises(StorageUnavailableError):
            await storage.head("a")
    health = storage.stats().health
    assert not health.ok
    assert health.consecutive_failures == 3
    assert health.failing_since_s == pytest.approx(start + 10)
    assert health.last_error == "StorageUnavailableError: no route"
    assert health.last_error_at_s == pytest.approx(start + 30)
    with pytest.raises(StorageNotFoundError):  # an answer, if not the one that was hoped for
        await storage.head("a")
    health = storage.stats().health
    assert health.ok
    assert health.failing_since_s is None
    assert health.last_error == "StorageUnavailableError: no route"
    figures = storage.stats().operations["head"]
    assert (figures.calls, figures.failures, figures.retries) == (4, 3, 0)


async def test_bytes_are_counted(autojump_clock):
    storage = storage_over(MemoryBackend())
    await storage.put("a", bytes(100))
    await storage.get("a")
    await storage.get("a", 10, 20)
    await storage.get_ranges("a", [(0, 5), (50, 60), (7, 7)])
    operations = storage.stats().operations
    assert {name: figures.bytes for name, figures in operations.items()} == {"put": 100, "get": 110, "get_ranges": 15}


async def test_invalid_requests_are_refused_before_the_backend_is_called(autojump_clock):
    backend = ScriptedBackend(most=10)
    storage = storage_over(backend)
    for call in (
        lambda: storage.put("/a", b""),
        lambda: storage.put("a", bytes(11)),
        lambda: storage.get("a/", 0, 1),
        lambda: storage.get("a", -1, 1),
        lambda: storage.get("a", 2, 1),
        lambda: storage.get_ranges("a", [(0, 1), (2, 1)]),
        lambda: storage.get_ranges("", []),
        lambda: storage.head("a b"),
        lambda: storage.list("/"),
        lambda: storage.list("", start_after="a b"),
        lambda: storage.list("", limit=0),
        lambda: storage.delete(["a", ".."]),
        lambda: storage.abandon_uploads("//", 1.0),
    ):
        with pytest.raises(InvalidArgumentError):
            await call()
    assert await storage.get("not/there", 7, 7) == b""
    assert await storage.get_ranges("not/there", [(7, 7), (0, 0)]) == [b"", b""]
    await storage.delete([])
    assert backend.calls == []
    assert storage.stats().operations == {}


async def test_a_short_answer_is_not_passed_on(autojump_clock):
    class Short(ScriptedBackend):
        async def get(self, key, start=0, end=None):
            data = await super().get(key, start, end)
            return data if len(self.calls) > 1 else data[:-1]

    storage = storage_over(Short())
    await storage.put("a", b"12345")
    storage._backend.calls.clear()
    assert await storage.get("a", 1, 4) == b"234"
    assert storage._backend.names == ["get", "get"]


async def test_list_all_pages(autojump_clock):
    storage = storage_over(MemoryBackend())
    keys = [f"a/{number:05}" for number in range(2500)]
    for key in keys:
        await storage.put(key, b"")
    await storage.put("b", b"")
    pages = [page async for page in storage.list_all("a/")]
    assert [len(page.objects) for page in pages] == [1000, 1000, 500]
    assert [item.key for page in pages for item in page.objects] == keys
    rest = [item.key async for page in storage.list_all("a/", "a/02400") for item in page.objects]
    assert rest == keys[2401:]


async def test_a_listing_that_stands_still_is_an_error(autojump_clock):
    class Stuck(MemoryBackend):
        async def list(self, prefix="", *, start_after="", limit=1000):
            return ListPage([ObjectInfo("a", 1, 0)], True)

    with pytest.raises(StorageError, match="does not advance"):
        async for _ in storage_over(Stuck()).list_all():
            pass


async def test_delete_in_portions(autojump_clock):
    class Portions(MemoryBackend):
        async def delete(self, keys):
            sizes.append(len(keys))
            await super().delete(keys)

    sizes = []
    backend = Portions()
    keys = [f"k{number}" for number in range(2100)]
    for key in keys:
        backend.space.store(key, b"", 0)
    await storage_over(backend).delete(keys)
    assert sizes == [1000, 1000, 100]
    assert backend.space.objects == {}
