"""Rules of object keys and prefixes, and their validation.

A key is one or more segments with ``/`` between them: ``segments/7f3a/00000000000000000000``. It contains only
characters without a special meaning in any object store, file system or URL::

    A-Z a-z 0-9 ! $ & ' ( ) + , - . ; = @ _

A segment neither begins nor ends with a dot (``.`` and ``..`` are not segments, and names that begin with a dot are
reserved for other data of a backend). A key is at most 512 characters, a segment at most 200.

Storage is flat, but some services and every directory have folders. Therefore no key may be a folder of another one:
a caller that puts ``a`` never puts ``a/b``. Backends need not support both, and may fail.

Keys are ASCII, so their order as text is their order as bytes.
"""

from __future__ import annotations

import re

from danube.model.errors import InvalidArgumentError

__all__ = ["LEGAL_CHARACTERS", "MAX_KEY_LENGTH", "MAX_SEGMENT_LENGTH", "is_key", "validate_key", "validate_prefix"]

LEGAL_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!$&'()+,-.;=@_"
"""Characters allowed in a segment of a key."""

MAX_KEY_LENGTH = 512
"""Longest key, in characters; leaves room for the prefix of the URL within the 1,024 bytes of the object stores."""
MAX_SEGMENT_LENGTH = 200
"""Longest segment of a key, in characters; file systems allow 255 for a name."""

_SEGMENT = rf"(?!\.)[A-Za-z0-9!$&'()+,\-.;=@_]{{1,{MAX_SEGMENT_LENGTH}}}(?<!\.)"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(r"[A-Za-z0-9!$&'()+,\-.;=@_/]*")


def is_key(text: str) -> bool:
    """Whether ``text`` is a key. Other names may exist in a bucket, but are not Danube's objects."""
    return len(text) <= MAX_KEY_LENGTH and _KEY.fullmatch(text) is not None


def validate_key(key: str) -> str:
    """Return ``key`` if it is valid, else raise :class:`InvalidArgumentError`."""
    if not is_key(key):
        raise InvalidArgumentError(
            f"storage key {key[:80]!r} is not valid: use segments of letters, digits and !$&'()+,-.;=@_ with '/'"
            f" between them, none of them empty, beginning or ending with a dot or longer than {MAX_SEGMENT_LENGTH}"
            f" characters, {MAX_KEY_LENGTH} characters in all"
        )
    return key


def validate_prefix(prefix: str) -> str:
    """Return ``prefix`` if keys can begin with it, else raise :class:`InvalidArgumentError`.

    A prefix is any beginning of a key, cut anywhere: ``segments/7f`` is one, and so is ``""``.
    """
    if len(prefix) > MAX_KEY_LENGTH or not _PREFIX.fullmatch(prefix) or prefix.startswith("/") or "//" in prefix:
        raise InvalidArgumentError(f"storage prefix {prefix[:80]!r} is not valid: it must be the beginning of a key")
    return prefix
