r"""Keys of messages: bytes in every format, and text for people and for interfaces that have only text.

A key is any bytes. Nearly all are UTF-8, so the clients take and give text as well. Text and bytes are converted into
each other without loss, in the way of Python's file names (PEP 383): a byte that is not part of valid UTF-8 is a lone
surrogate in the text. So ``b"\xffid"`` is ``"\udcffid"``, and a key that was received as text can be published again.
"""

from __future__ import annotations

from danube.model.errors import InvalidArgumentError

__all__ = ["key_from_text", "key_to_text", "show_key"]


def key_from_text(text: str) -> bytes:
    """Return the bytes of a key that is given as text.

    Raises:
        InvalidArgumentError: the text is neither Unicode nor made by :func:`key_to_text`.
    """
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"a key is {text[:40]!r}, which is no Unicode text: it has half a character at index {error.start};"
            " give the key as bytes"
        ) from None


def key_to_text(key: bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 become lone surrogates, U+DC80 to U+DCFF."""
    return key.decode("utf-8", "surrogateescape")


def show_key(key: bytes) -> str:
    """Return a key for a sentence: a text in quotes, or bytes (``b'...'``) if it is not UTF-8."""
    try:
        return repr(key.decode())
    except UnicodeDecodeError:
        return repr(key)
