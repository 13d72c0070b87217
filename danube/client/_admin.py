"""Client methods that manage topics, namespaces and subscriptions.

Calls that only read are repeated when the connection breaks; the others are not, because they may have been executed.
"""

from __future__ import annotations

import enum
import reprlib
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from danube.client._checks import check_offset
from danube.client._history_admin import HistoryCalls
from danube.client._policy_admin import PolicyCalls
from danube.client._retry import Retry
from danube.model import api
from danube.model.errors import DanubeError, InvalidArgumentError, NotFoundError
from danube.model.names import partition_name, validate_name, validate_namespace, validate_topic
from danube.model.policies import EARLIEST, LATEST, Durability, Retention

if TYPE_CHECKING:
    from danube.client._connection import Connection
    from danube.client._options import ClientOptions

__all__ = ["AdminCalls", "as_durability", "choice", "start_position"]

E = TypeVar("E", bound=enum.Enum)
T = TypeVar("T")


def start_position(start: str | int | datetime) -> tuple[str | int, int]:
    """Return ``(position, time_us)`` for ``"earliest"``, ``"latest"``, an offset, or a date with a time zone.

    Raises:
        InvalidArgumentError: anything else.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise InvalidArgumentError(f"start {start} has no time zone; use datetime(..., tzinfo=timezone.utc)")
        return LATEST, max(1, round(start.timestamp() * 1_000_000))
    if isinstance(start, str) and start in (EARLIEST, LATEST):
        return start, 0
    if type(start) is int and start >= 0:
        return check_offset("start", start), 0
    raise InvalidArgumentError(f"start {reprlib.repr(start)} is not 'earliest', 'latest', an offset >= 0 or a datetime")


class AdminCalls(HistoryCalls, PolicyCalls):
    """The part of :class:`Client` for administration."""

    _connection: Connection
    _options: ClientOptions

    async def info(self) -> api.BrokerInfo:
        """Return the status of the broker."""
        return await self._read(api.Method.INFO, api.Empty(), api.BrokerInfo)

    async def lookup_topic(self, topic: str) -> api.TopicPartitions:
        """Return the topics that hold the messages of a topic: the topic itself, or its partitions.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        validate_topic(topic)
        return await self._read(api.Method.LOOKUP_TOPIC, api.LookupTopic(topic), api.TopicPartitions)

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        durability: Durability | str | None = None,
        storage: str = "",
        retention: Retention | None = None,
    ) -> api.TopicInfo:
        """Create a topic.

        Args:
            topic: its name.
            partitions: 0 makes a plain topic.
            durability: when a publish is acknowledged; None takes the broker's default.
            storage: name of the storage of its history; empty for the broker's default.
            retention: how long it keeps messages; None keeps all messages.

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidArgumentError: the broker has no such storage, or the retention is invalid.
        """
        validate_topic(topic)
        rules = Retention() if retention is None else retention
        request = api.CreateTopic(topic, partitions, as_durability(durability), storage, rules)
        return await self._change(api.Method.CREATE_TOPIC, request, api.TopicInfo)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic (all partitions of a partitioned one) with its messages and subscriptions."""
        validate_topic(topic)
        await self._change(api.Method.DELETE_TOPIC, api.DeleteTopic(topic), api.Done)

    async def list_topics(self, namespace: str | None = None) -> list[api.TopicInfo]:
        """Return the topics of a namespace, or of all."""
        request = api.ListTopics(namespace or "")
        return (await self._read(api.Method.LIST_TOPICS, request, api.TopicList)).topics

    async def describe_topic(self, topic: str) -> api.TopicInfo:
        """Return one topic; for a partitioned one, the sums over its partitions."""
        validate_topic(topic)
        return await self._read(api.Method.DESCRIBE_TOPIC, api.DescribeTopic(topic), api.TopicInfo)

    async def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""
        validate_namespace(namespace)
        await self._change(api.Method.CREATE_NAMESPACE, api.CreateNamespace(namespace), api.Done)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        validate_namespace(namespace)
        await self._change(api.Method.DELETE_NAMESPACE, api.DeleteNamespace(namespace), api.Done)

    async def list_namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return (await self._read(api.Method.LIST_NAMESPACES, api.ListNamespaces(), api.NamespaceList)).namespaces

    async def list_subscriptions(self, topic: str) -> list[api.SubscriptionInfo]:
        """Return the subscriptions of a topic, one row for each partition."""
        validate_topic(topic)
        request = api.ListSubscriptions(topic)
        return (await self._read(api.Method.LIST_SUBSCRIPTIONS, request, api.SubscriptionList)).subscriptions

    async def describe_subscription(self, topic: str, subscription: str) -> list[api.SubscriptionInfo]:
        """Return the state of a subscription, one row for each partition."""
        request = _reference(topic, subscription)
        return (await self._read(api.Method.DESCRIBE_SUBSCRIPTION, request, api.SubscriptionList)).subscriptions

    async def explain_subscription(self, topic: str, subscription: str) -> api.Explanation:
        """Return, in a sentence, why a subscription moves or does not."""
        request = _reference(topic, subscription)
        return await self._read(api.Method.EXPLAIN_SUBSCRIPTION, request, api.Explanation)

    async def seek_subscription(self, topic: str, subscription: str, position: str | int | datetime) -> None:
        """Move a subscription to ``"earliest"``, ``"latest"``, an offset, or the first message at or after a time."""
        _reference(topic, subscription)
        where, time_us = start_position(position)
        request = api.SeekSubscription(topic, subscription, where, time_us)
        await self._change(api.Method.SEEK_SUBSCRIPTION, request, api.Done)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription and its cursor; connected consumers are disconnected."""
        _reference(topic, subscription)
        request = api.DeleteSubscription(topic, subscription)
        await self._change(api.Method.DELETE_SUBSCRIPTION, request, api.Done)

    async def _topics(self, topic: str, partitions: int) -> list[str]:
        """Return the topics of a name; for a topic that does not exist yet, those that opening will create."""
        try:
            return (await self.lookup_topic(topic)).topics
        except NotFoundError:
            return [partition_name(topic, index) for index in range(partitions)] or [topic]

    async def _change(self, path: str, request: Any, kind: type[T]) -> T:
        return await self._connection.unary(path, request, kind, timeout_s=self._connection.options.request_timeout_s)

    async def _read(self, path: str, request: Any, kind: type[T]) -> T:
        retry = Retry(self._connection.options)
        while True:
            try:
                return await self._change(path, request, kind)
            except DanubeError as error:
                if not error.retryable or not await retry.wait(error):
                    raise


def as_durability(name: Durability | str | None) -> Durability | None:
    """Return the durability of that name; None stays None.

    Raises:
        InvalidArgumentError: there is no such durability.
    """
    return None if name is None else choice(Durability, "durability", name)


def choice(kind: type[E], option: str, value: E | str) -> E:
    """Return the member of ``kind`` for ``value``.

    Raises:
        InvalidArgumentError: the value is invalid.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(one.value) for one in kind)
        raise InvalidArgumentError(f"{option} {reprlib.repr(value)} is unknown; known are {known}") from None


def _reference(topic: str, subscription: str) -> api.SubscriptionRef:
    validate_topic(topic)
    validate_name("subscription", subscription)
    return api.SubscriptionRef(topic, subscription)
