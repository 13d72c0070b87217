"""Reads topics as streams, and writes streams to topics: the options shared by all jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["default_checkpoint", "is_offsets_json", "read_options", "start_stream", "stream_topics", "write_stream"]

POSITION = "topic STRING, partition INT, offset BIGINT, publish_time TIMESTAMP, key STRING"
"""Columns in front of those of typed payloads."""


def read_options(
    servers: str, topics: str | Sequence[str], starting: str, ending: str = "", extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the options of a read.

    Args:
        servers: URL of the broker.
        topics: names of topics.
        starting: ``earliest``, ``latest``, offsets as JSON, or a time (ISO 8601 with a zone, or milliseconds).
        ending: the same for the end of a batch read; empty for the present end.
        extra: further options of the data source, such as ``storage.options.key``.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise InvalidArgumentError("a pipeline needs at least one topic to read")
    options = {"servers": servers, "topics": ",".join(names)}
    for place, value in (("starting", starting), ("ending", ending)):
        if value:
            options[place + ("Offsets" if _is_offset(value) else "Timestamp")] = value
    return options | dict(extra or {})


def _is_offset(value: str) -> bool:
    return value in ("earliest", "latest") or is_offsets_json(value)


def is_offsets_json(value: str) -> bool:
    """Return whether a position is offsets as JSON, by topic and partition."""
    return value.lstrip().startswith("{")


def stream_topics(
    session: SparkSession,
    servers: str,
    topics: str | Sequence[str],
    *,
    starting: str,
    schema: str = "",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a stream of messages; with ``schema``, payloads are JSON, and its columns follow those of the position."""
    reader = session.readStream.format("danube").options(**read_options(servers, topics, starting, extra=options))
    if schema:
        reader = reader.option("payloadFormat", "json").schema(f"{POSITION}, {schema}")
    return reader.load()


def write_stream(frame: DataFrame, servers: str, topic: str, producer_id: str = "") -> DataStreamWriter:
    """Return a writer into a topic; the query's own id names the producer if ``producer_id`` is empty."""
    writer = frame.writeStream.format("danube").option("servers", servers).option("topic", topic)
    return writer.option("producerId", producer_id) if producer_id else writer


def start_stream(writer: DataStreamWriter, checkpoint: str, *, once: bool, every_s: float) -> StreamingQuery:
    """Start a query: until it has caught up with the present end (``once``), or indefinitely, a batch ``every_s``.

    Raises:
        InvalidArgumentError: no checkpoint; without one nothing could be resumed.
    """
    if not checkpoint:
        raise InvalidArgumentError("a stream needs a checkpoint: a directory of its own, where it stores its position")
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start()


def default_checkpoint(directory: str, name: str) -> str:
    """Return a checkpoint inside a table's own directory.

    Raises:
        InvalidArgumentError: the directory is not on this machine, and Spark needs further jars to write elsewhere.
    """
    if "://" in directory and not directory.startswith("file://"):
        raise InvalidArgumentError(
            f"an export to {directory.partition('?')[0]} needs a checkpoint: give a persistent directory"
            " (Spark without further jars writes it to file systems only)"
        )
    return f"{directory.rstrip('/')}/{name}"
