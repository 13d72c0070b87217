"""Turns what Spark's Kafka source reads into what the sink takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danube.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["kafka_messages"]

_NEEDED: Final = ("key", "value", "partition", "timestamp")

_NONE: Final = "filter(array(named_struct('key', '', 'value', '')), one -> false)"
_TEXTS: Final = """
transform(headers, one -> CASE
    WHEN one.value IS NULL THEN named_struct('key', one.key, 'value', '')
    WHEN is_valid_utf8(CAST(one.value AS STRING)) THEN named_struct('key', one.key, 'value', CAST(one.value AS STRING))
    ELSE named_struct('key', concat(one.key, '.base64'), 'value', base64(one.value))
END)
"""
_TOMBSTONE: Final = "filter(array(named_struct('key', 'kafka.tombstone', 'value', 'true')), one -> value IS NULL)"
_ATTRIBUTES: Final = """
map_from_entries(filter(entries, (one, at) ->
    NOT exists(slice(entries, at + 2, size(entries)), later -> later.key = one.key)
)) AS attributes
"""


def kafka_messages(rows: DataFrame, *, keep_partitions: bool = True) -> DataFrame:
    """Return rows of Spark's Kafka source with the columns of the sink: one message for each record, nothing lost.

    ============================ ==================================================================================
    Kafka                        message
    ============================ ==================================================================================
    ``key``                      ``key``
    ``value``                    ``payload``; of a null (a tombstone) it is empty, and the attribute
                                 ``kafka.tombstone`` is ``true``
    ``headers``                  ``attributes``, with the source's option ``includeHeaders``. Of several headers with
                                 one name the last one; a value that is not UTF-8 becomes ``<name>.base64``
    ``timestamp``                ``publish_time``; without one, the time of writing
    ``partition``                ``partition``, with ``keep_partitions``
    ============================ ==================================================================================

    Args:
        rows: what ``spark.read.format("kafka")`` or ``spark.readStream.format("kafka")`` loads.
        keep_partitions: whether a message belongs to the partition with the number of its record's; create the topic
            with at least as many. Its records then keep their order. Otherwise keys are routed as those of other
            producers, and only messages with one key keep their order.

    Raises:
        ConfigurationError: a column of the source is missing.
    """
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise ConfigurationError(
            f"these rows have no column {missing[0]!r}, so they are not what format('kafka') loads; pass those, and"
            " select or filter afterwards"
        )
    entries = f"coalesce({_TEXTS}, {_NONE})" if "headers" in rows.columns else _NONE
    columns = [
        "key",
        "coalesce(value, X'') AS payload",
        _ATTRIBUTES,
        "CASE WHEN timestamp >= timestamp_millis(0) THEN timestamp END AS publish_time",
    ]
    if keep_partitions:
        columns.append("partition")
    return rows.selectExpr("*", f"concat({entries}, {_TOMBSTONE}) AS entries").selectExpr(*columns)
