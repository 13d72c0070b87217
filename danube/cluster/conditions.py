"""The conditions of the coordinator's transactions: an action whose reasons have changed since is not carried out.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from danube.cluster.coordinator import AssignTopic, FollowWal
from danube.cluster.records import ASSIGNMENTS, SESSIONS, TOPICS, WALS, broker_name, topic_key, wal_key
from danube.metadata._contract import Condition
from danube.model.names import split_partition

__all__ = ["assign_conditions", "follow_conditions", "grouped"]

A = TypeVar("A")

_GROUP: Final = 50
"""Most topics that one transaction assigns."""
_MOST_CONDITIONS: Final = 120
"""Most conditions of such a transaction: each topic has two of its own, and others with some. The metadata allow 128,
and one is that this broker still coordinates."""


def _record_key(topic: str) -> str:
    split = split_partition(topic)
    return TOPICS + (split[0] if split else topic)


def assign_conditions(action: AssignTopic) -> list[Condition]:
    """Return what must still hold when a topic is assigned."""
    found = [
        Condition(ASSIGNMENTS + topic_key(action.topic_id), action.revision),
        Condition(_record_key(action.topic), action.record_revision),
        Condition(SESSIONS + broker_name(action.assignment.owner), action.session),
    ]
    if action.former is not None:
        found.append(Condition(SESSIONS + broker_name(action.former), 0))
    return found


def follow_conditions(action: FollowWal) -> list[Condition]:
    """Return what must still hold when a topic is assigned to the owner of its wal."""
    return [
        Condition(ASSIGNMENTS + topic_key(action.topic_id), action.revision),
        Condition(action.record, action.record_revision),
        Condition(WALS + wal_key(*action.wal), action.wal_revision),
    ]


def grouped(actions: Iterable[A], conditions: Callable[[A], Iterable[Condition]]) -> Iterator[list[A]]:
    """Yield groups of actions, in their order; the conditions of each group fit into one transaction.

    Args:
        actions: the actions.
        conditions: returns those of one.
    """
    group: list[A] = []
    keys: set[str] = set()
    for action in actions:
        more = {each.key for each in conditions(action)}
        if group and (len(group) == _GROUP or len(keys | more) > _MOST_CONDITIONS):
            yield group
            group, keys = [], set()
        group.append(action)
        keys |= more
    if group:
        yield group
