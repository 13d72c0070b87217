"""``danube trace``: where one message is, from its producer to each subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption, print_json

if TYPE_CHECKING:
    from danube.cli._trail import Trail
    from danube.client import Client

__all__ = ["trace"]


def trace(
    topic: TopicArgument,
    message: Annotated[
        str, typer.Argument(metavar="[MESSAGE]", help="OFFSET, or PARTITION:OFFSET; by default the newest message.")
    ] = "",
    wait: Annotated[
        str,
        typer.Option(
            "--wait", metavar="TIME", help="Show also what happens to it for so long, until all have acknowledged it."
        ),
    ] = "",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the way of one message: published, stored, and where it is in each subscription.

    Nothing is sent, and no consumer is affected: a reader reads the message, and the broker says who has it. With
    --wait, changes are shown as they happen (looked at twice a second).

    The exit code is 1 if a subscription has not acknowledged it (and it is not a dead letter of it), else 0.
    """
    from danube.cli import _trail

    partition, offset = _trail.parse_message(message)
    wait_s = parse_duration(wait) if wait else 0.0

    async def work(client: Client) -> Trail:
        trail = await _trail.find(client, topic, partition, offset)
        if output is Output.TABLE:
            _print(_trail.told(trail))
        return await _trail.follow(client, trail, wait_s, _print if output is Output.TABLE else _keep_quiet)

    trail = run_with_client(work, url, context)
    if output is Output.JSON:
        print_json(to_plain(trail.message) | {"deliveries": [to_plain(each) for each in trail.deliveries]})
    elif output is Output.RAW:
        for each in trail.deliveries:
            print("\t".join((each.subscription, each.state, each.sentence)))
    if not trail.settled:
        raise typer.Exit(1)


def _print(lines: list[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _keep_quiet(_lines: Any) -> None:
    """Changes are not shown: the output is the state at the end."""
