"""``danube_admin.NamespaceAdmin`` and ``TopicAdmin``: namespaces, topics, and failure policies of subscriptions.

Upstream's API has no partitioned topics, only partitions, so lists name each partition. Calls for one topic also accept
a partitioned topic, and then apply to all its partitions. Policies apply at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from danube.broker.faces import require_schema
from danube.compat.admin_methods import failures_as_not_found, methods, relayed
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
from danube.compat.relay import Handler, Relay
from danube.model import (
    Durability,
    SubscriptionPolicy,
    api,
    policy_api,
    validate_name,
    validate_topic,
)
from danube.model.dead_letters import first_policy
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    SubjectNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import TopicId
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
        return pb.TopicListResponse(topics=[found.name for found in _topics(self._broker, request.name)])

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

    def __init__(self, broker: Served, relay: Relay) -> None:
        self._broker = broker
        self._relay = relay
        self._listed_by_owner: Handler

    def service(self) -> Service:
        """Return the methods, by path."""
        listing = relayed("TopicAdmin", {"ListSubscriptions": self.list_subscriptions}, self._relay)
        self._listed_by_owner = listing["ListSubscriptions"]
        here: dict[str, Handler] = {
            "ListNamespaceTopics": self.list_namespace_topics,
            "ListBrokerTopics": self.list_broker_topics,
            "CreateTopic": self.create_topic,
            "CreatePartitionedTopic": self.create_partitioned_topic,
            "DeleteTopic": self.delete_topic,
            "UnloadTopic": self.unload_topic,
            "DescribeTopic": self.describe_topic,
            **listing,
        }
        at_the_owner: dict[str, Handler] = {
            "Unsubscribe": self.unsubscribe,
            "SetSubscriptionFailurePolicy": self.set_failure_policy,
            "GetSubscriptionFailurePolicy": self.get_failure_policy,
            "SetSubscriptionDispatchConfig": self.set_dispatch_config,
            "GetSubscriptionDispatchConfig": self.get_dispatch_config,
        }
        return methods("TopicAdmin", {**here, **relayed("TopicAdmin", at_the_owner, self._relay)})

    # --- Topics ---

    async def list_namespace_topics(self, request: pb.NamespaceRequest, _context: Context) -> pb.TopicInfoListResponse:
        """List the topics of a namespace; empty for one that does not exist."""
        return _listed(self._broker, _topics(self._broker, request.name))

    async def list_broker_topics(self, request: pb.BrokerRequest, _context: Context) -> pb.TopicInfoListResponse:
        """List the topics of a broker; empty for one that does not exist."""
        owner = self._broker.operations.cluster.owner
        owned = (found for found in _topics(self._broker) if str(owner(found.topic_id)) == request.broker_id)
        return _listed(self._broker, owned)

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
        subject = request.schema_subject
        if subject:
            require_schema(subject)
            try:
                await self._broker.registry.find(lambda book: book.versions(subject))
            except SubjectNotFoundError as error:
                raise NotFoundError(
                    f"topic {name!r} cannot be created: schema subject {subject!r} not found; register it first"
                ) from error
        durability = durability_of(self._broker, request.dispatch_strategy == pb.Reliable)
        topics = self._broker.operations.topics
        with failures_as_not_found():
            await topics.create_topic(api.CreateTopic(name, partitions, durability))
            if subject:
                await topics.bind_subject(name, subject)

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
            FailedPreconditionError: no other broker could take it.
        """
        raise FailedPreconditionError(
            f"topic {request.name!r} cannot be unloaded: no other broker could take it, because this version of Danube"
            " does not move topics; to disconnect its clients and seal it, use: danube topics unload"
        )

    async def describe_topic(self, request: pb.DescribeTopicRequest, _context: Context) -> pb.DescribeTopicResponse:
        """Describe a topic; the reply is empty for one that does not exist, without an error."""
        name = request.name
        try:
            named, durability = self._members(name)
        except (TopicNotFoundError, InvalidArgumentError):
            return pb.DescribeTopicResponse(name=name, delivery=delivery_name(Durability.NONE))
        found = set()
        for each, _ in named:
            # Of a topic that waits for its owner, and of one that is being deleted, none are shown.
            with suppress(TopicNotFoundError, UnavailableError):
                found.update(await self._subscriptions(each))
        return pb.DescribeTopicResponse(
            name=name,
            subscriptions=sorted(found),
            broker_id=_broker_id(self._broker, named[0][1]),
            delivery=delivery_name(durability),
            **await self._schema(name),
        )

    async def _schema(self, name: str) -> dict[str, Any]:
        """Return the fields about the schema of a topic; none if it has no subject."""
        catalogue = self._broker.directory.catalogue
        record = catalogue.find(name) or catalogue.locate(name)[0]
        subject = record.schema_subject
        if not subject:
            return {}
        book = await self._broker.registry.fresh()
        try:
            entry = book.entry(subject)
        except SubjectNotFoundError:
            return {"schema_subject": subject}
        return {
            "schema_subject": subject,
            "schema_id": entry.subject_number,
            "schema_version": entry.version.version,
            "schema_type": entry.schema.type.value,
            "compatibility_mode": book.level(subject).base.title,
        }

    # --- Subscriptions ---

    def _members(self, name: str) -> tuple[list[tuple[str, TopicId]], Durability]:
        """Return names and ids of a topic or its partitions, wherever they are served; and their durability.

        Raises:
            TopicNotFoundError, InvalidNameError: it does not exist.
        """
        validate_topic(name)
        record = self._broker.directory.catalogue.find(name)
        if record is not None and record.topic_ids:
            return members(name, record), record.durability
        record, topic_id = self._broker.directory.catalogue.locate(name)
        return [(name, TopicId(topic_id))], record.durability

    async def _subscriptions(self, name: str) -> list[str]:
        """Return the names of the subscriptions of a plain topic or a partition, from its owner."""
        return list((await self._listed_by_owner(pb.TopicRequest(name=name), None)).subscriptions)

    async def list_subscriptions(
        self, request: pb.TopicRequest, _context: Context | None
    ) -> pb.SubscriptionListResponse:
        """List the subscriptions of a topic; empty for one that does not exist.

        Raises:
            OwnerAwayError: it waits for its owner.
        """
        try:
            named, _ = self._members(request.name)
            if len(named) == 1:
                return pb.SubscriptionListResponse(
                    subscriptions=sorted(self._broker.directory.find(named[0][0]).subscriptions)
                )
            found = {name for each, _ in named for name in await self._subscriptions(each)}
        except (TopicNotFoundError, InvalidArgumentError):
            return pb.SubscriptionListResponse()
        return pb.SubscriptionListResponse(subscriptions=sorted(found))

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


class _Topic(NamedTuple):
    """A plain topic or a partition."""

    name: str
    topic_id: TopicId
    durability: Durability


def _topics(broker: Served, namespace: str | None = None) -> Iterator[_Topic]:
    """Yield the topics and partitions of a namespace, or of all."""
    if namespace is not None and namespace not in broker.directory.catalogue.namespaces:
        return
    for name, record in broker.directory.catalogue.topics(namespace or ""):
        for each, topic_id in members(name, record):
            yield _Topic(each, topic_id, record.durability)


def _listed(broker: Served, topics: Iterable[_Topic]) -> pb.TopicInfoListResponse:
    return pb.TopicInfoListResponse(
        topics=[
            pb.TopicInfo(
                name=found.name,
                broker_id=_broker_id(broker, found.topic_id),
                delivery=delivery_name(found.durability),
            )
            for found in topics
        ]
    )


def _broker_id(broker: Served, topic_id: TopicId) -> str:
    """Return the id of a topic's owner, as these tools know brokers; empty if it has none."""
    owner = broker.operations.cluster.owner(topic_id)
    return "" if owner is None else str(owner)
