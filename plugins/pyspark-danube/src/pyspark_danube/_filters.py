"""Derives bounds from a query's filters, to skip logs and ranges that it cannot match.

Filters are only used for pruning and returned to Spark, which checks every row again: an unsupported filter
costs time, never rows. Spark only passes simple filters that are joined by AND.

``topic``, ``partition`` and ``offset`` define exactly where messages are. ``publish_time`` does not: it is set by the
producer's clock (or explicitly: a replay preserves the old times), while logs are in the order in which the broker
has appended messages. A message appended late may have been published at any time before, so an upper bound is useless.
A lower bound is useful only if a producer's clock is never ahead of the broker's by more than a known time, which the
user guarantees with the option ``maxClockSkew``. For exact ranges in append time use ``startingTimestamp`` and
``endingTimestamp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import datasource  # as a module: Spark 4.0 has no classes of filters

from pyspark_danube._positions import LogKey, Span

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

__all__ = ["Bounds", "bounds_of"]

_NO_LIMIT: Final = 1 << 63
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of the messages that match a query. By default every message matches."""

    topics: frozenset[str] | None = None
    """None: any."""
    topic_prefix: str = ""
    partitions: tuple[int, int] = (0, _NO_LIMIT)
    """Half-open, as is ``offsets``."""
    offsets: tuple[int, int] = (0, _NO_LIMIT)
    published_us: int = 0
    """Published at this time, microseconds since the epoch, or later."""

    def takes(self, key: LogKey) -> bool:
        """Whether a log may contain matching messages."""
        return (
            (self.topics is None or key.topic in self.topics)
            and key.topic.startswith(self.topic_prefix)
            and self.partitions[0] <= key.partition < self.partitions[1]
        )

    def narrow(self, span: Span) -> Span | None:
        """Return the part of a span that may match; None if there is none."""
        start, end = max(span.start, self.offsets[0]), min(span.end, self.offsets[1])
        return Span(span.key, start, end) if start < end else None


def bounds_of(filters: Sequence[Filter]) -> Bounds:
    """Return the bounds implied by filters that must all hold."""
    topics: frozenset[str] | None = None
    prefix = ""
    partitions = offsets = (0, _NO_LIMIT)
    published_us = 0
    for condition in filters:
        attribute = getattr(condition, "attribute", ())
        if attribute == ("topic",):
            if isinstance(condition, datasource.EqualTo | datasource.EqualNullSafe):
                named = frozenset({condition.value})
            elif isinstance(condition, datasource.In):
                named = frozenset(condition.value)
            else:
                if isinstance(condition, datasource.StringStartsWith) and condition.value.startswith(prefix):
                    prefix = condition.value
                continue
            topics = named if topics is None else topics & named
        elif attribute == ("partition",):
            partitions = _narrowed(partitions, condition)
        elif attribute == ("offset",):
            offsets = _narrowed(offsets, condition)
        elif attribute == ("publish_time",) and isinstance(
            condition,
            datasource.GreaterThan | datasource.GreaterThanOrEqual | datasource.EqualTo | datasource.EqualNullSafe,
        ):
            published_us = max(published_us, _microseconds(condition.value))
    return Bounds(topics, prefix, partitions, offsets, published_us)


def _narrowed(bounds: tuple[int, int], condition: Filter) -> tuple[int, int]:
    low, high = bounds
    value: Any = getattr(condition, "value", None)
    if isinstance(condition, datasource.In):
        numbers = [number for number in value if number is not None]
        return (max(low, min(numbers)), min(high, max(numbers) + 1)) if numbers else (0, 0)
    if value is None:
        return bounds
    if isinstance(condition, datasource.EqualTo | datasource.EqualNullSafe):
        return max(low, value), min(high, value + 1)
    if isinstance(condition, datasource.GreaterThan):
        return max(low, value + 1), high
    if isinstance(condition, datasource.GreaterThanOrEqual):
        return max(low, value), high
    if isinstance(condition, datasource.LessThan):
        return low, min(high, value)
    if isinstance(condition, datasource.LessThanOrEqual):
        return low, min(high, value + 1)
    return bounds


def _microseconds(value: Any) -> int:
    """Return a timestamp of Spark's in microseconds; one without a zone, or another value, sets no bound."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return 0
    return (value - _EPOCH) // datetime.resolution
