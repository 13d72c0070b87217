"""The unary calls: topics, namespaces, subscriptions and what the broker says about itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from danube.broker.calls.policy_admin import PolicyAdministration
from danube.broker.calls.query import Queries
from danube.broker.calls.storage_admin import StorageAdministration, sealed_part_of
from danube.log import TopicLog
from danube.model import TopicPolicies, api, partition_name, validate_name, validate_topic
from danube.model.errors import DanubeError, SubscriptionNotFoundError, TopicNotFoundError
from danube.model.policies import check_policy
from danube.model.version import __version__
from danube.wire import Context, Method, Service, UnaryHandler

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.directory.records import TopicRecord
    from danube.broker.topic.topic import Topic

__all__ = ["Administration"]


class Administration:
    """Handlers of the unary native calls."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.policies = PolicyAdministration(broker, self)

    def service(self) -> Service:
        """Return the methods, by path."""
        table: list[tuple[str, UnaryHandler, type]] = [
            (api.Method.INFO, self.info, api.Empty),
            (api.Method.LOOKUP_TOPIC, self.lookup_topic, api.LookupTopic),
            (api.Method.CREATE_TOPIC, self.create_topic, api.CreateTopic),
            (api.Method.DELETE_TOPIC, self.delete_topic, api.DeleteTopic),
            (api.Method.LIST_TOPICS, self.list_topics, api.ListTopics),
            (api.Method.DESCRIBE_TOPIC, self.describe_topic, api.DescribeTopic),
            (api.Method.CREATE_NAMESPACE, self.create_namespace, api.CreateNamespace),
            (api.Method.DELETE_NAMESPACE, self.delete_namespace, api.DeleteNamespace),
            (api.Method.LIST_NAMESPACES, self.list_namespaces, api.ListNamespaces),
            (api.Method.LIST_SUBSCRIPTIONS, self.list_subscriptions, api.ListSubscriptions),
            (api.Method.DESCRIBE_SUBSCRIPTION, self.describe_subscription, api.SubscriptionRef),
            (api.Method.EXPLAIN_SUBSCRIPTION, self.explain_subscription, api.SubscriptionRef),
            (api.Method.SEEK_SUBSCRIPTION, self.seek_subscription, api.SeekSubscription),
            (api.Method.DELETE_SUBSCRIPTION, self.delete_subscription, api.DeleteSubscription),
        ]
        own = {
            path: Method(path=path, kind="unary", handler=handler, request_type=request)
            for path, handler, request in table
        }
        return {
            **own,
            **self.policies.service(),
            **StorageAdministration(self._broker, self).service(),
            **Queries(self._broker).service(),
        }

    # --- The broker ---

    async def info(self, _request: api.Empty, _context: Context) -> api.BrokerInfo:
        """Return figures of the whole broker."""
        return self._broker.info(__version__, os.getpid())

    # --- Topics ---

    async def lookup_topic(self, request: api.LookupTopic, _context: Context) -> api.TopicPartitions:
        """Return which topics stand behind a name."""
        validate_topic(request.topic)
        catalogue = self._broker.catalogue
        record = catalogue.find(request.topic)
        if record is None:
            record, _ = catalogue.locate(request.topic)
            return api.TopicPartitions(request.topic, 0, [request.topic], record.durability)
        return api.TopicPartitions(request.topic, record.partitions, _names(request.topic, record), record.durability)

    async def create_topic(self, request: api.CreateTopic, _context: Context) -> api.TopicInfo:
        """Create a topic."""
        policies = TopicPolicies(retention=request.retention or None)  # without a rule it says nothing
        check_policy(policies)
        await self._broker.create_topic(
            request.topic,
            request.durability,
            request.partitions,
            request.storage,
            policies,
        )
        return self._topic_info(request.topic)

    async def delete_topic(self, request: api.DeleteTopic, _context: Context) -> api.Done:
        """Delete a topic with everything in it."""
        await self._broker.delete_topic(request.topic)
        return api.Done()

    async def list_topics(self, request: api.ListTopics, _context: Context) -> api.TopicList:
        """List topics, partitioned ones once. Of those that cannot be reached now only what is known is shown."""
        found = []
        for name, record in self._broker.catalogue.topics(request.namespace):
            try:
                found.append(self._topic_info(name))
            except DanubeError:
                # Its storage is away, or it is being created or deleted: `describe` says which. Others can be listed.
                found.append(_known_of(name, record))
        return api.TopicList(found)

    async def describe_topic(self, request: api.DescribeTopic, _context: Context) -> api.TopicInfo:
        """Describe one topic, one partition, or the sum of a partitioned topic."""
        validate_topic(request.topic)
        return self._topic_info(request.topic)

    def _topic_info(self, name: str) -> api.TopicInfo:
        topics = self.resolve(name)
        record = self._broker.catalogue.find(name)
        first = topics[0]
        partitions = record.partitions if record is not None else 0
        journal_bytes = sum(topic.stored_bytes for topic in topics)
        parts, objects, sealed_bytes = sealed_part_of(self._broker, topics)
        return api.TopicInfo(
            name,
            0 if partitions else first.topic_id,
            partitions,
            first.durability,
            sum(topic.start_offset for topic in topics),
            sum(topic.end_offset for topic in topics),
            journal_bytes + sealed_bytes,
            [producer for topic in topics for producer in topic.intake.infos()],
            sorted({name for topic in topics for name in topic.subscriptions}),
            record.created_us if record is not None else first.created_us,
            first.storage,
            first.retention,
            sum(_sealed_offset(topic) for topic in topics),
            journal_bytes,
            sealed_bytes,
            parts,
            objects,
            sum(len(topic.readers) for topic in topics),
        )

    def resolve(self, name: str) -> list[Topic]:
        """Return the topic, or all partitions of a partitioned base name."""
        record = self._broker.catalogue.find(name)
        if record is None:
            return [self._broker.topic(name)]
        return [self._broker.topic(each) for each in _names(name, record)]

    # --- Namespaces ---

    async def create_namespace(self, request: api.CreateNamespace, _context: Context) -> api.Done:
        """Create a namespace."""
        await self._broker.catalogue.create_namespace(request.namespace)
        return api.Done()

    async def delete_namespace(self, request: api.DeleteNamespace, _context: Context) -> api.Done:
        """Delete an empty namespace."""
        await self._broker.catalogue.delete_namespace(request.namespace)
        return api.Done()

    async def list_namespaces(self, _request: api.ListNamespaces, _context: Context) -> api.NamespaceList:
        """List namespaces."""
        return api.NamespaceList(self._broker.catalogue.namespaces)

    # --- Subscriptions ---

    async def list_subscriptions(self, request: api.ListSubscriptions, _context: Context) -> api.SubscriptionList:
        """List the subscriptions of a topic, one row for each partition."""
        validate_topic(request.topic)
        return api.SubscriptionList(
            [
                subscription.info()
                for topic in self.resolve(request.topic)
                for _, subscription in sorted(topic.subscriptions.items())
            ]
        )

    async def describe_subscription(self, request: api.SubscriptionRef, _context: Context) -> api.SubscriptionList:
        """Describe a subscription, one row for each partition."""
        return api.SubscriptionList([found.info() for found in self.find(request.topic, request.subscription)])

    async def explain_subscription(self, request: api.SubscriptionRef, _context: Context) -> api.Explanation:
        """Say in a sentence (one for each partition) why the subscription moves or does not."""
        parts = [found.explain() for found in self.find(request.topic, request.subscription)]
        if len(parts) == 1:
            return parts[0]
        states = {part.state for part in parts}
        return api.Explanation(
            request.topic,
            request.subscription,
            states.pop() if len(states) == 1 else "mixed",
            "\n".join(f"{part.topic}: {part.sentence}" for part in parts),
        )

    async def seek_subscription(self, request: api.SeekSubscription, _context: Context) -> api.Done:
        """Move a cursor; consumers stay connected and go on from there."""
        subscriptions = self.find(request.topic, request.subscription)
        for found in subscriptions:
            await found.seek(await found.topic.resolve_position(request.position, request.time_us))
        return api.Done()

    async def delete_subscription(self, request: api.DeleteSubscription, _context: Context) -> api.Done:
        """Delete a subscription; its consumers are disconnected."""
        await self.unsubscribe(request.topic, request.subscription)
        return api.Done()

    async def unsubscribe(self, topic: str, subscription: str) -> None:
        """Delete a subscription of a topic, or of all partitions, and what was set for those where it does not exist.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        forgotten = await self.policies.forget_planned(topic, subscription)
        try:
            subscriptions = self.find(topic, subscription)
        except SubscriptionNotFoundError:
            if forgotten:
                return
            raise
        for found in subscriptions:
            await found.topic.delete_subscription(subscription)

    def find(self, topic: str, subscription: str) -> list[Subscription]:
        """Return a subscription of a topic, or of all partitions that have it."""
        validate_topic(topic)
        validate_name("subscription", subscription)
        found = [each.subscriptions[subscription] for each in self.resolve(topic) if subscription in each.subscriptions]
        if not found:
            raise SubscriptionNotFoundError(
                f"topic {topic!r} has no subscription {subscription!r}; list them with:"
                f" danube subscriptions list {topic}"
            )
        return found


def _sealed_offset(topic: Topic) -> int:
    return topic.kept.journal_start if isinstance(topic.kept, TopicLog) else topic.end_offset


def _known_of(name: str, record: TopicRecord) -> api.TopicInfo:
    """Return what the catalogue knows of a topic."""
    topic_id = record.topic_ids[0] if not record.partitions else 0
    return api.TopicInfo(
        name, topic_id, record.partitions, record.durability, 0, 0, 0, [], [], record.created_us, record.storage
    )


def _names(topic: str, record: TopicRecord) -> list[str]:
    if not record.partitions:
        return [topic]
    if not record.topic_ids:
        raise TopicNotFoundError(f"topic {topic!r} has no partitions")
    return [partition_name(topic, index) for index in range(record.partitions)]
