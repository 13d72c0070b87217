"""Assigns rows to partitions: by a column, by key, in the same way as native producers, or in turn.

A key belongs to partition FNV-1a 64 (key) mod N for all producers, so the messages of a key stay in order if Spark and
other producers write to a topic. :func:`danube.model.names.route_key` computes the same in Python, at a microsecond per
ten characters; here numpy processes a whole column one byte position at a time, at a few nanoseconds per character.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["hash_keys", "route_keys", "route_rows", "utf8_bytes"]

_OFFSET_BASIS = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)


def utf8_bytes(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the bounds of the values of a string or binary column, and the bytes that they refer to.

    Value ``i`` is ``data[bounds[i]:bounds[i + 1]]``; for nulls it is undefined.
    """
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, positions, data = column.buffers()
    width = np.int64 if wide else np.int32
    if positions is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    bounds = np.frombuffer(positions, width, len(column) + 1, column.offset * np.dtype(width).itemsize)
    characters = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return bounds.astype(np.int64), characters


def hash_keys(keys: pa.Array) -> NDArray[np.uint64]:
    """Return FNV-1a 64 of each value of a string or binary column, over its bytes (of a text: UTF-8)."""
    bounds, data = utf8_bytes(keys)
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes = np.full(len(lengths), _OFFSET_BASIS, np.uint64)
    # The longest first: the rows that still have a byte at some position are then always a prefix of the order.
    order = np.argsort(-lengths, kind="stable")
    starts, sorted_lengths = starts[order], lengths[order]
    longest = int(sorted_lengths[0]) if len(order) else 0
    alive = np.searchsorted(-sorted_lengths, -np.arange(longest), side="left")
    for position in range(longest):
        count = alive[position]
        part = hashes[:count]
        part ^= data[starts[:count] + position]
        part *= _PRIME
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


def route_keys(keys: Any, partitions: int, *, without_key: int) -> NDArray[np.int64]:
    """Return the partition of each row.

    Args:
        keys: string or binary column; may have nulls.
        partitions: number of partitions of the topic, at least 1.
        without_key: partition of rows with a null key.
    """
    if partitions == 1:
        return np.zeros(len(keys), np.int64)
    routes = (hash_keys(keys) % np.uint64(partitions)).astype(np.int64)
    if keys.null_count:
        routes[np.asarray(keys.is_null())] = without_key
    return routes


def route_rows(rows: pa.RecordBatch, topic: str, partitions: int, *, without_key: int) -> NDArray[np.int64]:
    """Return the partition of each row: its column ``partition``, or, if that is null or absent, by its key.

    Args:
        rows: with ``key`` and ``partition``, or without.
        topic: for messages.
        partitions: number of partitions of the topic, at least 1; a plain topic has one.
        without_key: partition of rows with neither.

    Raises:
        InvalidArgumentError: the topic has no such partition.
    """
    names = rows.schema.names
    if "key" in names:
        routes = route_keys(rows.column("key"), partitions, without_key=without_key)
    else:
        routes = np.full(len(rows), without_key, np.int64)
    if "partition" not in names:
        return routes
    column = rows.column("partition")
    chosen = np.asarray(column.fill_null(0)).astype(np.int64)
    strange = chosen[(chosen < 0) | (chosen >= partitions)]
    if len(strange):
        has = f"its partitions are 0 to {partitions - 1}" if partitions > 1 else "it has no partitions but 0"
        raise InvalidArgumentError(
            f"a row is for partition {strange[0]} of {topic}, and {has}: create the topic with as many partitions as"
            " the rows need before writing, or leave the column 'partition' out to route rows by key"
        )
    return np.where(np.asarray(column.is_null()), routes, chosen)
