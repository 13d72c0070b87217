"""Names of topics and subscriptions on the command line: a bare name is one of the context's namespace."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from danube.cli._completion import complete_subscription, complete_topic
from danube.cli._context import namespace_of

__all__ = [
    "OptionalSubscriptionArgument",
    "OptionalTopicArgument",
    "SubscriptionArgument",
    "TopicArgument",
    "full_name",
]

_HELP: Final = "/namespace/topic, or a name in the context's namespace."


def full_name(name: str, url: str | None = None, context: str | None = None) -> str:
    """Return the full name of a topic: ``orders`` is ``/default/orders``, or in the namespace of the context."""
    return name if name.startswith("/") or not name else f"/{namespace_of(url, context)}/{name}"


def _full(ctx: typer.Context, name: str | None) -> str | None:
    if name is None or ctx.resilient_parsing:
        return name
    return full_name(name, ctx.params.get("url"), ctx.params.get("context"))


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help=_HELP, callback=_full, autocompletion=complete_topic)
]
OptionalTopicArgument = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help=_HELP, callback=_full, autocompletion=complete_topic)
]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", autocompletion=complete_subscription)]
OptionalSubscriptionArgument = Annotated[
    str | None, typer.Argument(metavar="[SUBSCRIPTION]", autocompletion=complete_subscription)
]
