"""Bugs that are planted into what makes several brokers one cluster, to see that simulated clusters find them.

``python -m tests.simulation.planted_cluster_bugs`` looks for each of them from seed 0 on and prints the table below.

Others are found by directed tests: a change of the catalogue without the condition on the assignment
(``tests/history/test_history_owners.py``), a coordinator that reacts to events only, or changes assignments without
conditions (``tests/cluster/test_cluster_members.py``), a watch that skips the revisions of a copy of the table
(``tests/metadata/test_raft_members.py``), a broker that does not look at what it was assigned
(``tests/broker/directory/test_several_brokers.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
import trio

from danube.broker.durability.memory import MemoryLevel
from danube.cluster.session import SessionClock
from danube.metadata._machine import StoreMachine
from danube.metadata.raft.leases import Leases
from danube.metadata.raft.node import Node
from danube.metadata.raft.replica import Replica
from danube.model.errors import NotFoundError
from danube.testing.simulation import draw_plan, run_world

MOST_SEEDS = 200
STORM_S = 12.0

Plant = Callable[[pytest.MonkeyPatch], None]


def serve_without_a_certain_session(patch: pytest.MonkeyPatch) -> None:
    """Takes a session for alive until the metadata say otherwise."""
    patch.setattr(SessionClock, "is_certain", lambda self, now: not self.has_ended)


def accept_without_a_look_at_the_session(patch: pytest.MonkeyPatch) -> None:
    """Accepts messages of durability ``none`` whatever is known of the session."""
    patch.setattr(MemoryLevel, "_check_owner", lambda self, name: None)


def keep_a_session_that_has_ended(patch: pytest.MonkeyPatch) -> None:
    """Ignores that the metadata do not know the lease any more, and goes on with the session of its former life."""
    keep_alive_of = Node.keep_alive

    async def deaf(self: Any, lease: Any) -> None:
        try:
            await keep_alive_of(self, lease)
        except NotFoundError:
            await trio.lowlevel.checkpoint()

    patch.setattr(Node, "keep_alive", deaf)


def answer_a_read_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    """Answers some reads from the member's own table, as it is."""
    read, calls = Replica.read, count(1)

    def hasty(self: Replica, work: Any, now: float, *, is_brief: bool = False) -> Any:
        return (read if next(calls) % 5 else Replica.read_here)(self, work, now, is_brief=is_brief)

    patch.setattr(Replica, "read", hasty)


def ignore_conditions(patch: pytest.MonkeyPatch) -> None:
    """Applies a change although one of its conditions does not hold."""
    transact = StoreMachine.transact
    patch.setattr(StoreMachine, "transact", lambda self, conditions, operations: transact(self, (), operations))


def end_leases_early(patch: pytest.MonkeyPatch) -> None:
    """Lets a new leader end leases whose keep-alives it has not seen: it gives them a third of their time."""
    lead = Leases.lead

    def hasty(self: Leases, term: int, now: float, *rest: Any) -> None:
        ttls = self._ttls
        self._ttls = {lease: ttl_s / 3 for lease, ttl_s in ttls.items()}
        lead(self, term, now, *rest)
        self._ttls = ttls

    patch.setattr(Leases, "lead", hasty)


def go_on_without_metadata(patch: pytest.MonkeyPatch) -> None:
    """Lets a broker live whose member has failed."""

    async def never(self: Node) -> None:
        await trio.sleep_forever()

    patch.setattr(Node, "wait_ended", never)


CLUSTER_PLANTS: tuple[Plant, ...] = (
    accept_without_a_look_at_the_session,
    ignore_conditions,
    end_leases_early,
    answer_a_read_without_confirmation,
    serve_without_a_certain_session,
    keep_a_session_that_has_ended,
    go_on_without_metadata,
)

CLUSTER_FOUND_BY: dict[str, tuple[int, str]] = {
    "accept_without_a_look_at_the_session": (3, "C2: /default/t2-part-1 is served by h1 and by h5 at the same time"),
    "ignore_conditions": (0, "C1: the change of revision 64 was conditional on revision 0 of /coordinator/holder"),
    "end_leases_early": (13, "C2: the lease of /coordinator/holder was renewed at 12.354 for 3 s, and had ended"),
    "answer_a_read_without_confirmation": (0, "StuckError: C6: 95 s after the last fault h2 is not ready"),
    "serve_without_a_certain_session": (3, "C2: /default/t2-part-1 is served by h1 and by h5 at the same time"),
    "keep_a_session_that_has_ended": (4, "StuckError: sealing does not succeed: the session of broker b1 has ended"),
    "go_on_without_metadata": (3, "StuckError: C6: 30 s after the last fault the assignments of h2 differ"),
}
"""The first seed that finds a bug, and what its world says first."""


def find_in_clusters(plant: Plant, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Return the first of the seeds whose cluster finds the bug, and what it says first."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            try:
                violations = run_world(seed, plan=draw_plan(seed, duration_s=STORM_S, kind="cluster")).violations
            except Exception as error:  # noqa: BLE001 - a world that breaks is a bug that is found, too
                violations = [f"the world broke: {error!r}"]
        if violations:
            return seed, violations[0]
    return None


if __name__ == "__main__":
    names = sys.argv[1:]
    for each in CLUSTER_PLANTS:
        if not names or each.__name__ in names:
            found = find_in_clusters(each, range(MOST_SEEDS))
            sys.stdout.write(f"    {each.__name__!r}: {found!r},\n")
            sys.stdout.flush()
