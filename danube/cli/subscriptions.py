"""``danube subscriptions``: lists, moves and deletes subscriptions, and explains why one does not move.

Their policies are in ``subscription_policy``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli import subscription_policy
from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import OptionalTopicArgument, SubscriptionArgument, TopicArgument
from danube.cli._output import Output, OutputOption, show_rows
from danube.cli._positions import parse_position

if TYPE_CHECKING:
    from danube.model.api import SubscriptionInfo

__all__ = ["subscriptions_app"]

subscriptions_app = typer.Typer(no_args_is_help=True, help="Describe, change, move, delete and explain subscriptions.")

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
    from danube.model.overview_api import PATIENCE_S

    explain_one(topic, subscription, PATIENCE_S, url, context, output)


@subscriptions_app.command("seek")
def seek_subscription(
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help="earliest, latest, an offset, or an ISO 8601 time.")
    ],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Move a subscription: messages from that position on are delivered, also those delivered before."""
    place = parse_position(position)
    run_with_client(lambda client: client.admin.seek_subscription(topic, subscription, place), url, context)
    print(f"moved {subscription} of {topic} to {position}")


@subscriptions_app.command("delete")
def delete_subscription(
    topic: TopicArgument, subscription: SubscriptionArgument, url: UrlOption = None, context: ContextOption = None
) -> None:
    """Delete a subscription and its cursor; its consumers are disconnected."""
    run_with_client(lambda client: client.admin.delete_subscription(topic, subscription), url, context)
    print(f"deleted {subscription} of {topic}")


subscription_policy.add_commands(subscriptions_app)


def _show(rows: list[dict[str, Any]], columns: dict[str, str], output: Output) -> None:
    if output is not Output.JSON:
        rows = [{column: row[field] for column, field in columns.items()} for row in rows]
    show_rows(rows, list(columns), output)


def _rows(found: list[SubscriptionInfo]) -> list[dict[str, Any]]:
    return [{**to_plain(row), "connected": len(row.consumers)} for row in found]
