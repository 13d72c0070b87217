"""Resources, on which requests operate, and scopes, within which grants apply.

A *scope* is named by a grant; a *resource* is named by a request. Scopes are nested::

    cluster
      ├─ namespace:shop
      │    ├─ topic:/shop/orders       topic:/shop/ord*
      │    │    └─ subscription:/shop/orders#billing     subscription:/shop/orders#bill*
      │    └─ schema:/shop/orders-value    subjects with topic names belong to the topic's namespace
      └─ schema:orders-value           schema:ord*

A ``*`` at the end makes a prefix. A topic covers its partitions.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from danube.model.errors import InvalidArgumentError, InvalidNameError
from danube.model.names import (
    SYSTEM_NAMESPACE,
    split_partition,
    validate_name,
    validate_namespace,
    validate_topic,
)

__all__ = ["CLUSTER", "Resource", "Scope", "ScopeKind", "parse_scope", "scope_of"]


class ScopeKind(Enum):
    """The kind of a scope or a resource."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    SCHEMA = "schema"


class Resource(NamedTuple):
    """The object of a request."""

    kind: ScopeKind
    name: str
    """Cluster: empty. Namespace: its name. Topic: ``/namespace/topic``, never a partition. Subscription:
    ``/namespace/topic#subscription``. Schema: the subject."""

    @classmethod
    def namespace(cls, name: str) -> Resource:
        """Return a namespace; ``/shop`` and ``shop`` are the same."""
        return cls(ScopeKind.NAMESPACE, name.removeprefix("/"))

    @classmethod
    def topic(cls, name: str) -> Resource:
        """Return a topic; for a partition, its topic."""
        return cls(ScopeKind.TOPIC, _base(name))

    @classmethod
    def subscription(cls, topic: str, subscription: str) -> Resource:
        """Return a subscription of a topic, or of the topic of a partition."""
        return cls(ScopeKind.SUBSCRIPTION, f"{_base(topic)}#{subscription}")

    @classmethod
    def schema(cls, subject: str) -> Resource:
        """Return a subject of the schema registry."""
        return cls(ScopeKind.SCHEMA, subject)

    @property
    def is_system(self) -> bool:
        """Whether it is in the namespace ``system``, to which only brokers write."""
        if self.kind in (ScopeKind.TOPIC, ScopeKind.SUBSCRIPTION):
            return self.name.startswith(f"/{SYSTEM_NAMESPACE}/")
        return self.kind is ScopeKind.NAMESPACE and self.name == SYSTEM_NAMESPACE

    def __str__(self) -> str:
        if self.kind is ScopeKind.CLUSTER:
            return "the cluster"
        return self.name if self.kind in (ScopeKind.TOPIC, ScopeKind.SUBSCRIPTION) else f"{self.kind.value} {self.name}"


CLUSTER = Resource(ScopeKind.CLUSTER, "")
"""The resource of requests about the whole cluster."""


class Scope(NamedTuple):
    """Where a grant applies."""

    kind: ScopeKind
    name: str
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.kind is ScopeKind.CLUSTER:
            return "cluster"
        return f"{self.kind.value}:{self.name}" + ("*" if self.is_prefix else "")

    def covers(self, resource: Resource) -> bool:
        """Whether a grant with this scope applies to a resource."""
        if self.kind is ScopeKind.CLUSTER:
            return True
        name = _name_as(self.kind, resource)
        if name is None:
            return False
        return name.startswith(self.name) if self.is_prefix else name == self.name

    def contains(self, other: Scope) -> bool:
        """Whether every resource that ``other`` covers is covered by this scope, too."""
        if self.kind is ScopeKind.CLUSTER or self == other:
            return True
        if other.kind is ScopeKind.CLUSTER:
            return False
        if self.kind is ScopeKind.NAMESPACE:
            # A prefix without a complete namespace, such as "/sho", covers several namespaces.
            return _is_inside(other, f"/{self.name}/")
        if self.kind is ScopeKind.TOPIC and other.kind is ScopeKind.SUBSCRIPTION:
            topic, separator, _ = other.name.partition("#")
            if self.is_prefix:
                return topic.startswith(self.name)
            return bool(separator) and topic == self.name
        if self.kind is not other.kind:
            return False
        if self.is_prefix:
            return other.name.startswith(self.name)
        return not other.is_prefix and other.name == self.name

    def overlap(self, other: Scope) -> Scope | None:
        """Return the scope of all resources that both cover; None if there is none."""
        if self.contains(other):
            return other
        if other.contains(self):
            return self
        return _cut(self, other) or _cut(other, self)


