"""Converts policies between our API and that of upstream's admin tools. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from typing import Any, Final

from danube.compat.proto import danube_admin_pb2 as pb
from danube.compat.proto import danube_api_pb2 as api_pb
from danube.model import Backoff, Durability, PoisonPolicy, Rate, SubscriptionPolicy, SubscriptionType
from danube.model.dead_letters import dead_letter_topic
from danube.model.errors import InvalidArgumentError

__all__ = [
    "SUBSCRIPTION_TYPES",
    "delivery_name",
    "dispatch_changes",
    "failure_changes",
    "shown_dispatch",
    "shown_failure_policy",
    "shown_rate",
]

_POISON: Final = {
    pb.DeadLetter: PoisonPolicy.DEAD_LETTER,
    pb.Block: PoisonPolicy.BLOCK,
    pb.Drop: PoisonPolicy.DROP,
}
_BACKOFF: Final = {pb.Fixed: Backoff.FIXED, pb.Exponential: Backoff.EXPONENTIAL}
SUBSCRIPTION_TYPES: Final = {
    SubscriptionType.EXCLUSIVE: api_pb.ConsumerRequest.Exclusive,
    SubscriptionType.SHARED: api_pb.ConsumerRequest.Shared,
    SubscriptionType.FAILOVER: api_pb.ConsumerRequest.Failover,
    SubscriptionType.KEY_SHARED: api_pb.ConsumerRequest.KeyShared,
}
"""Upstream's numbers of the types of subscriptions. A type without a number cannot be used by its clients."""
_NUMBER_OF_POISON: Final = {policy: number for number, policy in _POISON.items()}
_NUMBER_OF_BACKOFF: Final = {backoff: number for number, backoff in _BACKOFF.items()}
_LARGEST_U32: Final = 2**32 - 1
_LARGEST_U64: Final = 2**64 - 1
_MOST_UNACKED: Final = 10_000


def delivery_name(durability: Durability) -> str:
    """Return the dispatch strategy of a topic."""
    return "NonReliable" if durability is Durability.NONE else "Reliable"


def shown_rate(rate: Rate | None) -> int:
    """Return a rate in messages per second; 0: unlimited."""
    return math.ceil(rate.messages_per_s) if rate is not None else 0


def failure_changes(policy: pb.SubscriptionFailurePolicy) -> dict[str, Any]:
    """Return the changes of a subscription's policy that a failure policy means.

    Raises:
        InvalidArgumentError: an unknown number, or no topic for dead letters.
    """
    poison, backoff = _POISON.get(policy.poison_policy), _BACKOFF.get(policy.backoff_strategy)
    if poison is None:
        raise InvalidArgumentError(
            f"poison policy {policy.poison_policy} is unknown; known are 0 (DeadLetter), 1 (Block) and 2 (Drop)"
        )
    if backoff is None:
        raise InvalidArgumentError(
            f"backoff strategy {policy.backoff_strategy} is unknown; known are 0 (Fixed) and 1 (Exponential)"
        )
    if poison is PoisonPolicy.DEAD_LETTER and not policy.dead_letter_topic:
        raise InvalidArgumentError("the poison policy DeadLetter needs a dead_letter_topic")
    count = policy.max_redelivery_count
    return {
        "max_redelivery_count": -1 if count == _LARGEST_U32 else count,
        "ack_timeout_s": policy.ack_timeout_ms / 1000,
        "redelivery_delay_s": policy.base_redelivery_delay_ms / 1000,
        "max_redelivery_delay_s": policy.max_redelivery_delay_ms / 1000,
        "backoff": backoff.value,
        "dead_letter_topic": policy.dead_letter_topic,
        "poison": poison.value,
    }


def dispatch_changes(config: pb.SubscriptionDispatchConfig) -> dict[str, Any]:
    """Return the changes of a subscription's policy that a dispatch configuration means.

    Raises:
        InvalidArgumentError: the number is not from 1 to 10,000.
    """
    most = config.max_unacked_messages
    if not 1 <= most <= _MOST_UNACKED:
        raise InvalidArgumentError(f"max_unacked_messages = {most} must be between 1 and {_MOST_UNACKED}")
    return {"max_unacked_messages": most}


def shown_dispatch(policy: SubscriptionPolicy | None) -> pb.SubscriptionDispatchConfig | None:
    """Return the maximum number of unacknowledged messages; None if there is no limit."""
    most = policy.max_unacked_messages if policy is not None else 0
    return pb.SubscriptionDispatchConfig(max_unacked_messages=min(most, _LARGEST_U32)) if most else None


def shown_failure_policy(topic: str, subscription: str, policy: SubscriptionPolicy) -> pb.SubscriptionFailurePolicy:
    """Return the failure policy of a subscription."""
    endless = policy.max_redelivery_count < 0
    dead_letters = policy.dead_letter_topic
    if policy.poison is PoisonPolicy.DEAD_LETTER:
        dead_letters = dead_letter_topic(topic, subscription, policy)
    return pb.SubscriptionFailurePolicy(
        max_redelivery_count=_LARGEST_U32 if endless else min(policy.max_redelivery_count, _LARGEST_U32),
        ack_timeout_ms=_ms(policy.ack_timeout_s),
        base_redelivery_delay_ms=_ms(policy.redelivery_delay_s),
        max_redelivery_delay_ms=_ms(policy.max_redelivery_delay_s),
        backoff_strategy=_NUMBER_OF_BACKOFF[policy.backoff],
        dead_letter_topic=dead_letters or None,
        poison_policy=_NUMBER_OF_POISON[policy.poison],
    )


def _ms(seconds: float) -> int:
    return min(round(seconds * 1000), _LARGEST_U64)
