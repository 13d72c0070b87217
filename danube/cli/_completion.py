"""Completes the names of topics, subscriptions, policies and contexts for the shell.

The names of topics and subscriptions come from the broker of the command. A shell must not hang, and an error message
would end up in the middle of a command line: after a second, or with any error, there are no candidates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import typer

from danube.cli._context import load_contexts, namespace_of

if TYPE_CHECKING:
    from danube.client import Client

__all__ = [
    "complete_change",
    "complete_context",
    "complete_namespace",
    "complete_policy",
    "complete_subscription",
    "complete_topic",
]

LIMIT_S: Final = 1.0
"""How long the broker may take."""
MOST: Final = 200
"""Most candidates: a shell asks before it shows more."""


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin like this; a bare name is one of the context's namespace."""
    url, context = _address(ctx)
    bare = bool(incomplete) and not incomplete.startswith("/")
    prefix = f"/{_namespace(url, context)}/" if bare else ""
    names = _ask(lambda client: client.admin.topic_names(), url, context)
    return [name[len(prefix) :] for name in names if name.startswith(prefix + incomplete)][:MOST]


def complete_subscription(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the subscriptions of the topic in front whose names begin like this."""
    from danube.cli._names import full_name

    url, context = _address(ctx)
    topic = ctx.params.get("topic")
    if not topic:
        return []

    async def work(client: Client) -> list[str]:
        found = await client.admin.list_subscriptions(full_name(topic, url, context))
        return sorted({row.subscription for row in found})

    return [name for name in _ask(work, url, context) if name.startswith(incomplete)][:MOST]


def complete_namespace(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the namespaces whose names begin like this."""
    names = _ask(lambda client: client.admin.list_namespaces(), *_address(ctx))
    return [name for name in names if name.startswith(incomplete)][:MOST]


def complete_policy(incomplete: str) -> list[str]:
    """Return the policies of topics whose names begin like this."""
    from danube.cli._policy_values import policy_names

    return [name for name in policy_names() if name.startswith(incomplete)]


def complete_change(incomplete: str) -> list[str]:
    """Return ``name=`` of the policies of topics whose names begin like this."""
    return [] if "=" in incomplete else [f"{name}=" for name in complete_policy(incomplete)]


def complete_context(incomplete: str) -> list[str]:
    """Return the contexts whose names begin like this."""
    from danube.model.errors import DanubeError

    try:
        return sorted(name for name in load_contexts().contexts if name.startswith(incomplete))
    except DanubeError:
        return []  # a message would end up in the command line; the command itself reports the file


def _address(ctx: typer.Context) -> tuple[str | None, str | None]:
    """Return ``--url`` and ``--context``, given behind the command or in front of it."""
    for params in (ctx.params, ctx.find_root().params):
        if params.get("url") or params.get("context"):
            return params.get("url"), params.get("context")
    return None, None


def _namespace(url: str | None, context: str | None) -> str:
    from danube.model.errors import DanubeError

    try:
        return namespace_of(url, context)
    except DanubeError:
        return ""  # as above


def _ask(work: Callable[[Client], Awaitable[list[str]]], url: str | None, context: str | None) -> list[str]:
    import trio

    from danube.cli._connecting import find_target
    from danube.model.errors import DanubeError

    async def main() -> list[str]:
        with trio.move_on_after(LIMIT_S):
            async with find_target(url, context).connect(reconnect_timeout_s=LIMIT_S) as client:
                return await work(client)
        return []

    try:
        return trio.run(main)
    except (DanubeError, OSError, BaseExceptionGroup):
        return []  # see the module
