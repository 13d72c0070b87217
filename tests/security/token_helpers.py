"""A cluster with keys of all kinds, and tokens for it that tests can bend."""

from __future__ import annotations

import json
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from danube.security import Grant, Permission, Principal, PrincipalType, parse_scope
from danube.security.api_keys import RANDOM_BYTES, make_api_key
from danube.security.claims import OidcClaims, Profile, Trusted
from danube.security.jwks import OIDC_ALGORITHMS, parse_jwks
from danube.security.jws import encode_part
from danube.security.keys import ed25519_key, secret_key, signing_key
from danube.security.limits import SecurityLimits
from danube.security.proofs import ApiKey, Keyring, Proofs, mint

NOW = 1_800_000_000
LIMITS = SecurityLimits()
CLUSTER_KEY = signing_key(bytes(range(32)))
TEAM_KEY = signing_key(bytes(range(32, 64)))
STRANGER_KEY = signing_key(bytes(range(64, 96)))
OIDC_ED = signing_key(bytes(range(96, 128)))
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.derive_private_key(123456789, ec.SECP256R1())
SECRET = bytes(range(100, 132))
OIDC = "https://login.example.org"
CEILING = (Grant(Permission.PRODUCE | Permission.LOOKUP | Permission.DESCRIBE, parse_scope("namespace:shop")),)
API_KEY = make_api_key(bytes(range(RANDOM_BYTES)))
OLD_API_KEY = make_api_key(bytes(range(1, RANDOM_BYTES + 1)))


def number(value: int, size: int = 0) -> str:
    return encode_part(value.to_bytes(size or (value.bit_length() + 7) // 8))


def jwks() -> dict[str, Any]:
    n, e = RSA_KEY.public_key().public_numbers().n, RSA_KEY.public_key().public_numbers().e
    point = EC_KEY.public_key().public_numbers()
    return {
        "keys": [
            {"kty": "RSA", "kid": "r1", "use": "sig", "alg": "RS256", "n": number(n), "e": number(e)},
            {"kty": "EC", "kid": "e1", "crv": "P-256", "x": number(point.x, 32), "y": number(point.y, 32)},
            {
                "kty": "OKP",
                "kid": "o1",
                "crv": "Ed25519",
                "x": encode_part(OIDC_ED.public_bytes),
                "key_ops": ["verify"],
            },
        ]
    }


def keyring() -> Keyring:
    found = Keyring()
    cluster = Trusted(ed25519_key(CLUSTER_KEY.public_bytes), "prod", Profile.CLUSTER, ("prod",))
    found.add(CLUSTER_KEY.kid, cluster)
    team = Trusted(
        ed25519_key(TEAM_KEY.public_bytes),
        "shop-team",
        Profile.CLUSTER,
        ("prod",),
        CEILING,
        longest_life_s=30 * 86400.0,
    )
    found.add(TEAM_KEY.kid, team)
    for (kid, _), key in parse_jwks(json.dumps(jwks()).encode(), OIDC_ALGORITHMS, LIMITS).keys.items():
        claims = OidcClaims("login/", name_claim="email", groups_claim="groups")
        found.add(kid, Trusted(key, OIDC, Profile.OIDC, ("danube", "danube-cli"), oidc=claims))
    found.add(None, Trusted(secret_key(SECRET), "danube-auth", Profile.UPSTREAM))
    return found


def proofs(**revoked: float) -> Proofs:
    api = Principal(PrincipalType.SERVICE, "orders-api")
    keys = {
        API_KEY.id: ApiKey(API_KEY.hash, api, ceiling=CEILING),
        OLD_API_KEY.id: ApiKey(OLD_API_KEY.hash, api, expires_at_s=NOW - 1.0),
    }
    return Proofs(LIMITS, keyring(), keys, revoked)


def cluster_claims(**changed: Any) -> dict[str, Any]:
    claims = {
        "iss": "prod",
        "aud": "prod",
        "sub": "service:orders-api",
        "iat": NOW - 60,
        "exp": NOW + 3600,
        "jti": "t-1",
    }
    return {name: value for name, value in {**claims, **changed}.items() if value is not ...}


def oidc_claims(**changed: Any) -> dict[str, Any]:
    claims = {
        "iss": OIDC,
        "aud": ["danube", "other"],
        "sub": "1234",
        "email": "ada@example.org",
        "iat": NOW - 60,
        "exp": NOW + 600,
        "groups": ["platform"],
        "realm_access": {"roles": ["x"]},
    }
    return {name: value for name, value in {**claims, **changed}.items() if value is not ...}


def upstream_claims(**changed: Any) -> dict[str, Any]:
    claims = {
        "iss": "danube-auth",
        "exp": NOW + 3600,
        "sub": "test-app",
        "principal_type": "service_account",
        "principal_name": "test-app",
    }
    return {name: value for name, value in {**claims, **changed}.items() if value is not ...}


def packed(part: Any) -> str:
    """Encode a part: a value as JSON, text or bytes as they are."""
    if isinstance(part, str):
        part = part.encode()
    return encode_part(part if isinstance(part, bytes) else json.dumps(part).encode())


def signed_by(key: Any, header: Any, claims: Any) -> str:
    """Return a token with any header and claims, signed by a private key of any kind or by a secret."""
    text = f"{packed(header)}.{packed(claims)}"
    return f"{text}.{encode_part(signature_of(key, text.encode()))}"


def signature_of(key: Any, data: bytes) -> bytes:
    if isinstance(key, bytes):
        import hmac

        return hmac.digest(key, data, "sha256")
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32) + s.to_bytes(32)
    return key.sign(data)


def cluster_token(header: dict[str, Any] | None = None, key: Any = CLUSTER_KEY, **changed: Any) -> str:
    return signed_by(key, header or {"alg": "EdDSA", "kid": CLUSTER_KEY.kid, "typ": "JWT"}, cluster_claims(**changed))


def oidc_token(kid: str = "r1", **changed: Any) -> str:
    key, algorithm = {"r1": (RSA_KEY, "RS256"), "e1": (EC_KEY, "ES256"), "o1": (OIDC_ED, "EdDSA")}[kid]
    return signed_by(key, {"alg": algorithm, "kid": kid}, oidc_claims(**changed))


def upstream_token(**changed: Any) -> str:
    return signed_by(SECRET, {"alg": "HS256", "typ": "JWT"}, upstream_claims(**changed))


def team_token(subject: str = "service:orders-api", may: list[str] | None = None, life_s: int = 86400) -> str:
    return mint(
        TEAM_KEY,
        issuer="shop-team",
        cluster="prod",
        subject=subject,
        token_id="t-2",
        issued_at_s=NOW,
        expires_at_s=NOW + life_s,
        may=may,
    )


def public_pem(private: Any) -> bytes:
    return private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
