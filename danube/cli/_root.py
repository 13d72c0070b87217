"""The root of the command tree: options for every command, and its exit codes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from danube.cli._context import ContextOption, UrlOption, set_defaults
from danube.cli._extensions import extension_names, find_extension
from danube.cli._failures import errors_in_one_line

__all__ = ["EXIT_CODES", "RootGroup", "root"]

EXIT_CODES = """\
Exit codes: 0 done; 1 any other error, or a check that failed; 2 wrong usage; 65 invalid argument, name, message or
configuration; 66 topic, namespace or subscription not found; 69 broker not reachable, draining or failing; 70 a bug
in Danube; 73 exists already; 74 stored data is damaged; 75 a limit, a conflict or a deadline: try again later; 76 not
implemented by this broker; 77 not permitted; 78 refused in this state (durability or type mismatch, subscription
busy, producer fenced, data directory in use); 130 interrupted."""


class RootGroup(TyperGroup):
    """The group behind ``danube``: finds commands of other packages, converts errors to one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of other packages last."""
        own = super().list_commands(ctx)
        return own + [name for name in extension_names() if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command: a built-in one, else one of another package, else None."""
        return super().get_command(ctx, cmd_name) or find_extension(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with errors_in_one_line(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


def _show_version(wanted: bool) -> None:
    if wanted:
        from danube import __version__

        print(f"danube {__version__}")
        raise typer.Exit


def root(
    url: UrlOption = None,
    context: ContextOption = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Danube, a message broker in one Python process.

    Start a broker with `danube serve`; the other commands connect to it.
    """
    set_defaults(url, context)
