"""Managing topics, namespaces, subscriptions and policies: ``client.admin``.

Calls that only read are repeated when the connection breaks; the others are not, because they may have been executed.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from danube.client._checks import as_durability, check_list, check_seconds, plain, start_position
from danube.client._retry import Retry
from danube.model import api, history_api
from danube.model.history_api import HistoryMethod
from danube.model.ids import TopicId
from danube.model.names import validate_name, validate_namespace, validate_topic
from danube.model.policies import Durability, Retention
from danube.model.policy_api import ChangePolicies, ChangeSubscriptionPolicy, PolicyMethod, PolicyReport, ShowPolicies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danube.client._connection import Connection

__all__ = ["Admin"]

T = TypeVar("T")


class Admin:
    """Manages topics, namespaces, subscriptions and policies; it is :attr:`Client.admin`.

    ``timeout_s`` of a method bounds the call: after it the call raises DeadlineExceededError, and the broker stops its
    work. None waits as long as the connection exists.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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

    async def seal_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Seal all messages of a topic, and return when they are in its storage; one row for each partition.

        Raises:
            StorageError: the storage failed; the broker continues to retry.
            FailedPreconditionError: the topic stores no messages, or its storage is not durable.
        """
        validate_topic(topic)
        request = history_api.SealTopic(topic)
        return (await self._long(HistoryMethod.SEAL_TOPIC, request, history_api.SealedTopics, timeout_s)).topics

    async def unload_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Disconnect all clients from a topic (they reconnect by themselves), and seal all its messages.

        Raises as :meth:`seal_topic`.
        """
        validate_topic(topic)
        request = history_api.UnloadTopic(topic)
        return (await self._long(HistoryMethod.UNLOAD_TOPIC, request, history_api.SealedTopics, timeout_s)).topics

    async def change_retention(
        self,
        topic: str,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        now: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RetentionPlans:
        """Change the retention rules of a topic, apply them, or report their effect.

        Args:
            topic: a plain or partitioned topic.
            retention: the new rules, replacing all; None leaves them unchanged.
            dry_run: change nothing, only report which messages would be deleted.
            now: apply the rules before returning; otherwise that happens within a minute.
            timeout_s: see the class.
        """
        validate_topic(topic)
        request = history_api.ChangeRetention(topic, retention, dry_run, now)
        return await self._long(HistoryMethod.CHANGE_RETENTION, request, history_api.RetentionPlans, timeout_s)

    async def list_stranded(self) -> list[history_api.StrandedTopic]:
        """Return the topics that the journal has messages or cursors of, and that the metadata do not know."""
        return (await self._read(HistoryMethod.LIST_STRANDED, api.Empty(), history_api.StrandedTopics)).topics

    async def forget_stranded(
        self, topic_ids: Sequence[TopicId], *, accept_loss: bool, timeout_s: float | None = None
    ) -> list[history_api.StrandedTopic]:
        """Delete for good what the journal holds of stranded topics; return them as they were.

        Args:
            topic_ids: as :meth:`list_stranded` returns them.
            accept_loss: must be True: the messages of these topics are lost.
            timeout_s: see the class.

        Raises:
            NotFoundError: one of them is not stranded; none was deleted.
            FailedPreconditionError: the loss is not accepted.
        """
        request = history_api.ForgetStranded(check_list("topic_ids", topic_ids, "ids"), accept_loss)
        return (await self._long(HistoryMethod.FORGET_STRANDED, request, history_api.StrandedTopics, timeout_s)).topics

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

    async def policies(self, target: str = "") -> PolicyReport:
        """Return the policies of a target: its own, the effective ones, and the level of each.

        Args:
            target: ``""`` for the broker, ``"ns"`` for a namespace, ``"/ns/topic"`` for a topic. The broker's own
                policies are those set by command; its configuration comes after them.

        Raises:
            NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
        """
        return await self._change(PolicyMethod.SHOW, ShowPolicies(target), PolicyReport)

    async def change_policies(self, target: str, **changes: Any) -> PolicyReport:
        """Change policies of a target, and return the new ones. They apply at once, to all topics below it.

        Args:
            target: see :meth:`policies`. A partition is refused: policies belong to the topic as a whole.
            changes: fields of :class:`danube.model.TopicPolicies`; None removes the target's own value, so that the
                next level applies again. Other fields remain unchanged.

        Raises:
            InvalidArgumentError: an unknown name, or an invalid value.
            NamespaceNotFoundError, TopicNotFoundError: the target does not exist.
            FailedPreconditionError: a partition; or history policies of a topic that stores no messages.
            StorageUnavailableError: the topic has durability ``remote`` and its storage does not answer: the change
                applies, and may or may not have been stored.
        """
        request = ChangePolicies(target, plain("policies", changes))
        return await self._change(PolicyMethod.CHANGE, request, PolicyReport)

    async def change_subscription_policy(
        self, topic: str, subscription: str, **changes: Any
    ) -> list[api.SubscriptionInfo]:
        """Change the policy of a subscription, in all partitions, and return it. The change applies at once.

        Args:
            topic: a plain topic, a partition, or a partitioned topic.
            subscription: of the topic.
            changes: fields of :class:`danube.model.SubscriptionPolicy`. Other fields remain unchanged.

        Raises:
            InvalidArgumentError: an unknown name, or an invalid value.
            TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        request = ChangeSubscriptionPolicy(topic, subscription, plain("policies", changes))
        return (await self._change(PolicyMethod.CHANGE_SUBSCRIPTION, request, api.SubscriptionList)).subscriptions

    async def _change(self, path: str, request: Any, kind: type[T]) -> T:
        return await self._connection.unary(path, request, kind, timeout_s=self._connection.options.request_timeout_s)

    async def _read(self, path: str, request: Any, kind: type[T]) -> T:
        return await Retry(self._connection.options).repeat(partial(self._change, path, request, kind))

    async def _long(self, path: str, request: Any, kind: type[T], timeout_s: float | None) -> T:
        """Make a call without a default deadline, because writing a whole topic to a storage may take any time."""
        limit_s = None if timeout_s is None else check_seconds("timeout_s", timeout_s)
        return await self._connection.unary(path, request, kind, timeout_s=limit_s)


def _reference(topic: str, subscription: str) -> api.SubscriptionRef:
    validate_topic(topic)
    validate_name("subscription", subscription)
    return api.SubscriptionRef(topic, subscription)
