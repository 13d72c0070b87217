"""Replays a range of a topic into a topic, as new messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_danube._columns import BINARY_KEYS
from pyspark_danube.pipeline._import import write_once
from pyspark_danube.pipeline._topics import read_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["replay"]

_KEY_BYTES = "_danube_key_bytes"

# Dead letters use the same names.
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
    """Write messages of a topic again, with their payloads, keys and attributes, all of them visible at once.

    They get further attributes with their origin: ``x-original-topic``, ``x-original-partition``,
    ``x-original-topic-offset`` and ``x-original-publish-time`` (ISO 8601, UTC). Order per key is kept if the target has
    as many partitions as the source.

    Args:
        session: a Spark session.
        topic: source topic.
        target: target topic; may be the same, since the range is fixed before the first message is written.
        servers: URL of the broker.
        starting: ``earliest``, offsets as JSON, or a time (ISO 8601 with a zone, or milliseconds).
        ending: ``latest``, offsets as JSON, or a time, exclusive; empty for the present end.
        where: SQL condition on the columns of the topic; empty for all.
        producer_id: name that identifies a repetition; with ``batch_id``, messages are written once.
        batch_id: number of this replay among those of ``producer_id``; must grow.
        options: further options of the data source.

    Returns:
        Number of messages passed to the sink (even if the broker has stored the batch before).
    """
    reader = session.read.format("danube").schema(BINARY_KEYS)
    rows = reader.options(**read_options(servers, topic, starting, ending, options)).load()
    if where:  # the condition sees the key as text; the message has it as bytes
        rows = rows.withColumn(_KEY_BYTES, rows["key"]).withColumn("key", rows["key"].cast("string")).where(where)
        rows = rows.withColumn("key", rows[_KEY_BYTES])
    return write_once(rows.selectExpr("key", "payload", _ORIGIN), servers, target, producer_id, batch_id)
