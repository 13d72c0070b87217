"""Subject names: validation, encoding in metadata keys, and derivation from topics."""

from __future__ import annotations

from enum import Enum
from urllib.parse import quote, unquote

from danube.model.errors import InvalidNameError
from danube.model.names import split_partition
from danube.schema.limits import DEFAULT_LIMITS, SchemaLimits

__all__ = ["Strategy", "key_of", "namespace_of", "subject_for", "subject_of_key", "validate_subject"]


class Strategy(Enum):
    """Rules for deriving the subject of a topic's messages."""

    TOPIC = "topic"
    """``/default/orders-value``: one subject for each topic."""
    RECORD = "record"
    """``shop.Order``: one subject for each type of messages, shared by all topics."""
    TOPIC_RECORD = "topic_record"
    """``/default/orders-shop.Order``: one subject for each topic and type of messages."""


def validate_subject(name: str, limits: SchemaLimits = DEFAULT_LIMITS) -> str:
    """Validate a subject name and return it: any printable text is valid, as in Confluent's registry.

    Raises:
        InvalidNameError: the name is empty, too long, or contains unprintable characters.
    """
    if not name or name.isspace():
        raise InvalidNameError("the name of a subject is empty")
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidNameError(f"the subject {name!r} is not Unicode text: it contains a lone surrogate") from None
    if length > limits.max_subject_bytes:
        raise InvalidNameError(
            f"the name of a subject has {length} bytes; max_subject_bytes is {limits.max_subject_bytes}"
        )
    if not name.isprintable():
        raise InvalidNameError(f"the subject {name!r} contains unprintable characters")
    return name


def namespace_of(subject: str) -> str:
    """Return the namespace whose quota counts a subject: that of ``/namespace/...``; empty: of none."""
    root, _, rest = subject.partition("/")
    namespace, slash, _ = rest.partition("/")
    return namespace if slash and not root else ""


def key_of(subject: str) -> str:
    """Encode a subject as the last segment of a metadata key."""
    return quote(subject, safe="")


def subject_of_key(segment: str) -> str:
    """Decode a subject encoded by :func:`key_of`."""
    return unquote(segment, errors="strict")


def subject_for(topic: str, strategy: Strategy, record: str = "", *, is_key: bool = False) -> str:
    """Return the subject for the values, or keys, of a topic. Partitions share the subject of their topic.

    Args:
        topic: ``/namespace/topic``.
        strategy: The naming rule.
        record: Full name of the message type, for strategies that use it.
        is_key: Whether to return the subject for keys instead of values.

    Raises:
        InvalidNameError: the strategy requires the name of a record, and the schema has none.
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
