"""Bugs that are planted into the schema registry, to see that simulated worlds with applications of it find them.

``python -m tests.simulation.planted_schema_bugs`` looks for each of them from seed 0 on and prints the table below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import pytest

from danube.broker.schemas.replica import Replica
from danube.broker.schemas.service import SchemaService
from danube.schema.book import Book, Change
from danube.schema.records import NEXT, NUMBERS
from danube.testing.simulation import draw_plan, run_world
from danube.testing.simulation.plan import WorldPlan

MOST_SEEDS = 60
STORM_S = 4.0
KIND = "cluster-schemas"

T = TypeVar("T")
Plant = Callable[[pytest.MonkeyPatch], None]


def _without_conditions(patch: pytest.MonkeyPatch, is_dropped: Callable[[str], bool]) -> None:
    write = SchemaService._write

    async def hasty(self: SchemaService, change: Change) -> None:
        kept = tuple(each for each in change.conditions if not is_dropped(each[0]))
        await write(self, msgspec.structs.replace(change, conditions=kept))

    patch.setattr(SchemaService, "_write", hasty)


def take_numbers_unconditionally(patch: pytest.MonkeyPatch) -> None:
    """Takes the next number although another broker may have taken it meanwhile."""
    _without_conditions(patch, lambda key: key == NEXT or key.startswith(NUMBERS))


def accept_what_is_not_compatible(patch: pytest.MonkeyPatch) -> None:
    """Registers a schema whatever its comparison with the versions of the subject has found."""
    patch.setattr(Book, "_check_finding", lambda self, subject, finding: None)


def delete_for_good_at_once(patch: pytest.MonkeyPatch) -> None:
    """Removes the records of versions when they are deleted for the first time."""
    deletion = Book._deletion
    patch.setattr(
        Book, "_deletion", lambda self, subject, gone, *, permanent: deletion(self, subject, gone, permanent=True)
    )


def answer_misses_as_they_are_known(patch: pytest.MonkeyPatch) -> None:
    """Says that a schema does not exist, without asking the metadata whether this broker has heard of everything."""

    async def find(self: Replica, query: Callable[[Book], T]) -> T:
        return query(self.book)

    patch.setattr(Replica, "find", find)


SCHEMA_PLANTS: tuple[Plant, ...] = (
    take_numbers_unconditionally,
    accept_what_is_not_compatible,
    delete_for_good_at_once,
    answer_misses_as_they_are_known,
)

SCHEMA_FOUND_BY: dict[str, tuple[int, str]] = {
    "take_numbers_unconditionally": (0, "S1: number 6 is r0x1 and r0x2"),
    "accept_what_is_not_compatible": (1, "S5: h4 accepts for /default/firm-value what is not compatible"),
    "delete_for_good_at_once": (0, "S6: hot: h1 tells nothing as version 1 of /default/orders-value, not 7"),
    "answer_misses_as_they_are_known": (0, "S4: h3 says at 2.594162 that there is no number 20, which was there at"),
}
"""The first seed that finds a bug, and what its world says first."""


def only_with_schemas(seed: int, storm_s: float = STORM_S) -> WorldPlan:
    """Return the plan of a cluster in which only the registry is used, while brokers lose each other."""
    plan = draw_plan(seed, duration_s=storm_s, kind=KIND)
    users = [each._replace(every_s=0.1, sends=False) for each in plan.schema_users]
    faults = {"split": 2.0, "one-way-cut": 2.0, "slow-network": 1.0, "pause": 1.0}
    return plan._replace(
        producers=[], consumers=[], chores=[], schema_users=users, faults=faults, fault_every_s=1.0, wipes=False
    )


def find_with_schemas(plant: Plant, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Return the first of the seeds whose cluster finds the bug, and what it says first."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                violations = run_world(seed, plan=only_with_schemas(seed)).violations
            except Exception as error:  # noqa: BLE001 - a world that breaks is a bug that is found, too
                violations = [f"the world broke: {error!r}"]
        if violations:
            return seed, violations[0]
    return None


if __name__ == "__main__":
    names = sys.argv[1:]
    for each in SCHEMA_PLANTS:
        if not names or each.__name__ in names:
            found = find_with_schemas(each, range(MOST_SEEDS))
            sys.stdout.write(f"    {each.__name__!r}: {found!r},\n")
            sys.stdout.flush()
