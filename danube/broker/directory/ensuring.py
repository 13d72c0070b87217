"""Topics that are asked for by those who take for granted that they are there.

A client of the upstream protocol opens a producer on each partition by its full name, and never says how many there
will be. So a partition that is not there creates its partitioned topic, or enlarges it; what was there keeps its place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from danube.broker.directory.building import build_topic
from danube.broker.directory.records import members
from danube.model import Durability, validate_topic
from danube.model.errors import AlreadyExistsError, InvalidArgumentError, TopicNotFoundError, UnavailableError
from danube.model.names import split_partition

if TYPE_CHECKING:
    from danube.broker.broker import Broker
    from danube.broker.directory.records import TopicRecord
    from danube.broker.topic.topic import Topic

__all__ = ["ensure_topic"]


async def ensure_topic(broker: Broker, name: str, durability: Durability) -> Topic:
    """Return a topic or a partition; create it if there is none and if that is allowed.

    Args:
        broker: whose topic it is.
        name: of a plain topic or of a partition.
        durability: of a topic that is created.

    Raises:
        AlreadyExistsError: a partition of a plain topic, or the base name of a partitioned one.
        TopicNotFoundError: there is none, and none is created.
        UnavailableError: it is being created or deleted; try again.
        InvalidArgumentError, LimitExceededError: there cannot be so many.
    """
    with suppress(TopicNotFoundError, InvalidArgumentError):
        return broker.topic(name)  # without waiting for others that are being created
    validate_topic(name)
    split = split_partition(name)
    base, wanted = (split[0], split[1] + 1) if split else (name, 0)
    async with broker.creating.hold(base):
        record = broker.catalogue.find(base)
        if record is not None and bool(record.partitions) is not bool(split):
            raise AlreadyExistsError(
                f"topic {base!r} has {record.partitions or 'no'} partitions; {name!r} cannot be created beside it"
            )
        if record is None or record.partitions < wanted:
            if not broker.config.auto_create_topics:
                broker.catalogue.locate(name)  # raises, with advice
            if record is None:
                await broker.create_topic(base, durability, wanted)
            else:
                await _enlarge(broker, base, record, wanted)
    try:
        return broker.topic(name)
    except TopicNotFoundError as error:
        raise UnavailableError(error.message) from error


async def _enlarge(broker: Broker, name: str, record: TopicRecord, partitions: int) -> None:
    if record.durability is Durability.REMOTE:
        await broker.remote.enlarge(name, record.storage, partitions)
        return
    alive = {topic.name for topic in broker.living(name, record)}
    record = await broker.catalogue.enlarge_topic(name, partitions)
    for topic_name, topic_id in members(name, record):
        if topic_name not in alive:
            broker.adopt(build_topic(broker, topic_name, topic_id, record))
