"""API keys, client certificates, and which of several credentials counts."""

from __future__ import annotations

import base64
import re
import time
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_helpers import (
    API_KEY,
    CEILING,
    CLUSTER_KEY,
    LIMITS,
    NOW,
    OLD_API_KEY,
    cluster_token,
    oidc_token,
    proofs,
    upstream_token,
)

from danube.model.errors import InvalidArgumentError
from danube.security import Principal, PrincipalType
from danube.security.api_keys import RANDOM_BYTES, is_secret_of, make_api_key, parse_api_key
from danube.security.certificates import CertificateRules, certificate_identity
from danube.security.claims import Identity
from danube.security.flaws import BadProofError, Flaw
from danube.security.proofs import exchange

PROOFS = proofs()
API = Principal(PrincipalType.SERVICE, "orders-api")
SHOWN = re.compile(r"dnb_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}")
RULES = CertificateRules("prod", "example.org", dns=True)


def flaw(authorization: str | None, certificate: Identity | None = None, *, is_private: bool = True) -> Flaw | None:
    try:
        PROOFS.identify(authorization, certificate, NOW, is_private=is_private)
    except BadProofError as error:
        return error.flaw
    return None


class TestApiKeys:
    def test_a_key_proves_its_principal_within_its_ceiling(self) -> None:
        found = PROOFS.verify(API_KEY.text, NOW)
        assert found == Identity(API.limited(CEILING), "api-key", API_KEY.id, "cluster")
        assert SHOWN.fullmatch(API_KEY.text)

    def test_keys_come_as_bearer_or_as_a_password(self) -> None:
        basic = base64.b64encode(f"any user:{API_KEY.text}".encode()).decode()
        for value in (f"Bearer {API_KEY.text}", f"Basic {basic}"):
            assert PROOFS.identify(value, None, NOW, is_private=True).id == API_KEY.id

    def test_nothing_of_the_secret_is_shown_or_stored(self) -> None:
        secret = API_KEY.text.rpartition("_")[2]
        assert secret not in repr(API_KEY)
        assert secret.encode() not in API_KEY.hash
        assert len(API_KEY.hash) == 32

    @given(st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
    def test_every_key_can_be_parsed(self, data: bytes) -> None:
        made = make_api_key(data)
        parsed = parse_api_key(made.text)
        assert (parsed.id, parsed.hash) == (made.id, made.hash)
        assert is_secret_of(parsed, made.hash)
        assert not is_secret_of(parsed, None)
        assert not is_secret_of(parsed, API_KEY.hash)

    @given(
        st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES), st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
    )
    def test_different_bytes_make_different_keys(self, one: bytes, other: bytes) -> None:
        assert (make_api_key(one).text == make_api_key(other).text) == (one == other)

    def test_keys_need_enough_random_bytes(self) -> None:
        with pytest.raises(InvalidArgumentError, match="48 random bytes, not 47"):
            make_api_key(bytes(47))

    @given(place=st.integers(4, len(API_KEY.text) - 1), character=st.sampled_from("019AZaz_-= \n"))
    def test_a_key_with_another_character_is_refused(self, place: int, character: str) -> None:
        changed = API_KEY.text[:place] + character + API_KEY.text[place + 1 :]
        if changed != API_KEY.text:
            assert flaw(f"Bearer {changed}") is Flaw.MALFORMED  # the checksum finds it, before any look-up

    @pytest.mark.parametrize(
        "text",
        [
            "dnb_",
            "dnb__",
            API_KEY.text[:-1],
            API_KEY.text + "0",
            API_KEY.text.upper(),
            f" {API_KEY.text}",
            f"{API_KEY.text}\n",
            API_KEY.text.replace("_", "-"),
        ],
    )
    def test_malformed_keys_are_refused(self, text: str) -> None:
        assert flaw(f"Bearer {text}") is Flaw.MALFORMED

    def test_a_number_beyond_256_bits_is_no_secret(self) -> None:
        from danube.security import api_keys

        body = f"dnb_{API_KEY.id}_{'z' * 43}"
        with pytest.raises(BadProofError):
            parse_api_key(body + api_keys._check(body))

    def test_wrong_secrets_unknown_ids_and_expired_keys_are_refused(self) -> None:
        other = make_api_key(bytes(range(2, RANDOM_BYTES + 2)))
        assert flaw(f"Bearer {other.text}") is Flaw.SECRET
        same_id = make_api_key(bytes([255]) + bytes(range(1, RANDOM_BYTES)))
        assert same_id.id == API_KEY.id
        assert same_id.text != API_KEY.text
        assert flaw(f"Bearer {same_id.text}") is Flaw.SECRET
        assert flaw(f"Bearer {OLD_API_KEY.text}") is Flaw.EXPIRED
        assert PROOFS.verify(OLD_API_KEY.text, NOW - 1.5).id == OLD_API_KEY.id

    def test_known_and_unknown_ids_take_the_same_time(self) -> None:
        """Interleaved, CPU time, medians; generous, because machines of tests are busy."""
        known = make_api_key(bytes([255]) + bytes(range(1, RANDOM_BYTES))).text
        unknown = make_api_key(bytes(range(2, RANDOM_BYTES + 2))).text
        took: dict[str, list[int]] = {known: [], unknown: []}
        for _ in range(3000):
            for text, times in took.items():
                began = time.thread_time_ns()
                with pytest.raises(BadProofError):
                    PROOFS.verify(text, NOW)
                times.append(time.thread_time_ns() - began)
        assert 0.8 < median(took[known]) / median(took[unknown]) < 1.25


