"""Finds the dead-letter topics of a broker, and tells one that does not exist yet from a wrong name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from danube.cli._output import Output, human_bytes, show_rows
from danube.model.dead_letters import DEAD_LETTER_SUFFIX, dead_letter_topic
from danube.model.names import split_partition
from danube.model.policies import PoisonPolicy, SubscriptionPolicy

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["find_all", "show", "why_absent"]

_COLUMNS: Final = ["topic", "messages", "size", "of"]


async def find_all(client: Client) -> list[dict[str, Any]]:
    """Return a row for each dead-letter topic: those that subscriptions name, and those that are named like one."""
    sources: dict[str, set[str]] = {}
    for row in (await client.admin.overview()).subscriptions:
        if row.dead_letter_topic:
            base = (split_partition(row.topic) or (row.topic, 0))[0]
            sources.setdefault(row.dead_letter_topic, set()).add(f"{base} {row.subscription}")
    topics = {info.topic: info for info in await client.admin.list_topics()}
    names = {*sources, *(name for name in topics if name.endswith(DEAD_LETTER_SUFFIX))}
    rows = []
    for name in sorted(names):
        info = topics.get(name)
        rows.append(
            {
                "topic": name,
                "exists": info is not None,
                "messages": 0 if info is None else info.messages,
                "stored_bytes": 0 if info is None else info.stored_bytes,
                "of": sorted(sources.get(name, ())),
            }
        )
    return sorted(rows, key=lambda row: (-row["messages"], row["topic"]))


def show(rows: list[dict[str, Any]], output: Output) -> None:
    """Print dead-letter topics, those with the most messages first."""
    if output is Output.TABLE and not rows:
        print("no subscription has a dead-letter topic")
        return
    if output is Output.JSON:
        show_rows(rows, _COLUMNS, output)
        return
    raw = output is Output.RAW
    shown = [row | {"size": row["stored_bytes"] if raw else human_bytes(row["stored_bytes"])} for row in rows]
    show_rows(shown, _COLUMNS, output)


async def why_absent(client: Client, topic: str) -> str | None:
    """Return why a dead-letter topic does not exist, if it is one of a subscription; else None."""
    for row in (await client.admin.overview()).subscriptions:
        base = (split_partition(row.topic) or (row.topic, 0))[0]
        if row.dead_letter_topic == topic:
            return (
                f"nothing has failed yet: {topic} is created with the first message that subscription"
                f" {row.subscription!r} of {base} gives up"
            )
        if not row.dead_letter_topic and dead_letter_topic(row.topic, row.subscription, _DEFAULT) == topic:
            return (
                f"subscription {row.subscription!r} of {base} copies nothing to {topic}: its poison policy is another"
                f" one; change it with: danube subscriptions policy {base} {row.subscription} --poison"
                f" {PoisonPolicy.DEAD_LETTER.value}"
            )
    return None


_DEFAULT: Final = SubscriptionPolicy()
