"""``If-Match``: which topic a caller means. Pure.

The entity tag of a topic is its id. It travels within the native call and is checked by the operation, in the moment
from which that is bound to the topic: a topic that is deleted and created again meanwhile is not met.
"""

from __future__ import annotations

from typing import Final

from danube.model.errors import LimitExceededError
from danube.model.ids import NO_TOPIC, TopicId

__all__ = ["MOST_TAGS", "topic_ids_of"]

MOST_TAGS: Final = 16
"""Most entity tags of one header."""
_MOST_DIGITS: Final = 20


def topic_ids_of(header: str) -> list[TopicId]:
    """Return the ids in a header ``If-Match``, one of which the topic must have; empty for ``*``: it may have any.

    Tags that are no ids match nothing, weak ones included.

    Raises:
        LimitExceededError: it has too many tags.
    """
    tags = [each.strip() for each in header.split(",")]
    if len(tags) > MOST_TAGS:
        raise LimitExceededError(f"If-Match has {len(tags)} entity tags; at most {MOST_TAGS} are allowed")
    if "*" in tags:
        return []
    return [_id_of(tag) for tag in tags]


def _id_of(tag: str) -> TopicId:
    digits = tag[1:-1] if len(tag) > 2 and tag[0] == tag[-1] == '"' else ""
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS):
        return NO_TOPIC  # no topic has it
    number = int(digits)
    return TopicId(number) if number < 2**64 else NO_TOPIC
