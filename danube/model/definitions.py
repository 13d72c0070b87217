"""Definitions: which namespaces, topics, policies and subscriptions there are to be, and the steps to it. Pure.

A file says what is wanted; what it does not mention stays as it is. ``policies`` of a namespace or a topic are all that
it has of its own: others are removed. Those of a subscription are changed as far as they are named. Only with *prune*
are namespaces, topics and subscriptions deleted that the file does not have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from danube.model.dead_letters import check_dead_letters, dead_letter_topic
from danube.model.decoding import UNDECODABLE
from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.model.names import SYSTEM_NAMESPACE, split_partition, validate_name, validate_namespace, validate_topic
from danube.model.policies import Durability, SubscriptionPolicy, SubscriptionType, TopicPolicies, change_policy

__all__ = [
    "MOST_DEFINED",
    "Definitions",
    "NamespaceDefinition",
    "Plan",
    "Step",
    "SubscriptionDefinition",
    "TopicDefinition",
    "check_definitions",
    "described",
    "plan",
    "read_definitions",
]

MOST_DEFINED: Final = 10_000
"""Most topics, and most subscriptions, of definitions."""
_DEFAULT_NAMESPACE: Final = "default"


class _Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the parts of a file."""


class SubscriptionDefinition(_Part, kw_only=True):
    """A subscription of a topic."""

    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: str = "latest"
    """``earliest`` or ``latest``: where it starts if it is created."""
    policy: dict[str, Any] = {}
    """Fields of :class:`danube.model.SubscriptionPolicy`; others stay as they are."""


class TopicDefinition(_Part, kw_only=True):
    """A topic."""

    partitions: int = 0
    """0: it is a plain topic."""
    durability: Durability | None = None
    """None: any; of a topic that is created: the default of the broker."""
    storage: str = ""
    """Empty: any; of a topic that is created: the default storage."""
    policies: TopicPolicies | None = None
    """All policies of its own; None: they stay as they are."""
    subscriptions: dict[str, SubscriptionDefinition] = {}


class NamespaceDefinition(_Part, kw_only=True):
    """A namespace."""

    policies: TopicPolicies | None = None
    """As those of a topic."""


