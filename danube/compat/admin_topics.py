"""``danube_admin.NamespaceAdmin`` and ``TopicAdmin``: namespaces, topics, and failure policies of subscriptions.

Upstream's API has no partitioned topics, only partitions, so lists name each partition. Calls for one topic also accept
a partitioned topic, and then apply to all its partitions. Policies apply at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from danube.compat.admin_methods import BROKER_ID, failures_as_not_found, methods
from danube.compat.policies import (
    SUBSCRIPTION_TYPES,
    delivery_name,
    dispatch_changes,
    failure_changes,
    shown_dispatch,
    shown_failure_policy,
    shown_rate,
)
from danube.compat.producers import durability_of
from danube.compat.proto import danube_admin_pb2 as pb
from danube.model import (
    Durability,
    SubscriptionPolicy,
    api,
    policy_api,
    validate_name,
    validate_topic,
)
from danube.model.dead_letters import first_policy
from danube.model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, TopicNotFoundError
from danube.model.names import split_partition
from danube.model.records import members
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served, ServedSubscription, ServedTopic

__all__ = ["NamespaceAdmin", "TopicAdmin"]


class NamespaceAdmin:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return methods(
            "NamespaceAdmin",
            {
                "GetNamespaceTopics": self.get_namespace_topics,
                "GetNamespacePolicies": self.get_namespace_policies,
                "CreateNamespace": self.create_namespace,
                "DeleteNamespace": self.delete_namespace,
            },
        )

    async def get_namespace_topics(self, request: pb.NamespaceRequest, _context: Context) -> pb.TopicListResponse:
        """List the topics of a namespace; empty for one that does not exist."""
        return pb.TopicListResponse(topics=[name for name, _ in _topics(self._broker, request.name)])

    async def get_namespace_policies(self, request: pb.NamespaceRequest, _context: Context) -> pb.PolicyResponse:
        """Return the policies of a namespace, for topics without their own, as JSON by upstream's names; 0: no limit.

        Raises:
            NamespaceNotFoundError: it does not exist.
        """
        name = request.name
        self._broker.directory.catalogue.namespace_policies(
            name
        )  # raises if it does not exist; policies() also accepts a topic or the broker
        policies = self._broker.directory.policies.report(name).effective
        shown = {
            "max_producers_per_topic": policies.max_producers or 0,
            "max_subscriptions_per_topic": policies.max_subscriptions or 0,
            "max_consumers_per_topic": policies.max_consumers or 0,
            "max_consumers_per_subscription": policies.max_consumers_per_subscription or 0,
            "max_publish_rate": shown_rate(policies.publish_rate),
            "max_subscription_dispatch_rate": shown_rate(policies.dispatch_rate),
            "max_message_size": policies.max_message_bytes or self._broker.runtime.limits.max_message_bytes,
        }
        return pb.PolicyResponse(policies=json.dumps(shown))

    async def create_namespace(self, request: pb.NamespaceRequest, _context: Context) -> pb.NamespaceResponse:
        """Create a namespace.

        Raises:
            NotFoundError: it exists, or cannot be created.
        """
        with failures_as_not_found():
            await self._broker.operations.topics.create_namespace(api.CreateNamespace(request.name))
        return pb.NamespaceResponse(success=True)

    async def delete_namespace(self, request: pb.NamespaceRequest, _context: Context) -> pb.NamespaceResponse:
        """Delete an empty namespace.

        Raises:
            NotFoundError: it does not exist, or cannot be deleted.
        """
        with failures_as_not_found():
            await self._broker.operations.topics.delete_namespace(api.DeleteNamespace(request.name))
        return pb.NamespaceResponse(success=True)


class TopicAdmin:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return methods(
            "TopicAdmin",
            {
                "ListNamespaceTopics": self.list_namespace_topics,
                "ListBrokerTopics": self.list_broker_topics,
                "CreateTopic": self.create_topic,
                "CreatePartitionedTopic": self.create_partitioned_topic,
                "DeleteTopic": self.delete_topic,
                "UnloadTopic": self.unload_topic,
                "ListSubscriptions": self.list_subscriptions,
                "Unsubscribe": self.unsubscribe,
                "SetSubscriptionFailurePolicy": self.set_failure_policy,
                "GetSubscriptionFailurePolicy": self.get_failure_policy,
                "DescribeTopic": self.describe_topic,
                "SetSubscriptionDispatchConfig": self.set_dispatch_config,
                "GetSubscriptionDispatchConfig": self.get_dispatch_config,
            },
        )

    # --- Topics ---

    async def list_namespace_topics(self, request: pb.NamespaceRequest, _context: Context) -> pb.TopicInfoListResponse:
        """List the topics of a namespace; empty for one that does not exist."""
        return _listed(_topics(self._broker, request.name))

    async def list_broker_topics(self, request: pb.BrokerRequest, _context: Context) -> pb.TopicInfoListResponse:
        """List the topics of a broker; empty for one that does not exist."""
        if request.broker_id != str(BROKER_ID):
            return pb.TopicInfoListResponse()
        return _listed(_topics(self._broker))

    async def create_topic(self, request: pb.NewTopicRequest, _context: Context) -> pb.TopicResponse:
        """Create a topic.

        Raises:
            InvalidArgumentError: the dispatch strategy is invalid.
            NotFoundError: it exists, or cannot be created.
        """
        await self._create(request.name, 0, request)
        return pb.TopicResponse(success=True)

    async def create_partitioned_topic(
        self, request: pb.PartitionedTopicRequest, _context: Context
    ) -> pb.TopicResponse:
        """Create a topic with all its partitions, or not at all.

        Raises:
            InvalidArgumentError: the dispatch strategy is invalid.
            NotFoundError: it exists, or cannot be created.
        """
        if not request.partitions:
            raise NotFoundError(
                f"topic {request.base_name!r} cannot be created: a partitioned topic needs at least 1 partition"
            )
        await self._create(request.base_name, request.partitions, request)
        return pb.TopicResponse(success=True)

    async def _create(
        self, name: str, partitions: int, request: pb.NewTopicRequest | pb.PartitionedTopicRequest
    ) -> None:
        if request.dispatch_strategy not in pb.DispatchStrategy.values():
            raise InvalidArgumentError(
                f"topic {name!r}: dispatch strategy {request.dispatch_strategy} is unknown; known are 0 (NonReliable)"
                " and 1 (Reliable)"
            )
        if request.schema_subject:
            raise NotFoundError(
                f"topic {name!r} cannot be created: schema subject {request.schema_subject!r} is not registered,"
                " because this broker has no schema registry yet; create the topic without a schema"
            )
        durability = durability_of(self._broker, request.dispatch_strategy == pb.Reliable)
        with failures_as_not_found():
            await self._broker.operations.topics.create_topic(api.CreateTopic(name, partitions, durability))

    async def delete_topic(self, request: pb.TopicRequest, _context: Context) -> pb.TopicResponse:
        """Delete a topic with all its messages and subscriptions.

        Raises:
            NotFoundError: it does not exist, or is a partition.
        """
        split = split_partition(request.name)
        base = self._broker.directory.catalogue.find(split[0]) if split else None
        if split and base is not None:
            raise NotFoundError(
                f"Cannot delete individual partition {request.name!r}; delete the partitioned topic {split[0]!r} as a"
                " whole"
            )
        with failures_as_not_found():
            await self._broker.operations.topics.delete_topic(api.DeleteTopic(request.name))
        return pb.TopicResponse(success=True)

    async def unload_topic(self, request: pb.TopicRequest, _context: Context) -> pb.TopicResponse:
        """Refuse: unloading would move a topic to another broker.

        Raises:
            FailedPreconditionError: there is no other broker.
        """
        raise FailedPreconditionError(
            f"topic {request.name!r} cannot be unloaded: no other broker could take it; to disconnect its clients and"
            " seal it, use: danube topics unload"
        )

    async def describe_topic(self, request: pb.DescribeTopicRequest, _context: Context) -> pb.DescribeTopicResponse:
        """Describe a topic; the reply is empty for one that does not exist, without an error."""
        name = request.name
        try:
            topics = self._broker.directory.resolve(name)
        except (TopicNotFoundError, InvalidArgumentError):
            return pb.DescribeTopicResponse(name=name, delivery=delivery_name(Durability.NONE))
        return pb.DescribeTopicResponse(
            name=name,
            subscriptions=sorted({each for topic in topics for each in topic.subscriptions}),
            broker_id=str(BROKER_ID),
            delivery=delivery_name(topics[0].durability),
        )

    # --- Subscriptions ---

    async def list_subscriptions(self, request: pb.TopicRequest, _context: Context) -> pb.SubscriptionListResponse:
        """List the subscriptions of a topic; empty for one that does not exist."""
        try:
            topics = self._broker.directory.resolve(request.name)
        except (TopicNotFoundError, InvalidArgumentError):
            return pb.SubscriptionListResponse()
        return pb.SubscriptionListResponse(
            subscriptions=sorted({each for topic in topics for each in topic.subscriptions})
        )

    async def unsubscribe(self, request: pb.SubscriptionRequest, _context: Context) -> pb.SubscriptionResponse:
        """Delete a subscription; its consumers are disconnected.

        Raises:
            NotFoundError: the topic or the subscription does not exist.
        """
        with failures_as_not_found():
            await self._broker.operations.subscriptions.unsubscribe(request.topic, request.subscription)
        return pb.SubscriptionResponse(success=True)

    async def set_failure_policy(
        self, request: pb.SetSubscriptionFailurePolicyRequest, _context: Context
    ) -> pb.SubscriptionResponse:
        """Change the failure policy of a subscription; return when the change is durable and applied.

        For a subscription that does not exist yet, it is stored and applies from the creation on.

        Raises:
            InvalidArgumentError: the policy is missing or invalid.
            TopicNotFoundError: the topic does not exist.
            LimitExceededError: policies are stored for too many subscriptions that do not exist.
            FailedPreconditionError: the topic stores no messages.
        """
        if not request.HasField("failure_policy"):
            raise InvalidArgumentError(f"subscription {request.subscription!r}: failure_policy is missing")
        changes = failure_changes(request.failure_policy)
        if self._broker.directory.resolve(request.topic)[0].lossy:
            raise FailedPreconditionError(
                f"topic {request.topic!r} stores no messages (NonReliable), so it has no failure policy"
            )
        await self._change(request, **changes)
        return pb.SubscriptionResponse(success=True)

    async def get_failure_policy(
        self, request: pb.GetSubscriptionFailurePolicyRequest, _context: Context
    ) -> pb.GetSubscriptionFailurePolicyResponse:
        """Return the failure policy of a subscription, whether it was set or not.

        For a subscription that does not exist, return the stored policy; the reply is empty if none is stored.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        found, topic, policy = self._policy_of(request)
        if policy is None:
            return pb.GetSubscriptionFailurePolicyResponse()
        return pb.GetSubscriptionFailurePolicyResponse(
            failure_policy=shown_failure_policy(topic.name, request.subscription, policy),
            subscription_type=SUBSCRIPTION_TYPES[found.kind] if found is not None else 0,
        )

    async def set_dispatch_config(
        self, request: pb.SetSubscriptionDispatchConfigRequest, _context: Context
    ) -> pb.SubscriptionResponse:
        """Change the maximum number of unacknowledged messages; return when the change is durable and applied.

        For a subscription that does not exist yet, it is stored and applies from the creation on.

        Raises:
            InvalidArgumentError: the number is not from 1 to 10,000.
            TopicNotFoundError: the topic does not exist.
            LimitExceededError: limits are stored for too many subscriptions that do not exist.
        """
        await self._change(request, **dispatch_changes(request.dispatch_config))
        return pb.SubscriptionResponse(success=True)

    async def get_dispatch_config(
        self, request: pb.GetSubscriptionDispatchConfigRequest, _context: Context
    ) -> pb.GetSubscriptionDispatchConfigResponse:
        """Return the maximum number of unacknowledged messages; empty if the subscription has no limit of its own.

        Raises:
            TopicNotFoundError: the topic does not exist.
        """
        return pb.GetSubscriptionDispatchConfigResponse(dispatch_config=shown_dispatch(self._policy_of(request)[2]))

    def _policy_of(self, request: Any) -> tuple[ServedSubscription | None, ServedTopic, SubscriptionPolicy | None]:
        """Return an existing subscription, or else its planned policy, and a topic or partition that it belongs to."""
        name = request.subscription
        validate_topic(request.topic)
        validate_name("subscription", name)
        topics = self._broker.directory.resolve(request.topic)
        for topic in topics:
            found = topic.subscriptions.get(name)
            if found is not None:
                return found, topic, found.policy
        for topic in topics:
            planned = topic.planned_for(name)
            if planned:
                default = self._broker.runtime.config.subscription_policy
                return None, topic, first_policy(topic.name, name, default, planned)
        return None, topics[0], None

    async def _change(self, request: Any, **changes: Any) -> None:
        change = policy_api.ChangeSubscriptionPolicy(request.topic, request.subscription, changes)
        await self._broker.operations.policies.plan_subscription(change)


def _topics(broker: Served, namespace: str | None = None) -> Iterator[tuple[str, Durability]]:
    """Yield the topics and partitions of a namespace, or of all."""
    if namespace is not None and namespace not in broker.directory.catalogue.namespaces:
        return
    for name, record in broker.directory.catalogue.topics(namespace or ""):
        for each, _ in members(name, record):
            yield each, record.durability


def _listed(topics: Iterator[tuple[str, Durability]]) -> pb.TopicInfoListResponse:
    return pb.TopicInfoListResponse(
        topics=[
            pb.TopicInfo(name=name, broker_id=str(BROKER_ID), delivery=delivery_name(durability))
            for name, durability in topics
        ]
    )
