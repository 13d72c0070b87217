"""Imports any Spark source into a topic: files, JDBC, and, where their jars are installed, Kafka and others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from danube.model.errors import InvalidArgumentError
from pyspark_danube.pipeline._messages import rows_to_messages
from pyspark_danube.pipeline._topics import start_stream, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["import_stream", "import_table", "write_once"]

_FILES = frozenset({"csv", "json", "orc", "parquet", "text"})


def import_table(
    session: SparkSession,
    topic: str,
    *,
    servers: str,
    format: str,  # noqa: A002 (Spark's own word)
    path: str = "",
    options: Mapping[str, str] | None = None,
    schema: str = "",
    key: str = "",
    payload: str = "",
    attributes: str = "",
    producer_id: str = "",
    batch_id: int | None = None,
) -> int:
    """Write every row of a source into a topic; all of them become visible at once.

    Args:
        session: a Spark session.
        topic: target topic.
        servers: URL of the broker.
        format: Spark's name of the source: ``parquet``, ``csv``, ``json``, ``orc``, ``jdbc``, ``kafka``, ...
        path: of files: file, directory or pattern.
        options: of the source, such as ``header`` of CSV or ``url`` and ``dbtable`` of JDBC.
        schema: columns of the source as SQL writes them; by default what Spark finds.
        key: column that becomes the key.
        payload: column that becomes the payload; by default the whole row as a JSON object.
        attributes: column of texts by name that becomes the attributes.
        producer_id: name that identifies repetitions. With ``batch_id`` the rows are written once, even if this is
            called several times.
        batch_id: number of this import among those of ``producer_id``; must grow.

    Returns:
        Number of rows that Spark has passed to the sink (even if the broker has stored the batch before).

    Raises:
        InvalidArgumentError: a column is missing, or ``batch_id`` comes without ``producer_id``.
    """
    reader = session.read.format(format).options(**dict(options or {}))
    if schema:
        reader = reader.schema(schema)
    rows = reader.load(path) if path else reader.load()
    messages = rows_to_messages(rows, key=key, payload=payload, attributes=attributes)
    return write_once(messages, servers, topic, producer_id, batch_id)


def import_stream(
    session: SparkSession,
    topic: str,
    *,
    servers: str,
    format: str,  # noqa: A002
    checkpoint: str,
    path: str = "",
    options: Mapping[str, str] | None = None,
    schema: str = "",
    key: str = "",
    payload: str = "",
    attributes: str = "",
    producer_id: str = "",
    once: bool = False,
    every_s: float = 1.0,
) -> StreamingQuery:
    """Write new rows of a source into a topic, every row once: for example files that appear in a directory.

    Arguments are those of :func:`import_table`, and:

    Args:
        checkpoint: directory with the query's progress.
        producer_id: by default the query's own id. Set it to keep the identity with a new checkpoint.
        once: end when all rows that existed at the start are written.
        every_s: seconds between two polls of the source.
    """
    given = dict(options or {})
    reader = session.readStream.format(format).options(**given)
    if schema:
        reader = reader.schema(schema)
    elif format in _FILES and format != "text":
        # A stream of files needs a schema: infer it from the files that exist now.
        reader = reader.schema(session.read.format(format).options(**given).load(path or None).schema)
    rows = reader.load(path) if path else reader.load()
    messages = rows_to_messages(rows, key=key, payload=payload, attributes=attributes)
    return start_stream(write_stream(messages, servers, topic, producer_id), checkpoint, once=once, every_s=every_s)


def write_once(messages: DataFrame, servers: str, topic: str, producer_id: str, batch_id: int | None) -> int:
    """Write a batch of messages; return how many there were.

    Raises:
        InvalidArgumentError: only one of ``producer_id`` and ``batch_id`` is given.
    """
    from pyspark.sql import Observation, functions

    if (batch_id is None) != (not producer_id):
        raise InvalidArgumentError(
            "producer id and batch id together identify a batch: give both, or neither to write without that identity"
        )
    seen = Observation()
    counted = messages.observe(seen, functions.count(functions.lit(1)).alias("rows"))
    writer = counted.write.format("danube").mode("append").option("servers", servers).option("topic", topic)
    if batch_id is not None:
        writer = writer.option("producerId", producer_id).option("batchId", str(batch_id))
    writer.save()
    return int(seen.get["rows"])
