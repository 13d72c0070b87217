"""Moments and scopes as commands about access control show and take them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.model.security_api import CeilingGrant

__all__ = ["OnOption", "RoleOption", "ceiling_text", "make_ceiling", "moment", "split_words"]

RoleOption = Annotated[
    list[str] | None, typer.Option("--role", metavar="ROLE", help="A role, or several with commas; repeat for more.")
]
OnOption = Annotated[
    list[str] | None,
    typer.Option("--on", metavar="SCOPE", help="cluster, namespace:NAME, /ns/topic, /ns/prefix*; repeat for more."),
]


def moment(unix_us: int, nothing: str = "never") -> str:
    """Return a time as text, to the second; ``nothing`` for 0."""
    if not unix_us:
        return nothing
    return datetime.fromtimestamp(unix_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def split_words(texts: Sequence[str] | None) -> list[str]:
    """Return the words of some texts with commas."""
    return [word for text in texts or () for word in (each.strip() for each in text.split(",")) if word]


def make_ceiling(roles: Sequence[str] | None, scopes: Sequence[str]) -> list[CeilingGrant] | None:
    """Return the ceiling that ``--role`` and ``--on`` describe; None without both.

    Raises:
        InvalidArgumentError: only one of them is given.
    """
    from danube.model.security_api import CeilingGrant

    names = split_words(roles)
    if bool(names) != bool(scopes):
        raise InvalidArgumentError("a ceiling needs roles and scopes: give both --role and --on (or --namespace)")
    return [CeilingGrant(scope, roles=names) for scope in scopes] or None


def ceiling_text(ceiling: Sequence[CeilingGrant] | None) -> str:
    """Return a ceiling in one line."""
    if ceiling is None:
        return "none"
    return "; ".join(f"{', '.join(each.permissions)} on {each.scope}" for each in ceiling)
