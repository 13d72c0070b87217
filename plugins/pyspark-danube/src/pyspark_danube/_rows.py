"""Converts rows to messages: the columns of the sink, and messages from Arrow columns.

================ ==================== ==============================================================================
column           type                 meaning
================ ==================== ==============================================================================
``payload``      BINARY or STRING     contents of the message; required, never null
``key``          BINARY or STRING     determines the partition; null: none
``attributes``   MAP<STRING, STRING>  null: none
``topic``        STRING               target topic of the row, if there is no option ``topic``
``partition``    INT                  partition of the topic; null: as without the column
``publish_time`` TIMESTAMP            null: the time at which the row is written
================ ==================== ==============================================================================

Rows with neither key nor attributes nor time become a list of payloads, which the client encodes without an object per
message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from danube.model.batch import Record
from danube.model.errors import ConfigurationError, InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["check_columns", "first_time_us", "to_messages"]

_COLUMNS = {
    "payload": ("binary", "string"),
    "key": ("binary", "string"),
    "attributes": ("map<string,string>",),
    "topic": ("string",),
    "partition": ("int",),
    "publish_time": ("timestamp",),
}


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Check on the driver that rows of this schema can be written.

    Args:
        schema: of the rows.
        has_topic: whether the option ``topic`` is given.

    Raises:
        ConfigurationError: a column is missing, unknown, or of the wrong type; the message says what to select.
    """
    for field in schema.fields:
        if field.name not in _COLUMNS:
            near = get_close_matches(field.name, _COLUMNS, 1)
            hint = f"did you mean {near[0]!r}?" if near else "leave it out, or make it part of the payload"
            raise ConfigurationError(
                f"the sink takes no column {field.name!r}; {hint} It takes {', '.join(_COLUMNS)}:"
                f" for example df.selectExpr('to_json(struct(*)) AS payload')"
            )
        given = field.dataType.simpleString()
        # CHAR and VARCHAR are strings when read.
        if given.split("(")[0] in ("char", "varchar"):
            given = "string"
        if given not in _COLUMNS[field.name]:
            wanted = " or ".join(kind.upper() for kind in _COLUMNS[field.name])
            raise ConfigurationError(
                f"the column {field.name!r} is {given.upper()}, but the sink takes {wanted}; cast it, for example"
                f" CAST({field.name} AS {_COLUMNS[field.name][-1].upper()})"
            )
    names = schema.fieldNames()
    if "payload" not in names:
        near = get_close_matches("payload", names, 1)
        raise ConfigurationError(
            f"there is no column 'payload' among {', '.join(map(repr, names)) or 'no columns at all'}; select the"
            f" payload, for example df.selectExpr('{near[0] if near else 'to_json(struct(*))'} AS payload')"
        )
    if not has_topic and "topic" not in names:
        raise ConfigurationError(
            "there is neither an option 'topic' nor a column 'topic': name the target topic, for example"
            " .option('topic', '/default/orders')"
        )


def first_time_us(rows: pa.RecordBatch) -> int | None:
    """Return the earliest ``publish_time`` of rows in microseconds since the epoch; None without that column."""
    times = _times(rows)
    return None if times is None else min(times)


def to_messages(rows: pa.RecordBatch, base_time_us: int | None = None) -> Sequence[bytes] | list[Record]:
    """Return rows as messages: payloads alone if no row has a key or attributes, and there are no times.

    Args:
        rows: what Spark passes.
        base_time_us: the time from which ``publish_time`` counts, in microseconds since the epoch; required with that
            column.

    Raises:
        InvalidArgumentError: a payload is null, or a time is before 1970.
    """
    names = rows.schema.names
    payloads = _payloads(rows.column("payload"))
    keys = _values(_binary(rows.column("key"))) if "key" in names else None
    attributes = _attributes(rows.column("attributes")) if "attributes" in names else None
    times = None if base_time_us is None else _times(rows)
    if times is not None and base_time_us is not None:
        nothing = [None] * len(payloads)
        deltas = [each - base_time_us for each in times]
        return list(map(Record, payloads, keys or nothing, attributes or nothing, deltas))
    if keys is None and attributes is None:
        return payloads
    if attributes is None:
        return list(map(Record, payloads, keys or ()))
    return list(map(Record, payloads, keys or [None] * len(payloads), attributes))


def _times(rows: pa.RecordBatch) -> list[int] | None:
    """Return the times of rows in microseconds since the epoch, that of now for a null; None without the column."""
    if "publish_time" not in rows.schema.names:
        return None
    column = rows.column("publish_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    times: list[int] = column.fill_null(time.time_ns() // 1000).to_pylist()
    if min(times, default=0) < 0:
        raise InvalidArgumentError(
            "a row has a publish_time before 1970; give such rows another one, for example"
            " greatest(publish_time, timestamp_micros(0)), or null for the time of writing"
        )
    return times


def _payloads(column: pa.Array) -> list[bytes]:
    if column.null_count:
        raise InvalidArgumentError(
            "a row has a null payload, and a message always has one; filter such rows, or give them a value with"
            " coalesce(payload, ...)"
        )
    payloads: list[bytes] = _binary(column).to_pylist()
    return payloads


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _values(column: pa.Array) -> list[Any] | None:
    """Return the values of a column, None if all are null."""
    return None if column.null_count == len(column) else column.to_pylist()


def _attributes(column: pa.Array) -> list[dict[str, str] | None] | None:
    if column.null_count == len(column):
        return None
    found: list[dict[str, str] | None] = column.to_pylist(maps_as_pydicts="strict")
    for attributes in found:
        if attributes and None in attributes.values():
            name = list(attributes)[list(attributes.values()).index(None)]  # type: ignore[arg-type]
            raise InvalidArgumentError(f"the attribute {name!r} of a row is null; leave it out of the map instead")
    return [attributes or None for attributes in found]
