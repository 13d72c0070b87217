"""The cache of verified credentials, the ends of streams, and the limits of failed proofs."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from security_helpers import P, bind, service
from token_helpers import (
    API_KEY,
    CEILING,
    CLUSTER_KEY,
    LIMITS,
    NOW,
    TEAM_KEY,
    cluster_token,
    oidc_token,
    proofs,
    team_token,
    upstream_token,
)

from danube.model.errors import CredentialsExpiredError, PermissionDeniedError, Status, UnavailableError, exit_code
from danube.security import CLUSTER, Binding, Principal, PrincipalType, Resource, Rights, parse_scope
from danube.security.claims import Identity
from danube.security.endings import SLICE, End, Ending, Freshness, Need, OpenStreams, error_of
from danube.security.limits import SecurityLimits
from danube.security.throttle import FailedProofs, network_of
from danube.security.verified import VerifiedCache

ORDERS = Resource.topic("/shop/orders")
PRODUCE = Need(P.PRODUCE, ORDERS)


def identity(name: str = "a", proof: str = "t-1", expires_at_s: float = math.inf, issuer: str = "prod") -> Identity:
    return Identity(service(name), "token", proof, issuer, expires_at_s)


class TestCache:
    def test_a_verified_credential_is_found_until_its_time_ends(self) -> None:
        cache = VerifiedCache(LIMITS)
        found = identity(expires_at_s=NOW + 40.0)
        assert cache.get("token", 0, NOW) is None
        cache.put("token", found, 0)
        assert cache.get("token", 59.9, NOW) is found
        assert cache.get("tokem", 0, NOW) is None
        assert cache.get("token", 60, NOW) is None
        assert cache.knows("token")
        assert not cache.knows("tokem")
        cache.put("token", found, 100)
        assert cache.get("token", 101, NOW + 39.9) is found
        assert cache.get("token", 101, NOW + 40.0) is None
        assert len(cache) == 0

    def test_the_least_recently_used_ones_are_dropped(self) -> None:
        cache = VerifiedCache(msgspec.structs.replace(LIMITS, verified_entries=3))
        for name in "abc":
            cache.put(name, identity(name, name), 0)
        assert cache.get("a", 1, NOW) is not None
        cache.put("d", identity("d", "d"), 1)
        assert [name for name in "abcd" if cache.get(name, 1, NOW)] == ["a", "c", "d"]
        cache.put("d", identity("e", "e"), 1)  # the same credential takes no more room
        assert len(cache) == 3
        assert cache.get("d", 1, NOW).principal.name == "e"

    def test_revocation_drops_all_credentials_with_the_id(self) -> None:
        cache = VerifiedCache(LIMITS)
        for name in ("one", "two"):
            cache.put(name, identity(proof="t-1"), 0)
        cache.put("three", identity(proof="t-2", issuer="team"), 0)
        cache.revoke("t-1")
        cache.revoke("unknown")
        assert [cache.get(name, 0, NOW) is not None for name in ("one", "two", "three")] == [False, False, True]
        cache.drop_if(lambda each: each.issuer == "team")
        assert len(cache) == 0
        assert cache._by_id == {}

    def test_no_credential_is_kept(self) -> None:
        cache = VerifiedCache(LIMITS)
        cache.put(API_KEY.text, identity(), 0)
        assert API_KEY.text.encode() not in b"".join(cache._entries)
        assert cache.get("\udcff", 0, NOW) is None  # what a header may contain

    @given(
        st.lists(st.tuples(st.sampled_from(["get", "put", "revoke"]), st.sampled_from("abcdef"), st.integers(0, 100)))
    )
    def test_it_stays_bounded_and_consistent(self, steps: list[tuple[str, str, int]]) -> None:
        cache = VerifiedCache(msgspec.structs.replace(LIMITS, verified_entries=3))
        now = 0
        for step, name, passed in steps:
            now += passed
            if step == "put":
                cache.put(name, identity(name, name.upper()), now)
            elif step == "revoke":
                cache.revoke(name.upper())
                assert cache.get(name, now, NOW) is None
            else:
                found = cache.get(name, now, NOW)
                assert found is None or found.principal.name == name
            assert len(cache) <= 3
            assert sorted(key for keys in cache._by_id.values() for key in keys) == sorted(cache._entries)


class TestAccepted:
    """Whether a proof that was accepted would be accepted still."""

    def test_each_kind_of_proof_ends_with_what_it_rests_on(self) -> None:
        verifier = proofs()
        found = {
            name: verifier.verify(credential, NOW)
            for name, credential in (
                ("cluster", cluster_token()),
                ("team", team_token()),
                ("oidc", oidc_token("e1")),
                ("upstream", upstream_token()),
                ("key", API_KEY.text),
            )
        }
        found["certificate"] = Identity(service("c"), "certificate", "f1", "danube")

        def accepted() -> set[str]:
            return {name for name, each in found.items() if verifier.accepts(each)}

        assert accepted() == set(found)
        verifier.revoked = {"t-1": NOW, "f1": NOW}
        assert accepted() == {"team", "oidc", "upstream", "key"}
        verifier.revoked = {}
        del verifier.keyring._keys["shop-team", TEAM_KEY.kid, "EdDSA"]
        del verifier.keyring._keys["danube-auth", None, "HS256"]
        assert accepted() == {"cluster", "oidc", "key", "certificate"}
        kept = verifier.api_keys[API_KEY.id]
        verifier.api_keys = {API_KEY.id: kept._replace(ceiling=None)}
        assert "key" in accepted()  # it could have more now, and has less
        verifier.api_keys = {API_KEY.id: kept._replace(ceiling=())}
        assert "key" not in accepted()
        verifier.api_keys = {API_KEY.id: kept._replace(hash=bytes(32))}
        assert "key" in accepted()  # its hash was compared when it was verified
        verifier.api_keys = {API_KEY.id: kept._replace(principal=service("b"))}
        assert "key" not in accepted()
        verifier.api_keys = {}
        assert "key" not in accepted()
        assert "cluster" in accepted()

    def test_a_key_with_another_ceiling_ends_its_streams(self) -> None:
        verifier = proofs()
        team = verifier.verify(team_token(may=["Produce:/shop/orders"]), NOW)
        assert verifier.accepts(team)
        name = "shop-team", TEAM_KEY.kid, "EdDSA"
        verifier.keyring._keys[name] = verifier.keyring._keys[name]._replace(ceiling=CEILING[:0])
        assert not verifier.accepts(team)
        cluster = verifier.verify(cluster_token(), NOW)
        name = "prod", CLUSTER_KEY.kid, "EdDSA"
        verifier.keyring._keys[name] = verifier.keyring._keys[name]._replace(ceiling=CEILING)
        assert not verifier.accepts(cluster)


class Watching:
    """Streams of a broker, on a clock of the test."""

    def __init__(self, **limits: Any) -> None:
        self.limits = msgspec.structs.replace(SecurityLimits(), **limits)
        self.rights = Rights()
        bind(self.rights, "user:root", "admin", "cluster")
        self.binding = bind(self.rights, "service:a", "producer", "/shop/*")
        self.revoked: set[str] = set()
        self.freshness = Freshness(self.limits, 0)
        self.streams = OpenStreams(self.rights, self.freshness, lambda each: each.id not in self.revoked)

    def ends(self, now: float = 1, wall_s: float = NOW) -> list[End]:
        found = []
        more = True
        while more:
            ends, more = self.streams.check(now, wall_s)
            found += ends
        return found


class TestEndings:
    def test_nothing_ends_while_nothing_changes(self) -> None:
        watching = Watching()
        watching.streams.opened(1, identity(expires_at_s=NOW + 60.0), [PRODUCE])
        assert watching.ends() == []
        assert len(watching.streams) == 1

    def test_a_stream_ends_when_its_proof_expires(self) -> None:
        watching = Watching()
        for number, expires_at_s in ((1, NOW + 60.0), (2, NOW + 30.0), (3, math.inf)):
            watching.streams.opened(number, identity(expires_at_s=expires_at_s), [PRODUCE])
        assert watching.ends(wall_s=NOW + 29.9) == []
        assert watching.ends(wall_s=NOW + 30) == [End(2, Ending.EXPIRED)]
        assert watching.ends(wall_s=NOW + 100) == [End(1, Ending.EXPIRED)]
        assert watching.ends(wall_s=NOW + 1e9) == []

    def test_a_number_that_is_used_again_has_its_own_expiry(self) -> None:
        watching = Watching()
        watching.streams.opened(1, identity(expires_at_s=NOW + 30.0), [PRODUCE])
        watching.streams.closed(1)
        watching.streams.opened(1, identity(expires_at_s=NOW + 60.0), [PRODUCE])
        assert watching.ends(wall_s=NOW + 59) == []
        assert watching.ends(wall_s=NOW + 60) == [End(1, Ending.EXPIRED)]

    def test_a_stream_ends_when_its_proof_is_revoked(self) -> None:
        watching = Watching()
        watching.streams.opened(1, identity(proof="t-1"), [PRODUCE])
        watching.streams.opened(2, identity(proof="t-2"), [PRODUCE])
        watching.revoked.add("t-1")
        watching.streams.proofs_changed()
        assert watching.ends() == [End(1, Ending.REVOKED)]
        assert watching.ends() == []

    def test_a_stream_ends_when_its_principal_has_lost_a_right(self) -> None:
        watching = Watching()
        other = bind(watching.rights, "service:a", "consumer", "/shop/orders")
        watching.streams.opened(1, identity(), [PRODUCE])
        watching.streams.opened(2, identity(), [Need(P.CONSUME, ORDERS)])
        watching.streams.opened(3, identity(), [Need(P.LOOKUP, ORDERS)])
        watching.streams.opened(4, identity(), [Need(P.LOOKUP, ORDERS)])
        watching.streams.needs_also(4, PRODUCE)
        watching.streams.needs_also(9, PRODUCE)
        watching.rights.drop_binding(watching.binding.id)
        assert watching.ends() == [End(1, Ending.DENIED), End(4, Ending.DENIED)]
        watching.rights.drop_binding(other.id)
        assert watching.ends() == [End(2, Ending.DENIED), End(3, Ending.DENIED)]
        assert len(watching.streams) == 0

    def test_a_stream_without_needs_ends_when_its_principal_is_suspended(self) -> None:
        watching = Watching()
        watching.streams.opened(1, identity(), [])
        watching.rights.set_suspended("service:b", True)
        assert watching.ends() == []
        watching.rights.set_suspended("service:a", True)
        assert watching.ends() == [End(1, Ending.DENIED)]

    def test_a_right_that_came_back_before_the_check_was_never_lost(self) -> None:
        watching = Watching()
        watching.streams.opened(1, identity(), [PRODUCE])
        watching.rights.drop_binding(watching.binding.id)
        watching.rights.put_binding(watching.binding)
        assert watching.ends() == []

    def test_a_broker_that_is_cut_off_ends_streams_after_a_minute_but_not_those_of_brokers(self) -> None:
        watching = Watching()
        broker = Identity(Principal(PrincipalType.BROKER, "b2"), "certificate", "f", "danube")
        watching.streams.opened(1, identity(), [PRODUCE])
        watching.streams.opened(2, broker, [Need(P.BROKER_INTERNAL, CLUSTER)])
        assert watching.freshness.accepts_new_proofs(2.9)
        assert not watching.freshness.accepts_new_proofs(3)
        assert watching.ends(now=59.9) == []
        watching.freshness.confirmed(30)
        watching.freshness.confirmed(20)  # an answer to an earlier question
        assert watching.freshness.stale_at == 90
        assert watching.ends(now=89.9) == []
        assert watching.freshness.is_stale(90)
        assert watching.ends(now=90) == [End(1, Ending.STALE)]
        assert watching.ends(now=900) == []
        assert len(watching.streams) == 1
        watching.freshness.confirmed(901)
        assert not watching.freshness.is_stale(902)
        assert watching.freshness.accepts_new_proofs(902)

    def test_many_streams_are_examined_in_slices(self) -> None:
        watching = Watching()
        for number in range(3 * SLICE):
            watching.streams.opened(number, identity(proof=f"t-{number}"), [PRODUCE])
        watching.revoked |= {f"t-{number}" for number in range(0, 3 * SLICE, 2)}
        watching.streams.proofs_changed()
        first, more = watching.streams.check(1, NOW)
        assert (len(first), more) == (SLICE // 2, True)
        assert len(watching.ends()) == SLICE
        assert len(watching.streams) == 3 * SLICE // 2

    def test_a_storm_of_changes_delays_no_stream_for_ever(self) -> None:
        watching = Watching()
        for number in range(10 * SLICE):
            watching.streams.opened(number, identity(proof=f"t-{number}"), [PRODUCE])
        watching.revoked |= {f"t-{number}" for number in range(10 * SLICE)}
        ended = set()
        for _ in range(11):
            watching.streams.proofs_changed()
            ended |= {each.stream for each in watching.streams.check(1, NOW)[0]}
        assert len(ended) == 10 * SLICE

    def test_closed_streams_leave_nothing_behind(self) -> None:
        watching = Watching()
        for number in range(5000):
            watching.streams.opened(number, identity(expires_at_s=NOW + 1e6), [PRODUCE])
            watching.streams.closed(number)
            watching.streams.closed(number)
        assert len(watching.streams._expiries) <= 2 * SLICE
        assert len(watching.streams) == 0

    def test_errors_tell_clients_what_to_do(self) -> None:
        for why in (Ending.EXPIRED, Ending.REVOKED):
            error = error_of(why)
            assert isinstance(error, CredentialsExpiredError)
            assert error.status is Status.UNAUTHENTICATED
            assert exit_code(error) == 77
        stale = error_of(Ending.STALE)
        assert isinstance(stale, UnavailableError)
        assert stale.retryable
        denied = error_of(Ending.DENIED, [PRODUCE])
        assert isinstance(denied, PermissionDeniedError)
        assert str(denied) == "the principal of this stream has lost Produce on /shop/orders"
        assert "its rights" in str(error_of(Ending.DENIED))


class Ends(RuleBasedStateMachine):
    """Streams open, rights and proofs change, time passes: after each check exactly the allowed streams are open."""

    def __init__(self) -> None:
        super().__init__()
        self.watching = Watching()
        self.now, self.wall_s = 0.0, float(NOW)
        self.open: dict[int, tuple[Identity, Need]] = {}
        self.next = 0
        self.bound = {"a": True, "b": False}
        self.watching.rights.drop_binding(self.watching.binding.id)
        self.watching.rights.set_binding("b-a", self.binding_of("a"))

    def allowed(self, each: Identity, need: Need) -> bool:
        return (
            each.id not in self.watching.revoked
            and self.wall_s < each.expires_at_s
            and self.bound[each.principal.name]
            and str(each.principal) not in self.watching.rights.suspended
            and need.permission in P.PRODUCE | P.LOOKUP
        )

    @rule(
        name=st.sampled_from("ab"),
        proof=st.sampled_from(["t1", "t2", "t3"]),
        life_s=st.sampled_from([1.0, 5.0, math.inf]),
        permission=st.sampled_from([P.PRODUCE, P.LOOKUP]),
    )
    def opens(self, name: str, proof: str, life_s: float, permission: Any) -> None:
        each, need = identity(name, proof, self.wall_s + life_s), Need(permission, ORDERS)
        if self.allowed(each, need):
            self.next += 1
            self.open[self.next] = each, need
            self.watching.streams.opened(self.next, each, [need])

    @rule(data=st.data())
    @precondition(lambda self: self.open)
    def closes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[number]
        self.watching.streams.closed(number)

    @rule(proof=st.sampled_from(["t1", "t2", "t3"]))
    def revokes(self, proof: str) -> None:
        self.watching.revoked ^= {proof}
        self.watching.streams.proofs_changed()

    @rule(name=st.sampled_from("ab"))
    def binds(self, name: str) -> None:
        self.bound[name] = not self.bound[name]
        self.watching.rights.set_binding(f"b-{name}", self.binding_of(name) if self.bound[name] else None)

    def binding_of(self, name: str) -> Binding:
        return Binding(f"b-{name}", f"service:{name}", ("producer",), parse_scope("/shop/*"))

    @rule(name=st.sampled_from("ab"), suspended=st.booleans())
    def suspends(self, name: str, suspended: bool) -> None:
        self.watching.rights.set_suspended(f"service:{name}", suspended)

    @rule(passed=st.sampled_from([0.1, 1.0, 5.0]))
    def passes(self, passed: float) -> None:
        self.now += passed
        self.wall_s += passed
        self.watching.freshness.confirmed(self.now)

    @invariant()
    def exactly_the_allowed_streams_are_open(self) -> None:
        ends = {each.stream for each in self.watching.ends(self.now, self.wall_s)}
        lost = {number for number, (each, need) in self.open.items() if not self.allowed(each, need)}
        assert ends == lost
        for number in lost:
            del self.open[number]
        assert len(self.watching.streams) == len(self.open)


Ends.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestEnds = Ends.TestCase


class TestThrottle:
    def test_an_address_has_ten_failures_and_then_one_a_second(self) -> None:
        throttle = FailedProofs(LIMITS)
        for _ in range(10):
            assert throttle.may_look("10.0.0.1:5000", 0)
            throttle.failed("10.0.0.1:5000", 0)
        assert not throttle.may_look("10.0.0.1:5001", 0.9)
        assert throttle.may_look("10.0.0.2:5000", 0.9)
        assert throttle.may_look("10.0.0.1:5002", 1)
        throttle.failed("10.0.0.1:5002", 1)
        assert not throttle.may_look("10.0.0.1:5002", 1.9)
        assert throttle.may_look("10.0.0.1:5002", 2)
        for _ in range(10):
            assert throttle.may_look("10.0.0.1", 1000)
            throttle.failed("10.0.0.1", 1000)
        assert not throttle.may_look("10.0.0.1", 1000)

    def test_success_costs_nothing(self) -> None:
        throttle = FailedProofs(LIMITS)
        for _ in range(1000):
            assert throttle.may_look("10.0.0.1:1", 0)
            throttle.succeeded("10.0.0.1:1")
        assert len(throttle) == 1

    def test_a_password_is_limited_from_all_addresses(self) -> None:
        throttle = FailedProofs(LIMITS)
        for number in range(20):
            assert throttle.may_look(f"10.0.1.{number}", 0, principal="user:ada")
            throttle.failed(f"10.0.1.{number}", 0, principal="user:ada")
        assert not throttle.may_look("10.0.2.1", 59, principal="user:ada")
        assert throttle.may_look("10.0.2.1", 59, principal="user:bob")
        assert throttle.may_look("10.0.2.1", 59)  # her token is no password
        assert throttle.may_look("10.0.2.1", 60, principal="user:ada")

    def test_all_addresses_together_have_a_limit_that_known_ones_do_not_share(self) -> None:
        throttle = FailedProofs(LIMITS)
        throttle.succeeded("10.9.9.9:1")
        for number in range(200):
            assert throttle.may_look(f"10.1.{number}.1", 0)
            throttle.failed(f"10.1.{number}.1", 0)
        assert not throttle.may_look("10.2.0.1", 0)
        assert throttle.may_look("10.9.9.9:2", 0)
        throttle.failed("10.9.9.9:2", 0)
        assert throttle.may_look("10.2.0.1", 0.005)
        assert throttle.may_look("10.2.0.1", 1)
        for _ in range(9):
            throttle.failed("10.9.9.9:2", 0)
        assert not throttle.may_look("10.9.9.9:2", 0)  # its own limit remains

    def test_memory_is_bounded(self) -> None:
        throttle = FailedProofs(msgspec.structs.replace(LIMITS, throttled_addresses=100))
        for number in range(10_000):
            peer = f"10.{number >> 8}.{number & 255}.1"
            throttle.failed(peer, number, principal=f"user:{number}")
            throttle.succeeded(peer)
        assert len(throttle) == 200
        for _ in range(10):
            throttle.failed("10.0.0.1", 10_000)
        assert not throttle.may_look("10.0.0.1", 10_000)

    @pytest.mark.parametrize(
        ("peer", "network"),
        [
            ("10.0.0.1:5000", "10.0.0.1"),
            ("10.0.0.1", "10.0.0.1"),
            ("2001:db8::1:5000", "2001:db8::/64"),
            ("[2001:db8::1]:5000", "2001:db8::/64"),
            ("2001:db8::", "2001:db8::/64"),
            ("[2001:db8:0:0:ffff::1]:1", "2001:db8::/64"),
            ("[2001:db8:0:1::1]:1", "2001:db8:0:1::/64"),
            ("fe80::1%eth0:5000", "fe80::/64"),
            ("::ffff:10.0.0.1:5000", "10.0.0.1"),
            ("unix", "unix"),
            ("(gone)", "(gone)"),
            ("", ""),
        ],
    )
    def test_which_addresses_count_as_one(self, peer: str, network: str) -> None:
        assert network_of(peer) == network
