"""Names and attributes of the client's spans and metrics, by the semantic conventions of OpenTelemetry. Pure.

The context of the span that sent a message travels in its attributes ``traceparent``, ``tracestate`` and ``baggage``,
in the format of the W3C. Copies of a message keep them: dead letters, and what ``danube dlq replay`` sends back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from danube.model.batch import Record
from danube.model.names import split_partition

__all__ = [
    "BUCKETS_S",
    "MAX_LINKS",
    "TRACEPARENT",
    "Destination",
    "base_topic",
    "carried",
    "carriers",
    "continues",
    "message_id",
    "operation",
    "with_carrier",
]

TRACEPARENT: Final = "traceparent"
_CARRIED: Final = (TRACEPARENT, "tracestate", "baggage")
_ORIGINAL: Final = "x-original-topic"
"""Attribute of dead letters."""
MAX_LINKS: Final = 128
"""Most links of one span: the default limit of OpenTelemetry. A batch with messages of more spans is linked with the
first ones."""
BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Boundaries of the histograms, in seconds."""


class Destination(NamedTuple):
    """Where messages go to or come from."""

    topic: str
    """As requested."""
    subscription: str = ""
    """Empty for a producer."""
    partitioned: bool = False


def operation(
    kind: str, name: str, destination: Destination, partition: int | None = None, count: int | None = None
) -> dict[str, str | int]:
    """Return the attributes of a span.

    Args:
        kind: ``send``, ``receive``, ``process`` or ``settle``.
        name: the call; of a ``settle`` for instance ``ack``.
        destination: of the messages.
        partition: the messages are of this one; None: of several, or not known.
        count: of messages, if the operation may have any number of them.
    """
    found: dict[str, str | int] = {
        "messaging.system": "danube",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": destination.topic,
    }
    if destination.subscription:
        found["messaging.destination.subscription.name"] = destination.subscription
    if destination.partitioned and partition is not None:
        found["messaging.destination.partition.id"] = str(partition)
    if count is not None:
        found["messaging.batch.message_count"] = count
    return found


def message_id(partition: int, offset: int) -> str:
    """Return what identifies a message within its topic: ``partition:offset``, as everywhere in Danube."""
    return f"{partition}:{offset}"


def base_topic(name: str) -> str:
    """Return the topic that a partition belongs to; a plain topic is returned unchanged."""
    split = split_partition(name)
    return split[0] if split else name


def carried(attributes: Mapping[str, str] | None) -> dict[str, str]:
    """Return the attributes of a message that carry a context; empty without a ``traceparent``."""
    if not attributes or TRACEPARENT not in attributes:
        return {}
    return {name: attributes[name] for name in _CARRIED if name in attributes}


def carriers(messages: Iterable[Mapping[str, str] | None]) -> list[dict[str, str]]:
    """Return the contexts of messages, each once, at most ``MAX_LINKS``.

    Args:
        messages: their attributes.
    """
    found: dict[str, dict[str, str]] = {}
    for attributes in messages:
        if attributes and (parent := attributes.get(TRACEPARENT)) is not None and parent not in found:
            found[parent] = carried(attributes)
            if len(found) == MAX_LINKS:
                break
    return list(found.values())


def continues(attributes: Mapping[str, str] | None) -> bool:
    """Return whether the span that handles a message is a child of the one that sent it, in the same trace.

    Not of a dead letter, whose handling is a matter of its own, maybe days later: it is linked with the original.
    """
    return attributes is not None and TRACEPARENT in attributes and _ORIGINAL not in attributes


def with_carrier(records: Sequence[Any], carrier: Mapping[str, str]) -> Sequence[Any]:
    """Return messages to be staged with a context; one that has a context already keeps it.

    Args:
        records: payloads, or Records. What is neither is returned as it is: staging refuses it.
        carrier: attributes that carry the context; empty: the messages are returned as they are.
    """
    kinds = set(map(type, records)) if carrier else ()
    if kinds == {bytes}:
        return [Record(payload, None, dict(carrier)) for payload in records]
    if kinds == {Record}:
        return [
            each
            if each.attributes and TRACEPARENT in each.attributes
            else Record(each.payload, each.key, {**carrier, **(each.attributes or {})}, each.publish_delta_us)
            for each in records
        ]
    return records
