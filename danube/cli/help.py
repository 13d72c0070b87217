"""``danube help``: shows the help of a command, as its ``--help`` does."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from danube.model.errors import InvalidArgumentError

__all__ = ["show_help"]


def show_help(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Such as: topics create.")] = None,
) -> None:
    """Show the help of a command."""
    found: Any = ctx.find_root().command
    where: Any = ctx.find_root()
    for name in command or ():
        inner = found.get_command(where, name) if hasattr(found, "get_command") else None
        if inner is None:
            raise InvalidArgumentError(f"there is no command {' '.join(command or ())!r}; `danube help` lists them")
        found, where = inner, type(where)(inner, parent=where, info_name=inner.name)
    print(found.get_help(where))