class Definitions(_Part, kw_only=True):
    """A file of definitions."""

    version: int = 1
    namespaces: dict[str, NamespaceDefinition] = {}
    topics: dict[str, TopicDefinition] = {}
    """By their full names; partitions are not listed."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    action: str
    """``create``, ``expand`` (more partitions), ``change`` (policies) or ``delete``."""
    kind: str
    """``namespace``, ``topic`` or ``subscription``."""
    name: str
    """Of the namespace or the topic."""
    subscription: str = ""
    changes: dict[str, Any] = {}
    """Of the properties that are set; None removes a policy."""

    @property
    def sentence(self) -> str:
        """The step in words."""
        what = (
            f"{self.kind} {self.name}" if not self.subscription else f"subscription {self.subscription} of {self.name}"
        )
        shown = ", ".join(f"{name} = {_shown(value)}" for name, value in sorted(self.changes.items()))
        return f"{self.action} {what}: {shown}" if shown else f"{self.action} {what}"


class Plan(msgspec.Struct, kw_only=True):
    """What is to be done."""

    steps: list[Step]
    """In an order in which they can be carried out."""
    conflicts: list[str]
    """What is wanted and cannot be reached by a step, a sentence each; with any, nothing is carried out."""
    fingerprint: str
    """Of the steps: differs if others would be carried out."""


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_definitions(data: bytes) -> Definitions:
    """Decode and check a file of definitions.

    Raises:
        InvalidArgumentError: it is no such file; the message says where.
        LimitExceededError: it has too many topics or subscriptions.
    """
    try:
        found = msgspec.json.decode(data, type=Definitions)
    except UNDECODABLE as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgumentError(f"these are no definitions: {text}") from error
    check_definitions(found)
    return found


def check_definitions(wanted: Definitions) -> None:
    """Check definitions; raise as :func:`read_definitions`."""
    if wanted.version != 1:
        raise InvalidArgumentError(f"definitions of version {wanted.version} are unknown; this version knows 1")
    _check_count("topics", len(wanted.topics))
    _check_count("subscriptions", sum(len(topic.subscriptions) for topic in wanted.topics.values()))
    for name in wanted.namespaces:
        validate_namespace(name)
        _check_own(name)
    for name, topic in wanted.topics.items():
        validate_topic(name)
        _check_own(_namespace_of(name))
        if split_partition(name) is not None:
            raise InvalidArgumentError(f"{name} is a partition; define its topic, with a number of partitions")
        if topic.partitions < 0:
            raise InvalidArgumentError(f"topic {name} is to have {topic.partitions} partitions; 0 is a plain topic")
        for each, subscription in topic.subscriptions.items():
            validate_name("subscription", each)
            if subscription.start not in ("earliest", "latest"):
                raise InvalidArgumentError(
                    f"subscription {each} of {name} is to start at {subscription.start[:80]!r}; use earliest or latest"
                )
            try:
                check_dead_letters(name, each, change_policy(SubscriptionPolicy(), subscription.policy))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"subscription {each} of {name}: {error.message}") from error


def _check_count(what: str, count: int) -> None:
    if count > MOST_DEFINED:
        raise LimitExceededError(f"{count} {what} are defined; at most {MOST_DEFINED} are possible")


def _check_own(namespace: str) -> None:
    if namespace == SYSTEM_NAMESPACE:
        raise InvalidArgumentError(f"the namespace {SYSTEM_NAMESPACE} is the brokers' own; leave it out")


def _namespace_of(topic: str) -> str:
    return topic[1:].partition("/")[0]


# --- Planning --------------------------------------------------------------------------------------------------------


def plan(current: Definitions, wanted: Definitions, *, prune: bool = False) -> Plan:
    """Return the steps from what there is to what is wanted.

    Args:
        current: what there is, complete; the namespace of the brokers may be among it, and is left alone.
        wanted: checked definitions.
        prune: delete what is not wanted. The namespace ``default``, and topics that get the dead letters of wanted
            subscriptions, are never deleted.
    """
    namespaces = {**dict.fromkeys(map(_namespace_of, wanted.topics), NamespaceDefinition()), **wanted.namespaces}
    steps = [
        Step(action="create", kind="namespace", name=name)
        for name in sorted(namespaces)
        if name not in current.namespaces
    ]
    for name, namespace in sorted(namespaces.items()):
        known = current.namespaces.get(name, NamespaceDefinition())
        steps += _policies("namespace", name, known.policies, namespace.policies)
    conflicts: list[str] = []
    for name, topic in sorted(wanted.topics.items()):
        found = current.topics.get(name)
        if found is None:
            steps.append(_creation(name, topic))
        else:
            conflicts += _conflicts(name, found, topic)
            if 0 < found.partitions < topic.partitions:
                changes = {"partitions": topic.partitions}
                steps.append(Step(action="expand", kind="topic", name=name, changes=changes))
        known_topic = found if found is not None else TopicDefinition()
        steps += _policies("topic", name, known_topic.policies, topic.policies)
        for each, subscription in sorted(topic.subscriptions.items()):
            steps += _subscription(name, each, known_topic.subscriptions.get(each), subscription)
    if prune:
        steps += _deletions(current, wanted, namespaces)
    digest = hashlib.sha256(msgspec.json.encode([steps, conflicts], order="sorted")).hexdigest()
    return Plan(steps=steps, conflicts=conflicts, fingerprint=digest[:32])


def _creation(name: str, topic: TopicDefinition) -> Step:
    changes: dict[str, Any] = {}
    if topic.partitions:
        changes["partitions"] = topic.partitions
    if topic.durability is not None:
        changes["durability"] = topic.durability.value
    if topic.storage:
        changes["storage"] = topic.storage
    return Step(action="create", kind="topic", name=name, changes=changes)


def _conflicts(name: str, found: TopicDefinition, wanted: TopicDefinition) -> Iterator[str]:
    if bool(found.partitions) is not bool(wanted.partitions) or wanted.partitions < found.partitions:
        yield f"topic {name} has {found.partitions or 'no'} partitions, and cannot have {wanted.partitions or 'none'}"
    if wanted.durability not in (None, found.durability):
        assert found.durability is not None
        assert wanted.durability is not None
        yield f"topic {name} has durability {found.durability.value}, which cannot become {wanted.durability.value}"
    if wanted.storage and found.storage and wanted.storage != found.storage:
        yield f"topic {name} is in the storage {found.storage}, and cannot move to {wanted.storage}"
    for each, subscription in sorted(wanted.subscriptions.items()):
        known = found.subscriptions.get(each)
        if known is not None and known.type is not subscription.type:
            yield (
                f"subscription {each} of {name} is {known.type.value}, and cannot become {subscription.type.value};"
                " delete it first"
            )


def _policies(kind: str, name: str, known: TopicPolicies | None, wanted: TopicPolicies | None) -> list[Step]:
    if wanted is None:
        return []
    before: dict[str, Any] = msgspec.to_builtins(known) if known is not None else {}
    after: dict[str, Any] = msgspec.to_builtins(wanted)
    changes = {field: after.get(field) for field in {*before, *after} if before.get(field) != after.get(field)}
    return [Step(action="change", kind=kind, name=name, changes=changes)] if changes else []


def _subscription(
    topic: str, name: str, known: SubscriptionDefinition | None, wanted: SubscriptionDefinition
) -> list[Step]:
    if known is None:
        changes = {
            "type": wanted.type.value,
            "start": wanted.start,
            **({"policy": wanted.policy} if wanted.policy else {}),
        }
        return [Step(action="create", kind="subscription", name=topic, subscription=name, changes=changes)]
    # As the broker shows them: tables have all their fields.
    after: dict[str, Any] = msgspec.to_builtins(change_policy(SubscriptionPolicy(), wanted.policy))
    before: dict[str, Any] = msgspec.to_builtins(change_policy(SubscriptionPolicy(), known.policy))
    changes = {field: value for field, value in wanted.policy.items() if before[field] != after[field]}
    if not changes:
        return []
    return [Step(action="change", kind="subscription", name=topic, subscription=name, changes=changes)]


def _deletions(current: Definitions, wanted: Definitions, namespaces: Mapping[str, Any]) -> list[Step]:
    kept = _dead_letter_topics(wanted)
    gone = [
        name
        for name in sorted(current.topics)
        if name not in wanted.topics and name not in kept and _namespace_of(name) != SYSTEM_NAMESPACE
    ]
    steps = [
        Step(action="delete", kind="subscription", name=name, subscription=each)
        for name, topic in sorted(wanted.topics.items())
        if name in current.topics
        for each in sorted(current.topics[name].subscriptions)
        if each not in topic.subscriptions
    ]
    steps += [Step(action="delete", kind="topic", name=name) for name in gone]
    used = {_namespace_of(name) for name in {*current.topics, *kept} - set(gone)}
    never = (SYSTEM_NAMESPACE, _DEFAULT_NAMESPACE)
    return steps + [
        Step(action="delete", kind="namespace", name=name)
        for name in sorted(current.namespaces)
        if name not in namespaces and name not in used and name not in never
    ]


def _dead_letter_topics(wanted: Definitions) -> set[str]:
    return {
        dead_letter_topic(name, each, change_policy(SubscriptionPolicy(), subscription.policy))
        for name, topic in wanted.topics.items()
        for each, subscription in topic.subscriptions.items()
    }


def described(steps: Sequence[Step], conflicts: Sequence[str]) -> list[str]:
    """Return a line for each step, and for each conflict."""
    signs = {"create": "+", "delete": "-"}
    lines = [f"{signs.get(step.action, '~')} {step.sentence}" for step in steps]
    return lines + [f"! {conflict}" for conflict in conflicts]
