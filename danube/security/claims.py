"""What the claims of verified tokens mean: the identity of the caller, or a refusal. Pure; the time is passed in.

=========  ===============================  ==========================================================================
profile    signed by                        claims
=========  ===============================  ==========================================================================
CLUSTER    a key of the cluster or a        ``iss``, ``aud`` (the cluster), ``sub`` (``service:orders-api``), ``iat``,
           registered key of a team         ``exp``, ``jti``; maybe ``nbf`` and ``may``; no others
OIDC       a key of the issuer's JWKS       ``iss``, ``aud`` (one of those configured), ``iat``, ``exp``, the claim with
                                            the name; maybe ``nbf``, ``jti``, groups; any others
UPSTREAM   a shared secret                  ``iss``, ``exp``, ``sub``, ``principal_type``, ``principal_name``; maybe
                                            ``iat`` and ``nbf``
=========  ===============================  ==========================================================================

``may`` narrows a token: it has the permissions of the principal that one of its entries, such as
``Produce:/shop/orders``, allows as well. An entry that is not understood refuses the whole token.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from danube.model.errors import InvalidArgumentError
from danube.security.flaws import BadProofError, Flaw
from danube.security.jws import Parsed
from danube.security.keys import Key
from danube.security.limits import YEAR_S, SecurityLimits
from danube.security.permissions import parse_permissions
from danube.security.roles import Grant, Principal, PrincipalType, parse_subject
from danube.security.scopes import parse_scope

__all__ = ["Identity", "OidcClaims", "Profile", "Trusted", "identity_of", "parse_may"]

_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_CLUSTER_CLAIMS: Final = frozenset({"iss", "aud", "sub", "iat", "exp", "jti"})
_MORE_CLUSTER_CLAIMS: Final = frozenset({"nbf", "may"})
_UPSTREAM_TYPES: Final = {"user": PrincipalType.USER, "service_account": PrincipalType.SERVICE}
_MAX_NAME_CHARS: Final = 255


class Profile(Enum):
    """Which claims a token has; see the module."""

    CLUSTER = "cluster"
    OIDC = "oidc"
    UPSTREAM = "upstream"


class OidcClaims(NamedTuple):
    """How the claims of an OIDC issuer name principals and groups.

    The prefix keeps the names of different issuers, and those of the cluster's own principals, apart: without one,
    a user who may choose a name at the issuer could take that of an administrator.
    """

    prefix: str
    """Before each name, for example ``okta/``."""
    name_claim: str = "sub"
    groups_claim: str = ""
    """Claim with a list of groups; empty: groups are not used."""
    type: PrincipalType = PrincipalType.USER


class Trusted(NamedTuple):
    """A key, and the tokens that it may sign."""

    key: Key
    issuer: str
    """The required ``iss``."""
    profile: Profile
    audiences: tuple[str, ...] = ()
    """One of these is required as ``aud``; upstream's tokens have none."""
    ceiling: tuple[Grant, ...] | None = None
    """What its tokens may do at most: of a team's key. None: whatever the principal may do."""
    longest_life_s: float = YEAR_S
    """Longest time between ``iat`` and ``exp`` (without ``iat``: between now and ``exp``)."""
    oidc: OidcClaims | None = None


class Identity(NamedTuple):
    """Who a caller is, and how that was proven."""

    principal: Principal
    kind: str
    """``token``, ``api-key`` or ``certificate``."""
    id: str
    """Of the proof, by which it is revoked and named in audits: ``jti``, the id of the API key, a fingerprint."""
    issuer: str
    """Who vouches for it: the issuer of a token, ``cluster`` for API keys, the kind of name in a certificate."""
    expires_at_s: float = math.inf
    """When the proof ends, by the wall clock."""
    key: str | None = None
    """Id of the key that has signed a token; None: it is no token, or its issuer's secret has no id."""
    algorithm: str = ""
    """Of that key; empty: it is no token."""


def identity_of(
    parsed: Parsed, trusted: Trusted, revoked: Mapping[str, float], now_s: float, limits: SecurityLimits
) -> Identity:
    """Return the identity in a token whose signature is valid.

    Args:
        parsed: the token.
        trusted: the key that has signed it.
        revoked: ids of revoked tokens.
        now_s: the wall clock.
        limits: of tokens.

    Raises:
        BadProofError: the claims are invalid, or the token must not be used now.
    """
    claims = parsed.claims
    if claims.get("iss") != trusted.issuer:
        raise BadProofError(Flaw.CLAIMS)
    _check_audience(claims, trusted)
    expires_at_s = _check_times(claims, trusted, now_s, limits)
    match trusted.profile:
        case Profile.CLUSTER:
            if not _CLUSTER_CLAIMS <= claims.keys() <= _CLUSTER_CLAIMS | _MORE_CLUSTER_CLAIMS:
                raise BadProofError(Flaw.CLAIMS)
            principal = _cluster_principal(claims, limits)
        case Profile.OIDC:
            principal = _oidc_principal(claims, trusted.oidc or OidcClaims(f"{trusted.issuer}/"), limits)
        case Profile.UPSTREAM:
            principal = _upstream_principal(claims)
    if trusted.ceiling is not None:
        principal = principal.limited(trusted.ceiling)
    # Not the signature: that of ECDSA can be changed into another valid one.
    token_id = claims.get("jti", "h-" + hashlib.sha256(parsed.signed).hexdigest()[:32])
    if not isinstance(token_id, str) or not _TOKEN_ID.fullmatch(token_id):
        raise BadProofError(Flaw.CLAIMS)
    if token_id in revoked:
        raise BadProofError(Flaw.REVOKED)
    return Identity(principal, "token", token_id, trusted.issuer, expires_at_s, parsed.kid, parsed.algorithm)


