"""``danube consume``: print the messages of a subscription."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._choices import choice_option
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption
from danube.cli._positions import parse_position
from danube.cli.topics import TopicArgument
from danube.model.policies import LATEST, SubscriptionType

__all__ = ["FormatOption", "consume"]

FormatOption = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        help="%t topic, %p partition, %o offset, %k key, %v payload, %T publish time, %a attributes (JSON),"
        " %n attempt, %P producer, %S size, %%; \\n \\t \\xHH; a newline follows unless the end is \\n, \\0, \\c.",
    ),
]


def consume(
    topic: TopicArgument,
    subscription: Annotated[
        str, typer.Option("-s", "--subscription", metavar="NAME", help="Created if it is missing.")
    ],
    type: Annotated[
        SubscriptionType, choice_option(SubscriptionType, "-t", "--type", help="How consumers share the subscription.")
    ] = SubscriptionType.EXCLUSIVE,
    start: Annotated[
        str,
        typer.Option(
            metavar="POSITION",
            help="Where a new subscription begins: earliest, latest, an offset, or an ISO 8601 time.",
        ),
    ] = LATEST,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many messages.")] = None,
    until_caught_up: Annotated[
        bool, typer.Option("-e", "--until-caught-up", help="Stop at the end the topic had when the command began.")
    ] = False,
    format: FormatOption = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed.")] = True,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Consumer name; made up if not given.")] = None,
    key_filter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Key-shared: take only keys that match (* any run, ? one character); repeat for more."
        ),
    ] = None,
    renew_leases: Annotated[
        bool, typer.Option("--renew-leases", help="Nothing times out while its printing is under way, however slow.")
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.RAW,
) -> None:
    """Print the messages of a subscription.

    Raw output is the payload alone, json one object a line, table columns. In JSON a payload that is not UTF-8 is
    base64, and the object says so: "encoding": "base64".

    A message is acknowledged after it was printed and flushed. Ctrl-C, a full --count or a closed pipe end the command
    once the acknowledgements are durable.
    """
    from danube.cli import _consume

    plan = _consume.ConsumePlan(
        topic=topic,
        subscription=subscription,
        type=type,
        start=parse_position(start),
        count=count,
        until_caught_up=until_caught_up,
        format=format,
        ack=ack,
        name=name,
        key_filters=key_filter or (),
        renew_leases=renew_leases,
    )
    _consume.run(plan, url, context, output)
