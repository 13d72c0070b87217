"""The guard: caller by caller, and in storms of changes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec
import pytest
import rights_matrix
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from security_helpers import P, service
from test_security_book import LEAD, NOW_US, ROOT, SHOP
from test_security_tokens import FORGERIES
from token_helpers import API_KEY, CLUSTER_KEY, NOW, SECRET, TEAM_KEY, cluster_token, team_token, upstream_token

from danube.model import api
from danube.model.errors import NotFoundError, PermissionDeniedError, UnauthenticatedError, UnavailableError
from danube.security import Permission, Principal, PrincipalType, Resource
from danube.security.book import Change, first_records
from danube.security.claims import Identity, Profile, Trusted
from danube.security.endings import End, Ending, Need
from danube.security.flaws import NO_PROOF, BadProofError, Flaw, UncheckedProofError
from danube.security.guard import Guard
from danube.security.keys import secret_key
from danube.security.limits import SecurityLimits
from danube.security.records import BindingRecord, encode_record
from danube.security.rights import RULES, Access
from danube.security.verdicts import Verdict

PEER = "10.0.0.1:5000"
UNCHECKED = "unchecked"
BOOK = rights_matrix.Belongings()
PRODUCE = Need(P.PRODUCE, Resource.topic("/shop/orders"))


def new_guard(**limits: Any) -> Guard:
    guard = Guard("prod", msgspec.structs.replace(SecurityLimits(), **limits), 0)
    write(guard, first_records("prod", CLUSTER_KEY.public_bytes, "user:root", {}, now_us=NOW_US))
    write(
        guard,
        guard.book.put_binding(ROOT, "lead", "service:lead", ["namespace-admin"], "namespace:shop", now_us=NOW_US),
    )
    write(guard, guard.book.put_binding(ROOT, "api", "service:orders-api", ["producer"], "/shop/*", now_us=NOW_US))
    return guard


def write(guard: Guard, changes: list[Change]) -> None:
    for key, record in changes:
        guard.apply(key, None if record is None else encode_record(record))


def identify(guard: Guard, credential: str, now: float = 1, wall_s: float = NOW, peer: str = PEER) -> Identity:
    return guard.identify(f"Bearer {credential}", None, peer, now, wall_s, is_private=True)


def flaw(guard: Guard, credential: str, now: float = 1, wall_s: float = NOW, peer: str = PEER) -> Flaw | str | None:
    try:
        identify(guard, credential, now, wall_s, peer)
    except BadProofError as error:
        return error.flaw
    except UncheckedProofError:
        return UNCHECKED
    return None


@pytest.fixture
def guard() -> Guard:
    return new_guard()


class TestCallers:
    def test_a_call_is_allowed_by_token_and_binding(self, guard: Guard) -> None:
        found = identify(guard, cluster_token())
        opened = api.PublishOpen("/shop/orders", "p")
        assert guard.judge(api.Method.PUBLISH, found, opened, BOOK) is Verdict.ALLOWED
        opened.topic = "/hr/salaries"
        verdict = guard.judge(api.Method.PUBLISH, found, opened, BOOK)
        assert isinstance(guard.refusal(api.Method.PUBLISH, found, verdict), PermissionDeniedError)
        seen = guard.judge(api.Method.DESCRIBE_TOPIC, found, api.DescribeTopic("/hr/salaries"), BOOK)
        assert isinstance(guard.refusal(api.Method.DESCRIBE_TOPIC, found, seen), NotFoundError)
        assert guard.judge("/danube.native.v1.Broker/Fly", found, opened, BOOK) is Verdict.DENIED

    @pytest.mark.parametrize("path", RULES)
    def test_without_a_valid_proof_every_path_but_health_is_refused_with_one_text(self, path: str) -> None:
        guard = new_guard()
        write(guard, guard.book.revoke(ROOT, "t-9", NOW_US + 10**12, now_us=NOW_US))
        credentials = {
            "none": None,
            "bad": "Bearer nonsense",
            "forged": f"Bearer {FORGERIES['key of a stranger'][0]}",
            "expired": f"Bearer {cluster_token(sub='user:root', exp=NOW - 60)}",
            "revoked": f"Bearer {cluster_token(sub='user:root', jti='t-9')}",
            "unknown key": f"Bearer {API_KEY.text}",
        }
        for authorization in credentials.values():
            with pytest.raises(BadProofError, match=NO_PROOF):
                guard.identify(authorization, None, PEER, 1, NOW, is_private=True)
        request = rights_matrix.request_of(RULES[path])
        verdict = guard.judge(path, None, request, BOOK)
        if RULES[path].access is Access.PUBLIC:
            assert verdict is Verdict.ALLOWED
        else:
            error = guard.refusal(path, None, verdict)
            assert isinstance(error, UnauthenticatedError)
            assert str(error) == NO_PROOF

    def test_the_second_call_is_answered_by_the_cache(self, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
        found = identify(guard, cluster_token())
        monkeypatch.setattr(guard._proofs, "verify", None)
        assert identify(guard, cluster_token()) is found

    def test_an_expired_token_leaves_the_cache(self, guard: Guard) -> None:
        token = cluster_token()
        identify(guard, token)
        assert flaw(guard, token, 2, NOW + 3631) is Flaw.EXPIRED

    def test_certificates_and_plain_text(self, guard: Guard) -> None:
        certificate = Identity(service("orders-api"), "certificate", "f1", "danube", NOW + 60.0)
        assert guard.identify(None, certificate, PEER, 1, NOW, is_private=True) is certificate
        with pytest.raises(BadProofError) as caught:
            guard.identify(f"Bearer {cluster_token()}", certificate, PEER, 1, NOW, is_private=False)
        assert caught.value.flaw is Flaw.PLAIN_TEXT
        write(guard, guard.book.revoke(ROOT, "f1", NOW_US + 10**12, now_us=NOW_US))
        with pytest.raises(BadProofError) as caught:
            guard.identify(None, certificate, PEER, 1, NOW, is_private=True)
        assert caught.value.flaw is Flaw.REVOKED

    def test_wrong_proofs_are_throttled_and_verified_ones_are_not(self, guard: Guard) -> None:
        token = cluster_token()
        identify(guard, token)
        for _ in range(10):
            assert flaw(guard, "nonsense") is Flaw.MALFORMED
        assert flaw(guard, "nonsense") is UNCHECKED
        assert flaw(guard, cluster_token(jti="t-2")) is UNCHECKED
        assert flaw(guard, token) is None
        assert flaw(guard, cluster_token(jti="t-2"), peer="10.0.0.2:1") is None
        assert flaw(guard, cluster_token(jti="t-3"), now=2) is None
        for value in ("Digest x", "Basic !"):
            for _ in range(12):
                with pytest.raises((BadProofError, UncheckedProofError)):
                    guard.identify(value, None, "10.0.0.3:1", 2, NOW, is_private=True)
        assert flaw(guard, cluster_token(jti="t-4"), now=2, peer="10.0.0.3:1") is UNCHECKED

    def test_a_stranger_does_not_keep_out_good_credentials_at_its_address(self, guard: Guard) -> None:
        token, flaws = cluster_token(), set()
        identify(guard, token)
        for tenth in range(10, 6_000):
            now = tenth / 10
            guard.freshness.confirmed(now)
            flaws.add(flaw(guard, "nonsense", now))
            if tenth % 10 == 0:
                assert flaw(guard, token, now) is None
        assert flaws == {Flaw.MALFORMED, UNCHECKED}

    def test_a_credential_that_is_no_longer_good_is_limited_as_a_strangers(self, guard: Guard) -> None:
        revoked, expired = cluster_token(), cluster_token(jti="t-2")
        identify(guard, revoked)
        identify(guard, expired)
        write(guard, guard.book.revoke(ROOT, "t-1", NOW_US + 10**12, now_us=NOW_US))
        for credential, wall_s, why in ((revoked, NOW, Flaw.REVOKED), (expired, NOW + 3631, Flaw.EXPIRED)):
            assert [flaw(guard, credential, wall_s=wall_s) for _ in range(5)] == [why] * 5
        assert flaw(guard, revoked) is UNCHECKED
        assert flaw(guard, expired, wall_s=NOW + 3631) is UNCHECKED

    def test_a_known_credential_that_is_refused_is_forgotten(
        self, guard: Guard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        token = cluster_token()
        identify(guard, token)

        def refuse(_credential: str, _wall_s: float) -> Identity:
            raise BadProofError(Flaw.UNKNOWN_KEY)

        monkeypatch.setattr(guard._proofs, "verify", refuse)
        guard.freshness.confirmed(100)
        assert [flaw(guard, token, now=100) for _ in range(11)] == [Flaw.UNKNOWN_KEY] * 10 + [UNCHECKED]


class TestChanges:
    def test_a_revoked_token_is_refused_at_once_and_its_stream_ends(self, guard: Guard) -> None:
        found = identify(guard, cluster_token())
        guard.watch(1, found, [PRODUCE])
        write(guard, guard.book.revoke(ROOT, "t-1", NOW_US + 10**12, now_us=NOW_US))
        assert flaw(guard, cluster_token()) is Flaw.REVOKED
        assert guard.check(1, NOW) == ([End(1, Ending.REVOKED)], False)

    def test_a_removed_team_key_ends_the_teams_streams_only(self, guard: Guard) -> None:
        life_s = 30 * 86400.0
        write(
            guard,
            guard.book.add_issuer(
                LEAD, "shop-team", TEAM_KEY.public_bytes, [SHOP], longest_life_s=life_s, now_us=NOW_US
            ),
        )
        guard.watch(1, identify(guard, team_token()), [PRODUCE])
        guard.watch(2, identify(guard, cluster_token()), [PRODUCE])
        assert guard.check(1, NOW) == ([], False)
        write(guard, guard.book.drop_issuer(LEAD, TEAM_KEY.kid))
        assert flaw(guard, team_token()) is Flaw.UNKNOWN_KEY
        assert guard.check(1, NOW) == ([End(1, Ending.REVOKED)], False)
        assert flaw(guard, cluster_token()) is None

    def test_a_removed_api_key_ends_its_streams(self, guard: Guard) -> None:
        write(guard, guard.book.add_api_key(ROOT, API_KEY.id, API_KEY.hash, "service:orders-api", now_us=NOW_US))
        guard.watch(1, identify(guard, API_KEY.text), [PRODUCE])
        assert guard.check(1, NOW) == ([], False)
        write(guard, guard.book.drop_api_key(ROOT, API_KEY.id))
        assert flaw(guard, API_KEY.text) is Flaw.SECRET
        assert guard.check(1, NOW) == ([End(1, Ending.REVOKED)], False)

    def test_a_changed_configuration_ends_upstreams_tokens(self, guard: Guard) -> None:
        assert flaw(guard, upstream_token()) is Flaw.UNKNOWN_KEY
        guard.configure([(None, Trusted(secret_key(SECRET), "danube-auth", Profile.UPSTREAM))])
        guard.watch(1, identify(guard, upstream_token()), [])
        assert guard.check(1, NOW) == ([], False)
        guard.configure([])
        assert flaw(guard, upstream_token()) is Flaw.UNKNOWN_KEY
        assert guard.check(1, NOW) == ([End(1, Ending.REVOKED)], False)

    def test_a_broker_that_is_cut_off_accepts_nothing_new_and_then_nothing(self, guard: Guard) -> None:
        guard.freshness.confirmed(10)
        token = cluster_token()
        guard.watch(1, identify(guard, token, now=12.9), [PRODUCE])
        with pytest.raises(UnavailableError, match="security_fresh_s = 3 s"):
            identify(guard, cluster_token(jti="t-2"), now=13)
        for now in (13, 69.9):
            assert identify(guard, token, now=now).id == "t-1"
        assert guard.check(69.9, NOW) == ([], False)
        with pytest.raises(UnavailableError, match="security_stale_s = 60 s"):
            identify(guard, token, now=70)
        assert guard.check(70, NOW) == ([End(1, Ending.STALE)], False)
        broker = Identity(Principal(PrincipalType.BROKER, "b2"), "certificate", "f", "danube")
        assert guard.identify(None, broker, PEER, 70, NOW, is_private=True) is broker
        guard.freshness.confirmed(71)
        assert identify(guard, token, now=72).id == "t-1"


class Storm(RuleBasedStateMachine):
    """Rights and proofs change at random while clients call: only what is allowed now succeeds, and all of it.

    The model is a set of accepted tokens, and a set of topics on which each principal may produce.
    """

    TOKENS: ClassVar = {
        jti: ("orders-api" if jti < "t3" else "lead", cluster_token(jti=jti, sub=f"service:{name}"))
        for jti, name in (("t1", "orders-api"), ("t2", "orders-api"), ("t3", "lead"))
    }
    TOPICS = ("/shop/orders", "/hr/x")

    def __init__(self) -> None:
        super().__init__()
        self.guard = new_guard(failed_proofs_burst=10**6, failed_proofs_all_per_s=1e9)
        self.now = 1.0
        self.revoked: set[str] = set()
        self.suspended: set[str] = set()
        self.bound: dict[str, tuple[str, str]] = {"api": ("orders-api", "/shop/*"), "lead": ("lead", "namespace:shop")}
        self.open: dict[int, tuple[str, str]] = {}
        self.number = 0

    def may(self, jti: str, topic: str) -> bool:
        name = self.TOKENS[jti][0]
        return (
            jti not in self.revoked
            and name not in self.suspended
            and any(
                who == name and (scope == "cluster" or scope.strip("*/").split(":")[-1] == topic.split("/")[1])
                for who, scope in self.bound.values()
            )
        )

    @rule(jti=st.sampled_from(sorted(TOKENS)), topic=st.sampled_from(TOPICS))
    def calls(self, jti: str, topic: str) -> None:
        try:
            found = identify(self.guard, self.TOKENS[jti][1], self.now)
        except BadProofError:
            assert jti in self.revoked
            return
        assert jti not in self.revoked
        verdict = self.guard.judge(api.Method.PUBLISH, found, api.PublishOpen(topic, "p"), BOOK)
        assert (verdict is Verdict.ALLOWED) == self.may(jti, topic)
        if verdict is Verdict.ALLOWED:
            self.number += 1
            self.open[self.number] = jti, topic
            self.guard.watch(self.number, found, [Need(Permission.PRODUCE, Resource.topic(topic))])

    @rule(jti=st.sampled_from(sorted(TOKENS)))
    def revokes(self, jti: str) -> None:
        self.revoked.add(jti)
        write(self.guard, self.guard.book.revoke(ROOT, jti, NOW_US + 10**13, now_us=NOW_US))

    @rule()
    def forgets_revocations(self) -> None:
        for jti in self.revoked:
            self.guard.apply(f"/security/revoked/{jti}", None)
        self.revoked.clear()

    @rule(
        binding=st.sampled_from(["api", "lead", "more"]),
        name=st.sampled_from(["orders-api", "lead"]),
        scope=st.sampled_from(["/shop/*", "/hr/*", "namespace:shop", "cluster"]),
    )
    def binds(self, binding: str, name: str, scope: str) -> None:
        self.bound[binding] = name, scope
        record = BindingRecord(subject=f"service:{name}", roles=("producer",), scope=scope)
        self.guard.apply(f"/security/bindings/{binding}", encode_record(record))

    @rule(binding=st.sampled_from(["api", "lead", "more"]))
    def unbinds(self, binding: str) -> None:
        self.bound.pop(binding, None)
        self.guard.apply(f"/security/bindings/{binding}", None)

    @rule(name=st.sampled_from(["orders-api", "lead"]))
    def suspends_or_resumes(self, name: str) -> None:
        if name in self.suspended:
            write(self.guard, self.guard.book.resume(ROOT, f"service:{name}"))
        else:
            write(self.guard, self.guard.book.suspend(ROOT, f"service:{name}", now_us=NOW_US))
        self.suspended ^= {name}

    @rule(passed=st.sampled_from([0.5, 2.0, 61.0]))
    def passes(self, passed: float) -> None:
        self.now += passed
        self.guard.freshness.confirmed(self.now)

    @invariant()
    def exactly_the_allowed_streams_are_open(self) -> None:
        ends, more = self.guard.check(self.now, NOW)
        assert not more
        lost = {number for number, (jti, topic) in self.open.items() if not self.may(jti, topic)}
        assert {each.stream for each in ends} == lost
        for number in lost:
            del self.open[number]


Storm.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStorm = Storm.TestCase


def test_verified_tokens_of_a_later_clock_are_no_longer_than_their_time() -> None:
    """The cache goes by a clock that never steps back, and expiry by the wall clock."""
    guard = new_guard()
    token = cluster_token()
    assert identify(guard, token, now=1, wall_s=NOW).expires_at_s == NOW + 3630
    guard.freshness.confirmed(1000)
    assert flaw(guard, token, now=1000, wall_s=NOW - 3600) is Flaw.NOT_YET
    assert math.isfinite(identify(guard, token, now=1000, wall_s=NOW).expires_at_s)
