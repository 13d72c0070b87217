"""``danube roles``: lists, creates and deletes roles."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._client import run_with_client, to_plain
from danube.cli._context import ContextOption, UrlOption
from danube.cli._moments import split_words
from danube.cli._output import Output, OutputOption, show_rows

__all__ = ["roles_app"]

roles_app = typer.Typer(no_args_is_help=True, help="List, create and delete roles: named sets of permissions.")

_Name = Annotated[str, typer.Argument(metavar="NAME")]


@roles_app.command("list")
def list_roles(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the roles, the built-in ones first."""
    rows = [to_plain(row) for row in run_with_client(lambda client: client.security.roles(), url, context)]
    show_rows(rows, ["name", "built_in", "permissions", "description"], output)


@roles_app.command("create")
def create_role(
    name: _Name,
    permissions: Annotated[
        list[str], typer.Argument(metavar="PERMISSION...", help="Lookup, Produce, Consume, ManageTopic ...")
    ],
    description: Annotated[str, typer.Option(help="A description, for lists.")] = "",
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Create a role, or replace it: that changes what its bindings grant."""
    words = split_words(permissions)
    run_with_client(lambda client: client.security.put_role(name, words, description), url, context)
    print(f"created {name}")


@roles_app.command("delete")
def delete_role(name: _Name, url: UrlOption = None, context: ContextOption = None) -> None:
    """Delete a role that no binding uses."""
    run_with_client(lambda client: client.security.drop_role(name), url, context)
    print(f"deleted {name}")
