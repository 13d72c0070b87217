"""Conformance kit for metadata stores, and a metadata store with injected faults.

A plugin's test file derives one class that opens a store; pytest (in Trio mode) finds the tests in the base::

    class TestEtcdStore(MetadataStoreConformance):
        lease_s = 2.0

        def open_store(self):
            return open_store(f"etcd://127.0.0.1:2379/{self.fresh_prefix}")

The tests only use the contract, wait for events instead of sleeping where they can, and clean up nothing: each test
must begin with an empty store. Tests of capabilities that the engine declares to lack (``lacks``) are removed from the
derived class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from random import Random
from types import TracebackType
from typing import Any, ClassVar, Self

import trio

from danube.metadata import (
    Capabilities,
    Condition,
    Delete,
    DeleteEvent,
    EventBatch,
    KeyValue,
    LeaseId,
    MetadataStore,
    Put,
    PutEvent,
    TransactionResult,
    Watch,
)
from danube.model.errors import (
    ClosedError,
    DanubeError,
    InvalidArgumentError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
    WatchCompactedError,
)
from danube.testing.clock import sleep

__all__ = ["FaultyMetadataStore", "MetadataStoreConformance"]


@contextmanager
def _raises(kind: type[DanubeError]) -> Iterator[None]:
    """Expect an error, without pytest, so that the kit has no dependencies."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


async def _take(watch: Watch, count: int) -> list[EventBatch]:
    with trio.fail_after(20):
        return [await watch.__anext__() for _ in range(count)]


