"""``danube explain``: says in a sentence each what is not well, or why one subscription moves or does not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration, parse_duration
from danube.cli._names import OptionalSubscriptionArgument, OptionalTopicArgument
from danube.cli._output import Output, OutputOption, plural, print_json, print_styled

if TYPE_CHECKING:
    from danube.cli._everything import Patience
    from danube.cli._overview import Problem, Whole
    from danube.client import Client
    from danube.model.overview_api import SubscriptionRow

__all__ = ["explain", "explain_one"]

_MOST_REMEDIES: Final = 3
"""Of more subscriptions than this, only the sentences are shown."""
_MOST_ABSENT: Final = 10
"""Most subscriptions that are shown because their consumer is away, though that is no reason to worry yet."""


def explain(
    topic: OptionalTopicArgument = None,
    subscription: OptionalSubscriptionArgument = None,
    patience: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Subscriptions that move count as well until their oldest message is older than this."
        ),
    ] = "60s",
    absent: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="The same for subscriptions without a consumer: jobs that run now and then have none in between.",
        ),
    ] = "1h",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain what is not well, in one sentence each.

    Without a name: everything at all brokers that needs attention (subscriptions that are stuck, or whose consumer has
    been away for too long, stopped topics, failing storages, a journal that is nearly full). With the name of a topic:
    all of its subscriptions. With that of a subscription, too: why it moves, or does not.

    The exit code is 1 if something is not well, else 0.
    """
    from danube.cli._everything import Patience

    limits = Patience(parse_duration(patience), parse_duration(absent))
    if topic is None:
        well = _explain_all(limits, url, context, output)
    elif subscription is None:
        well = _explain_topic(topic, limits, url, context, output)
    else:
        well = explain_one(topic, subscription, *limits, url, context, output, remedies=True)
    if not well:
        raise typer.Exit(1)


def _explain_all(patience: Patience, url: str | None, context: str | None, output: Output) -> bool:
    from danube.cli._everything import look

    found, subscriptions, unread = run_with_client(lambda client: look(client, patience), url, context)
    if output is not Output.TABLE:
        _print_plain([to_plain(each) for each in found], ("kind", "subject", "sentence"), output)
        return not found
    if not found:
        print(_all_well(subscriptions, unread))
        _print_absent(subscriptions, patience)
        return True
    several = sum(bool(each.subscription) for each in found) > _MOST_REMEDIES
    for each in found:
        _print_problem(each, remedy=not (several and each.subscription))
    _print_absent(subscriptions, patience)
    sys.stdout.flush()
    if several:
        typer.echo("`danube explain TOPIC SUBSCRIPTION` says what to do about a subscription", err=True)
    typer.echo("1 thing is not well." if len(found) == 1 else f"{len(found):,} things are not well.", err=True)
    return False


def _all_well(subscriptions: Sequence[Whole], unread: int) -> str:
    """Return the sentence for a cluster in which nothing needs attention.

    Args:
        subscriptions: all of them.
        unread: number of topics, if there is no subscription.
    """
    if subscriptions:
        topics = len({each.topic for each in subscriptions})
        what = f"{plural(len(subscriptions), 'subscription')} of {plural(topics, 'topic')}"
        return f"All is well: {what}, nothing needs attention."
    if unread:
        who = "the only topic" if unread == 1 else f"none of the {unread:,} topics"
        return (
            f"All is well, and nothing is consumed: {who} has {'no' if unread == 1 else 'a'} subscription."
            "\n  To begin one: danube consume TOPIC -s NAME"
        )
    return "All is well, and nothing is here yet: no topic.\n  To begin one: danube produce /default/orders -m hello"


