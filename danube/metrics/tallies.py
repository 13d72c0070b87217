"""What a scrape finds of a topic and of its subscriptions, and sums of that: over partitions, and over topics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = ["OTHER", "Consumer", "Counts", "Rest", "SubscriptionCounts", "SubscriptionTally", "TopicTally"]

OTHER: Final = "_other"
"""The name under which topics without series of their own are summed. No topic has it: theirs begin with a slash."""


class SubscriptionCounts(NamedTuple):
    """Messages of a subscription since the broker was started."""

    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    redelivered: int = 0
    timed_out: int = 0
    dead_lettered: int = 0
    expired: int = 0
    dropped: int = 0

    def plus(self, other: SubscriptionCounts, sign: int = 1) -> SubscriptionCounts:
        """Return the sum of both; with the sign -1, the difference."""
        return SubscriptionCounts(*(one + sign * more for one, more in zip(self, other, strict=True)))


class Consumer(NamedTuple):
    """A connected consumer, or several of one name that are consumers of different partitions."""

    messages_out: int
    bytes_out: int
    acked: int
    in_flight: int


class SubscriptionTally:
    """State of a subscription of one partition, or sums and maxima of several.

    Attributes:
        counts: of its messages.
        lag, in_flight, waiting, delayed, poisoned: messages.
        oldest_age_s: age of the oldest unacknowledged message, the highest one; None if that is not known.
        stuck_s: for how long nothing has moved, the highest one.
        states: number of partitions by state.
        consumers: the connected ones, with their names.
    """

    __slots__ = (
        "consumers",
        "counts",
        "delayed",
        "in_flight",
        "lag",
        "oldest_age_s",
        "poisoned",
        "states",
        "stuck_s",
        "waiting",
    )

    def __init__(self) -> None:
        self.counts = SubscriptionCounts()
        self.lag = self.in_flight = self.waiting = self.delayed = self.poisoned = 0
        self.oldest_age_s: float | None = None
        self.stuck_s = 0.0
        self.states: dict[str, int] = {}
        self.consumers: list[tuple[str, Consumer]] = []

    def add(self, other: SubscriptionTally) -> None:
        """Add another partition, or another subscription."""
        self.counts = self.counts.plus(other.counts)
        self.lag += other.lag
        self.in_flight += other.in_flight
        self.waiting += other.waiting
        self.delayed += other.delayed
        self.poisoned += other.poisoned
        if other.oldest_age_s is not None:
            self.oldest_age_s = max(other.oldest_age_s, self.oldest_age_s or 0.0)
        self.stuck_s = max(self.stuck_s, other.stuck_s)
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.consumers += other.consumers


class Counts(NamedTuple):
    """Everything of a topic that only grows, its subscriptions together."""

    messages_in: int = 0
    bytes_in: int = 0
    sent: int = 0
    refused: int = 0
    subscriptions: SubscriptionCounts = SubscriptionCounts()

    def since(self, before: Counts) -> Counts:
        """Return what has been counted since; all of this if one number has become smaller: it began again."""
        mine, theirs = (*self[:4], *self.subscriptions), (*before[:4], *before.subscriptions)
        if any(new < old for new, old in zip(mine, theirs, strict=True)):
            return self
        return self.plus(before, sign=-1)

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """Return the sum of both; with the sign -1, the difference."""
        return Counts(
            self.messages_in + sign * other.messages_in,
            self.bytes_in + sign * other.bytes_in,
            self.sent + sign * other.sent,
            self.refused + sign * other.refused,
            self.subscriptions.plus(other.subscriptions, sign),
        )


class TopicTally:
    """State of a topic: of one partition, or the sums over several.

    Attributes:
        messages_in, bytes_in: stored messages, accepted bytes.
        sent: messages that were acknowledged to their producers.
        refused: messages that were refused, by the code of the error.
        producers, consumers, stopped: how many; ``consumers`` include readers.
        offsets: start and end; None of sums.
        journal_bytes, storage_bytes: of its batches.
        subscriptions: by name.
    """

    __slots__ = (
        "bytes_in",
        "consumers",
        "journal_bytes",
        "messages_in",
        "offsets",
        "producers",
        "refused",
        "sent",
        "stopped",
        "storage_bytes",
        "subscriptions",
    )

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.sent = 0
        self.refused: dict[str, int] = {}
        self.producers = self.consumers = self.stopped = 0
        self.offsets: tuple[int, int] | None = None
        self.journal_bytes = self.storage_bytes = 0
        self.subscriptions: dict[str, SubscriptionTally] = {}

    def add(self, other: TopicTally) -> None:
        """Add another partition."""
        self._add_plain(other)
        for name, found in other.subscriptions.items():
            self.subscriptions.setdefault(name, SubscriptionTally()).add(found)

    def absorb(self, other: TopicTally) -> None:
        """Add another topic to a sum of topics: all subscriptions become one, and names of consumers are forgotten."""
        self._add_plain(other)
        rest = self.subscriptions.setdefault(OTHER, SubscriptionTally())
        for found in other.subscriptions.values():
            rest.add(found)
        rest.consumers = [("", consumer) for _, consumer in rest.consumers]

    def _add_plain(self, other: TopicTally) -> None:
        self.offsets = None
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.sent += other.sent
        for code, count in other.refused.items():
            self.refused[code] = self.refused.get(code, 0) + count
        self.producers += other.producers
        self.consumers += other.consumers
        self.stopped += other.stopped
        self.journal_bytes += other.journal_bytes
        self.storage_bytes += other.storage_bytes

    def counts(self) -> Counts:
        """Return what only grows."""
        subscriptions = SubscriptionCounts()
        for found in self.subscriptions.values():
            subscriptions = subscriptions.plus(found.counts)
        return Counts(self.messages_in, self.bytes_in, self.sent, sum(self.refused.values()), subscriptions)


class Rest:
    """Sums of the topics without series of their own, which never fall.

    Which topics these are changes: topics are created and deleted, become busy and idle. So a topic adds what it has
    counted from one scrape to the next while it is among them; what it counted before is not added.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        """The sums."""
        self._known: dict[str, Counts] = {}

    def update(self, present: Mapping[str, Counts]) -> None:
        """Add what has been counted since the last call.

        Args:
            present: the topics that are among the rest now, by name.
        """
        self.counts = _sum(
            (found.since(self._known[name]) for name, found in present.items() if name in self._known), self.counts
        )
        self._known = dict(present)


def _sum(parts: Iterable[Counts], total: Counts) -> Counts:
    for part in parts:
        total = total.plus(part)
    return total
