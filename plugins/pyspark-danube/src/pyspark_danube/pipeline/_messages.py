"""Converts any rows to rows for the sink: ``payload``, and optionally ``key``, ``attributes`` and ``topic``."""

from __future__ import annotations

import difflib

from pyspark.sql import Column, DataFrame, functions

from danube.model.errors import InvalidArgumentError

__all__ = ["rows_to_messages"]


def rows_to_messages(frame: DataFrame, *, key: str = "", payload: str = "", attributes: str = "") -> DataFrame:
    """Return a message for each row.

    Args:
        frame: any rows, of a batch or a stream.
        key: column whose value, as text, becomes the key; empty: no keys.
        payload: column that becomes the payload (binary or text); empty: the whole row as a JSON object.
        attributes: column of texts by name that becomes the attributes; empty: none.

    Raises:
        InvalidArgumentError: there is no such column; the message names the nearest.
    """
    columns = []
    if key:
        columns.append(_column(frame, key).cast("string").alias("key"))
    whole = functions.to_json(functions.struct(functions.col("*")))
    columns.append((_column(frame, payload) if payload else whole).alias("payload"))
    if attributes:
        columns.append(_column(frame, attributes).alias("attributes"))
    return frame.select(*columns)


def _column(frame: DataFrame, name: str) -> Column:
    if name not in frame.columns:
        near = difflib.get_close_matches(name, frame.columns, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(frame.columns)}"
        raise InvalidArgumentError(f"the rows have no column {name!r}; {hint}")
    return functions.col(f"`{name.replace('`', '``')}`")
