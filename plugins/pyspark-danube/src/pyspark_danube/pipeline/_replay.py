"""A range of a topic back into a topic, as if it happened again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_danube.pipeline._import import write_once
from pyspark_danube.pipeline._topics import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["replay"]

# The names are those that dead letters have for the same things.
_ORIGIN = """
    map_concat(
        map_filter(
            coalesce(attributes, CAST(map() AS MAP<STRING, STRING>)),
            (name, value) -> name NOT IN (
                'x-original-topic', 'x-original-partition', 'x-original-topic-offset', 'x-original-publish-time'
            )
        ),
        map(
            'x-original-topic', topic,
            'x-original-partition', CAST(partition AS STRING),
            'x-original-topic-offset', CAST(offset AS STRING),
            'x-original-publish-time',
            date_format(to_utc_timestamp(publish_time, current_timezone()), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
        )
    ) AS attributes
"""


def replay(
    session: SparkSession,
    topic: str,
    target: str,
    *,
    servers: str,
    starting: str = "earliest",
    ending: str = "",
    where: str = "",
    producer_id: str = "",
    batch_id: int | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """Write messages of a topic once more, with their payloads, keys and attributes, all of them visible at once.

    They get further attributes that say where they are from: ``x-original-topic``, ``x-original-partition``,
    ``x-original-topic-offset`` and ``x-original-publish-time`` (ISO 8601, UTC). Order per key is kept if the target has
    as many partitions as the source.

    Args:
        session: a Spark session.
        topic: where the messages are.
        target: where they go; may be the same topic, since what is read is settled before the first is written.
        servers: URL of the broker.
        starting: ``earliest``, offsets as JSON, or a time (ISO 8601 with a zone, or milliseconds).
        ending: ``latest``, offsets as JSON, or a time, exclusive; empty for all that is there now.
        where: SQL condition on the columns of the topic; empty for all.
        producer_id: name that makes a repetition known; with ``batch_id``, messages are written once.
        batch_id: number of this replay among those of ``producer_id``; must grow.
        options: further options of the data source.

    Returns:
        Messages that were handed over (also if the broker knew the batch already).
    """
    rows = session.read.format("danube").options(**read_options(servers, topic, starting, ending, options)).load()
    if where:
        rows = rows.where(where)
    return write_once(rows.selectExpr("key", "payload", _ORIGIN), servers, target, producer_id, batch_id)
