"""Makes one answer of the answers of several brokers, about their parts of a topic. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danube.model import api, history_api
from danube.model.errors import InvalidArgumentError
from danube.model.history_api import HistoryMethod
from danube.model.ids import NO_TOPIC, Offset
from danube.model.inspect_api import InspectMethod, ReaderList
from danube.model.names import partition_name
from danube.model.overview_api import FindDeliveries, MessageDeliveries, OverviewMethod, SeekPlans
from danube.model.policy_api import PolicyMethod

if TYPE_CHECKING:
    from danube.model.records import TopicRecord

__all__ = ["MERGED", "Merge", "known_of", "merge_topics"]


def merge_topics(name: str, record: TopicRecord, rows: Sequence[api.TopicInfo]) -> api.TopicInfo:
    """Return a partitioned topic, of what is known of its partitions. Objects that they share count repeatedly."""
    if not rows:
        return known_of(name, record)
    return msgspec.structs.replace(
        rows[0],
        topic=name,
        topic_id=NO_TOPIC,
        partitions=record.partitions,
        created_us=record.created_us,
        start_offset=Offset(sum(row.start_offset for row in rows)),
        end_offset=Offset(sum(row.end_offset for row in rows)),
        stored_bytes=sum(row.stored_bytes for row in rows),
        producers=[producer for row in rows for producer in row.producers],
        subscriptions=sorted({each for row in rows for each in row.subscriptions}),
        sealed_offset=Offset(sum(row.sealed_offset for row in rows)),
        journal_bytes=sum(row.journal_bytes for row in rows),
        sealed_bytes=sum(row.sealed_bytes for row in rows),
        parts=sum(row.parts for row in rows),
        objects=sum(row.objects for row in rows),
        readers=sum(row.readers for row in rows),
        gaps=[gap for row in rows for gap in row.gaps],
        missing_messages=sum(row.missing_messages for row in rows),
    )


def known_of(name: str, record: TopicRecord) -> api.TopicInfo:
    """Return what the record of a topic says of it."""
    return api.TopicInfo(
        topic=name,
        topic_id=record.topic_ids[0] if not record.partitions else NO_TOPIC,
        partitions=record.partitions,
        durability=record.durability,
        start_offset=0,
        end_offset=0,
        stored_bytes=0,
        producers=[],
        subscriptions=[],
        created_us=record.created_us,
        storage=record.storage,
        schema_subject=record.schema_subject,
    )


def _subscriptions(_request: Any, answers: Sequence[api.SubscriptionList]) -> api.SubscriptionList:
    return api.SubscriptionList([row for answer in answers for row in answer.subscriptions])


def _sealed(_request: Any, answers: Sequence[history_api.SealedTopics]) -> history_api.SealedTopics:
    return history_api.SealedTopics([row for answer in answers for row in answer.topics])


def _plans(_request: Any, answers: Sequence[history_api.RetentionPlans]) -> history_api.RetentionPlans:
    plans = [plan for answer in answers for plan in answer.plans]
    return history_api.RetentionPlans(answers[0].retention, answers[0].applied, plans)


def _done(_request: Any, _answers: Sequence[api.Done]) -> api.Done:
    return api.Done()


def _seeks(_request: Any, answers: Sequence[SeekPlans]) -> SeekPlans:
    return SeekPlans([plan for answer in answers for plan in answer.plans])


def _readers(_request: Any, answers: Sequence[ReaderList]) -> ReaderList:
    return ReaderList([row for answer in answers for row in answer.readers])


def _explanation(request: api.SubscriptionRef, answers: Sequence[api.Explanation]) -> api.Explanation:
    states = {answer.state for answer in answers}
    state = states.pop() if len(states) == 1 else "mixed"
    sentences = "\n".join(f"{answer.topic}: {answer.sentence}" for answer in answers)
    return api.Explanation(request.topic, request.subscription, state, sentences)


def _deliveries(request: FindDeliveries, answers: Sequence[MessageDeliveries]) -> MessageDeliveries:
    raise InvalidArgumentError(
        f"topic {request.topic!r} has {len(answers)} partitions, each with offsets of its own; name one of them, such"
        f" as {partition_name(request.topic, 0)!r}"
    )


Merge = Callable[[Any, Sequence[Any]], Any]
"""``merge(request, answers)`` returns the answer about the whole topic, of those about some partitions, in order."""

MERGED: Final[dict[str, tuple[type, Merge]]] = {
    api.Method.LIST_SUBSCRIPTIONS: (api.SubscriptionList, _subscriptions),
    api.Method.DESCRIBE_SUBSCRIPTION: (api.SubscriptionList, _subscriptions),
    api.Method.EXPLAIN_SUBSCRIPTION: (api.Explanation, _explanation),
    api.Method.CREATE_SUBSCRIPTION: (api.SubscriptionList, _subscriptions),
    api.Method.SEEK_SUBSCRIPTION: (api.Done, _done),
    OverviewMethod.PLAN_SEEK: (SeekPlans, _seeks),
    OverviewMethod.DELIVERIES: (MessageDeliveries, _deliveries),
    api.Method.DELETE_SUBSCRIPTION: (api.Done, _done),
    PolicyMethod.CHANGE_SUBSCRIPTION: (api.SubscriptionList, _subscriptions),
    HistoryMethod.CHANGE_RETENTION: (history_api.RetentionPlans, _plans),
    HistoryMethod.SEAL_TOPIC: (history_api.SealedTopics, _sealed),
    InspectMethod.READERS: (ReaderList, _readers),
    HistoryMethod.UNLOAD_TOPIC: (history_api.SealedTopics, _sealed),
}
"""Calls about a topic that the owner of each partition carries out: type of the answer, and how to merge them."""
