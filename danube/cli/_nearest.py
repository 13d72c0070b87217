"""Adds the nearest name to an error about a topic or subscription that does not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from danube.model.errors import DanubeError, SubscriptionNotFoundError, TopicNotFoundError

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["nearest", "with_nearest"]

LIMIT_S: Final = 1.0
"""How long the broker may take to list names."""
_TOPIC: Final = re.compile(r"topic '([^']+)'")
_SUBSCRIPTION: Final = re.compile(r"subscription '([^']+)'")


async def with_nearest(client: Client, error: DanubeError) -> DanubeError:
    """Return the error with a suggestion, if there is a name like the one in it."""
    topic, subscription = _TOPIC.search(error.message), _SUBSCRIPTION.search(error.message)
    known: Iterable[str] = ()
    wanted = ""
    with trio.move_on_after(LIMIT_S):
        try:
            if isinstance(error, TopicNotFoundError) and topic is not None:
                wanted, known = topic[1], await client.admin.topic_names()
            elif isinstance(error, SubscriptionNotFoundError) and topic is not None and subscription is not None:
                rows = await client.admin.list_subscriptions(topic[1])
                wanted, known = subscription[1], {row.subscription for row in rows}
        except DanubeError:
            return error  # the error itself says enough
    near = nearest(wanted, known)
    if near is None:
        return error
    return type(error)(f"{error.message.partition('; create it')[0]}; did you mean {near!r}?", error.details)


def nearest(wanted: str, known: Iterable[str]) -> str | None:
    """Return the name that is most like another one; None if none is."""
    names = [name for name in known if name != wanted]
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.8)
    if near:
        return near[0]
    # A name is as near if only the namespace differs.
    same = [name for name in names if name.rpartition("/")[2] == wanted.rpartition("/")[2]]
    return same[0] if same else None
