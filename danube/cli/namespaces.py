"""``danube namespaces``: list, create and delete namespaces."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._output import Output, OutputOption, show_rows

__all__ = ["namespaces_app"]

namespaces_app = typer.Typer(no_args_is_help=True, help="List, create and delete namespaces.")

_Name = Annotated[str, typer.Argument(metavar="NAMESPACE")]


@namespaces_app.command("list")
def list_namespaces(url: UrlOption = None, context: ContextOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the namespaces."""
    found = run_with_client(lambda client: client.admin.list_namespaces(), url, context)
    show_rows([{"namespace": name} for name in found], ["namespace"], output)


@namespaces_app.command("create")
def create_namespace(namespace: _Name, url: UrlOption = None, context: ContextOption = None) -> None:
    """Create a namespace."""
    run_with_client(lambda client: client.admin.create_namespace(namespace), url, context)
    print(f"created {namespace}")


@namespaces_app.command("delete")
def delete_namespace(namespace: _Name, url: UrlOption = None, context: ContextOption = None) -> None:
    """Delete a namespace; it must be empty."""
    run_with_client(lambda client: client.admin.delete_namespace(namespace), url, context)
    print(f"deleted {namespace}")
