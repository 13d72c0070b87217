"""Finds one message, and who has it, for ``danube trace``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.cli._durations import human_duration
from danube.cli._format import iso_time
from danube.cli._output import human_bytes
from danube.cli._printing import visible
from danube.model.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from danube.client import Client, Message
    from danube.model.overview_api import MessageDelivery

__all__ = ["Trail", "TracedMessage", "changes", "find", "follow", "parse_message", "told"]

_LOOK_S: Final = 0.5
_SETTLED: Final = frozenset({"acknowledged", "dead-lettered", "before-start"})
"""States in which a subscription has nothing to do with a message any more."""
_MOST_DIGITS: Final = 19


class TracedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the message itself."""

    topic: str
    """The topic, or the partition."""
    partition: int
    offset: int
    key: str | None
    size_bytes: int
    producer: str
    publish_time_us: int
    """By the producer's clock."""
    append_time_us: int
    """When the broker stored it, by its clock."""


class Trail(msgspec.Struct, frozen=True, kw_only=True):
    """A message, and where it is."""

    message: TracedMessage
    deliveries: list[MessageDelivery]

    @property
    def settled(self) -> bool:
        """Whether no subscription has it before it any more."""
        return all(each.state in _SETTLED for each in self.deliveries)


def parse_message(text: str) -> tuple[int, int | None]:
    """Return partition and offset of a text such as ``7`` or ``2:7``; the offset is None for the newest message.

    Raises:
        InvalidArgumentError: it is neither.
    """
    partition, colon, offset = text.rpartition(":")
    if text and not (_is_number(offset) and (_is_number(partition) if colon else not partition)):
        raise InvalidArgumentError(f"message {text!r} is neither OFFSET nor PARTITION:OFFSET, for example 2:17")
    return int(partition or 0), int(offset) if text else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


async def find(client: Client, topic: str, partition: int, offset: int | None) -> Trail:
    """Return a message and where it is.

    Args:
        client: of the caller.
        topic: a plain or partitioned topic, or a partition.
        partition: of the message, if the topic has several.
        offset: None: the newest message, of any partition.

    Raises:
        NotFoundError: the topic, the partition or the message does not exist.
        FailedPreconditionError: the topic stores nothing.
    """
    names = (await client.admin.lookup_topic(topic)).topics
    if offset is None:
        ends = {name: await client.admin.describe_topic(name) for name in names}
        filled = [name for name in names if ends[name].end_offset > ends[name].start_offset]
        if not filled:
            raise NotFoundError(f"topic {topic!r} has no messages; publish one first: danube produce {topic} -m hello")
        found = [await _read(client, name, ends[name].end_offset - 1) for name in filled]
        message = max(found, key=lambda each: each.append_time_us)
    else:
        if partition >= len(names):
            raise NotFoundError(f"topic {topic!r} has no partition {partition}: there are {len(names)}, from 0 on")
        message = await _read(client, names[partition], offset)
    return Trail(message=message, deliveries=await _deliveries(client, message))


async def _deliveries(client: Client, message: TracedMessage) -> list[MessageDelivery]:
    return (await client.admin.find_deliveries(message.topic, message.offset)).deliveries


async def _read(client: Client, topic: str, offset: int) -> TracedMessage:
    await client.admin.find_deliveries(topic, offset)  # says whether it exists
    found: Message | None = None
    async with client.reader(topic, start=offset, credit_messages=1) as reader:
        async for batch in reader.batches(until_caught_up=True):
            found = batch[0]
            break
    if found is None or found.offset != offset:
        raise NotFoundError(f"topic {topic!r} has no message {offset} any more: retention has removed it")
    key = found.key_bytes
    return TracedMessage(
        topic=topic,
        partition=found.partition,
        offset=offset,
        key=None if key is None else key.decode(errors="backslashreplace"),
        size_bytes=len(found.payload),
        producer=found.producer,
        publish_time_us=found.publish_time_us,
        append_time_us=found.append_time_us,
    )


def told(trail: Trail) -> list[str]:
    """Return the lines for a person."""
    message = trail.message
    key = "" if message.key is None else f", key {visible(message.key)}"
    way_s = (message.append_time_us - message.publish_time_us) / 1e6
    way = f"{way_s * 1e3:.3g} ms" if way_s < 1 else human_duration(way_s)
    later = f", {way} later" if way_s >= 0 else ", by another clock than the producer's"
    lines = [
        f"{message.topic} {message.offset}: {human_bytes(message.size_bytes)}{key}",
        f"  published  {iso_time(message.publish_time_us)}  by {message.producer or 'a producer without a name'}",
        f"  stored     {iso_time(message.append_time_us)}{later}",
    ]
    lines += [f"  {_line(each)}" for each in trail.deliveries]
    if not trail.deliveries:
        lines.append("  the topic has no subscription that may be seen")
    return lines


def changes(before: Sequence[MessageDelivery], after: Sequence[MessageDelivery]) -> list[str]:
    """Return a line for each subscription in which the message is elsewhere now."""
    former = {each.subscription: (each.state, each.consumer, each.attempt) for each in before}
    return [
        f"  {_line(each)}"
        for each in after
        if former.get(each.subscription) != (each.state, each.consumer, each.attempt)
    ]


def _line(delivery: MessageDelivery) -> str:
    return f"{delivery.subscription}: {delivery.sentence}"


async def follow(client: Client, trail: Trail, wait_s: float, tell: Callable[[list[str]], None]) -> Trail:
    """Return where the message is after a while, or as soon as no subscription has it before it any more.

    Args:
        client: of the caller.
        trail: as :func:`find` returned it.
        wait_s: how long to look; 0: not at all.
        tell: takes the lines about what has changed.
    """
    with trio.move_on_after(wait_s):
        while wait_s and not trail.settled:
            await trio.sleep(_LOOK_S)
            deliveries = await _deliveries(client, trail.message)
            if lines := changes(trail.deliveries, deliveries):
                tell(lines)
            trail = Trail(message=trail.message, deliveries=deliveries)
    return trail
