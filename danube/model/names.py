"""Names: what may be called what, and which partition a key belongs to.

A topic is ``/namespace/topic``. A partitioned topic ``/ns/t`` with N partitions is N topics
``/ns/t-part-0`` ... ``/ns/t-part-{N-1}``; its base name holds no messages. Because the suffix is reserved, a plain
topic may not end in ``-part-<number>`` (upstream mistakes such topics for partitions).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from danube.model.errors import InvalidNameError

__all__ = [
    "MAX_NAME_LENGTH",
    "TopicName",
    "fnv1a_64",
    "partition_name",
    "route_key",
    "split_partition",
    "validate_name",
    "validate_namespace",
    "validate_topic",
]

MAX_NAME_LENGTH = 255
"""Longest namespace, topic, subscription, producer or consumer name, in characters."""

_NAME = re.compile(r"[\w-]+")
_FREE_NAME = re.compile(r"[^\s/\x00-\x1f\x7f]+")
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
    """Return ``name`` if it may name a namespace, else raise :class:`InvalidNameError`."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"namespace {name!r} is not a valid name: use letters, digits, '_' and '-', at most {MAX_NAME_LENGTH}"
        )
    return name


def validate_topic(name: str) -> TopicName:
    """Split and check ``/namespace/topic``; raise :class:`InvalidNameError` if it is anything else."""
    parts = name.split("/")
    if len(parts) != 3 or parts[0]:
        raise InvalidNameError(f"topic {name!r} must have the form /namespace/topic, for example /default/orders")
    for part in parts[1:]:
        if not _NAME.fullmatch(part) or len(part) > MAX_NAME_LENGTH:
            raise InvalidNameError(
                f"topic {name!r}: {part!r} is not a valid name; use letters, digits, '_' and '-',"
                f" at most {MAX_NAME_LENGTH} characters"
            )
    return TopicName(parts[1], parts[2])


def validate_name(kind: str, name: str) -> str:
    """Check a subscription, producer or consumer name: any printable text without white space or '/'."""
    if not _FREE_NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"{kind} name {name!r} is not valid: use 1 to {MAX_NAME_LENGTH} characters without white space or '/'"
        )
    return name


def partition_name(base: str, index: int) -> str:
    """Return the topic name of one partition."""
    return f"{base}-part-{index}"


def split_partition(name: str) -> tuple[str, int] | None:
    """Return ``(base, index)`` if ``name`` is that of a partition, else None."""
    match = _PARTITION.fullmatch(name)
    return (match[1], int(match[2])) if match else None


def fnv1a_64(data: bytes) -> int:
    """FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/): the hash that the upstream clients route with."""
    digest = _FNV_OFFSET_BASIS
    for byte in data:
        digest = ((digest ^ byte) * _FNV_PRIME) & _MASK_64
    return digest


def route_key(key: str, partitions: int) -> int:
    """Return the partition of a key: FNV-1a 64 over its UTF-8 bytes, modulo the number of partitions."""
    return fnv1a_64(key.encode()) % partitions
