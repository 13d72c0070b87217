"""Planted bugs that the simulation must find: evidence that its checks can fail."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

import pytest
from planted_bugs import ASKED_FOR, FOUND_BY, FURTHER, MOST_SEEDS, Plant, find
from planted_cluster_bugs import CLUSTER_FOUND_BY, CLUSTER_PLANTS, find_in_clusters
from planted_move_bugs import MOVE_PLANTS, MOVE_WORLDS, MOVES_FOUND_BY, find_in_moves

pytestmark = pytest.mark.timeout(900)

PLANTS = ASKED_FOR + FURTHER
QUICK = 4
"""So many bugs of clusters are looked for at each change; the others take their turn in the extended tests."""
KNOWN = FOUND_BY | CLUSTER_FOUND_BY


def search(plant: Plant) -> tuple[str | int, str] | None:
    """Begin with the world that is known to find it; if the product has changed since, others follow."""
    if plant in MOVE_PLANTS:
        return find_in_moves(plant, (MOVES_FOUND_BY[plant.__name__][0], *MOVE_WORLDS))
    seed, _ = KNOWN[plant.__name__]
    look = find_in_clusters if plant in CLUSTER_PLANTS else find
    return look(plant, [seed]) or look(plant, range(MOST_SEEDS))


@pytest.fixture(scope="module")
def searches(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[tuple[str | int, str] | None]]]:
    """All searches of this run, on two cores, in processes whose worlds are the known ones (by the hash seed, too)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
        try:
            calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
            plants: list[Plant] = [call.params["plant"] for call in calls if "plant" in call.params]
            yield {plant.__name__: pool.submit(search, plant) for plant in plants}
        finally:
            pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "plant",
    [
        *PLANTS,
        *CLUSTER_PLANTS[:QUICK],
        *MOVE_PLANTS,
        *(pytest.param(plant, marks=pytest.mark.extended) for plant in CLUSTER_PLANTS[QUICK:]),
    ],
    ids=lambda plant: plant.__name__,
)
def test_planted_bug_is_found(plant: Plant, searches: dict[str, Future[tuple[str | int, str] | None]]) -> None:
    found = searches[plant.__name__].result()
    assert found is not None, f"{plant.__doc__} Not found in {MOST_SEEDS} worlds"
    known = (KNOWN | MOVES_FOUND_BY)[plant.__name__]
    print(f"{plant.__name__}: found in world {found[0]}: {found[1]} (known: {known})")  # noqa: T201
    if plant in MOVE_PLANTS and found[0] == known[0]:
        assert known[1] in found[1], "the world has found something else"
