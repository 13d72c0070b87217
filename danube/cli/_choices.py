"""Options for enumerations of the API: shown in the spelling of the API, accepted with dashes, too."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

import typer

__all__ = ["choice_option"]

E = TypeVar("E", bound=enum.StrEnum)


def choice_option(kind: type[E], *names: str, help: str) -> Any:
    """Return an option for a member of an enumeration."""
    known = "|".join(member.value for member in kind)

    def parse(text: str | E) -> E:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not one of {known.replace('|', ', ')}") from None

    return typer.Option(*names, parser=parse, metavar=f"[{known}]", help=help)
