"""Naming rules of topics, namespaces, subscriptions and clients, and the routing of keys to partitions.

A topic is ``/namespace/topic``. A partitioned topic ``/ns/t`` with N partitions is N topics
``/ns/t-part-0`` ... ``/ns/t-part-{N-1}``; its base name holds no messages. Because the suffix is reserved, a plain
topic may not end in ``-part-<number>`` (upstream mistakes such topics for partitions).

Different names never look the same:

* namespaces, topics, clusters and storages are written in ASCII. A Cyrillic "o" or a full-width "a" would otherwise
  create a second topic that looks the same in lists, object keys and metrics;
* names of subscriptions, producers and consumers may be in any script, since applications choose them. They are in
  Unicode's form NFC, so each name has one encoding, and every character is visible: no white space, no zero-width
  characters, no characters that change the text direction.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from danube.model.errors import InvalidNameError
from danube.model.keys import key_from_text

__all__ = [
    "MAX_NAME_LENGTH",
    "SYSTEM_NAMESPACE",
    "TopicName",
    "fnv1a_64",
    "partition_name",
    "route_key",
    "split_partition",
    "validate_identifier",
    "validate_name",
    "validate_namespace",
    "validate_topic",
]

MAX_NAME_LENGTH = 255
"""Longest namespace, topic, subscription, producer or consumer name, in characters."""
SYSTEM_NAMESPACE = "system"
"""The namespace of what brokers write: the audit log."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(?<!\.)")
_PARTITION = re.compile(r"(.+)-part-(0|[1-9][0-9]*)")

_FNV_OFFSET_BASIS = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = 0xFFFFFFFFFFFFFFFF


class TopicName(NamedTuple):
    """The two parts of ``/namespace/topic``."""

    namespace: str
    topic: str

    def __str__(self) -> str:
        return f"/{self.namespace}/{self.topic}"


def validate_namespace(name: str) -> str:
    """Return ``name`` if it is a valid namespace, else raise :class:`InvalidNameError`."""
    if not _is(_NAME, name):
        raise InvalidNameError(
            f"namespace {_shown(name)} is not a valid name: use ASCII letters, digits, '_' and '-', at most"
            f" {MAX_NAME_LENGTH}"
        )
    return name


def validate_topic(name: str) -> TopicName:
    """Split and check ``/namespace/topic``; raise :class:`InvalidNameError` if it is invalid."""
    parts = name.split("/") if _is_text(name) else []
    if len(parts) != 3 or parts[0]:
        raise InvalidNameError(f"topic {_shown(name)} must have the form /namespace/topic, for example /default/orders")
    for part in parts[1:]:
        if not _is(_NAME, part):
            raise InvalidNameError(
                f"topic {_shown(name)}: {_shown(part)} is not a valid name; use ASCII letters, digits, '_' and '-',"
                f" at most {MAX_NAME_LENGTH} characters"
            )
    return TopicName(parts[1], parts[2])


def validate_identifier(kind: str, name: str) -> str:
    """Check the name of a cluster or storage; raise :class:`InvalidNameError` if it is invalid."""
    if not _is(_IDENTIFIER, name):
        raise InvalidNameError(
            f"{kind} name {_shown(name)} is not valid: use ASCII letters, digits, '_', '-' and (inside) '.', at most"
            f" {MAX_NAME_LENGTH}"
        )
    return name


def validate_name(kind: str, name: str) -> str:
    """Check a subscription, producer or consumer name: any visible text, without white space or '/'."""
    visible = _is_text(name) and 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
    if not visible or " " in name or "/" in name or not unicodedata.is_normalized("NFC", name):
        raise InvalidNameError(
            f"{kind} name {_shown(name)} is not valid: use 1 to {MAX_NAME_LENGTH} printable characters (in Unicode's"
            " form NFC) without white space or '/'"
        )
    return name


def _is(pattern: re.Pattern[str], name: str) -> bool:
    return _is_text(name) and len(name) <= MAX_NAME_LENGTH and pattern.fullmatch(name) is not None


def _is_text(name: object) -> bool:
    return isinstance(name, str)  # an application may pass a value of any type


def _shown(name: object) -> str:
    """Format an invalid name for an error message: invisible characters escaped, truncated."""
    text = ascii(name)
    return text if len(text) <= 2 * MAX_NAME_LENGTH else f"{text[: 2 * MAX_NAME_LENGTH]}..."


def partition_name(base: str, index: int) -> str:
    """Return the topic name of one partition."""
    return f"{base}-part-{index}"


def split_partition(name: str) -> tuple[str, int] | None:
    """Return ``(base, index)`` if ``name`` is the name of a partition, else None."""
    match = _PARTITION.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def fnv1a_64(data: bytes) -> int:
    """FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/): the hash that the upstream clients route with."""
    digest = _FNV_OFFSET_BASIS
    for byte in data:
        digest = ((digest ^ byte) * _FNV_PRIME) & _MASK_64
    return digest


def route_key(key: str | bytes, partitions: int) -> int:
    """Return the partition of a key: FNV-1a 64 over its bytes (of a text: UTF-8), modulo the number of partitions."""
    return fnv1a_64(key if isinstance(key, bytes) else key_from_text(key)) % partitions
