"""Rules of metadata keys and prefixes, and their validation.

A key is a path: ``/topics/default/orders``. A prefix covers whole segments, never parts of one::

    "/a"    "/a" itself and everything below it: "/a/b", "/a/b/c"; not "/ab"
    "/a/"   only keys below "/a"
    "/"     everything

Keys are ordered by code point, which for UTF-8 is byte order: every engine sorts them the same way.
"""

from __future__ import annotations

import re

from danube.model.errors import InvalidArgumentError

__all__ = ["below", "covers", "validate_key", "validate_prefix"]

_KEY = re.compile(r"(?:/[^\s/\x00-\x1f\x7f-\x9f\ud800-\udfff]+)+")


def validate_key(key: str, max_bytes: int) -> str:
    """Return ``key`` if it is valid, else raise :class:`InvalidArgumentError`.

    A key is one or more segments, each a ``/`` followed by characters that are not white space, control characters
    or ``/``; in UTF-8 it is at most ``max_bytes`` long.
    """
    if not _KEY.fullmatch(key):
        raise InvalidArgumentError(
            f"metadata key {key!r} is not valid: use /segment/segment, without white space, empty segments"
            " or a '/' at the end"
        )
    if len(key) * 4 > max_bytes and len(key.encode()) > max_bytes:
        raise InvalidArgumentError(
            f"metadata key {key[:64]!r}... is longer than metadata_max_key_bytes = {max_bytes} bytes"
        )
    return key


def validate_prefix(prefix: str, max_bytes: int) -> str:
    """Return ``prefix`` if it is ``/``, a key, or a key with one ``/`` at its end; else raise InvalidArgumentError."""
    if prefix != "/":
        validate_key(prefix.removesuffix("/"), max_bytes)
    return prefix


def below(prefix: str) -> tuple[str, str]:
    """Return the half-open range ``(start, end)`` of the keys below ``prefix``, without the prefix itself."""
    start = prefix if prefix.endswith("/") else prefix + "/"
    return start, start[:-1] + "0"  # "0" is the character after "/"


def covers(prefix: str, key: str) -> bool:
    """Return whether ``prefix`` covers ``key``."""
    if prefix.endswith("/"):
        return key.startswith(prefix)
    return key.startswith(prefix) and (len(key) == len(prefix) or key[len(prefix)] == "/")
