"""``danube subscriptions``: lists, creates, moves and deletes subscriptions, and explains why one does not move.

Their policies are in ``subscription_policy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli import _seek, subscription_policy
from danube.cli._choices import choice_option
from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import OptionalTopicArgument, SubscriptionArgument, TopicArgument
from danube.cli._output import Output, OutputOption, plural, show_rows
from danube.cli._positions import parse_position
from danube.cli._questions import YesOption, confirm
from danube.model.errors import InvalidArgumentError
from danube.model.policies import LATEST, SubscriptionType

if TYPE_CHECKING:
    from danube.model.api import SubscriptionInfo

__all__ = ["subscriptions_app"]

subscriptions_app = typer.Typer(
    no_args_is_help=True, help="Create, describe, change, move, delete and explain subscriptions."
)

_COLUMNS: Final = {
    "topic": "topic",
    "subscription": "subscription",
    "type": "type",
    "floor": "floor",
    "end": "end_offset",
    "backlog": "backlog_messages",
    "in flight": "in_flight_messages",
    "waiting": "waiting_messages",
    "delayed": "delayed_messages",
    "poisoned": "poisoned_messages",
    "dead-lettered": "dead_lettered_messages",
    "expired": "expired_messages",
}
"""Columns of tables, and the fields that they show. JSON has every field under its own name."""

_MORE_COLUMNS: Final = {
    "acked ranges": "acked_ranges",
    "redelivered": "redelivered_messages",
    "dropped": "dropped_messages",
}
_CONSUMER_COLUMNS: Final = {
    "topic": "topic",
    "consumer": "consumer",
    "active": "active",
    "suspended": "suspended",
    "credit": "credit_messages",
    "credit bytes": "credit_bytes",
    "in flight": "in_flight_messages",
    "delivered": "delivered_messages",
    "acked": "acked_messages",
    "key filters": "key_filters",
}


@subscriptions_app.command("list")
def list_subscriptions(
    topic: OptionalTopicArgument = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", metavar="NAME", help="Only those of topics in this namespace.")
    ] = "",
    partitions: Annotated[bool, typer.Option("--partitions", help="Show a row for each partition.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List subscriptions: of all topics, the worst first; or those of one topic, a row for each partition.

    Of all topics, "oldest" is the age of the oldest unacknowledged message; for a partitioned topic, backlogs are sums,
    and state and age those of the worst partition.
    """
    if topic is not None:
        found = run_with_client(lambda client: client.admin.list_subscriptions(topic), url, context)
        _show(_rows(found), {**_COLUMNS, "consumers": "connected"}, output)
        return
    from danube.cli import _subscription_list

    everything = run_with_client(lambda client: client.admin.overview(namespace=namespace or None), url, context)
    _subscription_list.show(everything, partitions=partitions, output=output)


@subscriptions_app.command("describe")
def describe_subscription(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one subscription with its consumers, one row for each partition."""
    found = run_with_client(lambda client: client.admin.describe_subscription(topic, subscription), url, context)
    rows = _rows(found)
    _show(rows, _COLUMNS | _MORE_COLUMNS, output)
    consumers = [
        {"topic": row["topic"], "consumer": consumer.pop("name"), **consumer}
        for row in rows
        for consumer in row["consumers"]
    ]
    if consumers and output is Output.TABLE:
        print()
        _show(consumers, _CONSUMER_COLUMNS, output)


@subscriptions_app.command("create")
def create_subscription(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    type: Annotated[
        SubscriptionType, choice_option(SubscriptionType, "-t", "--type", help="How consumers share it.")
    ] = SubscriptionType.EXCLUSIVE,
    start: Annotated[
        str, typer.Option(metavar="POSITION", help="earliest, latest, an offset, an ISO 8601 time, or '2h ago'.")
    ] = LATEST,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Create a subscription without consuming: from now on its messages wait for a consumer.

    Consumers create theirs themselves. One that exists with this type stays as it is.
    """
    place = parse_position(start)
    found = run_with_client(
        lambda client: client.admin.create_subscription(topic, subscription, type=type, start=place), url, context
    )
    backlog = plural(sum(row.backlog_messages for row in found), "message")
    print(f"subscription {subscription} of {topic} ({type}): {backlog} to deliver")


@subscriptions_app.command("explain")
def explain_subscription(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain in one sentence whether a subscription makes progress, and why not.

    `danube explain` does the same for everything at once, and says by its exit code whether all is well.
    """
    from danube.cli.explain import explain_one
    from danube.model.overview_api import ABSENT_PATIENCE_S, PATIENCE_S

    explain_one(topic, subscription, PATIENCE_S, ABSENT_PATIENCE_S, url, context, output)


@subscriptions_app.command("seek")
def seek_subscription(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    position: Annotated[
        str | None,
        typer.Argument(metavar="[POSITION]", help="earliest, latest, an offset, an ISO 8601 time, or '2h ago'."),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="POSITION", help="The same as an option.")] = None,
    by: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="-1000: so many messages back, in each partition; 1000: forward over unacknowledged ones."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Move nothing; show what would happen.")] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Move a subscription: messages from that position on are delivered, also those delivered before.

    On a terminal it says what would happen, and asks first.
    """
    given = [each for each in (position, to, by) if each is not None]
    if len(given) != 1:
        raise InvalidArgumentError("give one of POSITION, --to POSITION and --by N, which says where to move to")
    _seek.move(topic, subscription, given[0], url, context, dry_run=dry_run, yes=yes)


@subscriptions_app.command("skip")
def skip_messages(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    count: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of messages, in each partition.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Skip nothing; show what would happen.")] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Skip the next N unacknowledged messages: they count as acknowledged, and are not delivered.

    Those that a consumer has at the moment are among them. Nothing is delivered again by that, other than by a seek. On
    a terminal it asks first.
    """
    _seek.skip(topic, subscription, count, url, context, dry_run=dry_run, yes=yes)


@subscriptions_app.command("delete")
def delete_subscription(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Delete a subscription and its cursor; its consumers are disconnected. On a terminal it asks first."""

    def question() -> str:
        rows = run_with_client(lambda client: client.admin.describe_subscription(topic, subscription), url, context)
        backlog = plural(sum(row.backlog_messages for row in rows), "unacknowledged message")
        consumers = plural(max(len(row.consumers) for row in rows), "connected consumer")
        return f"Delete {subscription} of {topic}, which has {backlog} and {consumers}?"

    confirm(yes, question)
    run_with_client(lambda client: client.admin.delete_subscription(topic, subscription), url, context)
    print(f"deleted {subscription} of {topic}")


subscription_policy.add_commands(subscriptions_app)


def _show(rows: list[dict[str, Any]], columns: dict[str, str], output: Output) -> None:
    if output is not Output.JSON:
        rows = [{column: row[field] for column, field in columns.items()} for row in rows]
    show_rows(rows, list(columns), output)


def _rows(found: list[SubscriptionInfo]) -> list[dict[str, Any]]:
    return [{**to_plain(row), "connected": len(row.consumers)} for row in found]
