"""What a scrape finds of a topic and of its subscriptions, and sums of that: over partitions, and over topics. Pure."""

from __future__ import annotations

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

    def plus(self, other: SubscriptionCounts) -> SubscriptionCounts:
        """Return the sum of both."""
        return SubscriptionCounts(*(one + more for one, more in zip(self, other, strict=True)))


class Consumer(NamedTuple):
    """What a connected consumer of one partition has received and acknowledged."""

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
        connected: number of connected consumers.
        consumers: these, with their names, if they are listed.
    """

    __slots__ = (
        "connected",
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
        self.connected = 0
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
        self.connected += other.connected
        self.consumers += other.consumers


class Counts(NamedTuple):
    """Everything of a topic that only grows, its subscriptions together."""

    messages_in: int = 0
    bytes_in: int = 0
    sent: int = 0
    refused: int = 0
    subscriptions: SubscriptionCounts = SubscriptionCounts()


class TopicTally:
    """State of a topic: of one partition, or the sums over several.

    Attributes:
        messages_in, bytes_in: stored messages, accepted bytes.
        sent: messages that were acknowledged to their producers.
        refused: messages that were refused, by the code of the error.
        producers, consumers, stopped: how many; ``consumers`` include readers.
        gaps: ranges of offsets that were lost, and that subscriptions wait for.
        offsets: start and end; None of sums.
        journal_bytes, storage_bytes: of its batches.
        subscriptions: by name.
    """

    __slots__ = (
        "bytes_in",
        "consumers",
        "gaps",
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
        self.producers = self.consumers = self.stopped = self.gaps = 0
        self.offsets: tuple[int, int] | None = None
        self.journal_bytes = self.storage_bytes = 0
        self.subscriptions: dict[str, SubscriptionTally] = {}

    def add(self, other: TopicTally) -> None:
        """Add another partition."""
        self._add_plain(other)
        for name, found in other.subscriptions.items():
            self.subscriptions.setdefault(name, SubscriptionTally()).add(found)

    def absorb(self, other: TopicTally) -> None:
        """Add another topic to a sum of topics: all of its subscriptions are added to one."""
        self._add_plain(other)
        rest = self.subscriptions.setdefault(OTHER, SubscriptionTally())
        for found in other.subscriptions.values():
            rest.add(found)

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
        self.gaps += other.gaps
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
    counted from one scrape to the next while it is among them; what it counted before is not added. A scrape calls
    :meth:`add` for each of them, and then :meth:`finish`.
    """

    def __init__(self) -> None:
        self._sums = [0] * len(_flat(Counts()))
        self._known: dict[str, tuple[int, ...]] = {}
        self._present: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def counts(self) -> Counts:
        """The sums."""
        messages_in, bytes_in, sent, refused, *rest = self._sums
        return Counts(messages_in, bytes_in, sent, refused, SubscriptionCounts(*rest))

    def add(self, name: str, counts: Counts) -> None:
        """Add what a topic has counted since the last scrape; nothing if it was not among them then."""
        present = self._present[name] = _flat(counts)
        before = self._known.get(name)
        if before is None:
            return
        if any(new < old for new, old in zip(present, before, strict=True)):
            before = (0,) * len(present)  # it was deleted and created again
        for index, (new, old) in enumerate(zip(present, before, strict=True)):
            self._sums[index] += new - old

    def finish(self) -> None:
        """End a scrape: topics that were not added are not among them any more."""
        self._known, self._present = self._present, {}


def _flat(counts: Counts) -> tuple[int, ...]:
    return (counts.messages_in, counts.bytes_in, counts.sent, counts.refused, *counts.subscriptions)
