"""Transforms topics to a topic by SQL: each topic is a view, and the query's rows become messages."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

from danube.model.errors import InvalidArgumentError
from danube.model.names import validate_topic
from pyspark_danube.pipeline._messages import rows_to_messages
from pyspark_danube.pipeline._topics import is_offsets_json, start_stream, stream_topics, write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["transform", "view_name"]


def transform(
    session: SparkSession,
    sources: Mapping[str, str],
    topic: str,
    sql: str,
    *,
    servers: str,
    checkpoint: str,
    schemas: Mapping[str, str] | None = None,
    key: str = "",
    producer_id: str = "",
    once: bool = False,
    every_s: float = 1.0,
    starting: str = "earliest",
    output_mode: str = "append",
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query that reads topics and writes a topic, every result once.

    If the query selects a column ``payload``, its columns are those of messages (``payload``, ``key``, ``attributes``);
    else each row becomes a JSON object.

    Args:
        session: a Spark session.
        sources: topics by the names of their views; :func:`view_name` returns the usual ones.
        topic: target topic.
        sql: a query over the views.
        servers: URL of the broker.
        checkpoint: directory with the query's progress.
        schemas: by view: the fields of JSON payloads (``"id BIGINT, total DOUBLE"``), which become columns. A view
            without one has the columns of a topic.
        key: column of the results that becomes the key, if they have no column ``payload``.
        producer_id: by default the query's own id.
        once: end when everything that was there at the start is processed.
        every_s: seconds between two reads of the topics.
        starting: ``earliest``, ``latest``, offsets as JSON, or a time, for a new checkpoint. Of topics that the JSON
            does not name everything is read.
        output_mode: ``append``; or ``update``, to get each changed result of an aggregation.
        options: further options of the data source.

    Raises:
        InvalidArgumentError: a schema is for an unknown view, offsets are for a topic that is not read, or a
            column is missing.
    """
    schemas = schemas or {}
    for view in schemas:
        if view not in sources:
            near = difflib.get_close_matches(view, sources, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sources)}"
            raise InvalidArgumentError(f"there is a schema for {view!r}, but no such view; {hint}")
    starts = _starts(set(sources.values()), starting)
    for view, source in sources.items():
        rows = stream_topics(
            session, servers, source, starting=starts[source], schema=schemas.get(view, ""), options=options
        )
        rows.createOrReplaceTempView(view)
    results = session.sql(sql)
    if "payload" not in results.columns:
        results = rows_to_messages(results, key=key)
    writer = write_stream(results, servers, topic, producer_id).outputMode(output_mode)
    return start_stream(writer, checkpoint, once=once, every_s=every_s)


def _starts(topics: Set[str], starting: str) -> dict[str, str]:
    """Return the starting position of each topic.

    Each is a source of its own, which refuses offsets of other topics: it gets the part of the JSON about itself.

    Raises:
        InvalidArgumentError: offsets are given for a topic that is not read, or the JSON is invalid.
    """
    if not is_offsets_json(starting):
        return dict.fromkeys(topics, starting)
    try:
        named = json.loads(starting)
    except ValueError as error:
        raise InvalidArgumentError(f"the offsets to begin at, {starting!r}, are not JSON: {error}") from None
    for topic in named:
        if topic not in topics:
            near = difflib.get_close_matches(topic, topics, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(topics))}"
            raise InvalidArgumentError(f"offsets are given for {topic!r}, which is not read; {hint}")
    return {topic: json.dumps({topic: named[topic]}) if topic in named else "earliest" for topic in topics}


def view_name(topic: str) -> str:
    """Return a topic's name in SQL: the last part of its name, with ``_`` for ``-``."""
    return validate_topic(topic).topic.replace("-", "_")
