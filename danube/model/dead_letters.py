"""Dead letters as rules: the name of their topic, and the policies that are allowed to make them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from danube.model.errors import InvalidArgumentError
from danube.model.names import split_partition, validate_topic
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, change_policy

__all__ = ["DEAD_LETTER_SUFFIX", "check_dead_letters", "dead_letter_topic", "first_policy", "sets_dead_letters"]

DEAD_LETTER_SUFFIX: Final = "-dlq"
"""Suffix of the names of dead-letter topics, unless a policy names them."""

_NO_TOPIC_CHARACTER = re.compile(r"[^\w-]")


def dead_letter_topic(topic: str, subscription: str, policy: SubscriptionPolicy) -> str:
    """Return the dead-letter topic of a subscription.

    Without a name in the policy that is ``{topic}-{subscription}-dlq``, one topic for all partitions; characters that
    are invalid in a topic's name become ``-``.
    """
    if policy.dead_letter_topic:
        return policy.dead_letter_topic
    return f"{_base(topic)}-{_NO_TOPIC_CHARACTER.sub('-', subscription)}{DEAD_LETTER_SUFFIX}"


def check_dead_letters(topic: str, subscription: str, policy: SubscriptionPolicy) -> None:
    """Raise InvalidArgumentError if the policy sends dead letters to an invalid topic, or back to their origin."""
    if policy.poison is not PoisonPolicy.DEAD_LETTER:
        return
    target = dead_letter_topic(topic, subscription, policy)
    validate_topic(target)
    if _base(target) == _base(topic):
        raise InvalidArgumentError(
            f"subscription {subscription!r} of topic {topic!r} cannot send dead letters to {target!r}: that is where"
            " they come from; name another dead_letter_topic"
        )


def sets_dead_letters(policy: SubscriptionPolicy, changes: Mapping[str, Any]) -> bool:
    """Whether changes of a policy decide where dead letters go.

    Args:
        policy: with the changes.
        changes: by the names of its fields.
    """
    return policy.poison is PoisonPolicy.DEAD_LETTER and not changes.keys().isdisjoint(("poison", "dead_letter_topic"))


def first_policy(
    topic: str, subscription: str, default: SubscriptionPolicy, wanted: Mapping[str, Any]
) -> SubscriptionPolicy:
    """Return the policy of a new subscription: the broker's default, changed as its first consumer requests.

    The default alone makes no dead letters of dead letters: they remain in their topic.

    Raises:
        InvalidArgumentError: the policy is invalid.
    """
    if default.poison is PoisonPolicy.DEAD_LETTER and _base(topic).endswith(DEAD_LETTER_SUFFIX):
        default = change_policy(default, {"poison": PoisonPolicy.BLOCK.value})
    policy = change_policy(default, wanted)
    check_dead_letters(topic, subscription, policy)
    return policy


def _base(topic: str) -> str:
    split = split_partition(topic)
    return split[0] if split else topic
