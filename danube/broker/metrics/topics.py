"""What a scrape reads of a topic and its subscriptions. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danube.broker.delivery.explain import state_of
from danube.cluster.gaps import open_ranges
from danube.log import TopicLog
from danube.metrics.tallies import Consumer, SubscriptionCounts, SubscriptionTally, TopicTally
from danube.model.ids import Offset

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.topic.topic import Topic
    from danube.history import TopicHistory

__all__ = ["moved_messages", "subscription_tally", "topic_tally"]

_AT_REST: Final = frozenset({"caught-up", "waiting-for-delivery-time"})
"""States of subscriptions that wait for nothing but new messages, or the time of theirs."""


def moved_messages(topic: Topic) -> int:
    """Return how many messages a topic has received and delivered: how busy it is."""
    return topic.end_offset + sum(each.machine.delivered_messages for each in topic.subscriptions.values())


def topic_tally(topic: Topic, sealed: TopicHistory | None, *, sizes: bool) -> TopicTally:
    """Return what is known of a topic or partition, without its subscriptions.

    Args:
        topic: the topic.
        sealed: its history, if it has one.
        sizes: whether to measure what it stores, which takes longer the more it is.
    """
    found = TopicTally()
    intake = topic.intake
    found.offsets = topic.start_offset, topic.end_offset
    found.messages_in = topic.end_offset
    found.bytes_in = intake.accepted_bytes
    found.sent = intake.settled_messages
    found.refused = dict(intake.refused_messages)
    found.producers = intake.producers
    found.consumers = sum(len(pump.consumers) for pump in topic.pumps())
    found.stopped = topic.failure is not None
    found.gaps = sum(end > topic.start_offset for _, end in open_ranges(topic.gaps))
    if sizes and not topic.lossy:
        found.journal_bytes = topic.stored_bytes
        found.storage_bytes = sealed.size_bytes if sealed is not None else 0
    return found


def subscription_tally(
    subscription: Subscription, topic: Topic, sealed: TopicHistory | None, now: float, now_us: int, *, consumers: bool
) -> SubscriptionTally:
    """Return what is known of a subscription.

    Args:
        subscription: the subscription.
        topic: the topic or partition it belongs to.
        sealed: the history of that, if it has one.
        now: monotonic seconds.
        now_us: the wall clock.
        consumers: whether to list its consumers.
    """
    found = SubscriptionTally()
    machine = subscription.machine
    found.counts = SubscriptionCounts(
        delivered=machine.delivered_messages,
        acked=machine.acked_messages + subscription.acked_from_before,
        nacked=machine.nacked_messages,
        redelivered=machine.redelivered_messages,
        timed_out=machine.timed_out_messages,
        dead_lettered=subscription.dead_letters.copied,
        expired=subscription.expired_messages,
        dropped=machine.dropped_messages,
    )
    found.connected = len(subscription.consumers)
    found.lag = subscription.cursor.backlog(topic.end_offset)
    if not found.lag and not consumers and not topic.lossy and _is_calm(subscription):
        # What the explanation would say, without what it costs: most subscriptions of most brokers.
        found.states["caught-up" if subscription.consumers else "no-consumer"] = 1
        return found
    state, facts = state_of(subscription, now)
    found.states[state] = 1
    found.in_flight = facts.in_flight_messages
    found.waiting = facts.waiting_messages
    found.delayed = facts.delayed_messages
    found.poisoned = facts.poisoned_messages
    if consumers:
        found.consumers = [
            (
                each.name,
                Consumer(each.delivered_messages, each.delivered_bytes, each.acked_messages, each.in_flight_messages),
            )
            for each in facts.consumers
        ]
    if found.lag:
        found.oldest_age_s = _oldest_age_s(subscription, topic, sealed, now_us)
        if state not in _AT_REST:
            still_s = now - subscription.progressed_s
            found.stuck_s = still_s if found.oldest_age_s is None else min(still_s, found.oldest_age_s)
    return found


def _is_calm(subscription: Subscription) -> bool:
    """Whether nothing keeps a subscription without unacknowledged messages from going on."""
    return subscription.failure is None and subscription.waits_for is None and not subscription.moving


def _oldest_age_s(subscription: Subscription, topic: Topic, sealed: TopicHistory | None, now_us: int) -> float | None:
    offset = Offset(subscription.cursor.next_live(max(subscription.cursor.floor, topic.start_offset)))
    log = topic.kept
    appended_us = log.appended_us(offset) if isinstance(log, TopicLog) else 0
    if not appended_us and sealed is not None:
        appended_us = sealed.appended_us(offset)
    return max(0.0, (now_us - appended_us) / 1e6) if appended_us else None
