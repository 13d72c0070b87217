"""Health of a broker: whether it lives, is ready, and has started; with reasons. Pure.

The answers are for ``/livez``, ``/readyz`` and ``/startupz``. A broker that does not live is to be restarted, one that
is not ready is to get no new connections. A full journal is no reason: acknowledgements, which make room, must go on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["STUCK_LOOP_S", "Health", "HealthFacts", "Probe", "health_of"]

STUCK_LOOP_S: Final = 10.0
"""The loop counts as stuck if it has not turned for this long."""


class HealthFacts(NamedTuple):
    """The state of a broker that decides about its health."""

    started: bool
    """Whether its start is over."""
    starting: str = ""
    """What it does while it starts: ``it recovers its topics``."""
    draining: bool = False
    """Whether it shuts down."""
    journal_failure: str = ""
    """Why the journal accepts nothing more; empty while it works."""
    loop_silent_s: float = 0.0
    """How long ago the event loop has last turned, or by how much its last turn was late."""
    metadata_problem: str = ""
    """Why the metadata cannot be used now; empty while they can."""


class Probe(NamedTuple):
    """The answer to one question."""

    ok: bool
    reasons: tuple[str, ...] = ()
    """Why not; empty if it is."""

    @property
    def text(self) -> str:
        """The answer as text, a line for each reason."""
        return "".join(f"{reason}\n" for reason in self.reasons) or "ok\n"


class Health(NamedTuple):
    """The answers to the three questions."""

    live: Probe
    ready: Probe
    started: Probe


def health_of(facts: HealthFacts) -> Health:
    """Return the health of a broker."""
    dead = []
    if facts.journal_failure:
        dead.append(f"the journal has failed: {facts.journal_failure}")
    if facts.loop_silent_s > STUCK_LOOP_S:
        dead.append(f"the event loop has not turned for {facts.loop_silent_s:.1f} s")
    starting = [f"the broker is starting: {facts.starting or 'it is not ready yet'}"] if not facts.started else []
    unready = [*dead, *starting]
    if facts.draining:
        unready.append("the broker is shutting down")
    if facts.metadata_problem:
        unready.append(f"the metadata cannot be reached: {facts.metadata_problem}")
    return Health(*(Probe(not reasons, tuple(reasons)) for reasons in (dead, unready, starting)))
