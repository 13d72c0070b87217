"""Writes the series of topics and subscriptions. Pure."""

from __future__ import annotations

from danube.metrics import families as of
from danube.metrics.tallies import OTHER, Counts, SubscriptionCounts, SubscriptionTally, TopicTally
from danube.metrics.text import Exposition

__all__ = ["write_subscription", "write_topic"]


def write_topic(text: Exposition, name: str, found: TopicTally, counts: Counts | None = None) -> None:
    """Write the series of a topic.

    Args:
        text: the exposition.
        name: of the topic or partition, or :data:`danube.metrics.tallies.OTHER`.
        found: its state.
        counts: what it has counted, if not ``found``: the sums of changing topics. Sums have no sizes either.
    """
    is_sum = counts is not None
    counts = counts if counts is not None else found.counts()
    text.add(of.MESSAGES_IN, counts.messages_in, name)
    text.add(of.BYTES_IN, counts.bytes_in, name)
    text.add(of.SENDS, counts.sent, name, "ok", "")
    if is_sum:
        text.add(of.SENDS, counts.refused, name, "error", OTHER)
    else:
        for code, count in found.refused.items():
            text.add(of.SENDS, count, name, "error", code)
        text.add(of.STORED, found.journal_bytes, name, "journal")
        text.add(of.STORED, found.storage_bytes, name, "storage")
    text.add(of.PRODUCERS, found.producers, name)
    text.add(of.CONSUMERS, found.consumers, name)
    text.add(of.SUBSCRIPTIONS, len(found.subscriptions), name)
    if found.offsets is not None:
        text.add(of.START_OFFSET, found.offsets[0], name)
        text.add(of.END_OFFSET, found.offsets[1], name)
    text.add(of.STOPPED, found.stopped, name)
    text.add(of.GAPS, found.gaps, name)


def write_subscription(
    text: Exposition, topic: str, name: str, found: SubscriptionTally, counts: SubscriptionCounts | None = None
) -> None:
    """Write the series of a subscription; ``counts`` is what it has counted, if not ``found``."""
    counts = counts if counts is not None else found.counts
    text.add(of.LAG, found.lag, topic, name)
    if found.oldest_age_s is not None:
        text.add(of.OLDEST_AGE, found.oldest_age_s, topic, name)
    for state, partitions in found.states.items():
        text.add(of.STATE, partitions, topic, name, state)
    text.add(of.STUCK, found.stuck_s, topic, name)
    text.add(of.IN_FLIGHT, found.in_flight, topic, name)
    text.add(of.WAITING, found.waiting, topic, name)
    text.add(of.DELAYED, found.delayed, topic, name)
    text.add(of.POISONED, found.poisoned, topic, name)
    text.add(of.SUB_CONSUMERS, found.connected, topic, name)
    text.add(of.DELIVERED, counts.delivered, topic, name)
    text.add(of.ACKED, counts.acked, topic, name)
    text.add(of.NACKED, counts.nacked, topic, name)
    text.add(of.REDELIVERED, counts.redelivered, topic, name)
    text.add(of.TIMEOUTS, counts.timed_out, topic, name)
    text.add(of.DEAD_LETTERS, counts.dead_lettered, topic, name)
    text.add(of.EXPIRED, counts.expired, topic, name)
    text.add(of.DROPPED, counts.dropped, topic, name)