class TestExchanged:
    """Tokens made for the holders of API keys."""

    def exchanged(self, **changed: object) -> str:
        found = PROOFS.verify(API_KEY.text, NOW)
        return exchange(found, CLUSTER_KEY, cluster="prod", random_id="r" * 16, now_s=NOW, life_s=7200, **changed)

    def test_a_token_has_the_ceiling_of_the_key_and_ends_with_it(self) -> None:
        verifier = proofs()
        token = self.exchanged()
        found = verifier.verify(token, NOW)
        assert found.principal == API.limited(CEILING)
        assert (found.id, found.expires_at_s) == (f"key-{API_KEY.id}-{'r' * 16}", NOW + 7230)
        assert verifier.accepts(found)
        stored = verifier.api_keys[API_KEY.id]
        verifier.api_keys = {API_KEY.id: stored._replace(expires_at_s=NOW + 100.0)}
        assert verifier.verify(token, NOW).expires_at_s == NOW + 100
        for changed, expected in (
            ({}, Flaw.REVOKED),
            ({API_KEY.id: stored._replace(principal=Principal(PrincipalType.SERVICE, "b"))}, Flaw.REVOKED),
            ({API_KEY.id: stored._replace(expires_at_s=float(NOW))}, Flaw.EXPIRED),
        ):
            verifier.api_keys = changed
            with pytest.raises(BadProofError) as caught:
                verifier.verify(token, NOW)
            assert caught.value.flaw is expected
        for changed in ({}, {API_KEY.id: stored._replace(principal=Principal(PrincipalType.SERVICE, "b"))}):
            verifier.api_keys = changed
            assert not verifier.accepts(found)
        verifier.api_keys = {API_KEY.id: stored._replace(ceiling=CEILING[:0])}
        assert not verifier.accepts(found)

    def test_only_an_api_key_is_exchanged(self) -> None:
        found = PROOFS.verify(cluster_token(), NOW)
        with pytest.raises(BadProofError):
            exchange(found, CLUSTER_KEY, cluster="prod", random_id="r" * 16, now_s=NOW, life_s=60)

    def test_ids_of_other_issuers_mean_nothing(self) -> None:
        strange = f"key-{'0' * 12}-{'r' * 16}"
        found = PROOFS.verify(oidc_token("o1", jti=strange), NOW)
        assert (found.id, PROOFS.accepts(found)) == (strange, True)
        with pytest.raises(BadProofError):
            PROOFS.verify(cluster_token(jti=strange), NOW)


