"""Planted bugs that the simulation must find: evidence that its checks can fail."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
from planted_bugs import ASKED_FOR, FOUND_BY, FURTHER, MOST_SEEDS, Plant, find

pytestmark = pytest.mark.timeout(900)

PLANTS = ASKED_FOR + FURTHER


def search(plant: Plant) -> tuple[int, str] | None:
    """Begin with the seed that is known to find it; if the product has changed since, others follow."""
    seed, _ = FOUND_BY[plant.__name__]
    return find(plant, [seed]) or find(plant, range(MOST_SEEDS))


@pytest.fixture(scope="module")
def searches() -> Iterator[dict[str, Future[tuple[int, str] | None]]]:
    """All searches, on two cores, in processes whose worlds are the known ones (a seed is a world for a hash seed)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
        try:
            yield {plant.__name__: pool.submit(search, plant) for plant in PLANTS}
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_planted_bug_is_found(plant: Plant, searches: dict[str, Future[tuple[int, str] | None]]) -> None:
    found = searches[plant.__name__].result()
    assert found is not None, f"{plant.__doc__} Not found in {MOST_SEEDS} worlds"
    seed, said = FOUND_BY[plant.__name__]
    print(f"{plant.__name__}: found after {found[0] + 1} seeds: {found[1]} (known: {seed + 1}, {said})")  # noqa: T201
