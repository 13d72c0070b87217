"""Answers about the partitions of a topic, as one answer about the topic. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danube.model.api import Explanation, TopicInfo, TopicPartitions
from danube.model.ids import NO_TOPIC

__all__ = ["joined_explanation", "joined_info", "parts_of"]


def parts_of(found: TopicPartitions) -> list[str]:
    """Return what to ask for: the topic as a whole, or each partition, if no single broker owns all of them."""
    places = {owner.address for owner in found.owners}
    return [found.topic] if len(places) <= 1 and "" not in places else found.topics


def joined_info(topic: str, parts: Sequence[TopicInfo]) -> TopicInfo:
    """Return the state of a partitioned topic: sums over its partitions."""
    return msgspec.structs.replace(
        parts[0],
        topic=topic,
        topic_id=NO_TOPIC,
        partitions=len(parts),
        start_offset=sum(part.start_offset for part in parts),
        end_offset=sum(part.end_offset for part in parts),
        stored_bytes=sum(part.stored_bytes for part in parts),
        producers=[producer for part in parts for producer in part.producers],
        subscriptions=sorted({name for part in parts for name in part.subscriptions}),
        created_us=min(part.created_us for part in parts),
        sealed_offset=sum(part.sealed_offset for part in parts),
        journal_bytes=sum(part.journal_bytes for part in parts),
        sealed_bytes=sum(part.sealed_bytes for part in parts),
        parts=sum(part.parts for part in parts),
        objects=sum(part.objects for part in parts),
        readers=sum(part.readers for part in parts),
    )


def joined_explanation(topic: str, parts: Sequence[Explanation]) -> Explanation:
    """Return why the subscriptions of partitions move or do not, a sentence for each."""
    states = {part.state for part in parts}
    return Explanation(
        topic,
        parts[0].subscription,
        states.pop() if len(states) == 1 else "mixed",
        "\n".join(f"{part.topic}: {part.sentence}" for part in parts),
    )
