"""``danube cheat``: commands for what is done most, by theme."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._cheats import CHEATS, sheet

__all__ = ["cheat"]


def _themes(incomplete: str) -> list[str]:
    return [name for name in CHEATS if name.startswith(incomplete)]


def cheat(
    theme: Annotated[
        str,
        typer.Argument(metavar="[THEME]", help=f"One of {', '.join(CHEATS)}; by default all.", autocompletion=_themes),
    ] = "",
) -> None:
    """Print commands for what is done most, by theme.

    Names in them (orders, billing) are examples. `danube COMMAND --help` has all options.
    """
    print(sheet(theme))
