"""``danube context``: manages named addresses of brokers."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._context import Context, changing_contexts, check_text, load_contexts
from danube.cli._output import Output, OutputOption, show_rows
from danube.model.errors import AlreadyExistsError

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
    url: Annotated[str, typer.Argument(metavar="URL", help="Address, danube://HOST:PORT.")],
    description: Annotated[str, typer.Option(help="A description, for display.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite a context of the same name.")] = False,
) -> None:
    """Store a context. The first one becomes the current one."""
    for text in (name, url, description):
        check_text(text)
    with changing_contexts() as stored:
        if name in stored.contexts and not replace:
            raise AlreadyExistsError(f"there is a context {name!r} already; --replace overwrites it")
        stored.contexts[name] = Context(url, description)
        stored.current = stored.current or name


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