def _check_audience(claims: Mapping[str, Any], trusted: Trusted) -> None:
    if trusted.profile is Profile.UPSTREAM:
        if "aud" in claims:
            raise BadProofError(Flaw.AUDIENCE)
        return
    audience = claims.get("aud")
    if trusted.profile is Profile.OIDC and isinstance(audience, list):
        found = [each for each in audience if isinstance(each, str)]
        if len(found) != len(audience):
            raise BadProofError(Flaw.AUDIENCE)
    else:
        found = [audience] if isinstance(audience, str) else []
    if not any(each in trusted.audiences for each in found):
        raise BadProofError(Flaw.AUDIENCE)


def _check_times(claims: Mapping[str, Any], trusted: Trusted, now_s: float, limits: SecurityLimits) -> float:
    """Return when a token ends."""
    leeway = limits.token_leeway_s
    expires_at_s, begins_at_s = _time(claims, "exp"), _time(claims, "nbf")
    issued_at_s = _time(claims, "iat")
    if expires_at_s is None or (issued_at_s is None and trusted.profile is not Profile.UPSTREAM):
        raise BadProofError(Flaw.CLAIMS)
    if now_s >= expires_at_s + leeway:
        raise BadProofError(Flaw.EXPIRED)
    if any(time is not None and time > now_s + leeway for time in (begins_at_s, issued_at_s)):
        raise BadProofError(Flaw.NOT_YET)
    life_s = expires_at_s - (now_s if issued_at_s is None else issued_at_s)
    if life_s > trusted.longest_life_s or expires_at_s > now_s + limits.max_token_life_s + leeway:
        raise BadProofError(Flaw.TOO_LONG)
    return expires_at_s + leeway


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    if name not in claims:
        return None
    value = claims[name]
    # bool is an int; and JSON has numbers, such as 1e999, that become infinite.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise BadProofError(Flaw.CLAIMS)
    return float(value)


def _cluster_principal(claims: Mapping[str, Any], limits: SecurityLimits) -> Principal:
    subject = claims["sub"]
    if not isinstance(subject, str):
        raise BadProofError(Flaw.NAME)
    principal = _principal(subject)
    if "may" not in claims:
        return principal
    may = claims["may"]
    if not isinstance(may, list) or len(may) > limits.max_token_permissions:
        raise BadProofError(Flaw.CLAIMS)
    try:
        return principal.limited(parse_may(may))
    except InvalidArgumentError as error:
        raise BadProofError(Flaw.CLAIMS) from error


def parse_may(entries: Sequence[Any]) -> tuple[Grant, ...]:
    """Parse the entries of ``may``, each a permission and a scope: ``Produce:/shop/orders``.

    Raises:
        InvalidArgumentError: one is invalid.
    """
    grants = []
    for entry in entries:
        if not isinstance(entry, str):
            raise InvalidArgumentError("an entry of 'may' is no text; use PERMISSION:SCOPE, as in Produce:/shop/orders")
        permission, _, scope = entry.partition(":")
        grants.append(Grant(parse_permissions([permission]), parse_scope(scope)))
    return tuple(grants)


def _principal(subject: str) -> Principal:
    """Return the principal of a subject that can sign in."""
    try:
        type_name, _, name = parse_subject(subject).partition(":")
    except InvalidArgumentError as error:
        raise BadProofError(Flaw.NAME) from error
    kind = PrincipalType(type_name)
    if kind not in (PrincipalType.USER, PrincipalType.SERVICE) or not unicodedata.is_normalized("NFC", name):
        raise BadProofError(Flaw.NAME)
    return Principal(kind, name)


def _named(kind: PrincipalType, name: object) -> str:
    """Return a subject, or refuse a name that is empty, too long, or shows as another one."""
    if not isinstance(name, str) or not name or name != name.strip():
        raise BadProofError(Flaw.NAME)
    return f"{kind.value}:{name}"


def _oidc_principal(claims: Mapping[str, Any], oidc: OidcClaims, limits: SecurityLimits) -> Principal:
    name = claims.get(oidc.name_claim)
    _named(oidc.type, name)
    principal = _principal(f"{oidc.type.value}:{oidc.prefix}{name}")
    groups = claims.get(oidc.groups_claim, []) if oidc.groups_claim else []
    if not isinstance(groups, list) or len(groups) > limits.max_token_groups:
        raise BadProofError(Flaw.CLAIMS)
    found = []
    for group in groups:
        _named(PrincipalType.GROUP, group)
        full = f"{oidc.prefix}{group}"
        if not full.isprintable() or len(full) > _MAX_NAME_CHARS or not unicodedata.is_normalized("NFC", full):
            raise BadProofError(Flaw.NAME)
        found.append(full)
    return msgspec.structs.replace(principal, groups=tuple(dict.fromkeys(found)))


def _upstream_principal(claims: Mapping[str, Any]) -> Principal:
    kind = claims.get("principal_type")
    # broker_internal, among others, is refused: only a certificate makes a broker.
    if not isinstance(kind, str) or kind not in _UPSTREAM_TYPES or not isinstance(claims.get("sub"), str):
        raise BadProofError(Flaw.NAME)
    return _principal(_named(_UPSTREAM_TYPES[kind], claims.get("principal_name")))
