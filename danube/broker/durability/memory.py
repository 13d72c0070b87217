"""Durability ``none``: messages go to the consumers connected at that moment, and are not stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from danube.broker.durability.level import Level
from danube.broker.topic.topic import Topic
from danube.dispatch import Cursor
from danube.log import MemoryLog, ProducerTable
from danube.model.errors import UnavailableError
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
            MemoryLog(topic_id, self.membership.epoch(topic_id), partial(self._check_owner, name)),
            producers,
            self.runtime.journal,
        )

    def _check_owner(self, name: str) -> None:
        """Refuse a batch while another broker may own its topic."""
        if not self.membership.is_certain():
            raise UnavailableError(
                f"topic {name!r} has durability 'none' and moves to another broker as soon as this one loses its"
                " session in the cluster, and the session is not certain to be alive: the metadata do not answer; retry"
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
