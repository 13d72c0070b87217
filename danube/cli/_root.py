"""The root of the command tree: options for every command, and its exit codes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from danube.cli._context import ContextOption, UrlOption, set_defaults
from danube.cli._extensions import extension_names, find_extension
from danube.cli._failures import errors_in_one_line

__all__ = ["ALIASES", "EXIT_CODES", "GROUPS", "Group", "RootGroup", "root"]

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "Messages": ("produce", "consume", "read", "search", "request"),
    "Topics and subscriptions": (
        "topics",
        "subscriptions",
        "namespaces",
        "policies",
        "schemas",
        "definitions",
        "dlq",
        "stages",
    ),
    "What is going on": (
        "explain",
        "trace",
        "top",
        "check",
        "info",
        "connections",
        "jobs",
        "metrics",
        "doctor",
        "debug",
    ),
    "Brokers and storages": ("serve", "log-level", "cluster", "storage", "storage-server", "plugins"),
    "Access control": ("security", "grant", "revoke", "roles", "principals", "tokens", "keys", "issuers"),
    "Tools": ("mcp", "generate", "bench", "context", "cheat", "version", "help"),
}
"""The sections of the help, with the commands of each."""
ALIASES: Final[Mapping[str, str]] = {
    "topic": "topics",
    "subscription": "subscriptions",
    "sub": "subscriptions",
    "namespace": "namespaces",
    "policy": "policies",
    "schema": "schemas",
    "stage": "stages",
    "connection": "connections",
    "role": "roles",
    "principal": "principals",
    "token": "tokens",
    "key": "keys",
    "issuer": "issuers",
    "contexts": "context",
}
"""Other names of commands, which the help does not list."""
_PHRASES: Final = (
    (re.compile("Input should be greater than or equal to "), "it must be at least "),
    (re.compile("Input should be less than or equal to "), "it must be at most "),
    (re.compile("Input should be greater than "), "it must be more than "),
    (re.compile("Input should be less than "), "it must be less than "),
    (re.compile("Input should be a valid integer.*"), "it must be a whole number"),
    (re.compile("Input should be a valid number.*"), "it must be a number"),
    (re.compile("Input should be "), "it must be "),
)
_GROUP_ALIASES: Final = {"ls": "list", "show": "describe", "rm": "delete"}

EXIT_CODES = """\
Exit codes: 0 done; 1 any other error, or a check that failed; 2 wrong usage; 65 invalid argument, name, message or
configuration; 66 topic, namespace or subscription not found; 69 broker not reachable, draining or failing; 70 a bug
in Danube; 73 exists already; 74 stored data is damaged; 75 a limit, a conflict or a deadline: try again later; 76 not
implemented by this broker; 77 not permitted; 78 refused in this state (durability or type mismatch, subscription
busy, producer fenced, data directory in use); 130 interrupted."""


def plain_usage(message: str) -> str:
    """Return what is wrong with the value of an option, without the words of the library that has checked it."""
    plain = message.removeprefix("Value error, ")
    for found, said in _PHRASES:
        plain = found.sub(said, plain)
    return plain


class Group(TyperGroup):
    """A group of commands, which also knows some of them by the names that other tools use: ``topics ls``."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name or by another one; None if there is none."""
        found = super().get_command(ctx, cmd_name)
        if found is None and cmd_name in _GROUP_ALIASES:
            found = super().get_command(ctx, _GROUP_ALIASES[cmd_name])
        return found


class RootGroup(TyperGroup):
    """The group behind ``danube``: finds commands of other packages, converts errors to one line and an exit code."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of other packages last."""
        own = super().list_commands(ctx)
        return own + [name for name in extension_names() if name not in own]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command: a built-in one, else one of another package, else None."""
        found = super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))
        return found or find_extension(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in sections."""
        names = self.list_commands(ctx)
        placed = {name for group in GROUPS.values() for name in group}
        sections = {title: [name for name in group if name in names] for title, group in GROUPS.items()}
        sections["Others"] = [name for name in names if name not in placed]
        width = max(map(len, names))
        for title, group in sections.items():
            commands = [(name, command) for name in group if (command := self.get_command(ctx, name)) is not None]
            if commands:
                room = formatter.width - width - 6
                with formatter.section(title):
                    formatter.write_dl([(f"{name:<{width}}", each.get_short_help_str(room)) for name, each in commands])

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        with errors_in_one_line(debug=bool(ctx.params.get("debug"))):
            try:
                return super().invoke(ctx)
            except typer.BadParameter as error:
                error.message = plain_usage(error.message)
                raise


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