class TestCertificates:
    def identify(self, *names: tuple[str, str], broker: bool = False, rules: CertificateRules = RULES) -> Identity:
        return certificate_identity(names, "f1", NOW + 60.0, rules, of_broker_ca=broker, limits=LIMITS)

    @pytest.mark.parametrize(
        ("names", "principal", "source"),
        [
            ([("URI", "danube://prod/service/orders-api")], "service:orders-api", "danube"),
            ([("URI", "danube://prod/user/ada@example.org")], "user:ada@example.org", "danube"),
            ([("DNS", "api.example.org"), ("URI", "danube://prod/service/x")], "service:x", "danube"),
            ([("URI", "spiffe://example.org/ns/shop/sa/api")], "service:spiffe://example.org/ns/shop/sa/api", "spiffe"),
            ([("DNS", "api.example.org")], "service:dns/api.example.org", "dns"),
            ([("IP Address", "10.0.0.1"), ("DNS", "localhost")], "service:dns/localhost", "dns"),
        ],
    )
    def test_names_become_principals(self, names: list[tuple[str, str]], principal: str, source: str) -> None:
        found = self.identify(*names)
        assert (str(found.principal), found.issuer, found.kind) == (principal, source, "certificate")
        assert (found.id, found.expires_at_s) == ("f1", NOW + 60)

    def test_only_the_ca_of_brokers_makes_brokers(self) -> None:
        broker = ("URI", "danube://prod/broker/b3")
        assert self.identify(broker, broker=True).principal == Principal(PrincipalType.BROKER, "b3")
        for names, of_broker_ca in (
            ([broker], False),
            ([("URI", "danube://prod/broker/x")], True),
            ([("URI", "danube://prod/broker/b0")], True),
            ([("DNS", "b3")], True),
        ):
            try:
                found = self.identify(*names, broker=of_broker_ca)
            except BadProofError:
                continue
            assert found.principal.type is PrincipalType.SERVICE

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ([], Flaw.NAME),
            ([("commonName", "root")], Flaw.NAME),
            ([("email", "root@example.org")], Flaw.NAME),
            ([("URI", "danube://staging/service/x")], Flaw.AUDIENCE),
            ([("URI", "danube://prod/service/x"), ("URI", "danube://prod/service/root")], Flaw.NAME),
            ([("URI", "danube://prod/group/admins")], Flaw.NAME),
            ([("URI", "danube://prod/service/a/b")], Flaw.NAME),
            ([("URI", "danube://prod/service/")], Flaw.NAME),
            ([("URI", "danube://prod/service/a%2Fb")], Flaw.NAME),
            ([("URI", "danube://prod/service/x\n")], Flaw.NAME),
            ([("URI", "DANUBE://prod/service/x"), ("DNS", "x")], Flaw.NAME),
            ([("URI", "danube:prod"), ("DNS", "x")], Flaw.NAME),
            ([("URI", "spiffe://other.org/x")], Flaw.AUDIENCE),
            ([("URI", "spiffe://example.org")], Flaw.NAME),
            ([("URI", "spiffe://example.org/a/../b")], Flaw.NAME),
            ([("URI", "spiffe://example.org//a")], Flaw.NAME),
            ([("URI", "spiffe://example.org/a"), ("URI", "https://x")], Flaw.NAME),
            ([("URI", "spiffe://example.org/" + "a" * 250)], Flaw.NAME),
            ([("DNS", "*.example.org")], Flaw.NAME),
            ([("DNS", "a"), ("DNS", "b")], Flaw.NAME),
            ([("DNS", "A.example.org")], Flaw.NAME),
            ([("DNS", "a..b")], Flaw.NAME),
            ([("DNS", "a.b\x00.evil")], Flaw.NAME),
            ([("DNS", "x")] * 65, Flaw.TOO_LARGE),
        ],
    )
    def test_other_names_prove_nothing(self, names: list[tuple[str, str]], expected: Flaw) -> None:
        with pytest.raises(BadProofError) as caught:
            self.identify(*names)
        assert caught.value.flaw is expected

    def test_what_is_not_configured_does_not_count(self) -> None:
        rules = CertificateRules("prod")
        for name in (("DNS", "x"), ("URI", "spiffe://example.org/x")):
            with pytest.raises(BadProofError):
                self.identify(name, rules=rules)


class TestWhichCounts:
    CERTIFICATE = Identity(Principal(PrincipalType.SERVICE, "c"), "certificate", "f1", "danube", NOW + 60.0)

    def test_a_certificate_counts_if_nothing_else_is_sent(self) -> None:
        assert PROOFS.identify(None, self.CERTIFICATE, NOW, is_private=True) is self.CERTIFICATE
        assert flaw(None) is Flaw.MISSING
        assert flaw(None, self.CERTIFICATE._replace(expires_at_s=NOW)) is Flaw.EXPIRED
        revoking = proofs(f1=NOW + 60.0)
        with pytest.raises(BadProofError) as caught:
            revoking.identify(None, self.CERTIFICATE, NOW, is_private=True)
        assert caught.value.flaw is Flaw.REVOKED

    def test_an_invalid_token_is_not_replaced_by_a_certificate(self) -> None:
        assert flaw("Bearer nonsense", self.CERTIFICATE) is Flaw.MALFORMED
        assert flaw("", self.CERTIFICATE) is Flaw.MALFORMED

    def test_a_token_counts_before_a_certificate(self) -> None:
        found = PROOFS.identify(f"Bearer {cluster_token()}", self.CERTIFICATE, NOW, is_private=True)
        assert found.principal == API
        assert PROOFS.identify(f"bearer {upstream_token()}", None, NOW, is_private=True).principal.name == "test-app"

    def test_credentials_do_not_count_over_plain_text(self) -> None:
        for value in (f"Bearer {cluster_token()}", f"Bearer {API_KEY.text}", "Bearer nonsense"):
            assert flaw(value, is_private=False) is Flaw.PLAIN_TEXT
