"""The keys of OIDC issuers: JWKS documents (RFC 7517), and when to read them again. Pure; the time is passed in."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from danube.model.errors import InvalidArgumentError
from danube.security.flaws import BadProofError
from danube.security.jws import parse_json
from danube.security.keys import EDDSA, ES256, RS256, Key, key_of_jwk
from danube.security.limits import SecurityLimits

__all__ = ["OIDC_ALGORITHMS", "JwksRefresh", "KeySet", "parse_jwks"]

OIDC_ALGORITHMS: Final = (RS256, ES256, EDDSA)
"""Algorithms that an OIDC issuer may use. HS256 is not one: its secret would be known to each client."""
_MAX_KID_CHARS: Final = 255


class KeySet(NamedTuple):
    """The usable keys of a document."""

    keys: Mapping[tuple[str, str], Key]
    """By key id (as in the document) and algorithm."""
    skipped: tuple[str, ...]
    """Why each of the other keys cannot be used, for the log."""


def parse_jwks(document: bytes, algorithms: Collection[str], limits: SecurityLimits) -> KeySet:
    """Parse a JWKS document. Keys that cannot be used are skipped, because issuers publish keys for other purposes.

    Args:
        document: JSON.
        algorithms: those that tokens of the issuer may use.
        limits: of the document.

    Raises:
        InvalidArgumentError: it is malformed or too large, or has no usable key.
    """
    if len(document) > limits.max_jwks_bytes:
        raise InvalidArgumentError(
            f"the JWKS document has {len(document)} bytes, and max_jwks_bytes is {limits.max_jwks_bytes}"
        )
    try:
        listed = parse_json(document).get("keys")
    except BadProofError as error:
        raise InvalidArgumentError("the JWKS document is not a JSON object, or has duplicate members") from error
    if not isinstance(listed, list):
        raise InvalidArgumentError("the JWKS document has no list 'keys'")
    if len(listed) > limits.max_jwks_keys:
        raise InvalidArgumentError(
            f"the JWKS document has {len(listed)} keys, and max_jwks_keys is {limits.max_jwks_keys}"
        )
    keys: dict[tuple[str, str], Key] = {}
    ambiguous: set[tuple[str, str]] = set()
    skipped: list[str] = []
    for number, jwk in enumerate(listed):
        kid = jwk.get("kid") if isinstance(jwk, dict) else None
        if not isinstance(kid, str) or not 0 < len(kid) <= _MAX_KID_CHARS:
            skipped.append(f"key {number}: no key id")
            continue
        try:
            key = key_of_jwk(jwk)
        except InvalidArgumentError as error:
            skipped.append(f"key {number}: {error}")
            continue
        name = kid, key.algorithm
        if key.algorithm not in algorithms:
            skipped.append(f"key {number}: tokens of this issuer may not use {key.algorithm}")
        elif name in keys and keys[name].kid != key.kid:
            ambiguous.add(name)
            skipped.append(f"key {number}: another key has the same id")
        else:
            keys[name] = key
    for name in ambiguous:
        del keys[name]
    if not keys:
        raise InvalidArgumentError(f"the JWKS document has no usable key ({'; '.join(skipped[:3]) or 'it is empty'})")
    return KeySet(keys, tuple(skipped))


class JwksRefresh:
    """Decides when the document of one issuer is read. Times are seconds of a clock that never steps back.

    It is read every ``jwks_refresh_s``; earlier if a token names an unknown key or the last attempt failed, but at most
    once in ``jwks_unknown_key_s``. One attempt is made at a time.
    """

    def __init__(self, limits: SecurityLimits) -> None:
        self._limits = limits
        self._attempted_at = -math.inf
        self._read_at = -math.inf
        self._failed = False
        self._unknown_key = False
        self._reading = False

    @property
    def due_at(self) -> float:
        """When the next attempt is to begin; infinity while one is in progress."""
        if self._reading:
            return math.inf
        if self._failed or self._unknown_key:
            return self._attempted_at + self._limits.jwks_unknown_key_s
        return self._read_at + self._limits.jwks_refresh_s

    def begin(self, now: float) -> None:
        """An attempt begins."""
        self._reading, self._attempted_at, self._unknown_key = True, now, False

    def succeeded(self, now: float) -> None:
        """The attempt has read a document with usable keys."""
        self._reading, self._failed, self._read_at = False, False, now

    def failed(self) -> None:
        """The attempt has failed, or was cancelled; keys of the last document stay in use."""
        self._reading, self._failed = False, True

    def unknown_key(self) -> None:
        """A token of the issuer names a key that the document lacks."""
        self._unknown_key = True

    @property
    def stale_at(self) -> float:
        """When the keys must no longer be used, unless the document is read before."""
        return self._read_at + self._limits.jwks_stale_s

    def is_usable(self, now: float) -> bool:
        """Whether the keys may be used: the document was read within ``jwks_stale_s``."""
        return now < self.stale_at
