"""``danube dlq``: lists the messages of a dead-letter topic, replays them to their original topics, or drops them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import OptionalTopicArgument, TopicArgument
from danube.cli._output import Output, OutputOption
from danube.cli._positions import parse_position
from danube.cli._questions import YesOption, confirm
from danube.model.dead_letters import REPLAY_SUBSCRIPTION, Selection, parse_place
from danube.model.errors import InvalidArgumentError, TopicNotFoundError
from danube.model.policies import EARLIEST

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["dlq_app"]

SubscriptionOption = Annotated[
    str, typer.Option("-s", "--subscription", metavar="NAME", help="Subscription that tracks replayed messages.")
]
OffsetOption = Annotated[
    list[str] | None,
    typer.Option("--offset", metavar="OFFSET", help="Only this message, PARTITION:OFFSET or OFFSET; repeat for more."),
]
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Only messages whose reason contains this text.")
]

dlq_app = typer.Typer(
    no_args_is_help=True, help="List the messages of a dead-letter topic, replay them, or give them up."
)


@dlq_app.command("list")
def list_letters(
    topic: OptionalTopicArgument = None,
    start: Annotated[
        str, typer.Option(metavar="POSITION", help="earliest, an offset, or an ISO 8601 time.")
    ] = EARLIEST,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most this many messages.")] = 1_000,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the messages of a dead-letter topic: original topic, number of attempts, and cause of the failure.

    Without a topic: all dead-letter topics, and how many messages they have. Replayed messages stay in a topic until
    its retention removes them, and are listed, too.
    """
    from danube.cli import _dead_letter_topics, _dead_letters

    if topic is None:
        _dead_letter_topics.show(run_with_client(_dead_letter_topics.find_all, url, context), output)
        return
    place, absent = parse_position(start), ""

    async def work(client: Client) -> tuple[list[dict[str, Any]], bool]:
        nonlocal absent
        try:
            return await _dead_letters.collect(client, topic, place, limit)
        except TopicNotFoundError:
            absent = await _dead_letter_topics.why_absent(client, topic) or ""
            if not absent:
                raise
            return [], False

    found, more = run_with_client(work, url, context)
    if absent:
        typer.echo(absent, err=True)
        if output is Output.TABLE:
            return
    _dead_letters.show(found, output)
    if more:
        typer.echo(f"there are more than {limit}; --limit shows more of them, --start later ones", err=True)


@dlq_app.command("replay")
def replay(
    topic: TopicArgument,
    to: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Send all messages to this topic, not to their original topics.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", min=1, help="Replay at most this many messages.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; show what would be sent.")] = False,
    subscription: SubscriptionOption = REPLAY_SUBSCRIPTION,
    offset: OffsetOption = None,
    reason: ReasonOption = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send the messages of a dead-letter topic back to their original topics.

    A subscription of the dead-letter topic stores the progress, so that a repeated command continues where the last one
    stopped. A message counts as replayed once it is durable in its topic: a command that is killed loses no message,
    but the next one may send the last messages a second time. The attributes that describe the failure are removed.

    A message without an original topic, or whose original topic no longer exists, stays in the dead-letter topic, and
    the exit code is 1; --to sends such messages, too.
    """
    from danube.cli import _replay
    from danube.client.replaying import ReplayOptions

    options = ReplayOptions(
        topic=topic,
        to=to,
        limit=limit,
        dry_run=dry_run,
        subscription=subscription,
        selection=_selection(offset, reason),
    )
    code = _replay.run(options, url, context, output)
    if code:
        raise typer.Exit(code)


@dlq_app.command("drop")
def drop(
    topic: TopicArgument,
    offset: OffsetOption = None,
    reason: ReasonOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All messages that were not replayed or dropped.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Drop nothing; show what would be dropped.")] = False,
    subscription: SubscriptionOption = REPLAY_SUBSCRIPTION,
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give up messages of a dead-letter topic: they count as done, and are not replayed any more.

    They stay in the topic until its retention removes them.
    """
    from danube.cli import _replay
    from danube.client.replaying import ReplayOptions

    if not (everything or offset or reason is not None):
        raise InvalidArgumentError("nothing is named; use --offset, --reason or --all")
    options = ReplayOptions(
        topic=topic, dry_run=dry_run, subscription=subscription, selection=_selection(offset, reason), drop=True
    )
    if not dry_run:
        confirm(yes, lambda: f"Give up these messages of {topic}? They will not be replayed.")
    code = _replay.run(options, url, context, output)
    if code:
        raise typer.Exit(code)


def _selection(offsets: list[str] | None, reason: str | None) -> Selection:
    return Selection(offsets=frozenset(map(parse_place, offsets)) if offsets else None, reason=reason)
