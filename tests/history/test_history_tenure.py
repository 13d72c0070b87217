"""Which topics a broker owns, as history sees it: epochs rise with owners and lives."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from danube.history.sole_tenure import SoleTenure
from danube.history.tenure import assigned_epoch, owner_epoch
from danube.metadata.memory import MemoryStore
from danube.model.errors import OwnerFencedError, UnavailableError
from danube.testing.metadata import FaultyMetadataStore


def test_epochs_rise_with_owners_and_with_lives() -> None:
    history = [(1, 1), (1, 2), (2, 1), (2, 70_000), (3, 5), ((1 << 32) + 3, 1)]
    epochs = [owner_epoch(assigned, life) for assigned, life in history]
    assert all(before < after for before, after in pairwise(epochs))
    assert [assigned_epoch(epoch) for epoch in epochs] == [assigned for assigned, _ in history]
    assert max(epochs) < 1 << 64


async def test_each_life_of_a_sole_broker_has_a_higher_epoch() -> None:
    async with MemoryStore() as store:
        first = await SoleTenure.begin(store)
        assert (first.broker, first.life, first.epoch(7), first.owns(7)) == ("b1", 1, 1, True)
        await first.raise_epoch(9)
        await first.raise_epoch(5)
        assert (first.life, first.epoch(7)) == (1, 9)
        second = await SoleTenure.begin(store)
        assert (second.life, second.epoch(7)) == (10, 10)
        assert (await SoleTenure.begin(store, "b2", 4)).epoch(7) == 4
        with pytest.raises(OwnerFencedError, match="later life of broker b1"):
            await first.raise_epoch(20)


async def test_a_raise_whose_answer_was_lost_is_known_later() -> None:
    async with FaultyMetadataStore(MemoryStore(), Random(1)) as store:
        tenure = await SoleTenure.begin(store)
        store.lose_answer = 1.0
        with pytest.raises(UnavailableError):
            await tenure.raise_epoch(9)
        assert tenure.epoch(7) == 1
        store.lose_answer = 0.0
        await tenure.raise_epoch(9)
        assert tenure.epoch(7) == 9
        assert (await SoleTenure.begin(store)).epoch(7) == 10
