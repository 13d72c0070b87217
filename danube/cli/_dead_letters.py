"""Displays dead letters: decodes the attributes of a copy that describe the failure of its original.

The broker makes the copies in :mod:`danube.broker.delivery.dead_letters`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from danube.cli._format import iso_time
from danube.cli._output import Output, show_rows
from danube.cli._printing import key_fields, payload_fields, visible
from danube.model.dead_letters import failure_of, own_attributes

if TYPE_CHECKING:
    from danube.client import Client, Message

__all__ = ["collect", "show"]

_HEAD_CHARACTERS: Final = 60
_COLUMNS: Final = [
    "partition",
    "offset",
    "original_topic",
    "original_offset",
    "subscription",
    "attempts",
    "reason",
    "key",
    "payload",
]


async def collect(
    client: Client, topic: str, start: str | int | datetime.datetime, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Read the first ``limit`` dead letters from ``start`` on; return a row for each, and whether there are more.

    Raises:
        TopicNotFoundError: the topic does not exist.
    """
    await client.admin.lookup_topic(topic)
    rows: list[dict[str, Any]] = []
    async with client.reader(topic, start=start) as reader:
        async for batch in reader.batches(until_caught_up=True):
            room = limit - len(rows)
            rows += [_row(message) for message in batch[:room]]
            if room < len(batch):
                return rows, True
    return rows, False


def _row(message: Message) -> dict[str, Any]:
    failure = failure_of(message.attributes)
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "original_topic": failure.topic,
        "original_offset": failure.offset,
        "original_producer": failure.producer,
        "subscription": failure.subscription,
        "attempts": failure.attempts,
        "reason": failure.reason,
        **key_fields(message.key_bytes),
        **payload_fields(message.payload),
        "publish_time": iso_time(message.publish_time_us),
        "attributes": own_attributes(message.attributes) or {},
    }


def show(rows: Sequence[dict[str, Any]], output: Output) -> None:
    """Print dead letters; forms other than JSON show the beginning of each payload."""
    if output is not Output.JSON:
        rows = [
            row | {name: _head(row[name]) for name in ("reason", "key", "payload") if row[name] is not None}
            for row in rows
        ]
    show_rows(rows, _COLUMNS, output)


def _head(text: str) -> str:
    """Return the beginning of a text, as a part of a line."""
    return visible(text if len(text) <= _HEAD_CHARACTERS else text[: _HEAD_CHARACTERS - 1] + "…")
