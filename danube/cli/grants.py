"""``danube grant`` and ``danube revoke``: gives roles to a subject, and takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption
from danube.cli._moments import split_words
from danube.model.errors import InvalidArgumentError

__all__ = ["grant", "revoke"]

_Words = Annotated[
    list[str],
    typer.Argument(
        metavar="ROLE[,ROLE...] to SUBJECT on SCOPE", help="For example: producer to service:a on /shop/orders"
    ),
]
_FromWords = Annotated[
    list[str],
    typer.Argument(
        metavar="ROLE[,ROLE...] from SUBJECT on SCOPE", help="Such as: producer from service:api on /shop/orders"
    ),
]


class _Grant(NamedTuple):
    roles: list[str]
    subject: str
    scope: str


def _parse(words: Sequence[str], preposition: str) -> _Grant:
    """Return the parts of ``producer to service:api on /shop/orders``."""
    if preposition in words and "on" in words:
        at, on = words.index(preposition), words.index("on")
        roles = split_words(words[:at])
        if roles and on == at + 2 and len(words) == on + 2:
            return _Grant(roles, words[at + 1], words[on + 1])
    raise InvalidArgumentError(
        f"write ROLE {preposition} SUBJECT on SCOPE, for example: producer {preposition} service:orders-api on"
        " '/shop/orders*' (a scope is cluster, namespace:NAME, /ns/topic, /ns/prefix* or /ns/topic#subscription)"
    )


def grant(words: _Words, url: UrlOption = None, context: ContextOption = None) -> None:
    """Grant roles to a subject within a scope.

    A subject is user:NAME, service:NAME or group:NAME. `danube roles list` shows the roles. Grants take effect at once.
    """
    roles, subject, scope = _parse(words, "to")
    row = run_with_client(lambda client: client.security.grant(subject, roles, scope), url, context)
    print(f"{row.subject} has {', '.join(row.roles)} on {row.scope} (binding {row.id})")


def revoke(words: _FromWords, url: UrlOption = None, context: ContextOption = None) -> None:
    """Take roles from a subject within exactly this scope; 'all' takes every role.

    Open streams that need them end within a second.
    """
    roles, subject, scope = _parse(words, "from")
    taken = [] if roles == ["all"] else roles
    left = run_with_client(lambda client: client.security.revoke(subject, scope, taken), url, context)
    kept = "; ".join(f"{', '.join(row.roles)} (binding {row.id})" for row in left)
    print(f"{subject} has {kept or 'no role'} on {scope}")
