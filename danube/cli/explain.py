"""``danube explain``: says in a sentence each what is not well, or why one subscription moves or does not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import parse_duration
from danube.cli._names import OptionalSubscriptionArgument, OptionalTopicArgument
from danube.cli._output import Output, OutputOption, plural, print_json, print_styled

if TYPE_CHECKING:
    from danube.cli._overview import Problem, Whole
    from danube.client import Client
    from danube.model.overview_api import SubscriptionRow

__all__ = ["explain", "explain_one"]

_MOST_REMEDIES: Final = 3
"""Of more subscriptions than this, only the sentences are shown."""


def explain(
    topic: OptionalTopicArgument = None,
    subscription: OptionalSubscriptionArgument = None,
    patience: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Subscriptions that move count as well until their oldest message is older than this."
        ),
    ] = "60s",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain what is not well, in one sentence each.

    Without a name: everything at all brokers that needs attention (subscriptions without a consumer or stuck, stopped
    topics, failing storages, a journal that is nearly full). With the name of a topic: all of its subscriptions. With
    that of a subscription, too: why it moves, or does not.

    The exit code is 1 if something is not well, else 0.
    """
    patience_s = parse_duration(patience)
    if topic is None:
        well = _explain_all(patience_s, url, context, output)
    elif subscription is None:
        well = _explain_topic(topic, patience_s, url, context, output)
    else:
        well = explain_one(topic, subscription, patience_s, url, context, output, remedies=True)
    if not well:
        raise typer.Exit(1)


def _explain_all(patience_s: float, url: str | None, context: str | None, output: Output) -> bool:
    from danube.cli._overview import problems, wholes
    from danube.model.errors import PermissionDeniedError

    async def work(client: Client) -> tuple[list[Problem], list[Whole]]:
        overview = await client.admin.overview(patience_s=patience_s)
        findings = await client.admin.findings()
        silent = {*overview.silent, *findings.silent}
        warnings = [f"broker {broker} does not answer: what it serves is not shown" for broker in sorted(silent)]
        try:
            warnings += (await client.admin.cluster_status()).warnings
        except PermissionDeniedError:
            warnings += []  # callers that may not describe the cluster see what is theirs
        if findings.more:
            warnings.append(f"there are {findings.more:,} further findings, not shown")
        found = wholes(overview.subscriptions)
        return problems(found, findings.findings, warnings), found

    found, subscriptions = run_with_client(work, url, context)
    if output is not Output.TABLE:
        _print_plain([to_plain(each) for each in found], ("kind", "subject", "sentence"), output)
        return not found
    if not found:
        topics = len({each.topic for each in subscriptions})
        count = len(subscriptions)
        print(f"All is well: {plural(count, 'subscription')} of {plural(topics, 'topic')}, nothing needs attention.")
        return True
    several = sum(bool(each.subscription) for each in found) > _MOST_REMEDIES
    for each in found:
        _print_problem(each, remedy=not (several and each.subscription))
    sys.stdout.flush()
    if several:
        typer.echo("`danube explain TOPIC SUBSCRIPTION` says what to do about a subscription", err=True)
    typer.echo("1 thing is not well." if len(found) == 1 else f"{len(found):,} things are not well.", err=True)
    return False


def _explain_topic(topic: str, patience_s: float, url: str | None, context: str | None, output: Output) -> bool:
    from danube.cli._overview import problems, wholes, with_age, worst_first
    from danube.model.names import split_partition

    async def work(client: Client) -> tuple[list[Whole], list[Problem]]:
        overview = await client.admin.overview(topic=topic, patience_s=patience_s)
        base = (split_partition(topic) or (topic, 0))[0]
        findings = [
            each
            for each in (await client.admin.findings()).findings
            if each.topic and (split_partition(each.topic) or (each.topic, 0))[0] == base
        ]
        return worst_first(wholes(overview.subscriptions)), problems((), findings)

    found, stopped = run_with_client(work, url, context)
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
        print(f"{topic} has no subscriptions: nothing reads its messages but readers")
    return well


def explain_one(
    topic: str,
    subscription: str,
    patience_s: float,
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
        overview = await client.admin.overview(topic=topic, patience_s=patience_s)
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
    return all(row.well for row in rows)


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
