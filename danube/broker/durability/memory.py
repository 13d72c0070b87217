"""Durability ``none``: messages go to the consumers connected at that moment, and are not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.broker.durability.level import Level
from danube.broker.topic.topic import Topic
from danube.dispatch import Cursor
from danube.log import MemoryLog, ProducerTable
from danube.model.ids import Offset, TopicId

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.topic.recovered import TopicState
    from danube.log import RecoveredTopic
    from danube.model import SubscriptionPolicy, SubscriptionType
    from danube.model.records import TopicRecord

__all__ = ["MemoryLevel"]


class MemoryLevel(Level):
    """Creates and serves the topics of durability ``none``."""

    keeps = False
    checkpointed = False

    def build(
        self,
        name: str,
        topic_id: TopicId,
        record: TopicRecord,
        recovered: RecoveredTopic | None = None,
        found: TopicState | None = None,
    ) -> Topic:
        """Build a topic. Producers of it that the journal may know are restored."""
        producers = found.producers if found is not None else ProducerTable(self.runtime.limits, name)
        if recovered is not None:
            producers.apply_batches(recovered.producers)
        return Topic(
            self.runtime,
            self.registry,
            self,
            name,
            topic_id,
            record,
            self.policies.of_topic(name, record),
            MemoryLog(topic_id),
            producers,
            self.runtime.journal,
        )

    async def create_subscription(
        self, topic: Topic, name: str, kind: SubscriptionType, start: Offset, policy: SubscriptionPolicy
    ) -> Subscription:
        """Add a subscription, which lives as long as the broker."""
        return topic.add_subscription(name, self.runtime.new_id(), kind, Cursor(start), policy)

    async def delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Remove a subscription."""
        topic.remove_subscription(subscription)

    async def change_subscription(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        """Apply a policy."""
        subscription.change_policy(policy)
