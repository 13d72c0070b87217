"""Durabilities ``os`` and ``disk``: batches in the journal, records in the catalogue.

They differ in when an entry of the journal counts as settled (:mod:`danube.log`), and in what a power loss may lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from danube.broker.durability.level import Level, Surroundings
from danube.broker.topic.topic import Topic
from danube.log import ProducerTable, TopicLog
from danube.model.errors import DataLossError
from danube.model.ids import FIRST_OFFSET, Offset, TopicId

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.topic.recovered import TopicState
    from danube.log import RecoveredTopic
    from danube.model import SubscriptionPolicy, SubscriptionType
    from danube.model.records import TopicRecord

__all__ = ["JournalLevel"]


class JournalLevel(Level):
    """Creates and serves the topics of durabilities ``os`` and ``disk``; see the module.

    Args:
        surroundings: dependencies shared by all levels.
        synced: whether acknowledged messages have been synced.
    """

    def __init__(self, surroundings: Surroundings, *, synced: bool) -> None:
        super().__init__(surroundings)
        self.forgets_unsynced = not synced

    def build(
        self,
        name: str,
        topic_id: TopicId,
        record: TopicRecord,
        recovered: RecoveredTopic | None = None,
        found: TopicState | None = None,
    ) -> Topic:
        """Build a topic; one with missing offsets in between has a ``failure``."""
        runtime, history = self.runtime, self.history
        producers = found.producers if found is not None else ProducerTable(runtime.limits, name)
        if recovered is not None:
            producers.apply_batches(recovered.producers)
        known = history.catalogue.find(topic_id)
        start = known.start_offset if known is not None else FIRST_OFFSET
        # Behind a declared gap a topic has begun again: no journal but the lost one has offsets below its end.
        floor = self.catalogue.gaps.floor(topic_id)
        sealed = max(start, floor, known.end_offset if known is not None else FIRST_OFFSET)
        for low, high in recovered.damaged if recovered is not None else ():
            if start < high <= sealed:  # other damage stops the topic, or is forgotten with the messages
                producers.note_unread(max(low, start), high)
        # The journal is the source of truth about the end; a snapshot counts only for batches that the journal has
        # lost.
        known_end = found.end_offset if found is not None and recovered is None else FIRST_OFFSET
        first = recovered.first_offset if recovered is not None else known_end
        failure = None
        if first > sealed and not self.forgets_unsynced:
            failure = DataLossError(
                f"topic {name!r}: offsets [{sealed}, {first}) are neither sealed nor in the journal; restore the"
                " journal's files from a copy, or delete the topic"
            )
        log = TopicLog(
            topic_id,
            record.durability,
            runtime.journal,
            runtime.cache,
            self.membership.epoch(topic_id),
            known_end,
            start,
            recovered,
            sealed_offset=max(sealed, first) if failure is None else sealed,
            sealed=history.reader,
            on_unsealed=history.sealer.unsealed,
            seal_bytes=runtime.limits.segment_bytes,
        )
        runtime.journal.expect_states((topic_id,))
        policies = self.policies.of_topic(name, record)
        topic = Topic(runtime, self.registry, self, name, topic_id, record, policies, log, producers, runtime.journal)
        topic.failure = failure
        if found is not None:
            topic.move, topic.move_epoch = found.move, found.epoch
        return topic

    def check_states(self, what: str, topics: int = 0) -> None:
        """As :meth:`Level.check_states`, for the journal."""
        self.runtime.journal.check_states(what, topics)

    async def create_subscription(
        self, topic: Topic, name: str, kind: SubscriptionType, start: Offset, policy: SubscriptionPolicy
    ) -> Subscription:
        """Store the record of a subscription, and add it to its topic."""
        record = await self.catalogue.subscriptions.create(topic.topic_id, name, kind, start, policy)
        topic.check_not_deleted()
        return topic.restore_subscription(name, record, None)

    async def delete_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Delete the record of a subscription, then the subscription."""
        await self.catalogue.subscriptions.delete(topic.topic_id, subscription.name)
        topic.remove_subscription(subscription)

    async def change_subscription(self, topic: Topic, subscription: Subscription, policy: SubscriptionPolicy) -> None:
        """Store a policy in the record, then apply it."""
        assert subscription.record is not None
        record = msgspec.structs.replace(subscription.record, policy=policy)
        await self.catalogue.subscriptions.change(topic.topic_id, subscription.name, record)
        subscription.record = record
        subscription.change_policy(policy)
