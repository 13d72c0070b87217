"""Reports of a subscription: its figures, and an explanation why it moves or does not. Pure.

The explanation gives the first reason that applies: stored data is damaged; history or a seek waits for its storage;
dead letters cannot be copied; the dispatch rate is used up; no consumer reads; or what the machine says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

from danube.broker.delivery.connected_consumer import ConnectedConsumer, Origin
from danube.dispatch import Cursor, Description, Explanation, Machine
from danube.model import Rate, SubscriptionPolicy, SubscriptionType, api
from danube.model.errors import DanubeError, StorageError
from danube.model.ids import Offset

__all__ = ["Explained", "explanation_of", "info_of", "state_of"]


class Copying(Protocol):
    """The state of the dead letters of a subscription; see :class:`danube.broker.delivery.dead_letters.DeadLetters`."""

    @property
    def problem(self) -> DanubeError | None:
        """Why the last attempt to copy failed; None while copying succeeds."""
        ...

    @property
    def copied(self) -> int:
        """Number of messages copied since the broker was started."""
        ...

    @property
    def target(self) -> str:
        """Name of the topic that they are copied to."""
        ...


class Explained(Protocol):
    """The reported state of a subscription; see :class:`danube.broker.delivery.subscription.Subscription`."""

    name: str
    kind: SubscriptionType
    cursor: Cursor
    machine: Machine
    failure: DanubeError | None
    waits_for: StorageError | None
    moving: bool
    paced_until: float
    expired_messages: int

    @property
    def topic(self) -> Origin:
        """The topic or partition."""
        ...

    @property
    def policy(self) -> SubscriptionPolicy:
        """Its policy."""
        ...

    @property
    def rate(self) -> Rate | None:
        """Its maximum delivery rate."""
        ...

    @property
    def dead_letters(self) -> Copying:
        """Its dead letters."""
        ...

    @property
    def consumers(self) -> Mapping[int, ConnectedConsumer]:
        """The connected consumers, by id."""
        ...


def info_of(subscription: Explained) -> api.SubscriptionInfo:
    """Return the present state of a subscription."""
    end_offset = subscription.topic.end_offset
    facts = subscription.machine.describe(end_offset)
    return api.SubscriptionInfo(
        topic=subscription.topic.name,
        subscription=subscription.name,
        type=subscription.kind,
        floor=Offset(facts.floor),
        position=Offset(facts.position),
        end_offset=end_offset,
        backlog_messages=facts.backlog_messages,
        in_flight_messages=facts.in_flight_messages,
        acked_ranges=facts.acked_ranges,
        redelivered_messages=facts.redelivered_messages,
        dropped_messages=facts.dropped_messages,
        consumers=[
            api.ConsumerInfo(
                name=state.name,
                consumer_id=state.consumer_id,
                active=state.active,
                credit_messages=state.credit_messages,
                in_flight_messages=state.in_flight_messages,
                delivered_messages=state.delivered_messages,
                acked_messages=state.acked_messages,
                credit_bytes=state.credit_bytes,
                key_filters=list(state.key_filters),
                suspended=state.suspended,
            )
            for state in facts.consumers
        ],
        policy=subscription.policy,
        waiting_messages=facts.waiting_messages,
        delayed_messages=facts.delayed_messages,
        poisoned_messages=facts.poisoned_messages,
        dead_lettered_messages=subscription.dead_letters.copied,
        expired_messages=subscription.expired_messages,
    )


def explanation_of(subscription: Explained, now: float) -> api.Explanation:
    """Return the first reason that applies now (monotonic seconds)."""
    return api.Explanation(subscription.topic.name, subscription.name, *_reason(subscription, now)[:2])


def state_of(subscription: Explained, now: float) -> tuple[str, Description]:
    """Return the state that :func:`explanation_of` would give, and the figures of the subscription."""
    state, _, found = _reason(subscription, now)
    if found is not None:
        return state, found.description
    return state, subscription.machine.describe(subscription.topic.end_offset)


def _reason(subscription: Explained, now: float) -> tuple[str, str, Explanation | None]:
    if subscription.failure is not None:
        return "failed", f"{subscription.failure}; it is checked again when a consumer connects", None
    if subscription.waits_for is not None:
        why = f"it waits for history from the storage; retrying: {subscription.waits_for}"
        return "waiting-for-storage", why, None
    if subscription.moving:
        why = f"the seek to offset {subscription.cursor.floor} is not durable yet; delivery continues there afterwards"
        return "waiting-for-storage", why, None
    found = subscription.machine.explain(now, subscription.topic.end_offset)
    state, sentence = _whole_reason(subscription, found, now)
    return state, sentence, found


def _whole_reason(subscription: Explained, found: Explanation, now: float) -> tuple[str, str]:
    """Return the first reason that applies, the machine's included."""
    letters = subscription.dead_letters
    if letters.problem is not None:
        count = subscription.machine.poisoned_messages()
        waiting = "1 message waits" if count == 1 else f"{count:,} messages wait"
        return "dead-lettering", (
            f"{waiting} to be copied to {letters.target!r}, which failed and is retried: {letters.problem};"
            f" {found.sentence}"
        )
    rate, paced_s = subscription.rate, subscription.paced_until - now
    if found.state == "moving" and 0 < paced_s < math.inf:
        if rate is None:
            return "rate-limited", "the dispatch rate that all topics of its namespace share is used up"
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
