"""The resources of a request: what the fields named by the table of rights stand for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, Protocol

from danube.model.errors import InternalError, InvalidArgumentError
from danube.model.names import validate_name, validate_namespace, validate_topic
from danube.security.rights import Named, Requirement
from danube.security.scopes import CLUSTER, Resource

__all__ = ["Book", "resources_of"]


class Book(Protocol):
    """The objects of a broker that requests name by numbers. An unknown number belongs to nothing."""

    def subscription_of_consumer(self, consumer_id: int) -> tuple[str, str] | None:
        """Return the topic and the subscription of a consumer."""
        ...

    def subjects_of_schema(self, number: int) -> Sequence[str]:
        """Return the subjects that have a schema, or the one with this number; an empty name: no subject has it."""
        ...

    def topics_of_stages(self, producer: str, stage_ids: Iterable[int], write_id: str) -> Iterable[str]:
        """Return the topics of some stages, of a write (if it has an id), and of a staged producer's last commit."""
        ...


def resources_of(requirement: Requirement, request: Any, book: Book) -> list[Resource]:
    """Return the resources on which a requirement asks for its permission.

    An empty list means that the request names an object that does not exist, by a number: the operation reports that.

    Args:
        requirement: of the path of the request; its :attr:`~danube.security.rights.Requirement.named` is neither
            DEAD_LETTERS, whose topic the operation knows, nor ANYTHING.
        request: the decoded request, native or upstream.
        book: for requests with numbers.

    Raises:
        InvalidNameError: a topic, namespace or subscription has an invalid name.
        InvalidArgumentError: an unknown kind of scope.
    """
    values = [get(request) for get in _getters(requirement.fields)]
    match requirement.named:
        case Named.CLUSTER:
            return [CLUSTER]
        case Named.NAMESPACE:
            return [_namespace(values[0]) if values[0] else CLUSTER]
        case Named.TOPIC:
            return [_topic(each) for each in ([values[0]] if isinstance(values[0], str) else values[0])]
        case Named.SUBSCRIPTION:
            topic, subscription, *reads = values
            return [_topic(topic) if any(reads) else _subscription(topic, subscription)]
        case Named.SCHEMA:
            return [_schema(values[0])]
        case Named.SCHEMA_NUMBER:
            return [_schema(subject) for subject in book.subjects_of_schema(values[0])]
        case Named.PRODUCER:
            # The broker takes the number for one of this topic only, so a producer is no way to another one, and a
            # number of another topic is as unknown as one that does not exist.
            (claimed,) = values
            return [_topic(claimed)] if claimed else []
        case Named.CONSUMER:
            found = book.subscription_of_consumer(values[0])
            return [] if found is None else [_subscription(*found)]
        case Named.STAGES:
            producer, stage_ids, write_id = (*values, (), "")[:3] if len(values) < 3 else values
            return list(dict.fromkeys(map(_topic, book.topics_of_stages(producer, stage_ids, write_id))))
        case Named.TARGET:
            return [_target(values[0])]
        case Named.PLACE:
            return [_topic(values[0]) if values[0].startswith("/") else CLUSTER]
        case Named.BINDING:
            return [_bound(*values)]
    raise InternalError(f"the resources of a requirement on {requirement.named.value} are not in the request")


# A message of an official client is a call of its own, so the resources of recent names are kept.
_KEPT: Final = 4096


@cache
def _getters(fields: tuple[str, ...]) -> tuple[attrgetter[Any], ...]:
    """Return functions for the fields of a requirement, of which there are as many as in the table of rights."""
    return tuple(map(attrgetter, fields))


@lru_cache(_KEPT)
def _topic(name: str) -> Resource:
    validate_topic(name)
    return Resource.topic(name)


def _schema(subject: str) -> Resource:
    return Resource.schema(subject) if subject else CLUSTER


def _namespace(name: str) -> Resource:
    return Resource.namespace(validate_namespace(name.removeprefix("/")))


@lru_cache(_KEPT)
def _subscription(topic: str, subscription: str) -> Resource:
    validate_topic(topic)
    return Resource.subscription(topic, validate_name("subscription", subscription))


def _target(name: str) -> Resource:
    if not name:
        return CLUSTER
    return _topic(name) if name.startswith("/") else _namespace(name)


def _bound(kind: str, name: str) -> Resource:
    match kind:
        case "cluster":
            return CLUSTER
        case "namespace":
            return _namespace(name)
        case "topic":
            return _topic(name)
    raise InvalidArgumentError(f"scope {kind!r} is unknown; the scopes are cluster, namespace and topic")
