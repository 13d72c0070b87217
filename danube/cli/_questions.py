"""Questions before what destroys: asked on a terminal only, so that scripts go on as they did."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

__all__ = ["YesOption", "asks", "confirm"]

YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask. Without a terminal nothing is asked anyway.")]


def asks(yes: bool) -> bool:
    """Whether a command asks before it goes on: a person sits at the terminal, and has not said yes already."""
    return not yes and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(yes: bool, question: Callable[[], str]) -> None:
    """Ask whether to go on; the command ends with exit code 1 if not.

    Args:
        yes: ``--yes``.
        question: returns it; only called if it is asked, because it may have to look something up.
    """
    if asks(yes) and not typer.confirm(question(), err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)
