"""Feature levels: which formats and messages the brokers of a cluster may use while their versions differ. Pure.

A version of Danube knows all levels up to its own (:data:`FEATURE_LEVEL`). The cluster has one level, in its record:
what a later level brings is used by no broker before the cluster has reached it. So the brokers of a cluster are
replaced one by one, and until the level is raised each of them can be set back to the former version. A broker that
knows less than the level of its cluster does not start.

The level is raised by an operator (``danube cluster upgrade``), or by the coordinator once it has seen for
:data:`UPGRADE_AFTER_S` that every broker knows more. It never falls.

==  =========================================================
1   the formats of the first clusters
2   planned moves: rows below ``/moves``, moved topics in journals; commits across owners: rows below ``/stage-homes``;
    failover of topics of durability ``remote``: rows below ``/wals``
==  =========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from danube.cluster.records import BrokerRecord, BrokerState, SessionRecord

__all__ = [
    "FAILOVER_LEVEL",
    "FEATURE_LEVEL",
    "MOVES_LEVEL",
    "SHARED_STAGES_LEVEL",
    "UPGRADE_AFTER_S",
    "Older",
    "Outlook",
    "due_level",
    "outlook",
]

FEATURE_LEVEL: Final = 2
"""The newest formats and messages that this version understands; see :class:`~danube.cluster.records.ClusterRecord`."""
MOVES_LEVEL: Final = 2
"""From this level on topics move by plan."""
FAILOVER_LEVEL: Final = 2
"""From this level on topics of durability ``remote`` get another owner when theirs dies."""
SHARED_STAGES_LEVEL: Final = 2
"""From this level on one commit of staged batches may concern topics of several brokers."""
UPGRADE_AFTER_S: Final = 3600.0
"""How long the coordinator sees that every broker knows a higher level, before it raises that of the cluster."""


class Older(NamedTuple):
    """A broker that knows less than others."""

    broker: str
    level: int
    is_running: bool


class Outlook(NamedTuple):
    """To which level a cluster can be raised, and what holds it back."""

    level: int
    """Of the cluster."""
    possible: int
    """The highest one that every broker knows; at least that of the cluster."""
    newest: int
    """The highest one that any broker knows."""
    older: tuple[Older, ...]
    """The brokers that know less than the newest one, in the order of their numbers."""


def outlook(
    level: int, brokers: Mapping[str, BrokerRecord], sessions: Mapping[str, SessionRecord], newest: int = 0
) -> Outlook:
    """Return to which level a cluster can be raised.

    Every broker counts that may return, also if it does not run: it would not start any more. What a session says comes
    first: it is of the version that runs now.

    Args:
        level: of the cluster.
        brokers, sessions: the records by the names of the brokers.
        newest: a level that is known to exist, even if no record says so.
    """
    known = {
        name: (sessions[name].feature_level if name in sessions else 0) or record.feature_level
        for name, record in brokers.items()
        if record.state is not BrokerState.GONE or name in sessions
    }
    newest = max(newest, level, *known.values())
    possible = max(level, min(known.values(), default=level))
    older = sorted((name for name, each in known.items() if each < newest), key=lambda name: (len(name), name))
    return Outlook(level, possible, newest, tuple(Older(name, known[name], name in sessions) for name in older))


def due_level(found: Outlook, since_s: float, now_s: float) -> int | None:
    """Return the level to which the coordinator has to raise the cluster now; None: it leaves it.

    Args:
        found: what it sees.
        since_s: since when it has seen the same possible level.
        now_s: by the same clock.
    """
    return found.possible if found.possible > found.level and now_s - since_s >= UPGRADE_AFTER_S else None
