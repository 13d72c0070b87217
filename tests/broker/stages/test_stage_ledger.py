"""The ledger of staged batches by itself: it agrees with the store about each decision, or reports it as unknown."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
import trio
import trio.testing

from danube.broker.stages.decisions import ProducerRecord
from danube.broker.stages.ledger import Known, Ledger
from danube.metadata import MemoryStore
from danube.model import Limits
from danube.model.errors import LimitExceededError, MetadataConflictError, OwnerFencedError, UnavailableError
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

NAME = "job/1"


class Store(FaultyMetadataStore):
    """Holds the next change back, once; is away from then on if told so."""

    holds_next = goes_away = False

    async def _change(self, what: str, call: Callable[[], Any]) -> Any:
        self.hold, self.holds_next = float(self.holds_next), False
        try:
            return await super()._change(what, call)
        finally:
            if self.hold and self.goes_away:
                self.refuse = 1.0


class World:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.now_us = 1_000_000
        self.ledger = self.life()

    def life(self) -> Ledger:
        return Ledger(
            self.store, "b1", Limits(max_stage_producers=3, stage_producer_expiry_s=10.0), lambda: self.now_us
        )

    def record(self, batch: int) -> ProducerRecord:
        return ProducerRecord(batch, self.now_us, True, [], {})

    async def write(self, known: Known, batch: int) -> None:
        async with known.lock:
            await self.ledger.write(known, self.record(batch))

    async def stored(self) -> dict[str, int]:
        items, _ = await self.store.list("/stages/b1/")
        found = {unquote(item.key.rpartition("/")[2]): item.value for item in items}
        return {name: msgspec.msgpack.decode(value, type=ProducerRecord).last_batch for name, value in found.items()}


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Store(MemoryStore(), Random(1)) as store:
        w = World(store)
        await w.ledger.load()
        yield w


async def test_decisions_are_stored_and_found_again() -> None:
    async with world() as w:
        known = await w.ledger.known(NAME)
        assert (known.last_batch, known.pending) == (None, False)
        for batch in (0, 7):
            await w.write(known, batch)
            assert (known.last_batch, known.pending, known.certain) == (batch, True, True)
        assert w.ledger.find(NAME) is known
        assert await w.stored() == {NAME: 7}


async def test_a_decision_that_arrives_late_was_not_made() -> None:
    """Reading the record would say that it was not made, and then it would be."""
    async with world() as w:
        known = await w.ledger.known(NAME)
        w.store.holds_next = True
        with pytest.raises(UnavailableError):
            await w.write(known, 0)
        assert known.certain
        await w.store.arrive()
        assert known.last_batch is None
        assert await w.stored() == {}


async def test_a_decision_whose_answer_was_lost_is_made() -> None:
    async with world() as w:
        known, other = await w.ledger.known(NAME), await w.ledger.known("other")
        w.store.lose_answer = 1.0
        with pytest.raises(UnavailableError):
            await w.write(known, 0)
        assert not known.certain
        assert known.pending, "it has to be looked at again"
        w.store.lose_answer = 0.0
        await w.write(other, 5)
        assert other.certain
        async with known.lock:
            await w.ledger.reload(known)
        assert (known.certain, known.last_batch) == (True, 0)
        w.store.refuse = 1.0
        with pytest.raises(UnavailableError):
            await w.write(known, 1)
        with pytest.raises(UnavailableError):
            await w.ledger.reload(known)
        assert not known.certain
        w.store.refuse = 0.0
        await w.ledger.reload(known)
        assert (known.certain, known.last_batch) == (True, 0)
        assert await w.stored() == {NAME: 0, "other": 5}


async def test_a_former_life_decides_nothing() -> None:
    async with world() as w:
        known = await w.ledger.known(NAME)
        w.store.holds_next = w.store.goes_away = True
        with pytest.raises(UnavailableError):
            await w.write(known, 0)
        assert not known.certain
        w.store.refuse = 0.0
        successor = w.life()
        await successor.load()
        await w.store.arrive()
        assert list(successor) == []
        assert await w.stored() == {}
        with pytest.raises(OwnerFencedError):
            await w.ledger.reload(known)


async def test_idle_producers_are_forgotten_and_make_room() -> None:
    async with world() as w:
        known = await w.ledger.known(NAME)
        await w.write(known, 0)
        done = ProducerRecord(0, w.now_us, False, [], {})
        async with known.lock:
            await w.ledger.write(known, done)
        for name in ("b", "c"):
            await w.write(await w.ledger.known(name), 0)
        with pytest.raises(LimitExceededError, match="max_stage_producers = 3"):
            await w.ledger.known("d")
        w.now_us += 11_000_000
        w.store.lose_answer = 1.0
        with pytest.raises(UnavailableError):
            await w.ledger.expire()
        w.store.lose_answer = 0.0
        await w.ledger.reload(known)
        assert known.record is None, "it was deleted, and only the answer was lost"
        await w.write(known, 3)
        assert await w.stored() == {NAME: 3, "b": 0, "c": 0}
        async with known.lock:
            await w.ledger.write(known, done)
        await w.ledger.known("d")
        assert w.ledger.find(NAME) is None


async def test_a_producer_that_commits_after_a_long_time_is_not_forgotten_meanwhile() -> None:
    async with world() as w:
        known = await w.ledger.known(NAME)
        done = ProducerRecord(0, w.now_us, False, [], {})
        async with known.lock:
            await w.ledger.write(known, done)
        w.now_us += 11_000_000
        async with trio.open_nursery() as nursery, known.lock:  # it is about to commit the next batch
            nursery.start_soon(w.ledger.expire)
            await trio.testing.wait_all_tasks_blocked()
            await w.ledger.write(known, ProducerRecord(1, w.now_us, False, [], {}))
        assert w.ledger.find(NAME) is known
        assert known.last_batch == 1
        assert await w.stored() == {NAME: 1}
        w.now_us += 11_000_000
        await w.ledger.expire()
        assert (w.ledger.find(NAME), await w.stored()) == (None, {})


async def test_another_broker_is_told_from_a_lost_answer() -> None:
    async with world() as w:
        known = await w.ledger.known(NAME)
        await w.write(known, 0)
        await w.store.delete("/stages/b1/job%2F1")
        with pytest.raises(MetadataConflictError):
            await w.write(known, 1)
        assert await w.stored() == {}
