"""``danube read``: print the messages of a topic, without a subscription."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._context import ContextOption, UrlOption
from danube.cli._names import TopicArgument
from danube.cli._output import Output, OutputOption
from danube.cli._positions import parse_position
from danube.cli.consume import DecodeOption, FormatOption
from danube.model.policies import EARLIEST

__all__ = ["read"]


def read(
    topic: TopicArgument,
    start: Annotated[
        str, typer.Option(metavar="POSITION", help="earliest, latest, an offset, or an ISO 8601 time.")
    ] = EARLIEST,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after this many messages.")] = None,
    follow: Annotated[bool, typer.Option("-F", "--follow", help="Continue with new messages until Ctrl-C.")] = False,
    format: FormatOption = None,
    decode: DecodeOption = False,
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.RAW,
) -> None:
    """Print the messages of a topic, without a subscription.

    It acknowledges nothing and stores no position, so it does not affect other consumers. It stops at the end that the
    topic had when the command started, unless --follow is given. The output is that of `danube consume`.
    """
    from danube.cli import _consume

    options = _consume.ReadOptions(
        topic=topic, start=parse_position(start), count=count, until_caught_up=not follow, format=format, decode=decode
    )
    _consume.run(options, url, context, output)
