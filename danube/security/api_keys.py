"""API keys: their format, and what is stored of them. Pure; the caller passes random bytes.

::

    dnb_  ID            SECRET              CHECK
          12 characters 43 characters       6 characters     of 0-9 A-Z a-z

The secret is a number of 256 bits, so a fast hash is enough: they are too many to try, and a slow hash would let
strangers keep the broker busy. CHECK is a CRC-32 of the characters before it. It finds typing errors, and lets scanners
recognise leaked keys; it proves nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import zlib
from typing import Final, NamedTuple

from danube.model.errors import InvalidArgumentError
from danube.security.flaws import BadProofError, Flaw

__all__ = [
    "PREFIX",
    "RANDOM_BYTES",
    "NewApiKey",
    "ParsedApiKey",
    "is_secret_of",
    "key_of_basic",
    "make_api_key",
    "parse_api_key",
]

PREFIX: Final = "dnb_"
RANDOM_BYTES: Final = 48
"""Random bytes that a new key needs."""

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS: Final = 12
_SECRET_CHARS: Final = 43
_CHECK_CHARS: Final = 6
_SECRET_BYTES: Final = 32
_FORMAT: Final = re.compile(
    rf"dnb_([0-9A-Za-z]{{{_ID_CHARS}}})_([0-9A-Za-z]{{{_SECRET_CHARS}}})([0-9A-Za-z]{{{_CHECK_CHARS}}})"
)
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_LABEL: Final = b"danube api key\0"
_MAX_BASIC_CHARS: Final = 1024
_NO_HASH: Final = bytes(32)


class NewApiKey(NamedTuple):
    """A key that was just made. Its text is shown once and never stored."""

    text: str
    id: str
    hash: bytes

    def __repr__(self) -> str:
        return f"NewApiKey({self.id}, ***)"


class ParsedApiKey(NamedTuple):
    """A key that a caller has sent; nothing is proven yet."""

    id: str
    hash: bytes


def make_api_key(random_bytes: bytes) -> NewApiKey:
    """Make a key from :data:`RANDOM_BYTES` random bytes.

    Raises:
        InvalidArgumentError: another number of bytes.
    """
    if len(random_bytes) != RANDOM_BYTES:
        raise InvalidArgumentError(f"an API key is made from {RANDOM_BYTES} random bytes, not {len(random_bytes)}")
    secret, rest = random_bytes[:_SECRET_BYTES], random_bytes[_SECRET_BYTES:]
    key_id = _digits(int.from_bytes(rest) % len(_DIGITS) ** _ID_CHARS, _ID_CHARS)
    body = f"{PREFIX}{key_id}_{_digits(int.from_bytes(secret), _SECRET_CHARS)}"
    text = body + _check(body)
    return NewApiKey(text, key_id, _hash(text))


def parse_api_key(text: str) -> ParsedApiKey:
    """Parse a key.

    Raises:
        BadProofError: MALFORMED.
    """
    match = _FORMAT.fullmatch(text)
    if match is None or _check(text[:-_CHECK_CHARS]) != match[3]:
        raise BadProofError(Flaw.MALFORMED)
    value = 0
    for digit in match[2]:
        value = value * len(_DIGITS) + _VALUES[digit]
    if value >= 1 << 8 * _SECRET_BYTES:  # each secret has one text
        raise BadProofError(Flaw.MALFORMED)
    return ParsedApiKey(match[1], _hash(text))


def is_secret_of(parsed: ParsedApiKey, stored: bytes | None) -> bool:
    """Whether a key has the stored hash, in the same time for each id; None: no key has its id."""
    same = hmac.compare_digest(parsed.hash, _NO_HASH if stored is None else stored)
    return same and stored is not None


def key_of_basic(encoded: str) -> str:
    """Return the password of Basic credentials, which is the API key; the user's name is ignored.

    Raises:
        BadProofError: MALFORMED, or TOO_LARGE.
    """
    if len(encoded) > _MAX_BASIC_CHARS:
        raise BadProofError(Flaw.TOO_LARGE)
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError) as error:
        raise BadProofError(Flaw.MALFORMED) from error
    _, colon, password = text.partition(":")
    if not colon:
        raise BadProofError(Flaw.MALFORMED)
    return password


def _hash(text: str) -> bytes:
    return hashlib.sha256(_LABEL + text.encode("ascii")).digest()


def _check(body: str) -> str:
    return _digits(zlib.crc32(body.encode("ascii")), _CHECK_CHARS)


def _digits(value: int, count: int) -> str:
    found = []
    for _ in range(count):
        value, digit = divmod(value, len(_DIGITS))
        found.append(_DIGITS[digit])
    return "".join(reversed(found))