def _print_absent(subscriptions: Sequence[Whole], patience: Patience) -> None:
    from danube.cli._overview import absent, with_age

    away = absent(subscriptions)
    if not away:
        return
    limit = _shown(patience.absent_s)
    print(f"No consumer now, which is well until a message is {limit} old (--absent):")
    for each in away[:_MOST_ABSENT]:
        print(f"  {each.topic} {each.subscription}: {with_age(each)}")
    if len(away) > _MOST_ABSENT:
        print(f"  and {len(away) - _MOST_ABSENT:,} more: danube subscriptions list")


def _explain_topic(topic: str, patience: Patience, url: str | None, context: str | None, output: Output) -> bool:
    from danube.cli._everything import look_at_topic
    from danube.cli._overview import with_age

    found, stopped = run_with_client(lambda client: look_at_topic(client, topic, patience), url, context)
    well = not stopped and all(each.well for each in found)
    if output is not Output.TABLE:
        rows = [to_plain(each) for each in stopped]
        rows += [{"kind": each.state, "subject": f"{each.topic} {each.subscription}", **_row(each)} for each in found]
        _print_plain(rows, ("kind", "subject", "sentence"), output)
        return well
    for each in stopped:
        _print_problem(each)
    for whole in found:
        print_styled((f"{whole.subscription}: ", "bold"), (with_age(whole), "" if whole.well else "red"))
    if not found:
        print(f"{topic} has no subscription, so nothing consumes it.")
        print(f"  To begin one: danube consume {topic} -s NAME")
    return well


def explain_one(
    topic: str,
    subscription: str,
    patience_s: float,
    absent_patience_s: float,
    url: str | None,
    context: str | None,
    output: Output,
    *,
    remedies: bool = False,
) -> bool:
    """Print why a subscription moves or does not, a sentence for each partition; return whether it is well.

    Raises:
        TopicNotFoundError, SubscriptionNotFoundError: the topic or the subscription does not exist.
    """
    from danube.cli._overview import remedy_of

    async def work(client: Client) -> list[SubscriptionRow]:
        overview = await client.admin.overview(topic=topic, patience_s=patience_s, absent_patience_s=absent_patience_s)
        rows = [row for row in overview.subscriptions if row.subscription == subscription]
        if not rows:
            await client.admin.describe_subscription(topic, subscription)  # says why
        return rows

    rows = run_with_client(work, url, context)
    if output is Output.JSON:
        plain = [to_plain(row) for row in rows]
        print_json(plain[0] if len(plain) == 1 and rows[0].topic == topic else plain)
    elif output is Output.RAW:
        for row in rows:
            print("\t".join(([row.topic] if len(rows) > 1 else []) + [row.state, row.sentence]))
    else:
        for row in rows:
            print(row.sentence if len(rows) == 1 else f"{row.topic}: {row.sentence}")
        for state in dict.fromkeys(row.state for row in rows if not row.well and remedies):
            print_styled((f"  {remedy_of(state, topic, subscription)}", "dim"))
        if remedies and any(row.well and row.state == "no-consumer" and row.backlog_messages for row in rows):
            limit = _shown(absent_patience_s)
            print_styled((f"  that is well until a message is {limit} old (--absent)", "dim"))
    return all(row.well for row in rows)


def _shown(limit_s: float) -> str:
    """Return a limit as it was probably given: 26h rather than 1.08d."""
    hours = limit_s / 3_600
    return f"{hours:g}h" if 1 <= hours < 48 and hours == int(hours) else human_duration(limit_s)


def _row(whole: Whole) -> dict[str, Any]:
    return {name: value for name, value in to_plain(whole).items() if name != "rows"}


def _print_problem(problem: Problem, *, remedy: bool = True) -> None:
    print_styled((problem.subject, "bold"), (f": {problem.sentence}", "red"))
    if problem.remedy and remedy:
        print_styled((f"  {problem.remedy}", "dim"))


def _print_plain(rows: Sequence[dict[str, Any]], columns: Sequence[str], output: Output) -> None:
    if output is Output.JSON:
        print_json(rows)
        return
    for row in rows:
        print("\t".join(" ".join(str(row[column]).split()) for column in columns))
