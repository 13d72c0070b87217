"""``danube topics``: list, create, describe and delete topics. For their history see ``topic_history``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption, human_bytes, plural, print_json, show_record, show_rows
from danube.cli._questions import YesOption, confirm
from danube.cli._retention import (
    DeleteAcknowledgedOption,
    MaxAgeOption,
    MaxBytesOption,
    describe_retention,
    read_retention,
)
from danube.model.policies import Durability, Retention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from danube.model.api import DeclaredGap, TopicInfo

__all__ = ["gap_rows", "topics_app"]

topics_app = typer.Typer(no_args_is_help=True, help="List, create, describe, seal, restore and delete topics.")

_COLUMNS = ["topic", "durability", "partitions", "start_offset", "end_offset", "stored_bytes", "subscriptions"]


@topics_app.command("list")
def list_topics(
    namespace: Annotated[str, typer.Argument(metavar="[NAMESPACE]", help="Only topics of this namespace.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List topics with their offsets and subscriptions."""
    found = run_with_client(lambda client: client.admin.list_topics(namespace), url, context)
    rows = [_row(topic) for topic in found]
    silent = sorted({broker for topic in found for broker in topic.silent}, key=lambda each: (len(each), each))
    if output is not Output.TABLE or not silent:
        show_rows(rows, _COLUMNS, output)
        return
    for row in rows:
        if row["silent"] and not row["partitions"]:
            row.update(dict.fromkeys(("start_offset", "end_offset", "stored_bytes", "subscriptions")))
    show_rows(rows, [*_COLUMNS, "silent"], output)
    many = len(silent) > 1
    print(
        f"! {', '.join(silent)} {'do' if many else 'does'} not answer: what {'they have' if many else 'it has'} of"
        " these topics is not counted; see: danube cluster status",
        file=sys.stderr,
    )


@topics_app.command("create")
def create_topic(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option(min=0, help="Number of partitions; 0 creates a plain topic.")] = 0,
    durability: Annotated[
        Durability | None, typer.Option(help="When a publish is acknowledged; fixed for the topic's life.")
    ] = None,
    storage: Annotated[str, typer.Option(metavar="NAME", help="Configured storage of its history. [default]")] = "",
    max_age: MaxAgeOption = None,
    max_bytes: MaxBytesOption = None,
    delete_acknowledged: DeleteAcknowledgedOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a topic. Without retention rules it keeps all messages."""
    rules = read_retention(max_age, max_bytes, delete_acknowledged)
    made = _row(
        run_with_client(
            lambda client: client.admin.create_topic(
                topic, partitions=partitions, durability=durability, storage=storage, retention=rules
            ),
            url,
            context,
        )
    )
    if output is Output.JSON:
        print_json(made)
    else:
        print(
            f"created {made['topic']} (durability {made['durability']}, partitions {made['partitions']}, storage"
            f" {made['storage']}, retention: {describe_retention(rules or Retention())})"
        )


@topics_app.command("describe")
def describe_topic(
    topic: TopicArgument,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one topic: offsets, size, producers and subscriptions."""
    info = run_with_client(lambda client: client.admin.describe_topic(topic), url, context)
    found = _row(info)
    if output is not Output.TABLE:
        show_record(found, output)
        return
    found["retention"] = describe_retention(info.retention)
    if not info.missing_messages:
        del found["missing_messages"]
    producers = found.pop("producers")
    show_record(found, output)
    if producers:
        print()
        rows = [{"producer": producer.pop("name"), **producer} for producer in producers]
        show_rows(rows, ["producer", "connected", "epoch", "next_sequence"], output)


@topics_app.command("delete")
def delete_topic(
    topic: TopicArgument, yes: YesOption = False, url: UrlOption = None, context: ContextOption = None
) -> None:
    """Delete a topic with its messages and subscriptions.

    A partitioned topic is deleted with all its partitions. On a terminal it asks first.
    """

    def question() -> str:
        info = run_with_client(lambda client: client.admin.describe_topic(topic), url, context)
        messages = plural(info.messages, "message")
        names = ", ".join(info.subscriptions[:5]) + (", ..." if len(info.subscriptions) > 5 else "")
        subscriptions = f" and {plural(len(info.subscriptions), 'subscription')} ({names})" if names else ""
        return f"Delete {topic} with {messages} ({human_bytes(info.stored_bytes)}){subscriptions}?"

    confirm(yes, question)
    run_with_client(lambda client: client.admin.delete_topic(topic), url, context)
    print(f"deleted {topic}")


@topics_app.command("move")
def move_topic(
    topic: TopicArgument,
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Such as b2; see danube cluster brokers.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would happen.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a topic to another broker of the cluster; of a topic with partitions, all of them.

    The command returns when the move is ordered; danube cluster status shows what is under way.
    """
    from danube.cli._moving import move_topic

    move_topic(topic, broker, dry_run, url, context, output)


@topics_app.command("forget-gap")
def forget_gap(
    topic: TopicArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; show what would happen.")] = False,
    yes: YesOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have the subscriptions of a topic wait no longer for messages that were lost with a broker.

    It was declared gone (danube cluster forget). After that its messages cannot be given back any more. On a terminal
    it asks first.
    """
    if not dry_run:
        confirm(yes, lambda: f"Give up what {topic} has lost with a broker, even if its disk returns?")
    gaps = run_with_client(lambda client: client.admin.forget_gaps(topic, dry_run=dry_run), url, context)
    rows = gap_rows(gaps)
    if rows or output is not Output.TABLE:
        show_rows(rows, ["topic", "from", "to", "broker", "since", "by"], output)
    else:
        print(f"no subscription of {topic} waits for messages that were lost")


def gap_rows(gaps: Sequence[DeclaredGap]) -> list[dict[str, Any]]:
    """Return the rows of a table of declared gaps; ``to`` is the offset after the last one."""
    from danube.cli._format import iso_time

    return [
        {
            "topic": gap.topic,
            "from": gap.start,
            "to": gap.end,
            "broker": gap.broker,
            "since": iso_time(gap.since_us),
            "by": gap.by or None,
            "state": "waited for" if gap.open else "given up",
        }
        for gap in gaps
    ]


def _row(topic: TopicInfo) -> dict[str, Any]:
    from danube.cli._format import iso_time

    row: dict[str, Any] = to_plain(topic)
    row["created"] = iso_time(row.pop("created_us"))
    return row
