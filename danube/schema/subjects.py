"""Names of subjects: what one may be, how it is written as a key, and how it follows from a topic."""

from __future__ import annotations

from enum import Enum
from urllib.parse import quote, unquote

from danube.model.errors import InvalidNameError
from danube.model.names import split_partition
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits

__all__ = ["Strategy", "key_of", "subject_for", "subject_of_key", "validate_subject"]


class Strategy(Enum):
    """How the subject of what is written to a topic is named."""

    TOPIC = "topic"
    """``/default/orders-value``: one subject for a topic."""
    RECORD = "record"
    """``shop.Order``: one for a type of messages, whatever topic they are in."""
    TOPIC_RECORD = "topic_record"
    """``/default/orders-shop.Order``: one for a type of messages in a topic."""


def validate_subject(name: str, limits: SchemaLimits = DEFAULT_LIMITS) -> str:
    """Return the name of a subject, if it is one: any printable text, as in Confluent's registry.

    Raises:
        InvalidNameError: it is empty, too long, or has characters that do not print.
    """
    if not name or name.isspace():
        raise InvalidNameError("a subject needs a name")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"the subject {name!r} is not Unicode text: it has half of a surrogate pair") from None
    if length > limits.max_subject_bytes:
        raise InvalidNameError(
            f"the name of a subject has {length} bytes; max_subject_bytes is {limits.max_subject_bytes}"
        )
    if not name.isprintable():
        raise InvalidNameError(f"the subject {name!r} has characters that do not print")
    return name


def key_of(subject: str) -> str:
    """Return the subject as the last segment of a metadata key."""
    return quote(subject, safe="")


def subject_of_key(segment: str) -> str:
    """Return the subject that :func:`key_of` wrote."""
    return unquote(segment, errors="strict")


def subject_for(topic: str, strategy: Strategy, record: str = "", *, is_key: bool = False) -> str:
    """Return the subject of the values, or keys, of a topic; a partition has that of its topic.

    Args:
        topic: ``/namespace/topic``.
        strategy: How it is named.
        record: The full name of the type of the messages, for strategies that use it.
        is_key: For keys instead of values.

    Raises:
        InvalidNameError: the strategy needs the name of a record, and there is none.
    """
    partition = split_partition(topic)
    base = topic if partition is None else partition[0]
    if strategy is Strategy.TOPIC:
        return f"{base}-{'key' if is_key else 'value'}"
    if not record:
        raise InvalidNameError(
            f"the strategy {strategy.value!r} names subjects after a record, and the schema of {topic} has no name"
        )
    return record if strategy is Strategy.RECORD else f"{base}-{record}"
