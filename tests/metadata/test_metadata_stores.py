"""The conformance kit over both built-in stores, and over a store behind a slow network."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing

from danube.metadata import MemoryStore, Put, open_store
from danube.model.limits import Limits
from danube.testing.metadata import FaultyMetadataStore, MetadataStoreConformance

HISTORY = 400
LIMITS = Limits(metadata_history_revisions=HISTORY)


@pytest.mark.virtual
class TestMemoryStore(MetadataStoreConformance):
    lacks = frozenset({"durable"})
    history_revisions = HISTORY

    def open_store(self):
        return MemoryStore(limits=LIMITS)


class TestLoneEmbeddedStore(MetadataStoreConformance):
    lease_s = 2.0
    history_revisions = HISTORY

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path):
        self.directory = tmp_path / "metadata"

    def open_store(self):
        return open_store(f"embedded://{self.directory}", limits=LIMITS)


@pytest.mark.virtual
class TestSlowStore(MetadataStoreConformance):
    lacks = frozenset({"durable"})

    def open_store(self):
        return FaultyMetadataStore(MemoryStore(limits=LIMITS), Random(7), latency_s=0.0005)


class CountingStore(MemoryStore):
    """Counts how often its history is read."""

    def __init__(self):
        super().__init__(limits=LIMITS)
        self.reads = 0

    async def _history(self, prefix, after):
        self.reads += 1
        return await super()._history(prefix, after)


async def test_a_watch_whose_reader_waits_gets_a_change_without_reading_the_history(autojump_clock):
    async with CountingStore() as store, store.watch("/w") as watch, trio.open_nursery() as nursery:
        seen = []
        patience = trio.CancelScope()

        async def read():
            with patience:
                while True:
                    batch = await watch.__anext__()
                    seen.append((batch.revision, [event.key for event in batch.events]))

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        first = await store.put("/w/a", b"")
        await trio.testing.wait_all_tasks_blocked()
        await store.put("/other", b"")
        await store.transact([], [Put("/w/b", b""), Put("/x", b""), Put("/w/c", b"")])
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [(first, ["/w/a"]), (first + 2, ["/w/b", "/w/c"])]
        assert store.reads == 0
        last = await store.put("/w/d", b"")  # the reader has it, and has not run yet
        patience.cancel()
        await store.put("/w/e", b"")  # it is the first of two
        await trio.testing.wait_all_tasks_blocked()
        read_later = [(await watch.__anext__()).revision for _ in range(4 - len(seen))]
        assert [*(revision for revision, _ in seen), *read_later] == [first, first + 2, last, last + 1]
