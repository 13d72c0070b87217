"""``danube search``: print the messages of a topic that match a filter."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption
from danube.cli._positions import parse_position
from danube.cli.consume import FormatOption
from danube.model.policies import EARLIEST

__all__ = ["search"]


def search(
    topic: TopicArgument,
    filter: Annotated[
        str, typer.Argument(help='Such as \'value.user == "ada" and key ^= "eu-"\'.', show_default=False)
    ],
    start: Annotated[
        str, typer.Option(metavar="POSITION", help="earliest, latest, an offset, or an ISO 8601 time.")
    ] = EARLIEST,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many matches.")] = None,
    format: FormatOption = None,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.RAW,
) -> None:
    """Print the messages of a topic that match a filter, without a subscription.

    Fields are key, text, value.PATH (of JSON), header.NAME, partition, offset, time, size and producer; operators are
    ==, !=, <, <=, >, >=, ~ (contains), ~~ (in any case), !~, ^= (begins with), $= (ends with) and in (1, 2), joined by
    and, or, not and brackets. Words alone are looked for everywhere. It stops at the end that the topic had when the
    command started, and says on standard error how many messages it has looked at.
    """
    from danube.cli import _search

    _search.run(topic, filter, parse_position(start), count, format, url, context, output)
