r"""Converts message keys between bytes, as in all formats, and text, for people and for text-only interfaces.

A key may be any bytes. Nearly all keys are UTF-8, so clients accept and return text as well. The conversion is lossless
and works as for Python's file names (PEP 383): a byte that is not part of valid UTF-8 becomes a lone surrogate. So
``b"\xffid"`` is ``"\udcffid"``, and a key that was received as text can be published again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from danube.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from danube.model.limits import Limits

__all__ = ["check_key_filters", "key_from_text", "key_to_text", "show_key"]


def key_from_text(text: str) -> bytes:
    """Return a key given as text as bytes.

    Raises:
        InvalidArgumentError: the text is neither Unicode nor made by :func:`key_to_text`.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"a key is {text[:40]!r}, which is not valid Unicode: it has a lone surrogate at index {error.start};"
            " give the key as bytes"
        ) from None


def key_to_text(key: bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 become lone surrogates, U+DC80 to U+DCFF."""
    return key.decode("utf-8", "surrogateescape")


def show_key(key: bytes) -> str:
    """Format a key for a message to people: as text in quotes, or as bytes (``b'...'``) if it is not UTF-8."""
    try:
        return repr(key.decode())
    except UnicodeDecodeError:
        return repr(key)


def check_key_filters(filters: Sequence[str], limits: Limits) -> tuple[str, ...]:
    """Return the key filters of a consumer; raise InvalidArgumentError if one is invalid."""
    if len(filters) > limits.max_key_filters:
        raise InvalidArgumentError(
            f"{len(filters)} key filters are more than max_key_filters = {limits.max_key_filters}; use wider patterns"
        )
    for pattern in filters:
        if not pattern:
            raise InvalidArgumentError("a key filter cannot be empty; '*' lets every key through")
        if len(pattern) > limits.max_key_filter_chars:
            raise InvalidArgumentError(
                f"a key filter of {len(pattern)} characters is longer than"
                f" max_key_filter_chars = {limits.max_key_filter_chars}"
            )
    return tuple(filters)
