"""The draw: each module gives its share, and the same seed draws the same mistakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from .sources import Mutant

__all__ = ["choose", "draw", "shares"]


def shares(sizes: Mapping[str, int], count: int) -> dict[str, int]:
    """Divide a count among strata by their sizes; each has one if there are enough, the largest strata first.

    Never more than a stratum has, and never more than there are in all.
    """
    given = dict.fromkeys(sizes, 0)
    for _ in range(min(count, sum(sizes.values()))):
        # One after another, to the stratum that has the least of its share (Sainte-Lague), the empty ones first.
        open_to = [name for name, size in sizes.items() if given[name] < size]
        given[max(open_to, key=lambda name: (not given[name], sizes[name] / (2 * given[name] + 1), name))] += 1
    return given


def draw(mutants: Mapping[str, Sequence[Mutant]], count: int | None, seed: int) -> list[Mutant]:
    """So many mistakes (None: all of them), divided among the modules by their size."""
    if count is None:
        return [mutant for some in mutants.values() for mutant in some]
    given = shares({name: len(some) for name, some in mutants.items()}, count)
    drawn = []
    for name, some in mutants.items():
        # A module's draw depends on the module and the seed only, not on its neighbours.
        chosen = Random(f"{seed}/{name}").sample(range(len(some)), given[name])
        drawn += [some[index] for index in sorted(chosen)]
    return drawn


def choose(tests: Sequence[str], durations: Mapping[str, float], own: str, budget_s: float) -> list[str]:
    """Of tests that run a line, the fastest first, those to try: first the package's own, then others, within a budget.

    Args:
        tests: ids, the fastest first.
        durations: of each, in seconds.
        own: how the ids of the package's own tests begin.
        budget_s: what they may take together; the first one may take longer.
    """
    chosen: list[str] = []
    spent = 0.0
    for test in sorted(tests, key=lambda test: not test.startswith(own)):
        if not chosen or spent + durations[test] <= budget_s:
            spent += durations[test]
            chosen.append(test)
    return chosen
