"""Reads the audit logs of all brokers of a cluster, in the order of their times."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danube.model.errors import TopicNotFoundError

if TYPE_CHECKING:
    from danube.client import Client, Reader

__all__ = ["Entry", "audit_line", "read_audit"]

PREFIX: Final = "/system/audit-"
_LOG: Final = re.compile(re.escape(PREFIX) + r"b[0-9]+(-[0-9]+)?")
_POLL_S: Final = 1.0

Entry = dict[str, Any]
"""One entry: what its JSON object has."""


def audit_line(entry: Entry) -> str:
    """Return an entry as a line for people."""
    who = entry.get("principal", "")
    where = entry.get("address", "")
    what = entry.get("path", "").rpartition("/")[2]
    words = [entry.get("time", ""), entry.get("broker", ""), entry.get("kind", ""), who or "-", f"from {where or '-'}"]
    words += [what, entry.get("resource", ""), entry.get("request", "")]
    if entry.get("outcome", "done") != "done":
        words.append(f"failed: {entry['outcome']}")
    if "reason" in entry:
        words.append(f"({entry['reason']})")
    if "count" in entry:
        words.append(f"{entry['count']} times")
    return " ".join(word for word in words if word)


async def read_audit(client: Client, since_us: int, show: Callable[[Entry], object], *, follow: bool) -> None:
    """Show the entries of all brokers.

    Args:
        client: a connected client, which may consume the logs.
        since_us: shows entries from this time on, in microseconds since the epoch.
        show: called with each entry, oldest first.
        follow: whether to go on until cancelled.

    Raises:
        TopicNotFoundError: there are no logs, because the brokers have no access control, or the caller sees none.
    """
    import anyio

    positions: dict[str, int] = {}
    while True:
        for topic in sorted(each.topic for each in await client.admin.list_topics("system")):
            if _LOG.fullmatch(topic) and topic not in positions:
                positions[topic] = await client.logs.offset_at(topic, since_us)
        if not positions:
            raise TopicNotFoundError(
                "there is no audit log that you may see: brokers keep one with [security] enabled = true, and a reader"
                f" needs Describe and Consume on {PREFIX}*"
            )
        await _show_new(client, positions, show)
        if not follow:
            return
        await anyio.sleep(_POLL_S)


async def _show_new(client: Client, positions: dict[str, int], show: Callable[[Entry], object]) -> None:
    """Show what the logs have from some offsets on, and set these to their ends."""
    async with AsyncExitStack() as stack:
        heads: list[tuple[str, str, Entry]] = []
        readers: dict[str, Reader] = {}
        ends: dict[str, int] = {}
        for topic, position in positions.items():
            ends[topic] = (await client.admin.describe_topic(topic)).end_offset
            if position < ends[topic]:
                readers[topic] = await stack.enter_async_context(client.reader(topic, start=position))
                await _push_next(readers[topic], topic, positions, heads)
        while heads:
            _, topic, entry = heapq.heappop(heads)
            show(entry)
            if positions[topic] < ends[topic]:
                await _push_next(readers[topic], topic, positions, heads)


async def _push_next(
    reader: Reader, topic: str, positions: dict[str, int], heads: list[tuple[str, str, Entry]]
) -> None:
    message = await reader.receive()
    positions[topic] = message.offset + 1
    entry: Entry = msgspec.json.decode(message.payload)
    heapq.heappush(heads, (str(entry.get("time", "")), topic, entry))
