"""Reports of a subscription: its figures, and an explanation why it moves or does not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from danube.model import Rate, api

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription

__all__ = ["explanation_of", "info_of"]


def info_of(subscription: Subscription) -> api.SubscriptionInfo:
    """Return the present state of a subscription."""
    end_offset = subscription.topic.end_offset
    facts = subscription.machine.describe(end_offset)
    return api.SubscriptionInfo(
        subscription.topic.name,
        subscription.name,
        subscription.kind,
        facts.floor,
        facts.position,
        end_offset,
        facts.backlog_messages,
        facts.in_flight_messages,
        facts.acked_ranges,
        facts.redelivered_messages,
        facts.dropped_messages,
        [
            api.ConsumerInfo(
                state.name,
                state.consumer_id,
                state.active,
                state.credit_messages,
                state.in_flight_messages,
                state.delivered_messages,
                state.acked_messages,
                state.credit_bytes,
                list(state.key_filters),
                state.suspended,
            )
            for state in facts.consumers
        ],
        subscription.policy,
        facts.waiting_messages,
        facts.delayed_messages,
        facts.poisoned_messages,
        subscription.dead_letters.copied,
        subscription.expired_messages,
    )


def explanation_of(subscription: Subscription) -> api.Explanation:
    """Return the first reason that applies."""
    return api.Explanation(subscription.topic.name, subscription.name, *_reason(subscription))


def _reason(subscription: Subscription) -> tuple[str, str]:
    if subscription.failure is not None:
        return "failed", f"{subscription.failure}; it is checked again when a consumer connects"
    if subscription.waits_for is not None:
        return "waiting-for-storage", f"it waits for history from the storage; retrying: {subscription.waits_for}"
    if subscription.moving:
        return "waiting-for-storage", (
            f"the seek to offset {subscription.cursor.floor} is not durable yet; delivery continues there afterwards"
        )
    now = trio.current_time()
    found = subscription.machine.explain(now, subscription.topic.end_offset)
    letters = subscription.dead_letters
    if letters.problem is not None:
        count = subscription.machine.poisoned_messages()
        waiting = "1 message waits" if count == 1 else f"{count:,} messages wait"
        return "dead-lettering", (
            f"{waiting} to be copied to {letters.target!r}, which failed and is retried: {letters.problem};"
            f" {found.sentence}"
        )
    rate, paced_s = subscription.rate, subscription.paced_until - now
    if found.state == "moving" and rate is not None and 0 < paced_s < math.inf:
        return "rate-limited", f"its dispatch rate of {_shown(rate)} is used up for {paced_s:.1f} s"
    if found.state == "no-credit":
        deaf = [consumer.name for consumer in subscription.consumers.values() if consumer.holds]
        if deaf:
            names = ", ".join(map(repr, deaf[:3])) + ("" if len(deaf) < 4 else f" and {len(deaf) - 3} more")
            return found.state, f"{found.sentence}; data sent to {names} is not read from the connection"
    return found.state, found.sentence


def _shown(rate: Rate) -> str:
    parts = []
    if rate.messages_per_s:
        parts.append(f"{rate.messages_per_s:,g} messages")
    if rate.bytes_per_s:
        parts.append(f"{rate.bytes_per_s:,g} bytes")
    return " and ".join(parts) + " a second"
