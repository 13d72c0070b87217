"""A proof that cannot fail proves nothing: planted bugs, each of which the simulation must find."""

from __future__ import annotations

import pytest
from planted_bugs import ASKED_FOR, FOUND_BY, FURTHER, MOST_SEEDS, Plant, find


@pytest.mark.parametrize("plant", ASKED_FOR + FURTHER, ids=lambda plant: plant.__name__)
def test_planted_bug_is_found(plant: Plant) -> None:
    """Begins with the seed that is known to find it; if the product has changed since, others follow."""
    seed, said = FOUND_BY[plant.__name__]
    found = find(plant, [seed]) or find(plant, range(MOST_SEEDS))
    assert found is not None, f"{plant.__doc__} Not found in {MOST_SEEDS} worlds"
    print(f"{plant.__name__}: found after {found[0] + 1} seeds: {found[1]} (known: {seed + 1}, {said})")  # noqa: T201
