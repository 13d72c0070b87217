"""Operations on subscriptions: list, describe, explain, create, seek, skip, delete."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import trio

from danube.broker.delivery.explain import explanation_of, info_of
from danube.model import api, validate_name, validate_topic
from danube.model.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    SubscriptionNotFoundError,
)
from danube.model.ids import Offset, TopicId
from danube.model.names import partition_name
from danube.model.overview_api import (
    FindDeliveries,
    MessageDeliveries,
    PlanSeek,
    SeekPlans,
    SkipMessages,
    Skipped,
)
from danube.model.records import check_topic_ids

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.operations.policies import PolicyOperations

__all__ = ["SubscriptionOperations"]


class SubscriptionOperations:
    """Operations on subscriptions.

    Args:
        directory: of the topics.
        policies: has the planned policies of subscriptions that do not exist yet.
    """

    def __init__(self, directory: Directory, policies: PolicyOperations) -> None:
        self._directory = directory
        self._policies = policies

    async def list_subscriptions(self, request: api.ListSubscriptions) -> api.SubscriptionList:
        """List the subscriptions of a topic, one row for each partition."""
        validate_topic(request.topic)
        return api.SubscriptionList(
            [
                info_of(subscription)
                for topic in self._directory.resolve(request.topic)
                for _, subscription in sorted(topic.subscriptions.items())
            ]
        )

    async def describe_subscription(self, request: api.SubscriptionRef) -> api.SubscriptionList:
        """Describe a subscription, one row for each partition."""
        rows = []
        for _, found in self._directory.subscriptions(request.topic, request.subscription):
            row = info_of(found)
            ranges = found.machine.cursor.ranges()[: api.MAX_ACKED_RANGES]
            row.acked = [offset for each in ranges for offset in each]
            rows.append(row)
        return api.SubscriptionList(rows)

    async def explain_subscription(self, request: api.SubscriptionRef) -> api.Explanation:
        """Explain in a sentence (one for each partition) why the subscription moves or does not."""
        found = self._directory.subscriptions(request.topic, request.subscription)
        now = trio.current_time()
        parts = [explanation_of(subscription, now) for _, subscription in found]
        if len(parts) == 1:
            return parts[0]
        states = {part.state for part in parts}
        return api.Explanation(
            request.topic,
            request.subscription,
            states.pop() if len(states) == 1 else "mixed",
            "\n".join(f"{part.topic}: {part.sentence}" for part in parts),
        )

    async def create_subscription(self, request: api.CreateSubscription) -> api.SubscriptionList:
        """Create a subscription, in all partitions; describe it, one row for each partition.

        Raises:
            SubscriptionTypeMismatchError: it exists with another type.
            LimitExceededError: too many subscriptions.
        """
        validate_topic(request.topic)
        validate_name("subscription", request.subscription)
        wanted = api.ConsumeOpen(
            topic=request.topic,
            subscription=request.subscription,
            consumer_name="",
            type=request.type,
            start=request.start,
            start_time_us=request.start_time_us,
        )
        topics = self._directory.resolve(request.topic)
        return api.SubscriptionList([info_of(await topic.subscribe(wanted)) for topic in topics])

    async def seek_subscription(self, request: api.SeekSubscription) -> api.Done:
        """Move a cursor; consumers stay connected and continue from there."""
        subscriptions = self._directory.subscriptions(request.topic, request.subscription)
        self._check(request.topic, request.topic_ids)
        for topic, found in subscriptions:
            await found.seek(await topic.resolve_position(request.position, request.time_us))
        return api.Done()

    async def plan_seek(self, request: PlanSeek) -> SeekPlans:
        """Return what a seek would do, one row for each partition."""
        from danube.broker.operations.seeking import moved_by, plan_of  # most brokers are never asked

        plans = []
        for topic, found in self._directory.subscriptions(request.topic, request.subscription):
            if request.by:
                target = moved_by(found.cursor, request.by, topic.start_offset, topic.end_offset)
            else:
                target = await topic.resolve_position(request.position, request.time_us)
            plans.append(plan_of(topic.name, found.cursor, target, topic.start_offset, topic.end_offset))
        return SeekPlans(plans)

    async def skip_messages(self, request: SkipMessages) -> Skipped:
        """Acknowledge what lies below an offset, in the place of a consumer; return when that is durable.

        Raises:
            InvalidArgumentError: the topic has several partitions, whose offsets have nothing to do with each other.
            FailedPreconditionError: the subscription was moved since the request was planned; or the topic stores no
                messages.
        """
        from danube.broker.operations.seeking import unacked_below  # most brokers are never asked

        places = self._directory.subscriptions(request.topic, request.subscription)
        self._check(request.topic, request.topic_ids)
        (topic, found), *others = places
        if others or topic.name != request.topic:
            raise InvalidArgumentError(
                f"topic {request.topic!r} has partitions, each with offsets of its own; name one of them, such as"
                f" {topic.name!r}"
            )
        if topic.lossy:
            raise FailedPreconditionError(
                f"topic {topic.name!r} has durability none: its messages are not stored, so none waits to be skipped"
            )
        if request.generation != found.cursor.generation:
            raise FailedPreconditionError(
                f"subscription {found.name!r} of topic {topic.name!r} was moved since this was planned, so nothing was"
                " skipped; plan it again"
            )
        ranges, messages = unacked_below(found.cursor, request.below, topic.start_offset, topic.end_offset)
        await found.skip(ranges)
        return Skipped(topic=topic.name, skipped_messages=messages, floor=Offset(found.cursor.floor))

    async def find_deliveries(self, request: FindDeliveries) -> MessageDeliveries:
        """Return where a message is in each subscription of its topic.

        Raises:
            InvalidArgumentError: the topic is partitioned: each partition has offsets of its own.
            NotFoundError: there is no message with this offset, or retention has removed it.
        """
        from danube.broker.delivery.whereabouts import delivery_of  # most brokers are never asked

        name, offset = request.topic, request.offset
        validate_topic(name)
        topics = self._directory.resolve(name)
        if len(topics) != 1:
            raise InvalidArgumentError(
                f"topic {name!r} has {len(topics)} partitions, each with offsets of its own; name one of them, such as"
                f" {partition_name(name, 0)!r}"
            )
        (topic,) = topics
        if topic.lossy:
            raise FailedPreconditionError(
                f"topic {name!r} has durability 'none': it stores nothing, so nothing tells who has its messages"
            )
        if not topic.start_offset <= offset < topic.end_offset:
            why = "it was removed by retention" if 0 <= offset < topic.start_offset else "there is none yet"
            raise NotFoundError(f"topic {name!r} has no message at offset {offset}: {why}")
        now = trio.current_time()
        rows = [delivery_of(subscription, offset, now) for _, subscription in sorted(topic.subscriptions.items())]
        return MessageDeliveries(topic=topic.name, offset=offset, deliveries=rows)

    async def delete_subscription(self, request: api.DeleteSubscription) -> api.Done:
        """Delete a subscription; its consumers are disconnected."""
        await self.unsubscribe(request.topic, request.subscription, request.topic_ids)
        return api.Done()

    def _check(self, topic: str, topic_ids: Collection[TopicId]) -> None:
        """Raise TopicReplacedError unless a topic, or a partition or its topic, has one of the ids."""
        if not topic_ids:
            return
        record = self._directory.catalogue.find(topic)
        if record is not None:
            check_topic_ids(topic, topic_ids, record.topic_ids[0])
        else:
            record, own = self._directory.catalogue.locate(topic)
            check_topic_ids(topic, topic_ids, record.topic_ids[0], own)

    async def unsubscribe(self, topic: str, subscription: str, topic_ids: Collection[TopicId] = ()) -> None:
        """Delete a subscription of a topic, or of all partitions, and its planned policies where it does not exist.

        Args:
            topic: its name.
            subscription: its name.
            topic_ids: one of them is the id of the topic; empty: any may be.

        Raises:
            TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
            TopicReplacedError: the topic has none of the ids.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        self._check(topic, topic_ids)
        forgotten = await self._policies.forget_planned(topic, subscription)
        try:
            subscriptions = self._directory.subscriptions(topic, subscription)
        except SubscriptionNotFoundError:
            if forgotten:
                return
            raise
        self._check(topic, topic_ids)  # again, at the moment from which the topic is bound: the call above has waited
        for each, _ in subscriptions:
            await each.delete_subscription(subscription)
