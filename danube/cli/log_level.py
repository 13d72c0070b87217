"""``danube log-level``: change the level of a broker's log for a time."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._durations import human_duration, parse_duration
from danube.cli._output import Output, OutputOption, show_record

__all__ = ["log_level"]


def log_level(
    level: Annotated[
        str, typer.Argument(metavar="LEVEL", help="debug, info, warning or error; or default, for the former level.")
    ],
    logger: Annotated[
        str, typer.Option(metavar="NAME", help="Of this logger and those below, for example danube.metadata.")
    ] = "danube",
    for_: Annotated[
        str, typer.Option("--for", metavar="TIME", help="The former level returns after this time, for example 1h.")
    ] = "10m",
    url: UrlOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the level of the log of the broker at the URL. The former level returns by itself."""
    for_s = parse_duration(for_)
    wanted = "" if level == "default" else level
    found = run_with_client(
        lambda client: client.admin.change_log_level(wanted, logger=logger, for_s=for_s), url, context
    )
    if output is not Output.TABLE:
        show_record(to_plain(found), output)
        return
    of = f" of broker {found.broker}" if found.broker else ""
    until = f" for {human_duration(found.for_s)}, then {found.former} again" if found.for_s else ""
    print(f"{found.logger}{of}: {found.level}{until}")
