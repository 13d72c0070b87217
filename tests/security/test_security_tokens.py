"""Tokens: good ones of each kind, and forgeries, each of which is refused for its own reason with the same text."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_helpers import P, bind
from token_helpers import (
    CEILING,
    CLUSTER_KEY,
    EC_KEY,
    LIMITS,
    NOW,
    OIDC,
    OIDC_ED,
    RSA_KEY,
    SECRET,
    STRANGER_KEY,
    TEAM_KEY,
    cluster_claims,
    cluster_token,
    jwks,
    number,
    oidc_claims,
    oidc_token,
    packed,
    proofs,
    public_pem,
    signature_of,
    signed_by,
    team_token,
    upstream_claims,
    upstream_token,
)

from danube.model.errors import ConfigurationError, InvalidArgumentError, Status, to_wire
from danube.security import Grant, Permission, Principal, PrincipalType, Resource, Rights, parse_scope
from danube.security.claims import OidcClaims, Profile, Trusted, parse_may
from danube.security.flaws import NO_PROOF, BadProofError, Flaw
from danube.security.jwks import OIDC_ALGORITHMS, JwksRefresh, parse_jwks
from danube.security.jws import encode_part, parse_token
from danube.security.keys import (
    ed25519_key,
    key_of_jwk,
    key_of_pem,
    secret_key,
    signing_key,
    signing_key_of_pem,
)
from danube.security.proofs import Keyring, credential_of, mint

PROOFS = proofs()
HEADER = {"alg": "EdDSA", "kid": CLUSTER_KEY.kid, "typ": "JWT"}
UPSTREAM = {"alg": "HS256", "typ": "JWT"}
BIG = "x" * LIMITS.max_token_bytes
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
ED25519_ORDER = 2**252 + 27742317777372353535851937790883648493


def flaw_of(token: str, now_s: float = NOW, verifier: Any = PROOFS) -> Flaw | None:
    """Return why a token is refused; None if it is accepted."""
    try:
        verifier.verify(token, now_s)
    except BadProofError as error:
        refused = error
    else:
        return None
    assert to_wire(refused) == (Status.UNAUTHENTICATED, "unauthenticated", NO_PROOF, {})
    return refused.flaw


# --- Good tokens -----------------------------------------------------------------------------------------------------


def test_a_cluster_token_proves_its_subject() -> None:
    found = PROOFS.verify(cluster_token(), NOW)
    assert found.principal == Principal(PrincipalType.SERVICE, "orders-api")
    assert (found.kind, found.id, found.issuer, found.expires_at_s) == ("token", "t-1", "prod", NOW + 3630)
    assert PROOFS.verify(cluster_token(sub="user:ada", nbf=NOW), NOW).principal == Principal(PrincipalType.USER, "ada")


def test_a_token_with_may_has_less_than_its_principal() -> None:
    rights = Rights()
    bind(rights, "service:orders-api", "producer", "namespace:shop")
    narrow = PROOFS.verify(cluster_token(may=["Produce:/shop/orders*", "lookup:namespace:shop"]), NOW).principal
    assert rights.allows(narrow, P.PRODUCE, Resource.topic("/shop/orders-eu"))
    assert rights.allows(narrow, P.LOOKUP, Resource.topic("/shop/returns"))
    assert not rights.allows(narrow, P.PRODUCE, Resource.topic("/shop/returns"))
    assert not rights.allows(narrow, P.DESCRIBE, Resource.topic("/shop/orders"))
    nothing = PROOFS.verify(cluster_token(may=[]), NOW).principal
    assert not any(rights.allows(nothing, each, Resource.topic("/shop/orders")) for each in Permission)


def test_a_team_token_has_the_ceiling_of_its_key_and_its_own() -> None:
    found = PROOFS.verify(team_token(may=["Produce:cluster"]), NOW)
    assert found.issuer == "shop-team"
    assert found.principal.ceilings == ((Grant(P.PRODUCE, parse_scope("cluster")),), CEILING)
    rights = Rights()
    bind(rights, "service:orders-api", "producer", "cluster")
    assert rights.allows(found.principal, P.PRODUCE, Resource.topic("/shop/orders"))
    assert not rights.allows(found.principal, P.PRODUCE, Resource.topic("/hr/salaries"))
    assert not rights.allows(found.principal, P.LOOKUP, Resource.topic("/shop/orders"))


@pytest.mark.parametrize("kid", ["r1", "e1", "o1"])
def test_an_oidc_token_proves_a_name_with_the_prefix_of_its_issuer(kid: str) -> None:
    found = PROOFS.verify(oidc_token(kid), NOW)
    assert found.principal == Principal(PrincipalType.USER, "login/ada@example.org", ("login/platform",))
    assert found.principal.subjects == ("user:login/ada@example.org", "group:login/platform")
    assert found.issuer == OIDC
    assert found.id.startswith("h-")
    assert PROOFS.verify(oidc_token(kid, aud="danube-cli", groups=..., jti="j1"), NOW).id == "j1"


def test_an_upstream_token_proves_users_and_services() -> None:
    assert PROOFS.verify(upstream_token(), NOW).principal == Principal(PrincipalType.SERVICE, "test-app")
    user = PROOFS.verify(upstream_token(principal_type="user", principal_name="ada", iat=NOW), NOW).principal
    assert user == Principal(PrincipalType.USER, "ada")


def test_pyjwt_agrees() -> None:
    """Another implementation makes tokens that we accept, and accepts those that we make."""
    claims = cluster_claims(may=["Produce:/shop/orders"])
    private = CLUSTER_KEY.private_pem()
    made = jwt.encode(claims, private, algorithm="EdDSA", headers={"kid": CLUSTER_KEY.kid})
    assert flaw_of(made) is None
    for kid, key in (("r1", RSA_KEY), ("e1", EC_KEY)):
        algorithm = {"r1": "RS256", "e1": "ES256"}[kid]
        assert flaw_of(jwt.encode(oidc_claims(), key, algorithm=algorithm, headers={"kid": kid})) is None
    assert flaw_of(jwt.encode(upstream_claims(), SECRET, algorithm="HS256")) is None
    ours = team_token(may=["Produce:/shop/orders"])
    options: Any = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
    read = jwt.decode(ours, TEAM_KEY.public_pem(), algorithms=["EdDSA"], audience="prod", options=options)
    assert read["may"] == ["Produce:/shop/orders"]
    with pytest.raises(jwt.InvalidTokenError):
        jwt.decode(ours, CLUSTER_KEY.public_pem(), algorithms=["EdDSA"], audience="prod", options=options)


# --- Forgeries -------------------------------------------------------------------------------------------------------


def _flipped(token: str, part: int) -> str:
    parts = token.split(".")
    data = bytearray(base64.urlsafe_b64decode(parts[part] + "=="))
    data[len(data) // 2] ^= 1
    parts[part] = encode_part(bytes(data))
    return ".".join(parts)


def _with_signature(token: str, signature: str) -> str:
    return token.rpartition(".")[0] + "." + signature


def _signature() -> bytes:
    return base64.urlsafe_b64decode(cluster_token().rpartition(".")[2] + "==")


def _last_bits(token: str) -> str:
    """Return the token with a bit set that is beyond the last byte of its signature (64 bytes leave 4 of them)."""
    return token[:-1] + {"A": "B", "Q": "R", "g": "h", "w": "x"}[token[-1]]


def _malleable_ed25519() -> str:
    """Return a token whose signature has S + L in place of S, which verifies if S is not checked."""
    token = cluster_token()
    signature = base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")
    raised = int.from_bytes(signature[32:], "little") + ED25519_ORDER
    return _with_signature(token, encode_part(signature[:32] + raised.to_bytes(32, "little")))


def _der_signature() -> str:
    """Return an ES256 token with the signature in DER, as certificates have it."""
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    token = oidc_token("e1")
    signature = base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")
    der = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
    return _with_signature(token, encode_part(der))


_DUPLICATE = json.dumps(cluster_claims())[:-1] + ', "sub": "user:root"}'
_ESCAPED_DUPLICATE = json.dumps(cluster_claims())[:-1] + ', "s\\u0075b": "user:root"}'
_PEM = public_pem(RSA_KEY)

FORGERIES: dict[str, tuple[str, Flaw]] = {
    # The algorithm
    "alg none, no signature": (f"{packed({'alg': 'none'})}.{packed(cluster_claims())}.", Flaw.MALFORMED),
    "alg none, with a signature": (cluster_token({"alg": "none", "kid": CLUSTER_KEY.kid}), Flaw.ALGORITHM),
    "alg NONE": (cluster_token({"alg": "NONE", "kid": CLUSTER_KEY.kid}), Flaw.ALGORITHM),
    "alg in another case": (cluster_token({"alg": "eddsa", "kid": CLUSTER_KEY.kid}), Flaw.ALGORITHM),
    "no alg": (cluster_token({"kid": CLUSTER_KEY.kid}), Flaw.MALFORMED),
    "alg is a list": (cluster_token({"alg": ["EdDSA"], "kid": CLUSTER_KEY.kid}), Flaw.MALFORMED),
    "HS256 with the public key as secret": (
        signed_by(CLUSTER_KEY.public_bytes, {"alg": "HS256", "kid": CLUSTER_KEY.kid}, cluster_claims()),
        Flaw.ALGORITHM,
    ),
    "HS256 with the public PEM as secret, OIDC": (
        signed_by(_PEM, {"alg": "HS256", "kid": "r1"}, oidc_claims()),
        Flaw.ALGORITHM,
    ),
    "HS256 with an empty secret": (signed_by(b"", UPSTREAM, upstream_claims()), Flaw.SIGNATURE),
    "HS256 with the right secret for the cluster": (signed_by(SECRET, UPSTREAM, cluster_claims()), Flaw.UNKNOWN_KEY),
    "RS384 in place of RS256": (signed_by(RSA_KEY, {"alg": "RS384", "kid": "r1"}, oidc_claims()), Flaw.ALGORITHM),
    # Keys
    "key of a stranger": (cluster_token(key=STRANGER_KEY), Flaw.SIGNATURE),
    "unknown kid": (cluster_token({"alg": "EdDSA", "kid": STRANGER_KEY.kid}, key=STRANGER_KEY), Flaw.UNKNOWN_KEY),
    "no kid": (cluster_token({"alg": "EdDSA"}), Flaw.UNKNOWN_KEY),
    "kid is null": (cluster_token({"alg": "EdDSA", "kid": None}), Flaw.MALFORMED),
    "kid is empty": (cluster_token({"alg": "EdDSA", "kid": ""}), Flaw.MALFORMED),
    "kid is a path": (cluster_token({"alg": "EdDSA", "kid": "../../dev/null"}), Flaw.UNKNOWN_KEY),
    "kid is SQL": (cluster_token({"alg": "EdDSA", "kid": "x' UNION SELECT 'secret"}), Flaw.UNKNOWN_KEY),
    "kid is huge": (cluster_token({"alg": "EdDSA", "kid": "k" * 300}), Flaw.MALFORMED),
    "a key of its own": (cluster_token({**HEADER, "jwk": jwks()["keys"][2]}, key=OIDC_ED), Flaw.MALFORMED),
    "a URL of keys": (cluster_token({**HEADER, "jku": "https://evil.example"}), Flaw.MALFORMED),
    "a certificate of its own": (cluster_token({**HEADER, "x5c": ["MIIB"]}), Flaw.MALFORMED),
    "crit": (cluster_token({**HEADER, "crit": ["exp"]}), Flaw.MALFORMED),
    "unencoded payload": (cluster_token({**HEADER, "b64": False}), Flaw.MALFORMED),
    "compressed": (cluster_token({**HEADER, "zip": "DEF"}), Flaw.MALFORMED),
    "another type": (cluster_token({**HEADER, "typ": "dpop+jwt"}), Flaw.MALFORMED),
    "a team's key for the cluster's name": (
        cluster_token({"alg": "EdDSA", "kid": TEAM_KEY.kid}, key=TEAM_KEY),
        Flaw.UNKNOWN_KEY,
    ),
    "an OIDC key for the cluster's name": (cluster_token({"alg": "EdDSA", "kid": "o1"}, key=OIDC_ED), Flaw.UNKNOWN_KEY),
    "the cluster's key for an OIDC name": (signed_by(CLUSTER_KEY, HEADER, oidc_claims()), Flaw.UNKNOWN_KEY),
    # The signature
    "a bit of the signature": (_flipped(cluster_token(), 2), Flaw.SIGNATURE),
    "a bit of the claims": (_flipped(cluster_token(sub="service:" + "a" * 200), 1), Flaw.SIGNATURE),
    "truncated signature": (_with_signature(cluster_token(), encode_part(_signature()[:-1])), Flaw.SIGNATURE),
    "longer signature": (_with_signature(cluster_token(), encode_part(_signature() + b"x")), Flaw.SIGNATURE),
    "truncated signature, HS256": (_with_signature(upstream_token(), encode_part(b"x")), Flaw.SIGNATURE),
    "signature of other claims": (
        _with_signature(cluster_token(sub="user:root"), cluster_token().rpartition(".")[2]),
        Flaw.SIGNATURE,
    ),
    "zero signature": (_with_signature(cluster_token(), encode_part(bytes(64))), Flaw.SIGNATURE),
    "zero signature, ES256": (_with_signature(oidc_token("e1"), encode_part(bytes(64))), Flaw.SIGNATURE),
    "signature in DER": (_der_signature(), Flaw.SIGNATURE),
    "S + L": (_malleable_ed25519(), Flaw.SIGNATURE),
    # The form
    "empty": ("", Flaw.MALFORMED),
    "two parts": (cluster_token().rpartition(".")[0], Flaw.MALFORMED),
    "four parts": (cluster_token() + ".x", Flaw.MALFORMED),
    "five parts, as if encrypted": (cluster_token() + ".eHh4.eHh4", Flaw.MALFORMED),
    "JSON serialisation": (json.dumps({"payload": "x", "signatures": []}), Flaw.MALFORMED),
    "padding": (cluster_token() + "==", Flaw.MALFORMED),
    "standard alphabet": (_with_signature(cluster_token(), "+/" * 43), Flaw.MALFORMED),
    "white space": (cluster_token() + " ", Flaw.MALFORMED),
    "line feed at the end": (cluster_token() + "\n", Flaw.MALFORMED),
    "line feed inside": (cluster_token().replace(".", ".\n", 1), Flaw.MALFORMED),
    "bits beyond the last byte": (_last_bits(cluster_token()), Flaw.MALFORMED),
    "not ASCII": (cluster_token().replace(".", ".ä", 1), Flaw.MALFORMED),
    "full-width letters": ("\uff45" + cluster_token()[1:], Flaw.MALFORMED),
    "huge": (cluster_token(jti=BIG), Flaw.TOO_LARGE),
    "huge header": (cluster_token({**HEADER, "x": "x" * 3000}), Flaw.MALFORMED),
    "header is no object": (signed_by(CLUSTER_KEY, [HEADER], cluster_claims()), Flaw.MALFORMED),
    "claims are no object": (signed_by(CLUSTER_KEY, HEADER, [cluster_claims()]), Flaw.MALFORMED),
    "claims are no JSON": (signed_by(CLUSTER_KEY, HEADER, b"\xff{}"), Flaw.MALFORMED),
    "claims with text behind": (signed_by(CLUSTER_KEY, HEADER, json.dumps(cluster_claims()) + "{}"), Flaw.MALFORMED),
    "duplicate claims": (signed_by(CLUSTER_KEY, HEADER, _DUPLICATE), Flaw.MALFORMED),
    "duplicate claims, escaped": (signed_by(CLUSTER_KEY, HEADER, _ESCAPED_DUPLICATE), Flaw.MALFORMED),
    "duplicate alg": (
        signed_by(CLUSTER_KEY, f'{{"alg":"none","alg":"EdDSA","kid":"{CLUSTER_KEY.kid}"}}', cluster_claims()),
        Flaw.MALFORMED,
    ),
    "deeply nested": (signed_by(CLUSTER_KEY, HEADER, b"[" * 5000), Flaw.MALFORMED),
    "nested claims": (signed_by(CLUSTER_KEY, HEADER, {"iss": {"iss": "prod"}}), Flaw.CLAIMS),
    "a number that is none": (
        signed_by(CLUSTER_KEY, HEADER, json.dumps(cluster_claims(exp=float("nan")))),
        Flaw.MALFORMED,
    ),
    "endless digits": (
        signed_by(CLUSTER_KEY, HEADER, json.dumps(cluster_claims(exp=0)).replace(": 0", ": " + "9" * 5000)),
        Flaw.MALFORMED,
    ),
    # Times
    "expired": (cluster_token(exp=NOW - 30), Flaw.EXPIRED),
    "expired long ago, OIDC": (oidc_token(exp=NOW - 86400, iat=NOW - 90000), Flaw.EXPIRED),
    "expired, upstream": (upstream_token(exp=NOW - 31), Flaw.EXPIRED),
    "issued in the future": (cluster_token(iat=NOW + 31), Flaw.NOT_YET),
    "not before": (cluster_token(nbf=NOW + 31), Flaw.NOT_YET),
    "no exp": (cluster_token(exp=...), Flaw.CLAIMS),
    "no exp, upstream": (upstream_token(exp=...), Flaw.CLAIMS),
    "no iat": (cluster_token(iat=...), Flaw.CLAIMS),
    "exp is text": (cluster_token(exp=str(NOW + 60)), Flaw.CLAIMS),
    "exp is true": (cluster_token(exp=True), Flaw.CLAIMS),
    "exp is null": (cluster_token(exp=None), Flaw.CLAIMS),
    "exp is infinite": (
        signed_by(CLUSTER_KEY, HEADER, json.dumps(cluster_claims(exp=0)).replace('"exp": 0', '"exp": 1e999')),
        Flaw.CLAIMS,
    ),
    "exp is negative": (cluster_token(exp=-1), Flaw.CLAIMS),
    "exp in a thousand years": (cluster_token(exp=NOW + 1000 * 366 * 86400), Flaw.TOO_LONG),
    "upstream's exp in ten years": (upstream_token(exp=NOW + 10 * 366 * 86400), Flaw.TOO_LONG),
    "longer than the team may": (team_token(life_s=31 * 86400), Flaw.TOO_LONG),
    "iat long ago, to be valid for longer": (cluster_token(iat=NOW - 370 * 86400), Flaw.TOO_LONG),
    # Names
    "another cluster": (cluster_token(aud="staging"), Flaw.AUDIENCE),
    "no aud": (cluster_token(aud=...), Flaw.AUDIENCE),
    "many aud": (cluster_token(aud=["prod"]), Flaw.AUDIENCE),
    "aud of another application": (oidc_token(aud=["other"]), Flaw.AUDIENCE),
    "aud with a part of the name": (oidc_token(aud="danub"), Flaw.AUDIENCE),
    "aud with a number": (oidc_token(aud=["danube", 7]), Flaw.AUDIENCE),
    "no aud, OIDC": (oidc_token(aud=...), Flaw.AUDIENCE),
    "aud in upstream's": (upstream_token(aud="prod"), Flaw.AUDIENCE),
    "another issuer": (cluster_token(iss="staging"), Flaw.UNKNOWN_KEY),
    "no iss": (cluster_token(iss=...), Flaw.CLAIMS),
    "iss is a list": (cluster_token(iss=["prod"]), Flaw.CLAIMS),
    "iss with a slash": (oidc_token(iss=OIDC + "/"), Flaw.UNKNOWN_KEY),
    "another iss, upstream": (upstream_token(iss="somebody"), Flaw.UNKNOWN_KEY),
    "no sub": (cluster_token(sub=...), Flaw.CLAIMS),
    "sub is a number": (cluster_token(sub=7), Flaw.NAME),
    "sub is a broker": (cluster_token(sub="broker:b1"), Flaw.NAME),
    "sub is a group": (cluster_token(sub="group:admins"), Flaw.NAME),
    "sub without a type": (cluster_token(sub="root"), Flaw.NAME),
    "sub with a line feed": (cluster_token(sub="user:root\n"), Flaw.NAME),
    "sub that is not NFC": (cluster_token(sub="user:ada\u0301"), Flaw.NAME),
    "no jti": (cluster_token(jti=...), Flaw.CLAIMS),
    "jti is a number": (cluster_token(jti=7), Flaw.CLAIMS),
    "jti is a path": (cluster_token(jti="../x"), Flaw.CLAIMS),
    "another claim": (cluster_token(roles=["admin"]), Flaw.CLAIMS),
    "may is text": (cluster_token(may="Produce:cluster"), Flaw.CLAIMS),
    "may with an unknown permission": (cluster_token(may=["Fly:cluster"]), Flaw.CLAIMS),
    "may with a permission of brokers": (cluster_token(may=["BrokerInternal:cluster"]), Flaw.CLAIMS),
    "may without a scope": (cluster_token(may=["Produce"]), Flaw.CLAIMS),
    "may with a number": (cluster_token(may=[7]), Flaw.CLAIMS),
    "too many may": (cluster_token(may=["Produce:/a/b"] * 65), Flaw.CLAIMS),
    "broker_internal": (upstream_token(principal_type="broker_internal", principal_name="b1"), Flaw.NAME),
    "no principal type": (upstream_token(principal_type=...), Flaw.NAME),
    "principal type is a list": (upstream_token(principal_type=["user"]), Flaw.NAME),
    "no principal name": (upstream_token(principal_name=...), Flaw.NAME),
    "no sub, upstream": (upstream_token(sub=...), Flaw.NAME),
    "kid in upstream's": (signed_by(SECRET, {**UPSTREAM, "kid": "x"}, upstream_claims()), Flaw.UNKNOWN_KEY),
    "no name, OIDC": (oidc_token(email=...), Flaw.NAME),
    "empty name, OIDC": (oidc_token(email=""), Flaw.NAME),
    "blank name, OIDC": (oidc_token(email=" "), Flaw.NAME),
    "name is a list, OIDC": (oidc_token(email=["ada"]), Flaw.NAME),
    "groups are text": (oidc_token(groups="platform"), Flaw.CLAIMS),
    "a group is a number": (oidc_token(groups=[1]), Flaw.NAME),
    "a group with a line feed": (oidc_token(groups=["a\nb"]), Flaw.NAME),
    "too many groups": (oidc_token(groups=[str(n) for n in range(257)]), Flaw.CLAIMS),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused(name: str) -> None:
    token, flaw = FORGERIES[name]
    assert flaw_of(token) is flaw


def test_there_are_forty_forgeries() -> None:
    assert len(FORGERIES) > 100
    assert flaw_of(cluster_token()) is flaw_of(oidc_token()) is flaw_of(upstream_token()) is None


GOOD = [cluster_token(may=["Produce:/shop/orders"]), team_token(), *map(oidc_token, ("r1", "o1")), upstream_token()]
"""Not ES256: its signatures can be changed into other valid ones, see below."""
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \n"


@given(token=st.sampled_from(GOOD), place=st.integers(0, 10_000), character=st.sampled_from(_ALPHABET))
def test_a_token_with_another_character_is_refused(token: str, place: int, character: str) -> None:
    place %= len(token)
    changed = token[:place] + character + token[place + 1 :]
    assert (flaw_of(changed) is None) == (changed == token)


@given(
    token=st.sampled_from(GOOD),
    start=st.integers(0, 10_000),
    length=st.integers(0, 40),
    text=st.text(_ALPHABET, max_size=6),
)
def test_a_token_with_a_piece_replaced_is_refused(token: str, start: int, length: int, text: str) -> None:
    start %= len(token) + 1
    changed = token[:start] + text + token[start + length :]
    assert (flaw_of(changed) is None) == (changed == token)


@given(st.one_of(st.text(), st.text(_ALPHABET), st.binary().map(lambda data: f"{encode_part(data)}.e30.AA")))
def test_any_text_is_refused_without_another_exception(text: str) -> None:
    assert flaw_of(text) is not None


@given(
    claims=st.dictionaries(
        st.sampled_from(
            [
                "iss",
                "aud",
                "sub",
                "iat",
                "exp",
                "nbf",
                "jti",
                "may",
                "groups",
                "email",
                "principal_type",
                "principal_name",
            ]
        ),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False)
            | st.text()
            | st.sampled_from(["prod", OIDC]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
            max_leaves=5,
        ),
    )
)
def test_claims_of_any_type_are_refused_without_another_exception(claims: dict[str, Any]) -> None:
    for token in (oidc_token("o1", **claims), upstream_token(**claims)):
        flaw_of(token)
    if flaw_of(cluster_token(**claims)) is None:
        changed = {name for name, value in claims.items() if cluster_claims().get(name, ...) != value}
        assert changed <= {"iat", "exp", "nbf", "jti", "may"}


def test_another_valid_signature_of_ecdsa_is_no_other_token() -> None:
    """Its holder may compute a second signature; revoking the token by its id must refuse that one, too."""
    token = oidc_token("e1")
    signature = base64.urlsafe_b64decode(token.rpartition(".")[2] + "==")
    other = signature[:32] + (P256_ORDER - int.from_bytes(signature[32:])).to_bytes(32)
    twin = _with_signature(token, encode_part(other))
    assert twin != token
    first, second = PROOFS.verify(token, NOW), PROOFS.verify(twin, NOW)
    assert first == second
    revoking = proofs(**{first.id: NOW + 600.0})
    assert flaw_of(token, verifier=revoking) is flaw_of(twin, verifier=revoking) is Flaw.REVOKED


@pytest.mark.parametrize(
    ("token", "issuer"),
    [
        (signed_by(RSA_KEY, {"alg": "RS256", "kid": "new"}, oidc_claims()), OIDC),
        (signed_by(RSA_KEY, {"alg": "RS256", "kid": "new"}, oidc_claims(iss="https://evil.example")), ""),
        (signed_by(RSA_KEY, {"alg": "ES256", "kid": "r1"}, oidc_claims()), ""),
        (oidc_token(exp=NOW - 60), ""),
    ],
)
def test_an_unknown_key_of_a_known_issuer_is_a_reason_to_read_its_keys_again(token: str, issuer: str) -> None:
    with pytest.raises(BadProofError) as caught:
        PROOFS.verify(token, NOW)
    assert caught.value.issuer == issuer


def test_a_revoked_token_is_refused() -> None:
    revoking = proofs(**{"t-1": NOW + 600.0})
    assert flaw_of(cluster_token(), verifier=revoking) is Flaw.REVOKED
    assert flaw_of(cluster_token(jti="t-3"), verifier=revoking) is None


def test_clocks_may_differ_a_little() -> None:
    token = cluster_token()
    assert flaw_of(token, NOW + 3629) is None
    assert flaw_of(token, NOW + 3630) is Flaw.EXPIRED
    assert flaw_of(cluster_token(iat=NOW + 30, nbf=NOW + 30)) is None
    assert flaw_of(team_token(life_s=30 * 86400)) is None


# --- Keys ------------------------------------------------------------------------------------------------------------

_PRIME = 2**255 - 19
_D = -121665 * pow(121666, -1, _PRIME) % _PRIME


def _add(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (a, b), (c, d) = one, other
    product = _D * a * b * c * d % _PRIME
    x = (a * d + b * c) * pow(1 + product, -1, _PRIME) % _PRIME
    return x, (b * d + a * c) * pow(1 - product, -1, _PRIME) % _PRIME


def _points_of_small_order() -> set[int]:
    """Return y of all points P with 8 P = 0, from points of order 8 L: L P for arbitrary points P."""
    found: set[int] = set()
    for y in range(2, 60):
        square = (y * y - 1) * pow(_D * y * y + 1, -1, _PRIME) % _PRIME
        x = pow(square, (_PRIME + 3) // 8, _PRIME)
        if x * x % _PRIME != square:
            x = x * pow(2, (_PRIME - 1) // 4, _PRIME) % _PRIME
        if x * x % _PRIME != square:
            continue
        point, product, factor = (x, y), (0, 1), ED25519_ORDER
        while factor:
            if factor & 1:
                product = _add(product, point)
            point, factor = _add(point, point), factor >> 1
        found.add(product[1])
    return found


def test_points_of_small_order_are_no_keys() -> None:
    """For such a key, the signature (R = point, S = 0) is valid for one of a few messages: anybody finds one."""
    small = _points_of_small_order()
    assert len(small) == 5  # y of the eight points: 1, -1, 0, and two of order 8
    for y in small | {1 + _PRIME, _PRIME}:
        for sign in (0, 1 << 255):
            with pytest.raises(InvalidArgumentError, match="small order"):
                ed25519_key((y | sign).to_bytes(32, "little"))


def test_keys_have_thumbprints_and_show_no_secrets() -> None:
    key = key_of_pem(CLUSTER_KEY.public_pem())
    assert (key.algorithm, key.kid) == ("EdDSA", CLUSTER_KEY.kid)
    assert len(CLUSTER_KEY.kid) == 22
    assert signing_key_of_pem(CLUSTER_KEY.private_pem()).kid == CLUSTER_KEY.kid
    rsa_key, ec_key = key_of_pem(public_pem(RSA_KEY).decode()), key_of_pem(public_pem(EC_KEY).decode())
    assert (rsa_key.algorithm, ec_key.algorithm) == ("RS256", "ES256")
    assert len({key.kid, rsa_key.kid, ec_key.kid}) == 3
    assert rsa_key.kid == key_of_jwk(jwks()["keys"][0]).kid
    shown = [repr(each) for each in (key, rsa_key, CLUSTER_KEY, secret_key(SECRET))]
    assert shown == [
        f"Key(EdDSA, {key.kid})",
        f"Key(RS256, {rsa_key.kid})",
        f"SigningKey({key.kid})",
        "Key(HS256, ***)",
    ]


def test_unusable_keys_are_refused() -> None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa

    for text in ("", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"):
        with pytest.raises(InvalidArgumentError, match="PEM"):
            key_of_pem(text)
    with pytest.raises(InvalidArgumentError, match="2048"):
        key_of_pem(public_pem(rsa.generate_private_key(65537, 1024)).decode())
    with pytest.raises(InvalidArgumentError, match="secp384r1"):
        key_of_pem(public_pem(ec.generate_private_key(ec.SECP384R1())).decode())
    with pytest.raises(InvalidArgumentError, match="unsupported kind"):
        key_of_pem(public_pem(ed448.Ed448PrivateKey.generate()).decode())
    with pytest.raises(InvalidArgumentError, match="32 bytes"):
        ed25519_key(bytes(31))
    with pytest.raises(ConfigurationError, match="31 bytes"):
        secret_key(bytes(31))
    for pem in ("secret-marker", public_pem(RSA_KEY).decode()):
        with pytest.raises(ConfigurationError, match="PEM form") as caught:
            signing_key_of_pem(pem)
        assert "secret-marker" not in str(caught.value)
    from cryptography.hazmat.primitives import serialization

    private = EC_KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(ConfigurationError, match="not an Ed25519 key"):
        signing_key_of_pem(private.decode())


def test_a_keyring_mixes_nothing_up() -> None:
    ring = Keyring()
    cluster = Trusted(ed25519_key(CLUSTER_KEY.public_bytes), "prod", Profile.CLUSTER, ("prod",))
    ring.add(CLUSTER_KEY.kid, cluster)
    ring.add(TEAM_KEY.kid, cluster._replace(key=ed25519_key(TEAM_KEY.public_bytes)))  # a second key of the same issuer
    refused: list[tuple[str | None, Trusted]] = [
        (CLUSTER_KEY.kid, cluster),
        ("chosen", cluster._replace(key=ed25519_key(STRANGER_KEY.public_bytes))),
        (None, cluster._replace(key=ed25519_key(STRANGER_KEY.public_bytes))),
        ("x", cluster._replace(key=ed25519_key(STRANGER_KEY.public_bytes), profile=Profile.OIDC)),
        ("x", Trusted(secret_key(SECRET), "okta", Profile.OIDC)),
        ("x", Trusted(secret_key(SECRET), "up", Profile.UPSTREAM)),
        (None, Trusted(ed25519_key(STRANGER_KEY.public_bytes), "up", Profile.UPSTREAM)),
        (key_of_jwk(jwks()["keys"][0]).kid, Trusted(key_of_jwk(jwks()["keys"][0]), "rsa", Profile.CLUSTER)),
    ]
    for kid, trusted in refused:
        with pytest.raises(ConfigurationError, match="issuer"):
            ring.add(kid, trusted)
    assert ring.issuers == {"prod": Profile.CLUSTER}


def test_without_a_configured_prefix_the_issuer_is_the_prefix() -> None:
    ring = Keyring([("o1", Trusted(ed25519_key(OIDC_ED.public_bytes), OIDC, Profile.OIDC, ("danube",)))])
    verifier = proofs()
    verifier.keyring = ring
    assert verifier.verify(oidc_token("o1"), NOW).principal == Principal(PrincipalType.USER, f"{OIDC}/1234")
    assert OidcClaims("x/").name_claim == "sub"


class TestJwks:
    def parse(self, *keys: Any, **more: Any) -> Any:
        return parse_jwks(json.dumps({"keys": list(keys), **more}).encode(), OIDC_ALGORITHMS, LIMITS)

    def test_keys_are_named_by_id_and_algorithm(self) -> None:
        found = self.parse(*jwks()["keys"], extra="ignored")
        assert set(found.keys) == {("r1", "RS256"), ("e1", "ES256"), ("o1", "EdDSA")}
        assert found.skipped == ()
        signed = b"data"
        for (kid, _), key in found.keys.items():
            private = {"r1": RSA_KEY, "e1": EC_KEY, "o1": OIDC_ED}[kid]
            assert key.verifies(signed, signature_of(private, signed))
            assert not key.verifies(b"other", signature_of(private, signed))

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"kid": ...}, "no key id"),
            ({"kid": 7}, "no key id"),
            ({"kid": ""}, "no key id"),
            ({"kid": "k" * 256}, "no key id"),
            ({"use": "enc"}, "not for signatures"),
            ({"key_ops": ["encrypt"]}, "not for verifying"),
            ({"key_ops": "verify"}, "not for verifying"),
            ({"alg": "RS512"}, "unsupported algorithm"),
            ({"d": "AQ"}, "private"),
            ({"kty": "oct", "k": encode_part(SECRET)}, "private or symmetric"),
            ({"kty": "oct"}, "unsupported kind"),
            ({"kty": ["RSA"]}, "unsupported kind"),
            ({"n": "AQAB"}, "malformed|2048"),
            ({"n": 7}, "malformed"),
            ({"n": "A=="}, "malformed"),
            ({"n": number(1 << 9000)}, "8192"),
            ({"e": number(1 << 40)}, "exponent"),
            ({"e": number(4)}, "exponent|malformed"),
            ({"e": number(1 << 32)}, "exponent"),
            ({"alg": "Ed25519"}, "unsupported algorithm"),
            ({"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}, "malformed"),
            ({"kty": "EC", "crv": "secp256k1", "x": "AQ", "y": "AQ"}, "unsupported kind"),
            ({"kty": "OKP", "crv": "Ed25519", "x": encode_part(bytes(32)), "alg": "EdDSA"}, "small order"),
            ({"kty": "OKP", "crv": "X25519", "x": encode_part(bytes(32))}, "unsupported kind"),
        ],
    )
    def test_unusable_keys_are_skipped_and_the_others_are_used(self, change: dict[str, Any], why: str) -> None:
        import re

        bad = {name: value for name, value in {**jwks()["keys"][0], "kid": "bad", **change}.items() if value is not ...}
        found = self.parse(bad, jwks()["keys"][2], "text")
        assert set(found.keys) == {("o1", "EdDSA")}
        assert re.search(why, found.skipped[0])
        assert found.skipped[1] == "key 2: no key id"

    def test_two_keys_with_one_id_are_both_skipped_unless_they_are_the_same(self) -> None:
        first = jwks()["keys"][2]
        other = {**first, "x": encode_part(CLUSTER_KEY.public_bytes)}
        assert set(self.parse(first, first).keys) == {("o1", "EdDSA")}
        found = self.parse(first, other, jwks()["keys"][0])
        assert set(found.keys) == {("r1", "RS256")}
        assert found.skipped == ("key 1: another key has the same id",)
        # An algorithm has two names (RFC 9864), and different algorithms are different keys.
        for name in ("EdDSA", "Ed25519"):
            assert set(self.parse({**first, "alg": name}).keys) == {("o1", "EdDSA")}
        assert len(self.parse(first, {**jwks()["keys"][0], "kid": "o1"}).keys) == 2

    def test_algorithms_are_limited_by_the_issuer(self) -> None:
        document = json.dumps(jwks()).encode()
        assert set(parse_jwks(document, ["ES256"], LIMITS).keys) == {("e1", "ES256")}

    @pytest.mark.parametrize(
        ("document", "why"),
        [
            (b"", "not a JSON object"),
            (b"[]", "not a JSON object"),
            (b'{"keys": [], "keys": []}', "duplicate"),
            (b"{}", "no list 'keys'"),
            (b'{"keys": {}}', "no list 'keys'"),
            (b'{"keys": []}', "it is empty"),
            (json.dumps({"keys": [{}] * 101}).encode(), "max_jwks_keys is 100"),
            (b" " * 300_000, "max_jwks_bytes is 262144"),
            (b'{"keys": [7]}', "key 0: no key id"),
        ],
    )
    def test_documents_without_usable_keys_are_refused(self, document: bytes, why: str) -> None:
        with pytest.raises(InvalidArgumentError, match=why):
            parse_jwks(document, OIDC_ALGORITHMS, LIMITS)


class TestRefresh:
    def test_a_document_is_read_at_once_and_every_ten_minutes(self) -> None:
        machine = JwksRefresh(LIMITS)
        assert machine.due_at <= 0
        assert not machine.is_usable(5)
        machine.begin(10)
        assert machine.due_at == float("inf")
        machine.succeeded(11)
        assert machine.due_at == 611
        assert machine.is_usable(11)

    def test_an_unknown_key_reads_earlier_but_not_often(self) -> None:
        machine = JwksRefresh(LIMITS)
        machine.begin(10)
        machine.succeeded(11)
        for _ in range(1000):
            machine.unknown_key()
        assert machine.due_at == 40
        machine.begin(40)
        machine.unknown_key()
        machine.succeeded(41)
        assert machine.due_at == 70
        machine.begin(70)
        machine.succeeded(71)
        assert machine.due_at == 671

    def test_keys_survive_failures_for_a_day(self) -> None:
        machine = JwksRefresh(LIMITS)
        machine.begin(0)
        machine.succeeded(1)
        machine.begin(601)
        machine.failed()
        assert machine.due_at == 631
        assert machine.is_usable(86_400)
        assert not machine.is_usable(86_401)
        machine.begin(86_500)
        machine.succeeded(86_501)
        assert machine.is_usable(86_502)
        assert machine.due_at == 86_501 + 600


def test_the_header_names_a_bearer_or_a_password() -> None:
    assert credential_of("Bearer abc") == credential_of("bearer abc") == "abc"
    assert credential_of("Basic " + base64.b64encode(b"any:dnb_x:y").decode()) == "dnb_x:y"
    for bad in ("", "abc", "Digest abc", "Basic !!!", "Basic " + base64.b64encode(b"nocolon").decode(), "Basic /w=="):
        with pytest.raises(BadProofError) as caught:
            credential_of(bad)
        assert caught.value.flaw is Flaw.MALFORMED
    with pytest.raises(BadProofError) as caught:
        credential_of("Basic " + "A" * 2000)
    assert caught.value.flaw is Flaw.TOO_LARGE


def test_entries_of_may_are_permissions_and_scopes() -> None:
    assert parse_may(["produce:/shop/orders", "ManageTopic:cluster"]) == (
        Grant(P.PRODUCE, parse_scope("/shop/orders")),
        Grant(P.MANAGE_TOPIC, parse_scope("cluster")),
    )


def test_claims_are_parsed_only_if_they_are_canonical() -> None:
    parsed = parse_token(cluster_token(), 8192)
    assert (parsed.algorithm, parsed.kid, parsed.claims["sub"]) == ("EdDSA", CLUSTER_KEY.kid, "service:orders-api")
    assert len(parsed.signature) == 64
    token = mint(
        signing_key(bytes(32)), issuer="é", cluster="c", subject="user:ä", token_id="x", issued_at_s=1, expires_at_s=2
    )
    assert parse_token(token, 8192).claims["sub"] == "user:ä"


def test_starting_a_broker_imports_no_cryptography() -> None:
    script = """
import pkgutil, sys
import danube.cli.app, danube.broker.run, danube.compat, danube.storage_server, danube.security
for each in pkgutil.iter_modules(danube.security.__path__, "danube.security."):
    __import__(each.name)
loaded = [name for name in sys.modules if name.partition(".")[0] in ("cryptography", "jwt", "cffi")]
assert not loaded, loaded
from danube.security.keys import signing_key
signing_key(bytes(32))
assert "cryptography" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'danube-broker\[security\]'"):
        signing_key(bytes(32))
