"""``danube context``: manages named addresses of brokers."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from danube.cli._connecting import check_credentials
from danube.cli._context import Context, changing_contexts, check_text, load_contexts
from danube.cli._output import Output, OutputOption, show_rows
from danube.model.errors import AlreadyExistsError
from danube.model.names import validate_namespace

__all__ = ["context_app"]

context_app = typer.Typer(no_args_is_help=True, help="Manage named broker addresses, and select the current one.")

_Name = Annotated[str, typer.Argument(metavar="NAME")]


@context_app.command("list")
def list_contexts(output: OutputOption = Output.TABLE) -> None:
    """List the contexts."""
    stored = load_contexts()
    rows = [
        {"name": name, "current": name == stored.current, "url": context.url, "description": context.description}
        for name, context in sorted(stored.contexts.items())
    ]
    show_rows(rows, ["name", "current", "url", "description"], output)


@context_app.command("add")
def add_context(
    name: _Name,
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address, danube://HOST:PORT; of a cluster danube://A,B,C.")
    ],
    description: Annotated[str, typer.Option(help="A description, for display.")] = "",
    ca: Annotated[str, typer.Option(metavar="FILE", help="Authorities of the brokers' certificates (PEM).")] = "",
    cert: Annotated[str, typer.Option(metavar="FILE", help="Certificate of this client (PEM).")] = "",
    key: Annotated[str, typer.Option(metavar="FILE", help="Its key.")] = "",
    token_file: Annotated[str, typer.Option(metavar="FILE", help="File with a token.")] = "",
    token_command: Annotated[
        str, typer.Option(metavar="COMMAND", help="Command that prints a token; it runs once for each command.")
    ] = "",
    api_key_file: Annotated[str, typer.Option(metavar="FILE", help="File with an API key.")] = "",
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of topics that are named without one. [default]")
    ] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a context of the same name.")] = False,
) -> None:
    """Store a context. The first one becomes the current one.

    It names files with credentials, which are read by each command, and sent to this address only.
    """
    added = Context(
        url,
        description,
        ca=_absolute(ca),
        cert=_absolute(cert),
        key=_absolute(key),
        token_file=_absolute(token_file),
        token_command=token_command,
        api_key_file=_absolute(api_key_file),
        namespace=namespace,
    )
    if namespace:
        validate_namespace(namespace)
    for text in (name, *(getattr(added, field) for field in added.__struct_fields__)):
        check_text(text)
    check_credentials(added)
    with changing_contexts() as stored:
        if name in stored.contexts and not replace:
            raise AlreadyExistsError(f"there is a context {name!r} already; --replace overwrites it")
        stored.contexts[name] = added
        stored.current = stored.current or name


def _absolute(path: str) -> str:
    """Return the path of a file that commands find from any directory."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


@context_app.command("use")
def use_context(name: _Name) -> None:
    """Make a context the current one."""
    with changing_contexts() as stored:
        stored.find(name)
        stored.current = name


@context_app.command("remove")
def remove_context(name: _Name) -> None:
    """Delete a context."""
    with changing_contexts() as stored:
        stored.find(name)
        del stored.contexts[name]
        if stored.current == name:
            stored.current = ""
