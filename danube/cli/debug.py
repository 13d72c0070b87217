"""``danube debug``: collects what a bug report needs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import human_bytes

__all__ = ["debug_app"]

debug_app = typer.Typer(no_args_is_help=True, help="Collect what a bug report needs.")


@debug_app.callback()
def debug() -> None:
    """Collect what a bug report needs."""


@debug_app.command("bundle")
def bundle(
    file: Annotated[
        str, typer.Option("-f", "--file", metavar="FILE", help="Where to write it. [danube-debug-DATE-TIME.tar.gz]")
    ] = "",
    config: Annotated[
        str, typer.Option("-c", "--config", metavar="FILE", help="Configuration file of the broker, to be included.")
    ] = "",
    log: Annotated[
        str, typer.Option(metavar="FILE", help="Log of the broker, of which the last 4 MiB are included.")
    ] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Write a tar.gz with the state of the brokers: status, doctor, explanations, topics, connections, storages.

    It has names of topics, subscriptions and clients, and no messages. Secrets are removed from the configuration and
    the log; look at the files before you give them away. A part that cannot be had says so in its file.
    """
    from danube.cli import _bundle

    name = file or time.strftime("danube-debug-%Y%m%d-%H%M%S.tar.gz", time.gmtime())
    parts = _bundle.collect(url, context, config, log)
    size = _bundle.write(Path(name), parts)
    print(f"wrote {name}: {len(parts)} files, {human_bytes(size)}")
    for part, problem in _bundle.problems_of(parts):
        typer.echo(f"! {part}: {problem}", err=True)
