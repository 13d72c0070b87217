"""``danube subscriptions``: look at subscriptions, move them, delete them, and ask why one does not move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, print_json, show_rows
from danube.cli._positions import parse_position
from danube.cli.topics import TopicArgument

if TYPE_CHECKING:
    from danube.model.api import SubscriptionInfo

__all__ = ["subscriptions_app"]

subscriptions_app = typer.Typer(no_args_is_help=True, help="Describe, move, delete and explain subscriptions.")

_Subscription = Annotated[str, typer.Argument(metavar="SUBSCRIPTION")]

_COLUMNS = ["topic", "subscription", "type", "floor", "end_offset", "backlog_messages", "in_flight_messages"]
_CONSUMER_COLUMNS = [
    "topic",
    "consumer",
    "active",
    "credit_messages",
    "in_flight_messages",
    "delivered_messages",
    "acked_messages",
]


@subscriptions_app.command("list")
def list_subscriptions(
    topic: TopicArgument,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the subscriptions of a topic, one row for each partition."""
    found = run_with_client(lambda client: client.list_subscriptions(topic), url, context)
    show_rows(_rows(found), [*_COLUMNS, "connected"], output)


@subscriptions_app.command("describe")
def describe_subscription(
    topic: TopicArgument,
    subscription: _Subscription,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one subscription with its consumers, one row for each partition."""
    found = run_with_client(lambda client: client.describe_subscription(topic, subscription), url, context)
    rows = _rows(found)
    columns = [*_COLUMNS, "acked_ranges", "redelivered_messages", "dropped_messages"]
    show_rows(rows, columns, output)
    consumers = [
        {"topic": row["topic"], "consumer": consumer.pop("name"), **consumer}
        for row in rows
        for consumer in row["consumers"]
    ]
    if consumers and output is Output.TABLE:
        print()
        show_rows(consumers, _CONSUMER_COLUMNS, output)


@subscriptions_app.command("explain")
def explain_subscription(
    topic: TopicArgument,
    subscription: _Subscription,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say in one sentence why a subscription moves or does not."""
    found = run_with_client(lambda client: client.explain_subscription(topic, subscription), url, context)
    if output is Output.TABLE:
        print(found.sentence)
    elif output is Output.JSON:
        print_json(to_plain(found))
    else:
        print(f"{found.state}\t{found.sentence}")


@subscriptions_app.command("seek")
def seek_subscription(
    topic: TopicArgument,
    subscription: _Subscription,
    position: Annotated[
        str, typer.Argument(metavar="POSITION", help="earliest, latest, an offset, or an ISO 8601 time.")
    ],
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Move a subscription: what lies from there on is delivered (again)."""
    place = parse_position(position)
    run_with_client(lambda client: client.seek_subscription(topic, subscription, place), url, context)
    print(f"moved {subscription} of {topic} to {position}")


@subscriptions_app.command("delete")
def delete_subscription(
    topic: TopicArgument, subscription: _Subscription, url: UrlOption = None, context: ContextOption = None
) -> None:
    """Delete a subscription and its cursor; its consumers are disconnected."""
    run_with_client(lambda client: client.delete_subscription(topic, subscription), url, context)
    print(f"deleted {subscription} of {topic}")


def _rows(found: list[SubscriptionInfo]) -> list[dict[str, Any]]:
    return [{**to_plain(row), "connected": len(row.consumers)} for row in found]
