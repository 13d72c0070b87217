"""The records of access control and their changes: nobody grants what they lack, and damage never gives rights."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from security_helpers import P, service
from token_helpers import CLUSTER_KEY, NOW, OIDC, STRANGER_KEY, TEAM_KEY, cluster_token, keyring, team_token

from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
)
from danube.model.quotas import PrincipalQuota
from danube.security import BUILT_IN_ROLES, CLUSTER, Grant, Permission, Principal, PrincipalType, Resource, parse_scope
from danube.security.api_keys import RANDOM_BYTES, make_api_key
from danube.security.book import Change, SecurityBook, first_records
from danube.security.claims import Profile, Trusted
from danube.security.flaws import BadProofError, Flaw
from danube.security.keys import ed25519_key, secret_key
from danube.security.limits import SecurityLimits
from danube.security.proofs import Proofs
from danube.security.records import (
    ApiKeyRecord,
    BindingRecord,
    GrantRecord,
    IssuerRecord,
    PrincipalRecord,
    RevocationRecord,
    RoleRecord,
    UnknownVersion,
    decode_record,
    encode_record,
    permissions_of,
    principal_key,
    subject_of_key,
)

ROOT = Principal(PrincipalType.USER, "root")
LEAD = service("lead")
NOW_US = NOW * 1_000_000
KEY = make_api_key(bytes(range(RANDOM_BYTES)))
SHOP = Grant(P.PRODUCE | P.LOOKUP, parse_scope("namespace:shop"))


def applied(book: SecurityBook, changes: list[Change]) -> None:
    """Apply changes as the watch of the metadata does: encoded."""
    for key, record in changes:
        book.apply(key, None if record is None else encode_record(record))


def new_book(**limits: Any) -> SecurityBook:
    book = SecurityBook("prod", msgspec.structs.replace(SecurityLimits(), **limits))
    applied(book, first_records("prod", CLUSTER_KEY.public_bytes, "user:root", {}, now_us=NOW_US))
    return book


@pytest.fixture
def book() -> SecurityBook:
    book = new_book()
    applied(book, book.put_binding(ROOT, "lead", "service:lead", ["namespace-admin"], "namespace:shop", now_us=NOW_US))
    return book


def test_security_begins_with_a_key_and_an_administrator() -> None:
    book = new_book()
    assert book.rights.allows(ROOT, P.MANAGE_SECURITY)
    proofs = Proofs(SecurityLimits(), book.keyring, book.api_keys, book.revoked)
    assert proofs.verify(cluster_token(sub="user:root"), NOW).principal == ROOT
    with pytest.raises(FailedPreconditionError, match=r"administrator already \(user:root\)"):
        first_records("prod", CLUSTER_KEY.public_bytes, "user:eve", book.records, now_us=NOW_US)
    with pytest.raises(InvalidArgumentError, match="is a group"):
        first_records("prod", CLUSTER_KEY.public_bytes, "group:admins", {}, now_us=NOW_US)


class TestChanges:
    def test_a_lead_grants_within_the_namespace_only(self, book: SecurityBook) -> None:
        applied(book, book.put_binding(LEAD, "b1", "service:api", ["producer"], "/shop/ord*", now_us=NOW_US))
        assert book.rights.allows(service("api"), P.PRODUCE, Resource.topic("/shop/orders"))
        record = book.records["/security/bindings/b1"]
        assert record == BindingRecord(
            subject="service:api",
            roles=("producer",),
            scope="topic:/shop/ord*",
            created_us=NOW_US,
            created_by="service:lead",
        )
        for roles, scope in ((["producer"], "cluster"), (["operator"], "namespace:shop"), (["viewer"], "topic:/sho*")):
            with pytest.raises(PermissionDeniedError, match="cannot grant"):
                book.put_binding(LEAD, "b2", "service:api", roles, scope, now_us=NOW_US)
        with pytest.raises(PermissionDeniedError, match="cannot grant"):  # it would take away root's binding
            book.put_binding(LEAD, "first-admin", "service:api", ["producer"], "/shop/orders", now_us=NOW_US)
        with pytest.raises(PermissionDeniedError):
            book.drop_binding(LEAD, "first-admin")
        with pytest.raises(PermissionDeniedError):  # what it may not see, does not exist for it
            book.drop_binding(LEAD, "b9")
        with pytest.raises(NotFoundError):
            book.drop_binding(ROOT, "b9")
        applied(book, book.drop_binding(LEAD, "b1"))
        assert not book.rights.allows(service("api"), P.PRODUCE, Resource.topic("/shop/orders"))

    def test_a_changed_role_is_a_grant_wherever_it_is_bound(self, book: SecurityBook) -> None:
        applied(book, book.put_role(ROOT, "peek", ["Lookup"], now_us=NOW_US))
        applied(book, book.put_role(ROOT, "guard", ["ManageSecurity", "Lookup"], now_us=NOW_US))
        applied(book, book.put_binding(ROOT, "g", "service:guard", ["guard"], "cluster", now_us=NOW_US))
        guard = service("guard")
        applied(
            book, book.put_role(guard, "wide", ["Produce", "Lookup"], now_us=NOW_US)
        )  # bound nowhere: gives nothing
        applied(book, book.put_binding(ROOT, "p", "service:api", ["peek"], "/hr/x", now_us=NOW_US))
        with pytest.raises(PermissionDeniedError, match="Produce"):
            book.put_role(guard, "peek", ["Lookup", "Produce"], now_us=NOW_US)
        with pytest.raises(PermissionDeniedError, match="Produce"):
            book.put_role(guard, "guard", ["Lookup", "Produce", "ManageSecurity"], now_us=NOW_US)
        with pytest.raises(PermissionDeniedError, match="Produce"):
            book.put_binding(guard, "w", "service:guard", ["wide"], "cluster", now_us=NOW_US)
        with pytest.raises(PermissionDeniedError, match="ManageSecurity"):
            book.put_role(LEAD, "mine", ["Lookup"], now_us=NOW_US)
        applied(book, book.put_role(ROOT, "peek", ["Lookup", "Produce"], now_us=NOW_US))
        assert book.rights.allows(service("api"), P.PRODUCE, Resource.topic("/hr/x"))
        with pytest.raises(FailedPreconditionError, match="in use; delete these bindings first: p"):
            book.drop_role(ROOT, "peek")
        applied(book, book.drop_role(guard, "wide"))
        with pytest.raises(PermissionDeniedError):
            book.drop_role(LEAD, "peek")
        with pytest.raises(NotFoundError):
            book.drop_role(ROOT, "wide")

    def test_credentials_give_no_more_than_their_maker_has(self, book: SecurityBook) -> None:
        def add(by: Principal, ceiling: list[Grant] | None, subject: str = "user:root") -> list[Change]:
            return book.add_api_key(by, KEY.id, KEY.hash, subject, ceiling, now_us=NOW_US)

        with pytest.raises(PermissionDeniedError):
            add(LEAD, None)
        with pytest.raises(PermissionDeniedError, match="ManageBroker"):
            add(LEAD, [SHOP, Grant(P.MANAGE_BROKER, parse_scope("namespace:shop"))])
        with pytest.raises(PermissionDeniedError):
            add(LEAD, [Grant(P.LOOKUP, parse_scope("cluster"))])
        with pytest.raises(InvalidArgumentError, match="1 to 64 grants"):
            add(LEAD, [])
        with pytest.raises(InvalidArgumentError, match="is a group"):
            add(ROOT, None, "group:admins")
        applied(book, add(LEAD, [SHOP]))
        proofs = Proofs(SecurityLimits(), book.keyring, book.api_keys, book.revoked)
        holder = proofs.verify(KEY.text, NOW).principal
        assert holder == ROOT.limited((SHOP,))
        assert book.rights.allows(holder, P.PRODUCE, Resource.topic("/shop/orders"))
        assert not book.rights.allows(holder, P.CONSUME, Resource.topic("/shop/orders"))
        assert not book.rights.allows(holder, P.MANAGE_SECURITY)
        with pytest.raises(AlreadyExistsError):
            add(ROOT, None)
        with pytest.raises(PermissionDeniedError):
            book.drop_api_key(service("api"), KEY.id)
        applied(book, book.drop_api_key(LEAD, KEY.id))
        with pytest.raises(BadProofError):
            proofs.verify(KEY.text, NOW)
        with pytest.raises(NotFoundError):
            book.drop_api_key(ROOT, KEY.id)
        applied(book, add(ROOT, None, "service:api"))
        assert proofs.verify(KEY.text, NOW).principal == service("api")
        with pytest.raises(PermissionDeniedError):  # it has no ceiling, so it concerns the cluster
            book.drop_api_key(LEAD, KEY.id)

    def test_a_team_key_has_a_ceiling_that_its_maker_has(self, book: SecurityBook) -> None:
        def add(by: Principal, name: str, ceiling: list[Grant] | None, life_s: float = 30 * 86400.0) -> list[Change]:
            return book.add_issuer(by, name, TEAM_KEY.public_bytes, ceiling, longest_life_s=life_s, now_us=NOW_US)

        with pytest.raises(PermissionDeniedError):
            add(LEAD, "shop-team", [Grant(P.PRODUCE, parse_scope("cluster"))])
        with pytest.raises(PermissionDeniedError):
            add(LEAD, "prod", None)
        with pytest.raises(InvalidArgumentError, match="has a ceiling"):
            add(ROOT, "shop-team", None)
        with pytest.raises(InvalidArgumentError, match="has none"):
            add(ROOT, "prod", [SHOP])
        with pytest.raises(InvalidNameError):
            add(ROOT, "shop team", [SHOP])
        for life_s in (0.0, -1.0, float("nan"), 400 * 86400.0):
            with pytest.raises(InvalidArgumentError, match="max_token_life_s"):
                add(LEAD, "shop-team", [SHOP], life_s)
        with pytest.raises(InvalidArgumentError, match="small order"):
            book.add_issuer(LEAD, "shop-team", bytes(32), [SHOP], longest_life_s=60, now_us=NOW_US)
        applied(book, add(LEAD, "shop-team", [SHOP]))
        with pytest.raises(AlreadyExistsError, match="registered already"):
            add(LEAD, "other-team", [SHOP])
        proofs = Proofs(SecurityLimits(), book.keyring, book.api_keys, book.revoked)
        assert proofs.verify(team_token("user:root"), NOW).principal.ceilings == ((SHOP,),)
        with pytest.raises(PermissionDeniedError):
            book.drop_issuer(service("api"), TEAM_KEY.kid)
        with pytest.raises(PermissionDeniedError):
            book.drop_issuer(LEAD, CLUSTER_KEY.kid)
        applied(book, book.drop_issuer(LEAD, TEAM_KEY.kid))
        proofs.keyring = book.keyring
        with pytest.raises(BadProofError):
            proofs.verify(team_token(), NOW)
        with pytest.raises(NotFoundError):
            book.drop_issuer(ROOT, TEAM_KEY.kid)

    def test_the_cluster_may_have_several_keys(self, book: SecurityBook) -> None:
        life_s = 86400.0
        applied(book, book.add_issuer(ROOT, "prod", STRANGER_KEY.public_bytes, longest_life_s=life_s, now_us=NOW_US))
        proofs = Proofs(SecurityLimits(), book.keyring, book.api_keys, book.revoked)
        header = {"alg": "EdDSA", "kid": STRANGER_KEY.kid}
        assert proofs.verify(cluster_token(header, key=STRANGER_KEY), NOW).issuer == "prod"
        assert proofs.verify(cluster_token(), NOW).issuer == "prod"

    def test_suspensions_leave_an_administrator(self, book: SecurityBook) -> None:
        with pytest.raises(FailedPreconditionError, match="last binding"):
            book.suspend(ROOT, "user:root", now_us=NOW_US)
        with pytest.raises(PermissionDeniedError):
            book.suspend(LEAD, "service:api", now_us=NOW_US)
        applied(book, book.put_binding(ROOT, "second", "user:eve", ["admin"], "cluster", now_us=NOW_US))
        applied(book, book.suspend(ROOT, "user:root", "left", now_us=NOW_US))
        eve = Principal(PrincipalType.USER, "eve")
        assert not book.rights.allows(ROOT, P.LOOKUP)
        with pytest.raises(FailedPreconditionError, match="last"):  # root's is no help while it is suspended
            book.drop_binding(eve, "second")
        with pytest.raises(FailedPreconditionError, match="last"):
            book.suspend(eve, "user:eve", now_us=NOW_US)
        with pytest.raises(PermissionDeniedError):
            book.resume(LEAD, "user:root")
        with pytest.raises(NotFoundError):
            book.resume(eve, "user:ada")
        applied(book, book.resume(eve, "user:root"))
        assert book.rights.allows(ROOT, P.LOOKUP)

    def test_quotas_of_principals_outlast_suspensions(self, book: SecurityBook) -> None:
        def change(**changes: object) -> None:
            applied(book, book.change_quota(ROOT, "service:api", changes, now_us=NOW_US))

        change(calls_per_s=5.0, max_streams=2)
        assert book.quotas == {"service:api": PrincipalQuota(calls_per_s=5.0, max_streams=2)}
        assert book.quota_of(ROOT, "service:api") == PrincipalQuota(calls_per_s=5.0, max_streams=2)
        applied(book, book.suspend(ROOT, "service:api", now_us=NOW_US))
        assert book.quotas == {"service:api": PrincipalQuota(calls_per_s=5.0, max_streams=2)}
        assert "service:api" in book.rights.suspended
        change(max_streams=3)
        assert "service:api" in book.rights.suspended
        applied(book, book.resume(ROOT, "service:api"))
        assert book.rights.suspended == set()
        assert book.quotas == {"service:api": PrincipalQuota(calls_per_s=5.0, max_streams=3)}
        change(calls_per_s=None, max_streams=None)
        assert book.quotas == {}
        assert principal_key("service:api") not in book.records
        applied(book, book.suspend(ROOT, "service:api", now_us=NOW_US))
        change(max_streams=None)
        assert "service:api" in book.rights.suspended
        applied(book, book.resume(ROOT, "service:api"))
        assert principal_key("service:api") not in book.records
        assert book.quota_of(ROOT, "service:api") == PrincipalQuota()
        with pytest.raises(InvalidArgumentError, match="calls_per_s"):
            change(calls_per_s=0.0)
        for call in (partial(book.change_quota, changes={}, now_us=NOW_US), book.quota_of):
            with pytest.raises(InvalidArgumentError, match="is a group"):
                call(ROOT, "group:g")
            with pytest.raises(PermissionDeniedError):
                call(LEAD, "service:api")

    def test_revocations_last_until_the_token_would_have_expired(self, book: SecurityBook) -> None:
        expires_us = (NOW + 3600) * 1_000_000
        with pytest.raises(PermissionDeniedError):
            book.revoke(LEAD, "t-1", expires_us, now_us=NOW_US)
        with pytest.raises(InvalidArgumentError, match="is no id"):
            book.revoke(ROOT, "a/b", expires_us, now_us=NOW_US)
        applied(book, book.revoke(ROOT, "t-1", expires_us, "lost", now_us=NOW_US))
        proofs = Proofs(SecurityLimits(), book.keyring, book.api_keys, book.revoked)
        with pytest.raises(BadProofError) as caught:
            proofs.verify(cluster_token(), NOW + 3629)
        assert caught.value.flaw is Flaw.REVOKED
        assert book.expired(expires_us + 29_000_000) == []
        sweep = book.expired(expires_us + 30_000_000)
        assert sweep == [Change("/security/revoked/t-1", None)]
        applied(book, sweep)
        with pytest.raises(BadProofError) as caught:  # it is not accepted again
            proofs.verify(cluster_token(), NOW + 3630)
        assert caught.value.flaw is Flaw.EXPIRED

    def test_expired_api_keys_are_removed(self, book: SecurityBook) -> None:
        with pytest.raises(InvalidArgumentError, match="in the past"):
            book.add_api_key(ROOT, KEY.id, KEY.hash, "user:ada", expires_us=NOW_US, now_us=NOW_US)
        applied(book, book.add_api_key(ROOT, KEY.id, KEY.hash, "user:ada", expires_us=NOW_US + 5, now_us=NOW_US))
        assert book.expired(NOW_US + 4) == []
        assert book.expired(NOW_US + 5) == [Change(f"/security/keys/{KEY.id}", None)]
        assert book.api_keys[KEY.id].expires_at_s == pytest.approx(NOW + 5e-6, abs=1e-6)

    def test_api_keys_without_an_expiry_stay(self, book: SecurityBook) -> None:
        applied(book, book.add_api_key(ROOT, KEY.id, KEY.hash, "user:ada", now_us=NOW_US))
        assert book.api_keys[KEY.id].expires_at_s == float("inf")
        assert book.expired(NOW_US * 1000) == []

    def test_limits_can_be_reached(self, book: SecurityBook) -> None:
        limits = SecurityLimits()
        assert book.put_binding(ROOT, "b", "user:a", ["viewer"] * limits.max_binding_roles, "cluster", now_us=NOW_US)
        ceiling = [SHOP] * limits.max_ceiling_grants
        life_s = limits.max_token_life_s
        assert book.add_issuer(LEAD, "t", TEAM_KEY.public_bytes, ceiling, longest_life_s=life_s, now_us=NOW_US)
        with pytest.raises(InvalidArgumentError, match="1 to 64 grants"):
            book.add_issuer(LEAD, "t", TEAM_KEY.public_bytes, [*ceiling, SHOP], longest_life_s=60, now_us=NOW_US)
        assert book.put_role(ROOT, "x", ["Lookup"], "d" * limits.max_description_chars, now_us=NOW_US)

    def test_limits_are_named(self) -> None:
        book = new_book(max_roles=1, max_bindings=2, max_api_keys=1, max_issuers=2, max_revocations=1, max_principals=1)
        expires_us = NOW_US + 10**9
        other = make_api_key(bytes(range(1, RANDOM_BYTES + 1)))

        def issuer(key: Any) -> list[Change]:
            return book.add_issuer(ROOT, "team", key.public_bytes, [SHOP], longest_life_s=60, now_us=NOW_US)

        applied(book, book.put_role(ROOT, "one", ["Lookup"], now_us=NOW_US))
        applied(book, book.put_role(ROOT, "one", ["Produce"], now_us=NOW_US))
        applied(book, book.put_binding(ROOT, "b", "user:a", ["one"], "/a/b", now_us=NOW_US))
        applied(book, book.put_binding(ROOT, "b", "user:b", ["one"], "/a/b", now_us=NOW_US))
        applied(book, book.add_api_key(ROOT, KEY.id, KEY.hash, "user:a", now_us=NOW_US))
        applied(book, issuer(TEAM_KEY))
        applied(book, book.revoke(ROOT, "t", expires_us, now_us=NOW_US))
        applied(book, book.suspend(ROOT, "user:a", now_us=NOW_US))
        for change, limit in (
            (lambda: book.put_role(ROOT, "two", ["Lookup"], now_us=NOW_US), "max_roles"),
            (lambda: book.put_binding(ROOT, "c", "user:a", ["one"], "/a/b", now_us=NOW_US), "max_bindings"),
            (lambda: book.add_api_key(ROOT, other.id, other.hash, "user:a", now_us=NOW_US), "max_api_keys"),
            (lambda: issuer(STRANGER_KEY), "max_issuers"),
            (lambda: book.revoke(ROOT, "u", expires_us, now_us=NOW_US), "max_revocations"),
            (lambda: book.suspend(ROOT, "user:b", now_us=NOW_US), "max_principals"),
        ):
            with pytest.raises(LimitExceededError, match=limit):
                change()
        applied(book, book.resume(ROOT, "user:a"))
        applied(book, book.suspend(ROOT, "user:b", now_us=NOW_US))  # there is room again

    def test_invalid_requests_are_refused_with_a_sentence(self, book: SecurityBook) -> None:
        long = "x" * 513
        for change, error, text in (
            (lambda: book.put_role(ROOT, "a b", ["Lookup"], now_us=0), InvalidNameError, "role name"),
            (lambda: book.put_role(ROOT, "admin", ["Lookup"], now_us=0), FailedPreconditionError, "built in"),
            (lambda: book.put_role(ROOT, "x", [], now_us=0), InvalidArgumentError, "at least one"),
            (lambda: book.put_role(ROOT, "x", ["Fly"], now_us=0), InvalidArgumentError, "unknown permission 'Fly'"),
            (lambda: book.put_role(ROOT, "x", ["Lookup"], long, now_us=0), InvalidArgumentError, "513 characters"),
            (
                lambda: book.put_binding(ROOT, "a b", "user:a", ["viewer"], "cluster", now_us=0),
                InvalidArgumentError,
                "id",
            ),
            (
                lambda: book.put_binding(ROOT, "b", "ada", ["viewer"], "cluster", now_us=0),
                InvalidArgumentError,
                "subject",
            ),
            (
                lambda: book.put_binding(ROOT, "b", "user:a", ["viewer"] * 17, "cluster", now_us=0),
                InvalidArgumentError,
                "17",
            ),
            (lambda: book.put_binding(ROOT, "b", "user:a", [], "cluster", now_us=0), InvalidArgumentError, "none"),
            (
                lambda: book.put_binding(ROOT, "b", "user:a", ["pilot"], "cluster", now_us=0),
                InvalidArgumentError,
                "pilot",
            ),
            (lambda: book.put_binding(ROOT, "b", "user:a", ["viewer"], "/x", now_us=0), InvalidArgumentError, "scope"),
            (lambda: book.suspend(ROOT, "broker:b1", now_us=0), InvalidArgumentError, "subject"),
            (lambda: book.suspend(ROOT, "user:a", long, now_us=0), InvalidArgumentError, "513"),
            (lambda: book.revoke(ROOT, "t", 1, long, now_us=0), InvalidArgumentError, "513"),
        ):
            with pytest.raises(error, match=text):
                change()


class TestRecords:
    RECORDS = (
        (
            "/security/roles/peek",
            RoleRecord(permissions=("Lookup",), description="d", created_us=1, created_by="user:a"),
        ),
        ("/security/bindings/b", BindingRecord(subject="user:a", roles=("viewer",), scope="cluster")),
        (principal_key("user:login/a b"), PrincipalRecord(is_suspended=True, quota=PrincipalQuota(max_streams=1))),
        (f"/security/keys/{KEY.id}", ApiKeyRecord(subject="user:a", hash=KEY.hash, ceiling=(GrantRecord.of(SHOP),))),
        (
            f"/security/issuers/{TEAM_KEY.kid}",
            IssuerRecord(name="t", public=TEAM_KEY.public_bytes, ceiling=(GrantRecord.of(SHOP),)),
        ),
        ("/security/revoked/t", RevocationRecord(expires_us=5)),
    )

    @pytest.mark.parametrize(("key", "record"), RECORDS)
    def test_records_are_read_back_with_more_fields_too(self, key: str, record: Any) -> None:
        value = encode_record(record)
        assert decode_record(key, value) == record
        longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(value), "new field"])
        assert decode_record(key, longer) == record
        for invalid in (0, -1):
            with pytest.raises(DataLossError, match="no version"):
                decode_record(key, msgspec.msgpack.encode([invalid, *msgspec.msgpack.decode(value)[1:]]))
        newer = msgspec.msgpack.encode([2, *msgspec.msgpack.decode(value)[1:]])
        prefix = key[: key.rindex("/") + 1]
        assert decode_record(key, newer) == UnknownVersion(prefix, 2)

    @pytest.mark.parametrize(
        "value",
        [b"", b"\xc1", b"\x90", b"\x91\x00", b"\x91\xa1x", b"\x91\xc3", b"\x91\x01", b"\x80", b"\x93\x01\x01\x01"],
    )
    def test_damaged_records_are_reported(self, value: bytes) -> None:
        for key, _ in self.RECORDS[:2]:
            with pytest.raises(DataLossError, match=key):
                decode_record(key, value)
        with pytest.raises(DataLossError, match="belongs to no record"):
            decode_record("/security/other/x", b"\x91\x01")

    def test_permissions_are_stored_by_name(self) -> None:
        assert permissions_of(("Produce", "Fly", "BrokerInternal", "Lookup")) == P.PRODUCE | P.LOOKUP
        assert GrantRecord.of(SHOP) == GrantRecord(("Lookup", "Produce"), "namespace:shop")
        assert GrantRecord.of(SHOP).grant == SHOP

    @given(st.text(min_size=1).filter(str.isprintable))
    def test_every_subject_has_a_key_of_its_own(self, name: str) -> None:
        key = principal_key(f"user:{name}")
        assert subject_of_key(key) == f"user:{name}"
        assert key.count("/") == 3

    @pytest.mark.parametrize("key", ["/security/principals/user:a b", "/security/principals/user%3Aa"])
    def test_other_forms_of_a_key_name_nobody(self, key: str) -> None:
        with pytest.raises(InvalidArgumentError):
            subject_of_key(key)


class TestDamage:
    """What a broker cannot read gives nothing, and what takes away takes away nevertheless."""

    @pytest.mark.parametrize("value", [b"\xc1", b"\x91\x02"])
    def test_unreadable_records_fail_closed(self, book: SecurityBook, value: bytes) -> None:
        api = service("api")
        applied(book, book.put_role(ROOT, "peek", ["Lookup"], now_us=NOW_US))
        applied(book, book.put_binding(ROOT, "p", "service:api", ["peek", "viewer"], "cluster", now_us=NOW_US))
        applied(book, book.put_binding(ROOT, "q", "service:api", ["peek"], "/a/b", now_us=NOW_US))
        applied(book, book.add_api_key(ROOT, KEY.id, KEY.hash, "service:api", now_us=NOW_US))
        applied(book, book.add_issuer(ROOT, "team", TEAM_KEY.public_bytes, [SHOP], longest_life_s=60, now_us=NOW_US))
        book.apply("/security/bindings/p", value)
        assert not book.rights.allows(api, P.DESCRIBE)
        assert book.rights.allows(api, P.LOOKUP, Resource.topic("/a/b"))
        book.apply("/security/roles/peek", value)
        assert not book.rights.allows(api, P.LOOKUP, Resource.topic("/a/b"))
        book.apply(f"/security/keys/{KEY.id}", value)
        assert book.api_keys == {}
        book.apply(f"/security/issuers/{TEAM_KEY.kid}", value)
        assert list(book.keyring.issuers) == ["prod"]
        book.apply("/security/revoked/t-1", value)
        assert "t-1" in book.revoked
        book.apply(principal_key("user:root"), value)
        assert not book.rights.allows(ROOT, P.LOOKUP)
        assert len(book.unusable) == 6
        second = BindingRecord(subject="user:eve", roles=("admin",), scope="cluster")
        book.apply("/security/bindings/second", encode_record(second))
        eve = Principal(PrincipalType.USER, "eve")
        assert book.drop_api_key(eve, KEY.id) == [Change(f"/security/keys/{KEY.id}", None)]
        assert book.drop_issuer(eve, TEAM_KEY.kid) == [Change(f"/security/issuers/{TEAM_KEY.kid}", None)]
        assert book.resume(eve, "user:root") == [Change(principal_key("user:root"), None)]
        assert all("later version" in text or "decode" in text for text in book.unusable.values())
        for key in list(book.unusable):
            book.apply(key, None)
        assert book.unusable == {}
        assert book.revoked == {}
        assert book.rights.allows(ROOT, P.LOOKUP)

    def test_records_with_invalid_contents_have_no_effect(self, book: SecurityBook) -> None:
        invalid = GrantRecord(("Lookup",), "nowhere")
        for key, record in (
            ("/security/bindings/x", BindingRecord(subject="broker:b1", roles=("admin",), scope="cluster")),
            ("/security/bindings/x", BindingRecord(subject="user:a", roles=("admin",), scope="all")),
            ("/security/keys/x", ApiKeyRecord(subject="group:g", hash=KEY.hash)),
            ("/security/keys/x", ApiKeyRecord(subject="user:a", hash=KEY.hash, ceiling=(invalid,))),
            ("/security/issuers/x", IssuerRecord(name="t", public=TEAM_KEY.public_bytes, ceiling=())),
            (f"/security/issuers/{TEAM_KEY.kid}", IssuerRecord(name="prod", public=TEAM_KEY.public_bytes, ceiling=())),
            (f"/security/issuers/{TEAM_KEY.kid}", IssuerRecord(name="t", public=bytes(32), ceiling=())),
        ):
            generation, keys = book.rights.bindings.copy(), dict(book.api_keys)
            book.apply(key, encode_record(record))
            assert key in book.unusable
            assert (book.rights.bindings, book.api_keys) == (generation, keys)
            assert list(book.keyring.issuers) == ["prod"]

    def test_a_binding_that_names_a_missing_role_grants_nothing_until_it_comes(self, book: SecurityBook) -> None:
        record = BindingRecord(subject="service:api", roles=("later",), scope="cluster")
        book.apply("/security/bindings/x", encode_record(record))
        assert not book.rights.allows(service("api"), P.LOOKUP)
        book.apply("/security/roles/later", encode_record(RoleRecord(permissions=("Lookup",))))
        assert book.rights.allows(service("api"), P.LOOKUP)
        book.apply("/security/roles/later", None)
        assert not book.rights.allows(service("api"), P.LOOKUP)

    def test_built_in_roles_cannot_be_replaced_by_records(self, book: SecurityBook) -> None:
        book.apply("/security/roles/viewer", encode_record(RoleRecord(permissions=("ManageCluster",))))
        assert book.rights.roles["viewer"] == BUILT_IN_ROLES["viewer"]
        book.apply("/security/roles/viewer", None)
        assert "viewer" in book.rights.roles


def test_configured_issuers_and_those_of_records_are_kept_apart(book: SecurityBook) -> None:
    upstream = Trusted(secret_key(bytes(32)), "shop-team", Profile.UPSTREAM)
    applied(book, book.add_issuer(LEAD, "shop-team", TEAM_KEY.public_bytes, [SHOP], longest_life_s=60, now_us=NOW_US))
    book.configure([(None, upstream), ("o1", Trusted(ed25519_key(STRANGER_KEY.public_bytes), OIDC, Profile.OIDC))])
    assert book.keyring.issuers == {"shop-team": Profile.UPSTREAM, OIDC: Profile.OIDC, "prod": Profile.CLUSTER}
    with pytest.raises(AlreadyExistsError, match="is configured"):
        book.add_issuer(LEAD, "shop-team", STRANGER_KEY.public_bytes, [SHOP], longest_life_s=60, now_us=NOW_US)
    book.configure([])
    assert book.keyring.issuers["shop-team"] is Profile.CLUSTER
    assert keyring().issuers["danube-auth"] is Profile.UPSTREAM


def test_a_loaded_book_is_the_same_as_one_that_has_followed(book: SecurityBook) -> None:
    applied(book, book.put_role(ROOT, "peek", ["Lookup"], now_us=NOW_US))
    applied(book, book.put_binding(LEAD, "b1", "service:api", ["producer"], "/shop/ord*", now_us=NOW_US))
    applied(book, book.add_api_key(LEAD, KEY.id, KEY.hash, "service:api", [SHOP], now_us=NOW_US))
    loaded = SecurityBook("prod", SecurityLimits())
    loaded.load((key, encode_record(record)) for key, record in book.records.items())
    assert loaded.records == book.records
    assert loaded.rights.bindings == book.rights.bindings
    assert loaded.api_keys == book.api_keys
    assert loaded.keyring.issuers == book.keyring.issuers


# --- Nobody grants what they lack ------------------------------------------------------------------------------------

_ACTORS = [ROOT, service("a"), service("b"), service("c", "g"), service("d", ceilings=((SHOP,),))]
_SUBJECTS = ["user:root", "service:a", "service:b", "service:c", "group:g", "service:d"]
_SCOPES = [
    "cluster",
    "namespace:shop",
    "namespace:hr",
    "/shop/orders",
    "/shop/ord*",
    "topic:/sho*",
    "/shop/orders#s",
    "schema:x",
    "schema:/shop/*",
]
_RESOURCES = [
    CLUSTER,
    Resource.namespace("shop"),
    Resource.namespace("hr"),
    Resource.topic("/shop/orders"),
    Resource.topic("/shop/ordnance"),
    Resource.topic("/shoe/x"),
    Resource.topic("/hr/x"),
    Resource.subscription("/shop/orders", "s"),
    Resource.schema("x"),
    Resource.schema("/shop/x"),
]
_ROLES = ["admin", "namespace-admin", "producer", "viewer", "mine", "yours"]
_PERMISSIONS = st.lists(
    st.sampled_from(["Lookup", "Produce", "ManageSecurity", "ManageTopic", "ManageBroker"]), min_size=1, max_size=3
)
_GRANTS = st.builds(
    Grant,
    st.sampled_from([P.LOOKUP, P.PRODUCE | P.LOOKUP, P.MANAGE_SECURITY | P.PRODUCE, P.MANAGE_BROKER]),
    st.sampled_from(_SCOPES).map(parse_scope),
)
Right = tuple[Permission, Resource]


class Granting(RuleBasedStateMachine):
    """Principals change roles, bindings, suspensions and keys at random. Whoever succeeds has what was given.

    The model knows roles, bindings and suspensions as plain dictionaries, and decides by one loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self.book = new_book()
        self.roles: dict[str, Permission] = {name: role.permissions for name, role in BUILT_IN_ROLES.items()}
        self.bindings: dict[str, tuple[str, tuple[str, ...], str]] = {
            "first-admin": ("user:root", ("admin",), "cluster")
        }
        self.suspended: set[str] = set()

    @initialize(
        given=st.lists(
            st.tuples(st.sampled_from(_SUBJECTS[1:]), st.sampled_from(_ROLES[:4]), st.sampled_from(_SCOPES)), max_size=4
        )
    )
    def begin(self, given: list[tuple[str, str, str]]) -> None:
        for number, (subject, role, scope) in enumerate(given):
            self.bind(ROOT, f"b{number}", subject, [role], scope)

    def rights_of(self, principal: Principal) -> set[Right]:
        """Return all rights of a principal in the model."""
        if any(subject in self.suspended for subject in principal.subjects):
            return set()
        found = set()
        for resource in _RESOURCES:
            for subject, roles, scope in self.bindings.values():
                if subject in principal.subjects and parse_scope(scope).covers(resource):
                    for role in roles:
                        found |= {
                            (each, resource) for each in Permission if each in self.roles.get(role, Permission(0))
                        }
        for ceiling in principal.ceilings:
            found = {right for right in found if any(grant.gives(*right) for grant in ceiling)}
        return found

    def everybody(self) -> dict[Principal, set[Right]]:
        return {each: self.rights_of(each) for each in _ACTORS}

    def attempt(self, by: Principal, change: Any, then: Any) -> None:
        """Make a change, which may be refused; if it succeeds, nobody has gained what its maker lacked."""
        before = self.everybody()
        try:
            changes = change()
        except DanubeError:
            return
        applied(self.book, changes)
        then()
        after = self.everybody()
        for principal, rights in after.items():
            gained = rights - before[principal]
            assert gained <= before[by], f"{by} gave {principal} {gained - before[by]}"

    @rule(
        by=st.sampled_from(_ACTORS),
        binding_id=st.sampled_from(["b0", "b1", "b2", "first-admin"]),
        subject=st.sampled_from(_SUBJECTS),
        roles=st.lists(st.sampled_from(_ROLES), min_size=1, max_size=2, unique=True),
        scope=st.sampled_from(_SCOPES),
    )
    def bind(self, by: Principal, binding_id: str, subject: str, roles: list[str], scope: str) -> None:
        self.attempt(
            by,
            lambda: self.book.put_binding(by, binding_id, subject, roles, scope, now_us=NOW_US),
            lambda: self.bindings.__setitem__(binding_id, (subject, tuple(roles), scope)),
        )

    @rule(by=st.sampled_from(_ACTORS), binding_id=st.sampled_from(["b0", "b1", "b2", "first-admin"]))
    def unbind(self, by: Principal, binding_id: str) -> None:
        self.attempt(by, lambda: self.book.drop_binding(by, binding_id), lambda: self.bindings.pop(binding_id))

    @rule(by=st.sampled_from(_ACTORS), name=st.sampled_from(["mine", "yours"]), permissions=_PERMISSIONS)
    def define(self, by: Principal, name: str, permissions: list[str]) -> None:
        self.attempt(
            by,
            lambda: self.book.put_role(by, name, permissions, now_us=NOW_US),
            lambda: self.roles.__setitem__(name, permissions_of(tuple(permissions))),
        )

    @rule(by=st.sampled_from(_ACTORS), name=st.sampled_from(["mine", "yours"]))
    def forget(self, by: Principal, name: str) -> None:
        self.attempt(by, lambda: self.book.drop_role(by, name), lambda: self.roles.pop(name))

    @rule(by=st.sampled_from(_ACTORS), subject=st.sampled_from(_SUBJECTS))
    def suspend(self, by: Principal, subject: str) -> None:
        self.attempt(by, lambda: self.book.suspend(by, subject, now_us=NOW_US), lambda: self.suspended.add(subject))

    @rule(by=st.sampled_from(_ACTORS), subject=st.sampled_from(_SUBJECTS))
    def resume(self, by: Principal, subject: str) -> None:
        self.attempt(by, lambda: self.book.resume(by, subject), lambda: self.suspended.discard(subject))

    @rule(
        by=st.sampled_from(_ACTORS),
        subject=st.sampled_from(["user:root", "service:a", "service:d"]),
        ceiling=st.none() | st.lists(_GRANTS, min_size=1, max_size=2),
    )
    def vouch(self, by: Principal, subject: str, ceiling: list[Grant] | None) -> None:
        """Who makes a key, holds it: it has no right that its maker lacks."""
        has = self.rights_of(by)
        try:
            changes = self.book.add_api_key(by, KEY.id, KEY.hash, subject, ceiling, now_us=NOW_US)
            self.book.add_issuer(by, "team", TEAM_KEY.public_bytes, ceiling or [], longest_life_s=60, now_us=NOW_US)
        except DanubeError:
            return
        applied(self.book, changes)
        proofs = Proofs(SecurityLimits(), self.book.keyring, self.book.api_keys, self.book.revoked)
        holder = proofs.verify(KEY.text, NOW).principal
        assert self.rights_of(holder) <= has
        applied(self.book, self.book.drop_api_key(by, KEY.id))

    @invariant()
    def decisions_are_those_of_the_model(self) -> None:
        for principal, rights in self.everybody().items():
            for resource in _RESOURCES:
                for each in (P.LOOKUP, P.PRODUCE, P.MANAGE_SECURITY, P.MANAGE_BROKER):
                    allowed = self.book.rights.allows(principal, each, resource)
                    assert allowed == ((each, resource) in rights), (str(principal), each, resource)

    @invariant()
    def an_administrator_stays(self) -> None:
        assert any(
            subject not in self.suspended and "admin" in roles and scope == "cluster"
            for subject, roles, scope in self.bindings.values()
        )


Granting.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestGranting = Granting.TestCase
