"""Turns credentials into an identity: tokens, API keys and certificates. Pure; the wall clock is passed in.

A credential that is sent counts, and only it: an invalid token is refused, although the connection has a client
certificate. All refusals have the same text (:data:`~danube.security.flaws.NO_PROOF`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from danube.model.errors import ConfigurationError
from danube.model.secret import Secret
from danube.security.api_keys import PREFIX as API_KEY
from danube.security.api_keys import is_secret_of, key_of_basic, parse_api_key
from danube.security.claims import Identity, Profile, Trusted, identity_of
from danube.security.flaws import BadProofError, Flaw
from danube.security.jws import encode_part, parse_token, unsigned
from danube.security.keys import EDDSA, HS256, SigningKey, secret_key
from danube.security.limits import SecurityLimits
from danube.security.roles import Grant, Principal

__all__ = ["ApiKey", "Keyring", "Proofs", "credential_of", "exchange", "mint", "upstream_key"]

_BEARER: Final = "bearer"
_BASIC: Final = "basic"
_EXCHANGED: Final = re.compile(r"key-([0-9A-Za-z]{12})-[0-9A-Za-z_-]{16,64}")
"""Ids of tokens that were made for the holder of an API key."""


class ApiKey(NamedTuple):
    """A stored API key."""

    hash: bytes
    principal: Principal
    expires_at_s: float = math.inf
    ceiling: tuple[Grant, ...] | None = None
    """What it may do at most; None: whatever the principal may do."""


class Keyring:
    """The keys whose tokens are accepted, by issuer and key id: a token is verified with no other key."""

    def __init__(self, trusted: Iterable[tuple[str | None, Trusted]] = ()) -> None:
        self._keys: dict[tuple[str, str | None, str], Trusted] = {}
        self._names: set[tuple[str, str | None]] = set()
        self.issuers: dict[str, Profile] = {}
        """Issuers with at least one key, and the kind of their tokens."""
        for kid, each in trusted:
            self.add(kid, each)

    def add(self, kid: str | None, trusted: Trusted) -> None:
        """Accept tokens of a key.

        Args:
            kid: how its tokens name the key; None: they do not (upstream's).
            trusted: the key.

        Raises:
            ConfigurationError: another key has the same names, or the algorithm does not fit the kind of tokens.
        """
        name = trusted.issuer, kid, trusted.key.algorithm
        is_secret, is_upstream = trusted.key.algorithm == HS256, trusted.profile is Profile.UPSTREAM
        if is_secret != is_upstream or (kid is None) != is_upstream:
            raise ConfigurationError(
                f"issuer {trusted.issuer!r}: HS256 is for upstream's tokens only, and these for it"
            )
        if trusted.profile is Profile.CLUSTER and (trusted.key.algorithm != EDDSA or kid != trusted.key.kid):
            raise ConfigurationError(f"issuer {trusted.issuer!r}: tokens of a cluster are signed with Ed25519")
        if name in self._keys or self.issuers.get(trusted.issuer, trusted.profile) is not trusted.profile:
            raise ConfigurationError(f"issuer {trusted.issuer!r} is configured twice; each needs a name of its own")
        self._keys[name] = trusted
        self._names.add(name[:2])
        self.issuers[trusted.issuer] = trusted.profile

    def get(self, issuer: str, kid: str | None, algorithm: str) -> Trusted | None:
        """Return the key with these names; None if there is none."""
        return self._keys.get((issuer, kid, algorithm))

    def find(self, issuer: object, kid: str | None, algorithm: str) -> Trusted:
        """Return the key for a token.

        Raises:
            BadProofError: ALGORITHM: the key has another one; UNKNOWN_KEY: there is no such key; with
                the issuer, if there are other keys of it.
        """
        if not isinstance(issuer, str):
            raise BadProofError(Flaw.CLAIMS)
        found = self._keys.get((issuer, kid, algorithm))
        if found is None:
            if (issuer, kid) in self._names:
                raise BadProofError(Flaw.ALGORITHM)
            raise BadProofError(Flaw.UNKNOWN_KEY, issuer if issuer in self.issuers else "")
        return found


def upstream_key(issuer: str, secret: str) -> Trusted:
    """Return the key of tokens that upstream's tools make.

    Raises:
        ConfigurationError: the secret is too short.
    """
    text = secret.reveal() if isinstance(secret, Secret) else secret
    return Trusted(secret_key(text.encode()), issuer, Profile.UPSTREAM)


def credential_of(authorization: str) -> str:
    """Return the token or API key in an ``authorization`` header.

    Raises:
        BadProofError: MALFORMED.
    """
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == _BEARER:
        return value
    if scheme.lower() == _BASIC:
        return key_of_basic(value)
    raise BadProofError(Flaw.MALFORMED)


class Proofs:
    """Verifies credentials.

    Args:
        limits: of credentials.
        keyring: the keys of tokens; may be replaced when keys change.
        api_keys: by id.
        revoked: ids of revoked tokens, with the times at which they would have expired.
    """

    def __init__(
        self,
        limits: SecurityLimits,
        keyring: Keyring,
        api_keys: Mapping[str, ApiKey],
        revoked: Mapping[str, float],
    ) -> None:
        self.limits = limits
        self.keyring = keyring
        self.api_keys = api_keys
        self.revoked = revoked

    def identify(
        self, authorization: str | None, certificate: Identity | None, now_s: float, *, is_private: bool
    ) -> Identity:
        """Return the identity of a caller.

        Args:
            authorization: value of the header of this name; None if there is none.
            certificate: the identity in the client certificate of the connection.
            now_s: the wall clock.
            is_private: whether the connection is encrypted or comes from the same machine.

        Raises:
            BadProofError: there is no valid proof.
        """
        if authorization is not None:
            if not is_private:
                raise BadProofError(Flaw.PLAIN_TEXT)
            return self.verify(credential_of(authorization), now_s)
        if certificate is None:
            raise BadProofError(Flaw.MISSING)
        if certificate.expires_at_s <= now_s:
            raise BadProofError(Flaw.EXPIRED)
        if certificate.id in self.revoked:
            raise BadProofError(Flaw.REVOKED)
        return certificate

    def verify(self, credential: str, now_s: float) -> Identity:
        """Return the identity that a token or an API key proves.

        Raises:
            BadProofError: it proves none.
        """
        if credential.startswith(API_KEY):
            return self._verify_api_key(credential, now_s)
        parsed = parse_token(credential, self.limits.max_token_bytes)
        trusted = self.keyring.find(parsed.claims.get("iss"), parsed.kid, parsed.algorithm)
        if not trusted.key.verifies(parsed.signed, parsed.signature):
            raise BadProofError(Flaw.SIGNATURE)
        found = identity_of(parsed, trusted, self.revoked, now_s, self.limits)
        match = _EXCHANGED.fullmatch(found.id)
        if match is None or trusted.profile is not Profile.CLUSTER:
            return found
        stored = self.api_keys.get(match[1])
        if stored is None or str(stored.principal) != str(found.principal):
            raise BadProofError(Flaw.REVOKED)
        if stored.expires_at_s <= now_s:
            raise BadProofError(Flaw.EXPIRED)
        return found._replace(
            principal=_limited(found.principal, stored.ceiling),
            expires_at_s=min(found.expires_at_s, stored.expires_at_s),
        )

    def accepts(self, identity: Identity) -> bool:
        """Whether a proof that was accepted before would be accepted still, apart from its expiry.

        Its token or certificate is not revoked; the key that has signed its token, or its API key, is still there, and
        has the same ceiling.
        """
        if identity.id in self.revoked:
            return False
        if identity.kind == "api-key":
            return self._has_key(identity.id, identity.principal)
        if identity.kind != "token":
            return True
        trusted = self.keyring.get(identity.issuer, identity.key, identity.algorithm)
        if trusted is None or not _has_ceiling(identity.principal, trusted.ceiling):
            return False
        match = _EXCHANGED.fullmatch(identity.id)
        if match is None or trusted.profile is not Profile.CLUSTER:
            return True
        return self._has_key(match[1], identity.principal)

    def _has_key(self, key_id: str, principal: Principal) -> bool:
        """Whether an API key is there, and belongs to a principal with the same ceiling."""
        stored = self.api_keys.get(key_id)
        if stored is None or str(stored.principal) != str(principal):
            return False
        return _has_ceiling(principal, stored.ceiling)

    def _verify_api_key(self, text: str, now_s: float) -> Identity:
        parsed = parse_api_key(text)
        stored = self.api_keys.get(parsed.id)
        if not is_secret_of(parsed, None if stored is None else stored.hash) or stored is None:
            raise BadProofError(Flaw.SECRET)
        if stored.expires_at_s <= now_s:
            raise BadProofError(Flaw.EXPIRED)
        principal = _limited(stored.principal, stored.ceiling)
        return Identity(principal, "api-key", parsed.id, "cluster", stored.expires_at_s)


def _limited(principal: Principal, ceiling: tuple[Grant, ...] | None) -> Principal:
    return principal if ceiling is None else principal.limited(ceiling)


def _has_ceiling(principal: Principal, ceiling: tuple[Grant, ...] | None) -> bool:
    """Whether a principal has a ceiling; a ceiling that was removed since leaves it with less than it could have."""
    return ceiling is None or ceiling in principal.ceilings


def exchange(identity: Identity, key: SigningKey, *, cluster: str, random_id: str, now_s: int, life_s: int) -> str:
    """Return a token for the holder of an API key, as upstream's Java client wants it in place of its key.

    The token lasts for as long as the API key: it ends when that is removed, and has the ceiling that it has.

    Args:
        identity: of the API key.
        key: the broker's own key, which is registered as one of the cluster's.
        cluster: name of the cluster.
        random_id: 16 to 64 random letters and digits.
        now_s: the wall clock.
        life_s: how long the token lasts; that client renews it each 60 minutes.

    Raises:
        BadProofError: the identity was proven by other credentials.
    """
    if identity.kind != "api-key":
        raise BadProofError(Flaw.SECRET)
    return mint(
        key,
        issuer=cluster,
        cluster=cluster,
        subject=str(identity.principal),
        token_id=f"key-{identity.id}-{random_id}",
        issued_at_s=now_s,
        expires_at_s=now_s + life_s,
    )


def mint(
    key: SigningKey,
    *,
    issuer: str,
    cluster: str,
    subject: str,
    token_id: str,
    issued_at_s: int,
    expires_at_s: int,
    may: Iterable[str] | None = None,
) -> str:
    """Return a cluster token.

    Args:
        key: the private key.
        issuer: name of the cluster, or of a team's registered key.
        cluster: name of the cluster.
        subject: ``service:orders-api``.
        token_id: unique and random, for revocation.
        issued_at_s, expires_at_s: wall-clock times.
        may: entries such as ``Produce:/shop/orders`` to which the token is limited; None: not limited.
    """
    claims: dict[str, object] = {
        "iss": issuer,
        "aud": cluster,
        "sub": subject,
        "iat": issued_at_s,
        "exp": expires_at_s,
        "jti": token_id,
    }
    if may is not None:
        claims["may"] = list(may)
    signed = unsigned({"alg": EDDSA, "kid": key.kid, "typ": "JWT"}, claims)
    return f"{signed}.{encode_part(key.sign(signed.encode()))}"
