"""The owner of a topic, as a broker knows it from the metadata: this broker, another one, or one that is away.

A broker answers lookups from these tables without asking anyone. They may be late, so the answer is where to *ask*, not
a permission: the broker that is asked compares it with what it serves, and every change in the metadata is conditional
on the assignment's revision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from danube.cluster.records import (
    Assignment,
    BrokerRecord,
    BrokerState,
    SessionRecord,
    broker_name,
    topic_key,
)
from danube.model.ids import BrokerId, OwnerEpoch, TopicId

__all__ = ["Away", "Elsewhere", "Mine", "Owner", "Owners", "Unassigned"]


class Mine(NamedTuple):
    """This broker is the owner."""

    epoch: OwnerEpoch


class Elsewhere(NamedTuple):
    """Another broker is the owner, and it runs."""

    owner: BrokerId
    epoch: OwnerEpoch
    address: str
    """At which clients and brokers reach it."""
    life: int = 0
    """The number of its start, as far as this broker knows."""


class Away(NamedTuple):
    """The owner has no session: its process has ended, or is cut off."""

    owner: BrokerId
    epoch: OwnerEpoch
    state: BrokerState | None
    """None: it was forgotten."""


class Unassigned(NamedTuple):
    """The topic has no owner: it does not exist, or its assignment has not arrived here."""


Owner = Mine | Elsewhere | Away | Unassigned


class Owners:
    """Answers who owns a topic.

    Args:
        me: this broker.
        assignments, brokers, sessions: the rows of the metadata by their names (:mod:`danube.cluster.records`); they
            may change between calls.
    """

    def __init__(
        self,
        me: BrokerId,
        assignments: Mapping[str, Assignment],
        brokers: Mapping[str, BrokerRecord],
        sessions: Mapping[str, SessionRecord],
    ) -> None:
        self.me = me
        self._assignments = assignments
        self._brokers = brokers
        self._sessions = sessions

    def owner_of(self, topic_id: TopicId) -> Owner:
        """Return the owner of a topic or partition."""
        assignment = self._assignments.get(topic_key(topic_id))
        if assignment is None:
            return Unassigned()
        owner, epoch = assignment.owner, assignment.epoch
        if owner == self.me:
            return Mine(epoch)
        name = broker_name(owner)
        session = self._sessions.get(name)
        if session is not None:
            return Elsewhere(owner, epoch, session.address, session.life)
        broker = self._brokers.get(name)
        return Away(owner, epoch, broker.state if broker is not None else None)

    def addresses(self) -> Iterator[tuple[BrokerId, str]]:
        """Yield all running brokers with their addresses, this one included."""
        for name, session in self._sessions.items():
            yield BrokerId(int(name[1:])), session.address
