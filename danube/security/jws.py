"""Signed tokens in their compact form (RFC 7515), parsed strictly. Pure; verifies no signature.

::

    token     = header "." claims "." signature       each part base64url without padding
    header    = a JSON object: alg, kid and typ
    claims    = a JSON object
    signature = bytes over header "." claims

Each token has exactly one form: base64url is canonical (no padding, no other characters, no bits beyond the last byte),
and objects have no duplicate members, about which two parsers could disagree. JSON is UTF-8, without NaN and Infinity.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from danube.security.flaws import BadProofError, Flaw

__all__ = ["Parsed", "decode_part", "encode_part", "parse_json", "parse_token", "unsigned"]

_FORBIDDEN: Final = ("crit", "b64", "zip", "enc", "jwk", "jku", "x5u", "x5c")
"""Headers that change how a token is read, or bring a key of their own."""
_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
_TYPES: Final = ("jwt", "at+jwt", "application/jwt", "application/at+jwt")
_MAX_HEADER_CHARS: Final = 2048
_MAX_KID_CHARS: Final = 255


class Parsed(NamedTuple):
    """A token whose signature has not been verified."""

    algorithm: str
    kid: str | None
    claims: Mapping[str, Any]
    signed: bytes
    """The bytes that are signed."""
    signature: bytes


def parse_token(token: str, max_bytes: int) -> Parsed:
    """Parse a token.

    Raises:
        BadProofError: MALFORMED, or TOO_LARGE: it is longer than ``max_bytes``.
    """
    if len(token) > max_bytes:
        raise BadProofError(Flaw.TOO_LARGE)
    header_text, dot, rest = token.partition(".")
    claims_text, other_dot, signature_text = rest.partition(".")
    if not dot or not other_dot or len(header_text) > _MAX_HEADER_CHARS:
        raise BadProofError(Flaw.MALFORMED)
    signature = decode_part(signature_text)
    header = parse_json(decode_part(header_text))
    algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
    if (
        not isinstance(algorithm, str)
        or not isinstance(kind, str)
        or kind.lower() not in _TYPES
        or ("kid" in header and not (isinstance(kid, str) and 0 < len(kid) <= _MAX_KID_CHARS))
        or any(name in header for name in _FORBIDDEN)
    ):
        raise BadProofError(Flaw.MALFORMED)
    claims = parse_json(decode_part(claims_text))
    return Parsed(algorithm, kid, claims, f"{header_text}.{claims_text}".encode("ascii"), signature)


def decode_part(text: str) -> bytes:
    """Decode canonical base64url without padding.

    Raises:
        BadProofError: MALFORMED, also if it is empty.
    """
    if not _PART.fullmatch(text) or len(text) % 4 == 1:
        raise BadProofError(Flaw.MALFORMED)
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise BadProofError(Flaw.MALFORMED) from error
    if encode_part(data) != text:  # bits beyond the last byte
        raise BadProofError(Flaw.MALFORMED)
    return data


def encode_part(data: bytes) -> str:
    """Encode as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse a JSON object without duplicate members.

    Raises:
        BadProofError: MALFORMED.
    """
    try:
        # Not msgspec: of duplicate members it takes the last one.
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadProofError(Flaw.MALFORMED) from error
    if not isinstance(found, dict):
        raise BadProofError(Flaw.MALFORMED)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate members")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(name)


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any]) -> str:
    """Return the part of a token that is to be signed."""
    return ".".join(
        encode_part(json.dumps(each, separators=(",", ":"), ensure_ascii=False).encode()) for each in (header, claims)
    )