def scope_of(resource: Resource) -> Scope:
    """Return the scope of a resource and everything in it."""
    return Scope(resource.kind, resource.name)


def _cut(prefix: Scope, namespace: Scope) -> Scope | None:
    """Return the part of a prefix without a complete namespace, such as ``/sho``, that is in a namespace."""
    start = f"/{namespace.name}/"
    if prefix.is_prefix and namespace.kind is ScopeKind.NAMESPACE and start.startswith(prefix.name):
        return prefix._replace(name=start)
    return None


def _is_inside(scope: Scope, start: str) -> bool:
    if scope.kind is ScopeKind.NAMESPACE:
        return not scope.is_prefix and f"/{scope.name}/" == start
    return scope.name.startswith(start)


def _base(topic: str) -> str:
    partition = split_partition(topic)
    return topic if partition is None else partition[0]


def _name_as(kind: ScopeKind, resource: Resource) -> str | None:
    """Return the name of a resource, or of its parent, of the given kind; None if there is no such parent."""
    if kind is resource.kind:
        return resource.name
    if kind is ScopeKind.NAMESPACE and resource.name.startswith("/"):
        return resource.name[1:].partition("/")[0]
    if kind is ScopeKind.TOPIC and resource.kind is ScopeKind.SUBSCRIPTION:
        return resource.name.partition("#")[0]
    return None


def parse_scope(text: str) -> Scope:
    """Parse a scope given as text.

    ``cluster``, ``namespace:shop``, ``topic:/shop/orders``, ``topic:/shop/ord*``,
    ``subscription:/shop/orders#billing``, ``schema:orders-value``. Text that begins with ``/`` is a topic, or with a
    ``#`` a subscription.

    Raises:
        InvalidArgumentError: the text is not a valid scope.
    """
    kind_name, colon, name = text.partition(":")
    if text.startswith("/"):
        kind_name, name = ("subscription" if "#" in text else "topic"), text
    elif text == "cluster":
        return Scope(ScopeKind.CLUSTER, "")
    elif not colon:
        raise _malformed(text)
    is_prefix = name.endswith("*")
    name = name.removesuffix("*")
    try:
        kind = ScopeKind(kind_name)
        if kind is ScopeKind.NAMESPACE and not is_prefix:
            return Scope(kind, validate_namespace(name.removeprefix("/")))
        if kind is ScopeKind.TOPIC:
            return Scope(kind, _checked_topic(name, is_prefix=is_prefix), is_prefix)
        if kind is ScopeKind.SUBSCRIPTION:
            topic, _, subscription = name.partition("#")
            if subscription or not is_prefix:
                validate_name("subscription", subscription)
            return Scope(kind, f"{_checked_topic(topic, is_prefix=False)}#{subscription}", is_prefix)
        if kind is ScopeKind.SCHEMA and (name or is_prefix):
            return Scope(kind, name, is_prefix)
    except InvalidNameError as error:
        raise InvalidArgumentError(f"{text!r} is not a scope: {error}") from error
    except ValueError as error:
        raise _malformed(text) from error
    raise _malformed(text)


def _checked_topic(name: str, *, is_prefix: bool) -> str:
    if is_prefix:
        # The name must be a prefix of topic names, with at least one character of the namespace.
        validate_topic(name + ("x" if name.count("/") == 2 else "x/x"))
        return name
    validate_topic(name)
    if _base(name) != name:
        raise InvalidArgumentError(f"{name!r} is a partition; grants name the topic {_base(name)!r}")
    return name


def _malformed(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text!r} is not a scope: use cluster, namespace:NAME, topic:/namespace/name,"
        " subscription:/namespace/name#NAME or schema:SUBJECT; a '*' at the end of a topic, subscription or schema"
        " makes a prefix"
    )
