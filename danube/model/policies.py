"""Durabilities, types and changeable policies of topics and subscriptions."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from danube.model.errors import InvalidArgumentError
from danube.model.names import validate_topic

__all__ = [
    "EARLIEST",
    "LATEST",
    "SUBSCRIPTION_TRAITS",
    "Backoff",
    "Durability",
    "PoisonPolicy",
    "ProducerAccess",
    "Rate",
    "Retention",
    "SchemaFraming",
    "SchemaPayloads",
    "SchemaValidation",
    "SubscriptionPolicy",
    "SubscriptionTraits",
    "SubscriptionType",
    "TopicPolicies",
    "Unmatched",
    "change_policy",
    "check_policy",
]


class _Choice(enum.StrEnum):
    """An enumeration whose values are written with ``_``, and accepted with ``-`` as well."""

    @classmethod
    def _missing_(cls, value: object) -> _Choice | None:
        return cls._value2member_map_.get(value.replace("-", "_")) if isinstance(value, str) else None  # type: ignore[return-value]


class Durability(enum.StrEnum):
    """When a publish is acknowledged, fixed for the life of a topic."""

    NONE = "none"
    """Passed to the subscriptions in memory only. Messages do not survive a restart, and slow consumers lose
    messages."""
    OS = "os"
    """Written to the journal file. Survives ``kill -9`` of the broker."""
    DISK = "disk"
    """The journal was synced (fdatasync). Survives power loss."""
    REMOTE = "remote"
    """In the storage backend. Survives the loss of the machine."""


class SchemaValidation(_Choice):
    """What happens to a batch that names no schema of its topic's subject. Topics without a subject take all."""

    NONE = "none"
    """It is taken."""
    WARN = "warn"
    """It is taken, counted and logged."""
    ENFORCE = "enforce"
    """It is refused."""


class SchemaPayloads(_Choice):
    """Who checks that payloads fit their schema."""

    CLIENT = "client"
    """Clients: the broker does not open batches for it."""
    BROKER = "broker"
    """The broker, for topics with a subject. What does not fit is treated as ``schema_validation`` says."""


class SchemaFraming(_Choice):
    """Where messages of a topic with a subject say which schema they have."""

    NONE = "none"
    """In the header of their batch only."""
    CONFLUENT = "confluent"
    """In the frame at the beginning of each payload, unless the header of the batch names a schema."""


class SubscriptionType(_Choice):
    """How the consumers of one subscription share its messages."""

    EXCLUSIVE = "exclusive"
    """One consumer; another one is refused."""
    FAILOVER = "failover"
    """One active consumer; the others stand by."""
    SHARED = "shared"
    """All consumers, in turn by their credit. No order."""
    KEY_SHARED = "key_shared"
    """All consumers; each key has one owner at a time and keeps its order."""

    @property
    def traits(self) -> SubscriptionTraits:
        """What other parts of Danube need to know of the type."""
        return SUBSCRIPTION_TRAITS[self]


class SubscriptionTraits(NamedTuple):
    """What brokers and clients need to know of a type of subscription. They ask for a trait, not for the type."""

    single_consumer: bool
    """A second consumer is refused; else consumers share the messages, or stand by."""
    has_active: bool
    """One consumer at a time, the active one, receives all messages. So an acknowledgement may be cumulative."""
    wants_keys: bool
    """The key of a message decides which consumer receives it, and consumers may have key filters."""

    @property
    def has_standbys(self) -> bool:
        """Whether consumers wait to become the active one."""
        return self.has_active and not self.single_consumer

    @property
    def slices(self) -> bool:
        """Whether a delivery may be a part of a batch, because the other part belongs to another consumer."""
        return not self.has_active


SUBSCRIPTION_TRAITS: Final = {
    SubscriptionType.EXCLUSIVE: SubscriptionTraits(single_consumer=True, has_active=True, wants_keys=False),
    SubscriptionType.FAILOVER: SubscriptionTraits(single_consumer=False, has_active=True, wants_keys=False),
    SubscriptionType.SHARED: SubscriptionTraits(single_consumer=False, has_active=False, wants_keys=False),
    SubscriptionType.KEY_SHARED: SubscriptionTraits(single_consumer=False, has_active=False, wants_keys=True),
}
"""The traits of each type."""


class ProducerAccess(enum.StrEnum):
    """Whether a producer requires exclusive access to a topic."""

    SHARED = "shared"
    """Any number of producers at the same time."""
    EXCLUSIVE = "exclusive"
    """The only producer; opening it fences every older one, and shared producers are refused while it is open."""


class PoisonPolicy(_Choice):
    """Treatment of a message that has failed too often."""

    BLOCK = "block"
    """It stays in place and blocks the subscription (key-shared: its key) until an operator intervenes."""
    DROP = "drop"
    """It counts as acknowledged."""
    DEAD_LETTER = "dead_letter"
    """A copy goes to the dead-letter topic; once that is durable, it counts as acknowledged."""


class Backoff(enum.StrEnum):
    """Growth of the pause before a redelivery with the failures of a message."""

    FIXED = "fixed"
    """Constant."""
    EXPONENTIAL = "exponential"
    """It doubles with each failure."""


class Unmatched(enum.StrEnum):
    """Treatment of a key-shared message that matches no consumer's key filters."""

    HOLD = "hold"
    """It waits for a consumer whose filters match."""
    SKIP = "skip"
    """It counts as acknowledged."""


class Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rate limit. Excess is delayed, never dropped; bursts of up to one second's worth are allowed."""

    messages_per_s: float = 0.0
    """0: no limit."""
    bytes_per_s: float = 0.0
    """0: no limit."""

    def __bool__(self) -> bool:
        return self.messages_per_s > 0 or self.bytes_per_s > 0


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a topic keeps messages. Each rule that is set removes messages independently; the default keeps all."""

    max_age_s: float = 0.0
    """Removes messages appended longer ago, acknowledged or not; 0: no such rule."""
    max_bytes: int = 0
    """Removes the oldest sealed parts while this much is left without them, acknowledged or not; 0: no such rule."""
    acknowledged: bool = False
    """Removes messages at once that all subscriptions have acknowledged. Without subscriptions, removes nothing."""

    def __bool__(self) -> bool:
        return self.max_age_s > 0 or self.max_bytes > 0 or self.acknowledged


class SubscriptionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Redelivery rules and limits of a subscription. They can be changed while consumers are connected.

    A message *fails* when it is refused (nack) or not acknowledged in time. The loss of a consumer does not count as a
    failure of its messages: they are delivered again at once, any number of times.
    """

    max_redelivery_count: int = 5
    """A message that fails more often than this is poison; -1: no message is."""
    ack_timeout_s: float = 30.0
    """A message fails if it is not acknowledged in this time and its lease is not extended; 0: waits indefinitely."""
    backoff: Backoff = Backoff.EXPONENTIAL
    redelivery_delay_s: float = 1.0
    """Pause after the first failure."""
    max_redelivery_delay_s: float = 60.0
    """Longest pause."""
    poison: PoisonPolicy = PoisonPolicy.BLOCK
    dead_letter_topic: str = ""
    """Topic of the copies; empty for ``{topic}-{subscription}-dlq``."""
    max_unacked_messages: int = 0
    """Messages delivered and not acknowledged; 0: the broker's limit of that name (exclusive, failover: no limit)."""
    unmatched: Unmatched = Unmatched.HOLD
    dispatch_rate: Rate | None = None
    """None: the topic's policy of that name."""

    def redelivery_delay(self, failures: int) -> float:
        """Return the pause in seconds after the ``failures``-th failure (1 is the first)."""
        doublings = min(failures - 1, 60) if self.backoff is Backoff.EXPONENTIAL else 0
        return min(self.redelivery_delay_s * 2.0**doublings, self.max_redelivery_delay_s)

    def is_poison(self, failures: int) -> bool:
        """Return whether a message with this many failures is no longer delivered."""
        return 0 <= self.max_redelivery_count < failures


class TopicPolicies(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Rules for topics, set for the broker, a namespace or a topic; the nearest level with a value applies.

    None means no value. Limits that are reached refuse new connections; connected clients are not disconnected.
    """

    max_producers: int | None = None
    """Producers connected to one topic or partition."""
    max_subscriptions: int | None = None
    """Subscriptions of one topic or partition."""
    max_consumers: int | None = None
    """Consumers connected to one topic or partition, of all subscriptions."""
    max_consumers_per_subscription: int | None = None
    max_message_bytes: int | None = None
    """Largest message; never more than the broker's limit of that name."""
    message_ttl_s: float | None = None
    """Messages unacknowledged this long after they were appended count as acknowledged; 0: never."""
    retention: Retention | None = None
    publish_rate: Rate | None = None
    """All producers of one topic or partition together."""
    dispatch_rate: Rate | None = None
    """Each subscription of a topic or partition that has no rate of its own."""
    schema_validation: SchemaValidation | None = None
    """Whether batches must name a schema of the topic's subject; None: they need not."""
    schema_payloads: SchemaPayloads | None = None
    """Whether the broker checks payloads, too; None: it does not. Only with ``schema_validation``."""
    schema_framing: SchemaFraming | None = None
    """Whether payloads name their schema in a frame; None: they do not. Only with ``schema_validation``."""

    def over(self, lower: TopicPolicies) -> TopicPolicies:
        """Return these policies, completed by those of ``lower``."""
        return TopicPolicies(
            **{name: getattr(lower if getattr(self, name) is None else self, name) for name in self.__struct_fields__}
        )


P = TypeVar("P", SubscriptionPolicy, TopicPolicies)


def change_policy(policy: P, changes: Mapping[str, Any]) -> P:
    """Return ``policy`` with some fields changed; plain values (numbers, strings, tables) are converted and checked.

    Raises:
        InvalidArgumentError: an unknown name, or a value that is out of range.
    """
    try:
        changed = msgspec.convert({**msgspec.to_builtins(policy), **changes}, type(policy), strict=True)
    except msgspec.ValidationError as error:
        known = ", ".join(policy.__struct_fields__)
        raise InvalidArgumentError(f"policies: {error}; known names are {known}") from error
    check_policy(changed)
    return changed


def check_policy(policy: SubscriptionPolicy | TopicPolicies) -> None:
    """Raise InvalidArgumentError if a value is out of range."""
    for name in policy.__struct_fields__:
        value = getattr(policy, name)
        if isinstance(value, Rate):
            _not_negative(f"{name}.messages_per_s", value.messages_per_s)
            _not_negative(f"{name}.bytes_per_s", value.bytes_per_s)
        elif isinstance(value, Retention):
            _not_negative(f"{name}.max_age_s", value.max_age_s)
            _not_negative(f"{name}.max_bytes", value.max_bytes)
        elif name == "max_redelivery_count":
            if value < -1:
                raise InvalidArgumentError(f"max_redelivery_count = {value} must be at least 0, or -1 for no end")
        elif name == "max_message_bytes" and value is not None and value < 1:
            raise InvalidArgumentError(f"max_message_bytes = {value} must be at least 1")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _not_negative(name, value)
    if isinstance(policy, SubscriptionPolicy) and policy.dead_letter_topic:
        validate_topic(policy.dead_letter_topic)


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:  # refuses NaN, too
        raise InvalidArgumentError(f"{name} = {value:g} must not be negative or infinite")


EARLIEST: Final = "earliest"
LATEST: Final = "latest"