class MetadataStoreConformance(ABC):
    """Tests that every metadata store must pass. See the module for how to use it."""

    lease_s: float = 0.5
    """A short time to live that the engine supports, in seconds."""
    history_revisions: int | None = None
    """Number of changes after which the first one is no longer in the history; None skips the test of compaction."""
    lacks: frozenset[str] = frozenset()
    """Capabilities that the engine declares not to have."""

    _NEEDS: ClassVar[dict[str, tuple[str, ...]]] = {
        "durable": ("test_reopen",),
        "linearizable": (),
        "watch_replay": (
            "test_watch_resumes",
            "test_list_and_watch_are_a_replica",
            "test_compacted_history_is_told",
        ),
        "leases": (
            "test_lease_ends",
            "test_keep_alive",
            "test_revoke",
            "test_key_outlives_a_lease_it_has_left",
            "test_reopen",
            "test_cancelled_calls_leave_the_store_usable",
        ),
    }

    def __init_subclass__(cls) -> None:
        """Remove tests that do not apply: pytest does not collect None."""
        super().__init_subclass__()
        absent = [test for capability in cls.lacks for test in cls._NEEDS[capability]]
        if cls.history_revisions is None:
            absent.append("test_compacted_history_is_told")
        for test in absent:
            setattr(cls, test, None)

    @abstractmethod
    def open_store(self) -> AbstractAsyncContextManager[MetadataStore]:
        """Return a store, not yet entered. If called again in the same test, a durable store has the same data."""

    async def test_capabilities(self) -> None:
        """The store declares the capabilities of its test class."""
        async with self.open_store() as store:
            declared = {name for name in self._NEEDS if not getattr(store.capabilities, name)}
            assert declared == self.lacks

    # Keys

    async def test_put_get_delete(self) -> None:
        """A key has the value of its last put, counts its puts, and is created again after a delete."""
        async with self.open_store() as store:
            assert await store.get("/a") is None
            assert await store.delete("/a") is None
            first = await store.put("/a", b"1")
            assert await store.get("/a") == KeyValue("/a", b"1", first, first, 1, None)
            second = await store.put("/a", b"")
            assert await store.get("/a") == KeyValue("/a", b"", first, second, 2, None)
            third = await store.delete("/a")
            assert third is not None
            assert first < second < third
            assert await store.get("/a") is None
            fourth = await store.put("/a", bytes(range(256)))
            assert await store.get("/a") == KeyValue("/a", bytes(range(256)), fourth, fourth, 1, None)

    async def test_every_change_has_a_revision_of_its_own(self) -> None:
        """Concurrent changes of different keys get different revisions, and the key remembers its own."""
        async with self.open_store() as store:
            revisions: dict[str, int] = {}

            async def put(key: str) -> None:
                revisions[key] = await store.put(key, b"x")

            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(put, f"/r/{number}")
            items, revision = await store.list("/r")
            assert len(set(revisions.values())) == 40
            assert {item.key: item.mod_revision for item in items} == revisions
            assert revision >= max(revisions.values())

    async def test_expected_revision(self) -> None:
        """A conditional change happens only at exactly that revision; 0 means that the key does not exist."""
        async with self.open_store() as store:
            first = await store.put("/a", b"1", expected_revision=0)
            with _raises(MetadataConflictError):
                await store.put("/a", b"2", expected_revision=0)
            with _raises(MetadataConflictError):
                await store.put("/b", b"2", expected_revision=first)
            second = await store.put("/a", b"1", expected_revision=first)  # putting the same value is a change, too
            assert second > first
            with _raises(MetadataConflictError):
                await store.delete("/a", expected_revision=first)
            with _raises(MetadataConflictError):
                await store.delete("/b", expected_revision=first)
            assert await store.delete("/a", expected_revision=second) is not None
            items, _ = await store.list("/")
            assert list(items) == []

    async def test_one_winner(self) -> None:
        """Of many clients that create a key, or change it from the same revision, exactly one succeeds."""
        async with self.open_store() as store:
            revision = 0
            for _ in range(3):
                won: list[tuple[int, int]] = []

                async def compete(number: int, expected: int, won: list[tuple[int, int]] = won) -> None:
                    try:
                        won.append((number, await store.put("/leader", b"%d" % number, expected_revision=expected)))
                    except MetadataConflictError:
                        await trio.lowlevel.checkpoint()

                async with trio.open_nursery() as nursery:
                    for number in range(16):
                        nursery.start_soon(compete, number, revision)
                assert len(won) == 1
                item = await store.get("/leader")
                assert item is not None
                assert (int(item.value), item.mod_revision) == won[0]
                revision = item.mod_revision

    async def test_compare_and_swap_counts_right(self) -> None:
        """Increments by read, change, retry lose nothing."""
        async with self.open_store() as store:

            async def increment() -> None:
                for _ in range(5):
                    while True:
                        item = await store.get("/count")
                        number, revision = (int(item.value), item.mod_revision) if item else (0, 0)
                        try:
                            await store.put("/count", b"%d" % (number + 1), expected_revision=revision)
                        except MetadataConflictError:
                            continue
                        break

            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(increment)
            item = await store.get("/count")
            assert item is not None
            assert item.value == b"30"

    async def test_prefixes_cover_whole_segments(self) -> None:
        """``/a`` covers itself and what is below, never ``/ab``; a list is sorted by code point."""
        keys = ["/a", "/a!", "/a-b", "/a/b", "/a/b/c", "/a/é", "/a0", "/ab", "/b"]
        async with self.open_store() as store:
            for key in reversed(keys):
                await store.put(key, key.encode())
            for prefix, expected in {
                "/a": ["/a", "/a/b", "/a/b/c", "/a/é"],
                "/a/": ["/a/b", "/a/b/c", "/a/é"],
                "/a/b": ["/a/b", "/a/b/c"],
                "/": sorted(keys),
                "/c": [],
                "/a/b/c/": [],
            }.items():
                items, _ = await store.list(prefix)
                assert [item.key for item in items] == expected, prefix
            async with store.watch("/a") as watch:
                await store.put("/ab", b"no")
                await store.put("/a-b", b"no")
                revision = await store.put("/a/b", b"yes")
                assert [batch.revision for batch in await _take(watch, 1)] == [revision]

    async def test_bad_arguments(self) -> None:
        """Invalid requests are refused, without any change."""
        async with self.open_store() as store:
            for key in (
                "",
                "/",
                "a",
                "a/b",
                "/a/",
                "//a",
                "/a//b",
                "/a b",
                "/a\n",
                "/\x00",
                "/\ud800",
                "/" + "x" * 5000,
            ):
                with _raises(InvalidArgumentError):
                    await store.put(key, b"")
                with _raises(InvalidArgumentError):
                    await store.get(key)
            for prefix in ("", "a", "//", "/a//"):
                with _raises(InvalidArgumentError):
                    await store.list(prefix)
            with _raises(InvalidArgumentError):
                await store.put("/a", bytes(1024 * 1024))
            with _raises(InvalidArgumentError):
                await store.put("/a", b"", expected_revision=-1)
            with _raises(InvalidArgumentError):
                await store.transact([], [Put("/a", b""), Delete("/a")])
            with _raises(InvalidArgumentError):
                await store.transact([], [Put(f"/a/{number}", b"") for number in range(1000)])
            items, _ = await store.list("/")
            assert list(items) == []

    # Transactions

    async def test_transaction_is_all_or_nothing(self) -> None:
        """All operations are applied at one revision if all conditions hold, otherwise none."""
        async with self.open_store() as store:
            first = await store.put("/a", b"1")
            result = await store.transact(
                [Condition("/a", first), Condition("/b", 0)],
                [Delete("/a"), Put("/b", b"2"), Put("/c", b"3"), Delete("/d")],
            )
            assert result.replaced == (first, 0, 0, 0)
            assert result.revision > first
            items, revision = await store.list("/")
            assert [(item.key, item.mod_revision) for item in items] == [
                ("/b", result.revision),
                ("/c", result.revision),
            ]
            with _raises(MetadataConflictError):
                await store.transact(
                    [Condition("/b", result.revision), Condition("/c", first)], [Put("/b", b"x"), Delete("/c")]
                )
            with _raises(NotFoundError):
                await store.transact([], [Put("/b", b"x"), Put("/e", b"x", LeaseId(2**62))])
            assert await store.list("/") == (items, revision)

    async def test_transaction_that_changes_nothing(self) -> None:
        """Deleting missing keys, or only checking conditions, is no change."""
        async with self.open_store() as store:
            revision = await store.put("/a", b"1")
            assert await store.transact([Condition("/a", revision)], []) == TransactionResult(revision, ())
            assert await store.transact([], [Delete("/b")]) == TransactionResult(revision, (0,))
            assert (await store.list("/"))[1] == revision

    async def test_list_never_shows_half_a_transaction(self) -> None:
        """A list is a snapshot at one revision, despite concurrent writes."""
        async with self.open_store() as store:
            await store.transact([], [Put("/x", b"0"), Put("/y", b"0")])
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def write() -> None:
                        for number in range(10_000):
                            await store.transact([], [Put("/x", b"%d" % number), Put("/y", b"%d" % number)])

                    nursery.start_soon(write)
                    for _ in range(50):
                        (x, y), revision = await store.list("/")
                        assert x.value == y.value
                        assert x.mod_revision == y.mod_revision <= revision
                    scope.cancel()

    # Leases

    async def test_lease_ends(self) -> None:
        """Without keep-alive a lease ends: its keys are deleted at one revision; it cannot be used again."""
        async with self.open_store() as store:
            await store.put("/stays", b"")
            lease = await store.grant_lease(self.lease_s)
            other = await store.grant_lease(3600)
            assert lease != other
            first = await store.put("/n/1", b"", lease=lease)
            second = await store.put("/n/2", b"", lease=lease)
            await store.put("/n/3", b"", lease=other)
            async with store.watch("/n") as watch:
                (batch,) = await _take(watch, 1)
            assert batch.events == (
                DeleteEvent("/n/1", batch.revision, first),
                DeleteEvent("/n/2", batch.revision, second),
            )
            assert [item.key for item in (await store.list("/"))[0]] == ["/n/3", "/stays"]
            with _raises(NotFoundError):
                await store.keep_alive(lease)
            with _raises(NotFoundError):
                await store.put("/n/1", b"", lease=lease)
            assert await store.revoke(lease) is None

    async def test_keep_alive(self) -> None:
        """A lease lasts as long as it is kept alive, and then its full time."""
        async with self.open_store() as store:
            lease = await store.grant_lease(self.lease_s)
            await store.put("/n", b"", lease=lease)
            for _ in range(8):
                await trio.sleep(self.lease_s / 4)
                await store.keep_alive(lease)
            assert await store.get("/n") is not None
            async with store.watch("/n") as watch:
                await _take(watch, 1)
            assert await store.get("/n") is None

    async def test_revoke(self) -> None:
        """A revoked lease takes its keys with it at once; without keys nothing is changed."""
        async with self.open_store() as store:
            lease = await store.grant_lease(3600)
            await store.put("/n", b"", lease=lease)
            revision = await store.revoke(lease)
            assert revision == (await store.list("/"))[1]
            assert await store.get("/n") is None
            assert await store.revoke(lease) is None
            assert await store.revoke(await store.grant_lease(3600)) is None

    async def test_key_outlives_a_lease_it_has_left(self) -> None:
        """A key that was put again under another lease, or none, does not end with the old one."""
        async with self.open_store() as store:
            old, new = await store.grant_lease(3600), await store.grant_lease(3600)
            for key in ("/moved", "/freed", "/again"):
                await store.put(key, b"1", lease=old)
            await store.put("/moved", b"2", lease=new)
            await store.put("/freed", b"2")
            await store.delete("/again")
            await store.put("/again", b"2")
            await store.revoke(old)
            items, _ = await store.list("/")
            assert [(item.key, item.lease) for item in items] == [("/again", None), ("/freed", None), ("/moved", new)]

    # Watches

    async def test_watch_tells_what_happened(self) -> None:
        """Events carry the item, its revision and the one before; a transaction is one batch."""
        async with self.open_store() as store:
            before = await store.put("/w/old", b"unseen")
            async with store.watch("/w") as watch:
                first = await store.put("/w/a", b"1")
                second = (await store.transact([], [Put("/w/a", b"2"), Delete("/w/old"), Put("/else", b"")])).revision
                third = await store.delete("/w/a")
                assert third is not None
                assert await _take(watch, 3) == [
                    EventBatch(first, (PutEvent(KeyValue("/w/a", b"1", first, first, 1, None), 0),)),
                    EventBatch(
                        second,
                        (
                            PutEvent(KeyValue("/w/a", b"2", first, second, 2, None), first),
                            DeleteEvent("/w/old", second, before),
                        ),
                    ),
                    EventBatch(third, (DeleteEvent("/w/a", third, second),)),
                ]

    async def test_watch_resumes(self) -> None:
        """A watch from a revision returns it and everything after it, once, and continues with new changes."""
        async with self.open_store() as store:
            revisions = [await store.put(f"/w/{number}", b"") for number in range(20)]
            for start in (0, 7, 19):
                async with store.watch("/w", revisions[start]) as watch:
                    assert [batch.revision for batch in await _take(watch, 20 - start)] == revisions[start:]
            _, present = await store.list("/w")
            async with store.watch("/w", present + 1) as watch:
                revision = await store.put("/w/new", b"")
                assert [batch.revision for batch in await _take(watch, 1)] == [revision]
            with _raises(InvalidArgumentError):
                store.watch("/w", 0)
            with _raises(WatchCompactedError):
                async with store.watch("/w", revision + 1000):
                    pass

    async def test_list_and_watch_are_a_replica(self) -> None:
        """With concurrent writers, a list and the watch that continues it give the complete contents of the store."""
        async with self.open_store() as store:

            async def write(seed: int) -> None:
                random = Random(seed)
                for _ in range(40):
                    key = f"/k/{random.randrange(12)}"
                    if random.random() < 0.3:
                        await store.delete(key)
                    else:
                        await store.put(key, b"%d" % random.randrange(1000))

            async def replicate(delay: int) -> None:
                for _ in range(delay):
                    await trio.lowlevel.checkpoint()
                items, revision = await store.list("/k")
                copy = {item.key: item for item in items}
                async with store.watch("/k", revision + 1) as watch:
                    async for batch in watch:
                        assert batch.revision > revision
                        revision = batch.revision
                        for event in batch.events:
                            before = copy.pop(event.key, None)
                            assert event.previous_revision == (before.mod_revision if before else 0)
                            if isinstance(event, PutEvent):
                                copy[event.key] = event.item
                        if any(event.key == "/k/end" for event in batch.events):
                            break
                now, _ = await store.list("/k")
                assert copy == {item.key: item for item in now}

            with trio.fail_after(30):
                async with trio.open_nursery() as replicas:
                    for number in range(3):
                        replicas.start_soon(replicate, number * 10)
                    async with trio.open_nursery() as writers:
                        for seed in range(5):
                            writers.start_soon(write, seed)
                    await store.put("/k/end", b"")

    async def test_slow_watcher_reads_everything(self) -> None:
        """A watcher that reads only now and then gets every change in order, as far as the history reaches."""
        async with self.open_store() as store:
            count = min(150, (self.history_revisions or 1000) // 2)
            async with store.watch("/w") as watch:
                revisions = [await store.put("/w/k", b"%d" % number) for number in range(count)]
                seen = []
                for batch in await _take(watch, count):
                    seen.append(batch.revision)
                    await trio.lowlevel.checkpoint()
                assert seen == revisions

    async def test_compacted_history_is_told(self) -> None:
        """A removed revision is an error on entering; a watcher that fell behind gets an error, never a gap."""
        assert self.history_revisions is not None
        async with self.open_store() as store:
            first = await store.put("/w/k", b"")
            async with store.watch("/w") as slow, store.watch("/idle") as idle:
                for number in range(self.history_revisions + 1):
                    await store.put("/w/k", b"%d" % number)
                with _raises(WatchCompactedError):
                    async with store.watch("/w", first):
                        pass
                with _raises(WatchCompactedError):
                    await _take(slow, 1)
                # A watch without changes under its prefix has seen everything, however much other keys changed.
                revision = await store.put("/idle", b"")
                assert [batch.revision for batch in await _take(idle, 1)] == [revision]

    async def test_cancelled_watch_goes_on(self) -> None:
        """Cancelling the wait for the next change loses no change."""
        async with self.open_store() as store, store.watch("/w") as watch:
            seen: list[int] = []
            revisions: list[int] = []
            for number in range(10):
                with trio.move_on_after(0.001):
                    seen.append((await watch.__anext__()).revision)
                revisions.append(await store.put("/w/k", b"%d" % number))
                with trio.CancelScope() as scope:
                    scope.cancel()
                    seen.append((await watch.__anext__()).revision)
            seen.extend([batch.revision for batch in await _take(watch, 10 - len(seen))])
            assert seen == revisions

    # Life

    async def test_reopen(self) -> None:
        """A reopened durable store has all data: items, revisions, history, and leases with their full time."""
        async with self.open_store() as store:
            first = await store.put("/a", b"1")
            lease = await store.grant_lease(3600)
            short = await store.grant_lease(self.lease_s)
            await store.put("/l", b"", lease=lease)
            await store.put("/s", b"", lease=short)
            await store.delete("/a")
            picture = await store.list("/")
        async with self.open_store() as store:
            assert await store.list("/") == picture
            await store.keep_alive(lease)
            assert await store.grant_lease(3600) not in (lease, short)
            async with store.watch("/s") as watch:
                (batch,) = await _take(watch, 1)
                assert batch.events[0] == DeleteEvent("/s", batch.revision, picture[0][1].mod_revision)
            if store.capabilities.watch_replay:
                async with store.watch("/a", first) as watch:
                    assert [len(batch.events) for batch in await _take(watch, 2)] == [1, 1]
            assert await store.put("/b", b"") > picture[1]

    async def test_cancelled_calls_leave_the_store_usable(self) -> None:
        """A call cancelled at any moment was either executed or not; nothing hangs and revisions stay consistent."""
        async with self.open_store() as store:
            lease = await store.grant_lease(3600)
            calls: list[Callable[[], Any]] = [
                lambda: store.put("/c/a", b"x", lease=lease),
                lambda: store.get("/c/a"),
                lambda: store.list("/c"),
                lambda: store.delete("/c/a"),
                lambda: store.transact([], [Put("/c/b", b""), Delete("/c/a")]),
                lambda: store.grant_lease(3600),
                lambda: store.keep_alive(lease),
                lambda: store.watch("/c").__aenter__(),
            ]
            async with store.watch("/c") as watch:
                for call in calls:
                    for delay_s in (0.0, 0.00005, 0.0002, 0.001):
                        with trio.move_on_after(delay_s):
                            await call()
                with trio.fail_after(20):
                    last = await store.put("/c/end", b"")
                    copy: dict[str, KeyValue] = {}
                    async for batch in watch:
                        for event in batch.events:
                            copy.pop(event.key, None)
                            if isinstance(event, PutEvent):
                                copy[event.key] = event.item
                        if batch.revision == last:
                            break
                    items, revision = await store.list("/c")
                assert revision == last
                assert {item.key: item for item in items} == copy

    async def test_closing_ends_everything(self) -> None:
        """After close every call, and every waiting watch, ends with ClosedError; closing again is harmless."""
        async with self.open_store() as store:

            async def wait(watch: Watch) -> None:
                with _raises(ClosedError):
                    await watch.__anext__()

            with trio.fail_after(20):
                async with store.watch("/") as watch, trio.open_nursery() as nursery:
                    nursery.start_soon(wait, watch)
                    await sleep(0.05)  # until the watch waits
                    await store.aclose()
                await store.aclose()
                for call in (
                    lambda: store.get("/a"),
                    lambda: store.list("/"),
                    lambda: store.put("/a", b""),
                    lambda: store.delete("/a"),
                    lambda: store.grant_lease(10),
                    lambda: store.keep_alive(LeaseId(1)),
                    lambda: store.watch("/a").__aenter__(),
                ):
                    with _raises(ClosedError):
                        await call()


class FaultyMetadataStore(MetadataStore):
    """Wraps a store behind a simulated bad network, for tests of code that uses a metadata store.

    Each call waits up to ``latency_s`` before and after its work, is refused before its work with probability
    ``refuse``, and loses its answer after its work with probability ``lose_answer``: both raise UnavailableError, and
    the caller cannot tell them apart. A change is held back with probability ``hold``: that raises UnavailableError,
    too, and the change stays on its way until :meth:`arrive`. A step of a watch fails with probability ``break_watch``;
    the watch can be iterated again and has lost nothing. All faults are drawn from ``random``, so a seed reproduces a
    run, and may be changed at any time. ``faults`` counts injected faults by these names. Calls that are refused, and
    watches, raise ``error`` instead of UnavailableError. Opens and closes the wrapped store.
    """

    def __init__(
        self,
        store: MetadataStore,
        random: Random,
        *,
        latency_s: float = 0.0,
        refuse: float = 0.0,
        lose_answer: float = 0.0,
        hold: float = 0.0,
        break_watch: float = 0.0,
    ) -> None:
        self._store = store
        self._random = random
        self._held: list[Callable[[], Any]] = []
        self.latency_s = latency_s
        self.refuse = refuse
        self.lose_answer = lose_answer
        self.hold = hold
        self.break_watch = break_watch
        self.error: type[DanubeError] = UnavailableError
        self.faults: Counter[str] = Counter()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped store."""
        return self._store.capabilities

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        """Close the wrapped store; no faults are injected."""
        await self._store.aclose()

    async def arrive(self) -> None:
        """Let the held changes arrive at the store, in any order; their answers are lost."""
        held, self._held = self._held, []
        self._random.shuffle(held)
        for call in held:
            with suppress(DanubeError):
                await call()

    async def _change(self, what: str, call: Callable[[], Any]) -> Any:
        if self.hold > 0 and self._random.random() < self.hold:
            self.faults["hold"] += 1
            self._held.append(call)
            raise UnavailableError(f"metadata {what}: injected fault; try again")
        return await self._suffer(what, call)

    async def _suffer(self, what: str, call: Callable[[], Any]) -> Any:
        await self._delay()
        if self._random.random() < self.refuse:
            self.faults["refuse"] += 1
            raise self.error(f"metadata {what}: injected fault; try again")
        result = await call()
        await self._delay()
        if self._random.random() < self.lose_answer:
            self.faults["lose_answer"] += 1
            raise UnavailableError(f"metadata {what}: injected fault; try again")
        return result

    async def _delay(self) -> None:
        if self.latency_s > 0:
            await sleep(self._random.uniform(0, self.latency_s))

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`MetadataStore.get`."""
        found: KeyValue | None = await self._suffer(f"get of {key!r}", lambda: self._store.get(key))
        return found

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """See :meth:`MetadataStore.list`."""
        found: tuple[Sequence[KeyValue], int] = await self._suffer(
            f"list of {prefix!r}", lambda: self._store.list(prefix)
        )
        return found

    async def put(
        self, key: str, value: bytes, *, expected_revision: int | None = None, lease: LeaseId | None = None
    ) -> int:
        """See :meth:`MetadataStore.put`."""
        revision: int = await self._change(
            f"put of {key!r}",
            lambda: self._store.put(key, value, expected_revision=expected_revision, lease=lease),
        )
        return revision

    async def delete(self, key: str, *, expected_revision: int | None = None) -> int | None:
        """See :meth:`MetadataStore.delete`."""
        revision: int | None = await self._change(
            f"delete of {key!r}", lambda: self._store.delete(key, expected_revision=expected_revision)
        )
        return revision

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`."""
        result: TransactionResult = await self._change(
            "transaction", lambda: self._store.transact(conditions, operations)
        )
        return result

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """See :meth:`MetadataStore.grant_lease`."""
        lease: LeaseId = await self._suffer("grant of a lease", lambda: self._store.grant_lease(ttl_s))
        return lease

    async def keep_alive(self, lease: LeaseId) -> None:
        """See :meth:`MetadataStore.keep_alive`."""
        await self._suffer(f"keep-alive of lease {lease}", lambda: self._store.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> int | None:
        """See :meth:`MetadataStore.revoke`."""
        revision: int | None = await self._suffer(f"revocation of lease {lease}", lambda: self._store.revoke(lease))
        return revision

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """See :meth:`MetadataStore.watch`."""
        return _FaultyWatch(self, self._store.watch(prefix, start_revision), self._random)


class _FaultyWatch(Watch):
    """A watch of a :class:`FaultyMetadataStore`."""

    def __init__(self, faults: FaultyMetadataStore, watch: Watch, random: Random) -> None:
        self._faults = faults
        self._watch = watch
        self._random = random

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, trace)

    async def __anext__(self) -> EventBatch:
        await self._faults._delay()
        if self._random.random() < self._faults.break_watch:
            self._faults.faults["break_watch"] += 1
            raise self._faults.error("metadata watch: injected fault; watch again from the last revision seen")
        return await self._watch.__anext__()
