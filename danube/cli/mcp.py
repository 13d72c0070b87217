"""``danube mcp``: tools for programs that speak the Model Context Protocol, such as assistants and editors."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer

from danube.cli._context import ContextOption, UrlOption
from danube.model.errors import ConfigurationError

__all__ = ["mcp"]


def mcp(
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Offer also tools that publish, seek, skip and replay.")
    ] = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Serve tools of the Model Context Protocol (MCP) on standard input and output.

    An MCP client starts this command, and lets a model explain what is not well, list topics, lag and connections, and
    read and search messages. Everything is read-only without --allow-writes. The rights are those of the context, like
    those of every command: for a bound, give it a context whose role may do less.

    Needs: pip install 'danube-broker[mcp]'. The configuration of most clients is:

    {"mcpServers": {"danube": {"command": "danube", "args": ["mcp"]}}}
    """
    import trio

    try:
        from danube.cli._mcp.server import serve
    except ImportError as error:
        if not (error.name or "").startswith("mcp"):
            raise
        raise ConfigurationError(
            "danube mcp needs the package mcp, which is not installed; run: pip install 'danube-broker[mcp]'"
        ) from error
    from danube.cli._connecting import find_target

    find_target(url, context)  # a wrong context ends the command; a broker that is away does not
    if sys.stdin.isatty():
        typer.echo("this command talks to an MCP client, which starts it; Ctrl-D ends it", err=True)

    async def main() -> None:
        await serve(url, context, allow_writes=allow_writes)

    # The thread that reads standard input cannot be interrupted, so Ctrl-C ends the process as SIGTERM does.
    former = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGINT, former)
