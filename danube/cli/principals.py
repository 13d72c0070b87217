"""``danube principals``: lists, suspends and resumes users, services and groups."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, show_rows

__all__ = ["principals_app"]

principals_app = typer.Typer(no_args_is_help=True, help="List, suspend and resume users, services and groups.")

_Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="user:NAME, service:NAME or group:NAME.")]


@principals_app.command("list")
def list_principals(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the subjects with a binding, an API key or a suspension."""
    rows = [to_plain(row) for row in run_with_client(lambda client: client.security.principals(), url, context)]
    show_rows(rows, ["subject", "suspended", "bindings", "keys", "description"], output)


@principals_app.command("suspend")
def suspend_principal(
    subject: _Subject,
    reason: Annotated[str, typer.Option(help="Why, for lists.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Take all rights from a subject until it is resumed; its open streams end within a second."""
    run_with_client(lambda client: client.security.suspend(subject, reason), url, context)
    print(f"suspended {subject}")


@principals_app.command("resume")
def resume_principal(subject: _Subject, url: UrlOption = None, context: ContextOption = None) -> None:
    """End a suspension: the subject has again what its bindings grant."""
    run_with_client(lambda client: client.security.resume(subject), url, context)
    print(f"resumed {subject}")
