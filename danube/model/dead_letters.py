"""Dead letters as rules: the name of their topic, and the policies that are allowed to make them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from danube.model.errors import InvalidArgumentError
from danube.model.names import split_partition, validate_topic
from danube.model.policies import PoisonPolicy, SubscriptionPolicy, change_policy

__all__ = [
    "DEAD_LETTER_SUFFIX",
    "ORIGINAL_TOPIC",
    "REPLAY_SUBSCRIPTION",
    "Failure",
    "Selection",
    "check_dead_letters",
    "dead_letter_topic",
    "failure_of",
    "first_policy",
    "own_attributes",
    "parse_place",
    "sets_dead_letters",
]

DEAD_LETTER_SUFFIX: Final = "-dlq"
"""Suffix of the names of dead-letter topics, unless a policy names them."""

ORIGINAL_TOPIC: Final = "x-original-topic"
"""Attribute of a dead letter: the topic or partition in which it failed."""
REPLAY_SUBSCRIPTION: Final = "dlq-replay"
"""The subscription of a dead-letter topic that knows which letters were replayed or dropped."""
_PREFIXES: Final = ("x-original-", "x-failure-", "x-poison-", "x-delivery-")

_PLACE: Final = re.compile(r"(?:([0-9]{1,9}):)?([0-9]{1,18})")
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


# --- What the attributes of a dead letter say


class Failure(NamedTuple):
    """Why a message became a dead letter, and where; None: its attributes do not say."""

    topic: str | None
    """Topic or partition of the original."""
    offset: int | str | None
    """Of the original; text, if it is no number."""
    producer: str | None
    subscription: str | None
    """The one that gave the message up."""
    attempts: int | str | None
    reason: str | None


def failure_of(attributes: Mapping[str, str] | None) -> Failure:
    """Return what the attributes of a dead letter say about its failure."""
    given = attributes or {}
    return Failure(
        given.get(ORIGINAL_TOPIC),
        _number(given.get("x-original-topic-offset")),
        given.get("x-original-producer"),
        given.get("x-original-subscription"),
        _number(given.get("x-delivery-attempt")),
        given.get("x-failure-reason"),
    )


def own_attributes(attributes: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the attributes of the original message; None if there were none."""
    return {name: value for name, value in (attributes or {}).items() if not name.startswith(_PREFIXES)} or None


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 19 else text


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters of a topic are meant: those that meet all conditions."""

    offsets: frozenset[tuple[int, int]] | None = None
    """Partition and offset of each; None: any."""
    reason: str | None = None
    """A text that the reason of the failure contains; None: any."""
    origin: tuple[str, str] | None = None
    """The topic and subscription that gave them up, where their attributes say that; None: any."""

    def takes(self, partition: int, offset: int, attributes: Mapping[str, str] | None) -> bool:
        """Whether a dead letter is meant."""
        if self.offsets is not None and (partition, offset) not in self.offsets:
            return False
        failure = failure_of(attributes)
        if self.reason is not None and self.reason not in (failure.reason or ""):
            return False
        if self.origin is None:
            return True
        topic, subscription = self.origin
        return failure.subscription in (None, subscription) and (failure.topic is None or _base(failure.topic) == topic)


def parse_place(text: str) -> tuple[int, int]:
    """Return the partition and the offset in ``PARTITION:OFFSET``, or in an offset alone, of partition 0.

    Raises:
        InvalidArgumentError: it is neither.
    """
    match = _PLACE.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"{ascii(text)[:80]} is no offset; write OFFSET, or PARTITION:OFFSET")
    return int(match[1] or 0), int(match[2])


def _base(topic: str) -> str:
    split = split_partition(topic)
    return split[0] if split else topic
