"""Which members of the metadata's group vote: an odd number, the ones that can be reached. Pure: no I/O, no clock.

The leader asks :func:`next_change` now and then, and makes one change at a time. Rules:

* V1. The number of voters is odd, and at most :data:`~danube.cluster.forming.MOST_VOTERS`: an even one needs a larger
  majority and survives no more losses. Two members have one voter: two voters would fail with either.
* V2. A learner becomes a voter when it is reachable, and its log nearly complete (:data:`MOST_BEHIND`). So a voter is
  never waited for while it receives what it lacks.
* V3. A learner takes the place of a voter that could not be reached for :data:`DEAD_S`. That one becomes a learner: if
  it returns, it catches up and may vote again. It needs a majority of the present voters, like every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from danube.cluster.forming import MOST_VOTERS
from danube.raft import Conf, NodeId

__all__ = ["DEAD_S", "MOST_BEHIND", "Change", "Seen", "next_change"]

MOST_BEHIND: Final = 100
"""Entries that a learner may lack when it becomes a voter."""
DEAD_S: Final = 600.0
"""A voter that could not be reached for so long gives its place to a learner."""
_REACHED_S: Final = 5.0
"""A learner that could not be reached for so long does not become a voter."""


class Seen(NamedTuple):
    """What the leader knows of another member."""

    behind: int
    """Entries of the log that it has not confirmed."""
    silent_s: float
    """Since when it cannot be reached; 0: it can."""


class Change(NamedTuple):
    """The members after a change."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    reason: str
    """For the log."""


def next_change(conf: Conf, leader: NodeId, seen: Mapping[NodeId, Seen]) -> Change | None:
    """Return the change to make now, or None.

    Args:
        conf: the present configuration.
        leader: the member that asks; it votes.
        seen: all others. One that is missing is not known yet, and stays what it is.
    """
    if conf.is_joint:
        return None
    ready = [each for each in conf.learners if each in seen and _is_ready(seen[each])]
    dead = [each for each in conf.voters if each != leader and each in seen and seen[each].silent_s >= DEAD_S]
    if dead and ready:
        return _change(conf, [ready[0]], [dead[0]], f"voter {dead[0]} was not reached for {DEAD_S:.0f} s")
    voters = len(conf.voters)
    wanted = min(MOST_VOTERS, voters + len(ready))
    wanted -= wanted % 2 == 0
    if wanted > voters:
        joining = ready[: wanted - voters]
        return _change(conf, joining, [], f"{voters} of {wanted} possible voters")
    if wanted < voters:
        others = sorted((each for each in conf.voters if each != leader), key=lambda each: _rank(each, seen))
        return _change(conf, [], others[wanted - voters :], f"{wanted} voters survive as many losses as {voters}")
    return None


def _is_ready(seen: Seen) -> bool:
    return seen.behind <= MOST_BEHIND and seen.silent_s < _REACHED_S


def _rank(member: NodeId, seen: Mapping[NodeId, Seen]) -> tuple[float, NodeId]:
    return (seen[member].silent_s if member in seen else 0.0, member)


def _change(conf: Conf, joining: list[NodeId], leaving: list[NodeId], reason: str) -> Change:
    voters = tuple(sorted({*conf.voters, *joining} - {*leaving}))
    learners = tuple(sorted({*conf.learners, *leaving} - {*joining}))
    return Change(voters, learners, reason)
