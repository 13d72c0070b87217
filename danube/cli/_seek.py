"""Moves a subscription or skips messages of it, and says before what that does: what comes again, what is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.cli._client import run_with_client
from danube.cli._output import human_messages
from danube.cli._positions import parse_position
from danube.cli._questions import asks, confirm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danube.client import Client
    from danube.model.overview_api import SeekPlan, Skipped

__all__ = ["describe", "move", "skip"]


def move(
    topic: str,
    subscription: str,
    where: str | int,
    url: str | None,
    context: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move a subscription.

    Args:
        topic, subscription: the subscription.
        where: a position as text; or a number of messages, back if it is below 0.
        url, context: of the broker.
        dry_run: only print what would happen.
        yes: do not ask.
    """
    by = where if isinstance(where, int) else 0
    place = parse_position(where) if isinstance(where, str) else "latest"

    async def plan(client: Client) -> list[SeekPlan]:
        return await client.admin.plan_seek(topic, subscription, place, by=by)

    async def seek(client: Client) -> None:
        if isinstance(where, str):
            await client.admin.seek_subscription(topic, subscription, place)
            return
        for each in await plan(client):
            await client.admin.seek_subscription(each.topic, subscription, each.target)

    if dry_run or asks(yes):
        text = describe(run_with_client(plan, url, context))
        if dry_run:
            print(f"would move {subscription} of {topic}\n{text}")
            return
        confirm(yes, lambda: f"{text}\nMove {subscription} of {topic}?")
    run_with_client(seek, url, context)
    if isinstance(where, str):
        print(f"moved {subscription} of {topic} to {where}")
    else:
        way = "back" if where < 0 else "forward"
        print(f"moved {subscription} of {topic} {way} by {human_messages(abs(where))}")


def skip(
    topic: str,
    subscription: str,
    count: int,
    url: str | None,
    context: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Skip the next unacknowledged messages of a subscription; nothing comes again by that.

    Args:
        topic, subscription: the subscription.
        count: how many, in each partition.
        url, context: of the broker.
        dry_run: only print what would happen.
        yes: do not ask.
    """

    async def plan(client: Client) -> list[SeekPlan]:
        return await client.admin.plan_seek(topic, subscription, by=count)

    if dry_run or asks(yes):
        plans = run_with_client(plan, url, context)
        text = _describe_skip(plans)
        if dry_run:
            print(f"would skip messages of {subscription} of {topic}\n{text}")
            return
        if any(each.skipped_messages for each in plans):
            confirm(yes, lambda: f"{text}\nSkip them?")

        async def skip_these(client: Client) -> list[Skipped]:
            return await client.admin.skip_planned(subscription, plans)

        done = run_with_client(skip_these, url, context)
    else:
        done = run_with_client(lambda client: client.admin.skip_messages(topic, subscription, count), url, context)
    number = sum(each.skipped_messages for each in done)
    if number:
        print(f"skipped {human_messages(number)} of {subscription} of {topic}")
    else:
        print(f"{subscription} of {topic} has no unacknowledged messages: nothing to skip")


def _describe_skip(plans: Sequence[SeekPlan]) -> str:
    lines = []
    for plan in plans:
        count = plan.skipped_messages
        what = f"{human_messages(count)} {'is' if count == 1 else 'are'} skipped" if count else "nothing to skip"
        where = f", between {plan.floor:,} and {plan.target - 1:,} of {plan.end_offset:,}" if count else ""
        lines.append(f"  {plan.topic}: {what}{where}")
    if len(plans) > 1:
        lines.append(f"  in all: {human_messages(sum(plan.skipped_messages for plan in plans))}")
    return "\n".join(lines)


def describe(plans: Sequence[SeekPlan]) -> str:
    """Return a line for each partition, and a sum for several: from where to where, and what that means."""
    lines = [
        f"  {plan.topic}: from {plan.floor:,} to {plan.target:,} of {plan.end_offset:,}; {_effect([plan])}"
        for plan in plans
    ]
    if len(plans) > 1:
        lines.append(f"  in all: {_effect(plans)}")
    return "\n".join(lines)


def _effect(plans: Sequence[SeekPlan]) -> str:
    again, skipped = (sum(plan.repeated_messages for plan in plans), sum(plan.skipped_messages for plan in plans))
    parts = []
    if again:
        parts.append(f"{human_messages(again)} {'comes' if again == 1 else 'come'} again")
    if skipped:
        parts.append(f"{human_messages(skipped)} {'is' if skipped == 1 else 'are'} skipped")
    return ", ".join(parts) or "nothing changes"
