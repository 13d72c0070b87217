"""Access control changed by several principals and brokers at once: judged on current records, written once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from danube.broker.operations.security import ANONYMOUS, CHANGES, LoadedRecords, SecurityOperations, write_changes
from danube.metadata import MetadataStore, TransactionResult, open_store
from danube.model import security_api as api
from danube.model.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)
from danube.model.limits import Limits
from danube.security import Principal, PrincipalType
from danube.security.api_keys import RANDOM_BYTES, NewApiKey, make_api_key
from danube.security.book import SecurityBook, first_records
from danube.security.keys import SigningKey, signing_key
from danube.security.limits import SecurityLimits
from danube.security.proofs import Proofs

ROOT = Principal(PrincipalType.USER, "root")
LEAD = Principal(PrincipalType.SERVICE, "lead")
BROKER_KEY, TEAM_KEY = signing_key(bytes(range(32))), signing_key(bytes(range(32, 64)))
LIMITS = SecurityLimits()
DAY_S = 86_400.0


class KnownRecords(LoadedRecords):
    """Records that are enforced: nobody is anonymous."""

    async def at(self, revision: int) -> SecurityBook:
        book = await super().at(revision)
        book.rights.set_binding("(anonymous)", None)
        return book


def now_us() -> int:
    return time.time_ns() // 1000


def operations(store: MetadataStore, signing: SigningKey | None = BROKER_KEY) -> SecurityOperations:
    counted = iter(range(10**6))
    return SecurityOperations(
        store,
        KnownRecords(store, "prod", LIMITS),
        "prod",
        now_us,
        lambda size: next(counted).to_bytes(size),
        LIMITS,
        signing,
    )


@asynccontextmanager
async def opened(directory: Path, engine: str) -> AsyncGenerator[MetadataStore, None]:
    """Open metadata with one administrator, ROOT, and one lead of the namespace shop."""
    async with open_store(f"{engine}://", data_directory=directory, options={}, group=None, limits=Limits()) as store:
        records = KnownRecords(store, "prod", LIMITS)
        first = first_records("prod", BROKER_KEY.public_bytes, str(ROOT), {}, now_us=now_us())
        await write_changes(store, records, lambda book: first)
        await operations(store).put_binding(
            ROOT, api.PutBinding(str(LEAD), ["namespace-admin"], "namespace:shop", "lead")
        )
        yield store


@pytest.fixture(params=["memory", "embedded"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def new_key(seed: int = 0) -> NewApiKey:
    return make_api_key(bytes((each + seed) % 256 for each in range(RANDOM_BYTES)))


async def verified(store: MetadataStore, credential: str) -> Any:
    """Return the identity that a credential proves now; raises if it proves none."""
    book = await KnownRecords(store, "prod", LIMITS).at(0)
    return Proofs(LIMITS, book.keyring, book.api_keys, book.revoked).verify(credential, time.time())


class TestBindings:
    async def test_a_grant_finds_an_id_extends_and_is_taken_back_role_by_role(
        self, tmp_path: Path, engine: str
    ) -> None:
        async with opened(tmp_path, engine) as store:
            security = operations(store)
            put = api.PutBinding("service:api", ["producer"], "/shop/orders*")
            (row,) = (await security.put_binding(LEAD, put)).bindings
            assert (row.subject, row.roles, row.scope) == ("service:api", ["producer"], "topic:/shop/orders*")
            assert row.id.startswith("b-")
            assert (row.created_by, row.created_us > 0) == ("service:lead", True)
            put.roles = ["consumer"]
            (again,) = (await security.put_binding(LEAD, put)).bindings
            assert (again.id, again.roles) == (row.id, ["producer", "consumer"])
            drop = api.DropBinding(subject="service:api", roles=["producer"], scope="/shop/orders*")
            (left,) = (await security.drop_binding(LEAD, drop)).bindings
            assert (left.id, left.roles) == (row.id, ["consumer"])
            drop.roles = []
            assert (await security.drop_binding(LEAD, drop)).bindings == []
            with pytest.raises(
                NotFoundError, match=r"no binding grants a role to service:api within topic:/shop/orders\*"
            ):
                await security.drop_binding(LEAD, drop)
            with pytest.raises(InvalidArgumentError, match="a subject and a scope"):
                await security.drop_binding(LEAD, api.DropBinding(subject="service:api"))

    async def test_nobody_grants_what_they_lack_or_sees_what_they_do_not_manage(self, tmp_path: Path) -> None:
        async with opened(tmp_path, "memory") as store:
            security = operations(store)
            for request in (
                api.PutBinding("service:api", ["producer"], "/hr/salaries"),
                api.PutBinding("service:api", ["operator"], "namespace:shop"),
                api.PutBinding(str(LEAD), ["admin"], "cluster"),
                api.PutBinding("service:lead", ["viewer"], "namespace:shop", "first-admin"),
            ):
                with pytest.raises(PermissionDeniedError):
                    await security.put_binding(LEAD, request)
            with pytest.raises(PermissionDeniedError):
                await security.drop_binding(LEAD, api.DropBinding("first-admin"))
            with pytest.raises(PermissionDeniedError):
                await security.drop_binding(LEAD, api.DropBinding(subject="user:x", scope="/hr/salaries"))
            assert [each.id for each in (await security.list_bindings(LEAD, api.ListBindings())).bindings] == ["lead"]
            assert len((await security.list_bindings(ROOT, api.ListBindings())).bindings) == 2
            with pytest.raises(NotFoundError):
                await security.show_binding(LEAD, "first-admin")
            assert (await security.show_binding(ROOT, "first-admin")).subject == "user:root"

    async def test_two_administrators_cannot_remove_each_other_at_the_same_time(
        self, tmp_path: Path, engine: str
    ) -> None:
        async with opened(tmp_path, engine) as store:
            await operations(store).put_binding(ROOT, api.PutBinding("user:other", ["admin"], "cluster", "second"))
            failed: list[str] = []

            async def drop(binding: str) -> None:
                try:
                    await operations(store).drop_binding(ROOT, api.DropBinding(binding))
                except (FailedPreconditionError, PermissionDeniedError):
                    failed.append(binding)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(drop, "first-admin")
                nursery.start_soon(drop, "second")
            assert len(failed) == 1

    async def test_the_last_administrator_stays_even_with_two_bindings(self, tmp_path: Path) -> None:
        async with opened(tmp_path, "memory") as store:
            security = operations(store)
            await security.put_binding(ROOT, api.PutBinding("user:root", ["admin", "viewer"], "cluster", "again"))
            with pytest.raises(FailedPreconditionError, match="the last one that grants the role admin"):
                await security.drop_binding(ROOT, api.DropBinding(subject="user:root", scope="cluster"))
            with pytest.raises(FailedPreconditionError, match="the last one"):
                await security.drop_binding(
                    ROOT, api.DropBinding(subject="user:root", roles=["admin"], scope="cluster")
                )
            with pytest.raises(FailedPreconditionError, match="the last binding"):
                await security.suspend_principal(ROOT, api.SuspendPrincipal("user:root"))

    async def test_many_changes_at_once_are_all_made(self, tmp_path: Path, engine: str) -> None:
        async with opened(tmp_path, engine) as store:
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    put = api.PutBinding(f"service:s{number}", ["viewer"], "namespace:shop")
                    nursery.start_soon(operations(store).put_binding, ROOT, put)
            found = (await operations(store).list_bindings(ROOT, api.ListBindings())).bindings
            assert len({each.id for each in found}) == len(found) == 10

    async def test_lists_come_in_pages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(api, "PAGE_ROWS", 3)
        async with opened(tmp_path, "memory") as store:
            security = operations(store)
            for number in range(5):
                await security.put_binding(ROOT, api.PutBinding(f"service:s{number}", ["viewer"], "namespace:shop"))
            first = await security.list_bindings(ROOT, api.ListBindings())
            last = await security.list_bindings(ROOT, api.ListBindings(after=first.bindings[-1].id))
            more = await security.list_bindings(ROOT, api.ListBindings(after=last.bindings[-1].id))
            assert ([len(each.bindings) for each in (first, last, more)], first.more, last.more) == (
                [3, 3, 1],
                True,
                True,
            )
            assert not more.more


async def test_roles(tmp_path: Path, engine: str) -> None:
    async with opened(tmp_path, engine) as store:
        security = operations(store)
        await security.put_role(ROOT, api.PutRole("tap", ["Lookup", "Consume"], "reads"))
        rows = (await security.list_roles(LEAD)).roles
        assert rows[0].name == "admin"
        assert rows[0].built_in
        assert (rows[-1].name, rows[-1].permissions, rows[-1].created_by) == ("tap", ["Lookup", "Consume"], "user:root")
        await security.put_binding(ROOT, api.PutBinding("service:api", ["tap"], "/shop/orders", "uses-tap"))
        with pytest.raises(FailedPreconditionError, match="in use; delete these bindings first: uses-tap"):
            await security.drop_role(ROOT, api.DropRole("tap"))
        await security.drop_binding(ROOT, api.DropBinding("uses-tap"))
        await security.drop_role(ROOT, api.DropRole("tap"))
        with pytest.raises(NotFoundError):
            await security.drop_role(ROOT, api.DropRole("tap"))
        with pytest.raises(PermissionDeniedError):
            await security.put_role(LEAD, api.PutRole("tap", ["Lookup"]))


async def test_principals(tmp_path: Path) -> None:
    async with opened(tmp_path, "memory") as store:
        security = operations(store)
        await security.suspend_principal(ROOT, api.SuspendPrincipal("service:lead", "left"))
        rows = (await security.list_principals(ROOT, api.ListPrincipals())).principals
        assert [(each.subject, each.suspended, each.description, each.bindings) for each in rows] == [
            ("service:lead", True, "left", 1),
            ("user:root", False, "", 1),
        ]
        with pytest.raises(PermissionDeniedError):
            await security.put_binding(LEAD, api.PutBinding("service:x", ["viewer"], "namespace:shop"))
        await security.resume_principal(ROOT, api.ResumePrincipal("service:lead"))
        assert [each.subject for each in (await security.list_principals(LEAD, api.ListPrincipals())).principals] == [
            "service:lead"
        ]


async def test_api_keys_are_stored_as_hashes_and_judged_by_their_ceiling(tmp_path: Path, engine: str) -> None:
    async with opened(tmp_path, engine) as store:
        security = operations(store)
        key, other = new_key(), new_key(1)
        with pytest.raises(PermissionDeniedError):
            await security.add_key(LEAD, api.AddKey(key.id, key.hash, "service:api"))
        ceiling = [api.CeilingGrant("/shop/orders", roles=["producer"])]
        await security.add_key(LEAD, api.AddKey(key.id, key.hash, "service:api", ceiling, description="a test"))
        await security.add_key(ROOT, api.AddKey(other.id, other.hash, "service:api"))
        with pytest.raises(AlreadyExistsError):
            await security.add_key(ROOT, api.AddKey(key.id, key.hash, "service:api"))
        with pytest.raises(InvalidArgumentError):
            await security.add_key(ROOT, api.AddKey("a/b", key.hash, "service:api"))
        with pytest.raises(InvalidArgumentError):
            await security.add_key(ROOT, api.AddKey("a" * 100, key.hash, "service:api"))
        (row,) = (await security.list_keys(LEAD, api.ListKeys())).keys
        assert (row.id, row.subject, row.description) == (key.id, "service:api", "a test")
        assert row.ceiling == [api.CeilingGrant("topic:/shop/orders", ["Lookup", "Produce", "Describe", "ReadSchema"])]
        assert len((await security.list_keys(ROOT, api.ListKeys("service:api"))).keys) == 2
        identity = await verified(store, key.text)
        assert str(identity.principal) == "service:api"
        secret = key.text.split("_")[2][:43]
        assert not any(secret.encode() in each.value for each in (await store.list("/"))[0])
        token = security.exchange_key(identity)
        assert str((await verified(store, token)).principal) == "service:api"
        with pytest.raises(UnauthenticatedError):
            security.exchange_key(await verified(store, token))
        await security.drop_key(LEAD, api.DropKey(key.id))
        for credential in (key.text, token):
            with pytest.raises(UnauthenticatedError):
                await verified(store, credential)


async def test_tokens_are_signed_for_what_their_maker_may_and_revoked(tmp_path: Path, engine: str) -> None:
    async with opened(tmp_path, engine) as store:
        security = operations(store)
        issued = await security.issue_token(ROOT, api.IssueToken("service:api", 90 * DAY_S))
        assert "eyJ" not in repr(issued)
        identity = await verified(store, issued.token)
        assert (str(identity.principal), identity.id) == ("service:api", issued.id)
        with pytest.raises(PermissionDeniedError):
            await security.issue_token(LEAD, api.IssueToken("service:api", DAY_S))
        narrow = await security.issue_token(LEAD, api.IssueToken("service:api", DAY_S, ["Produce:/shop/orders"]))
        assert (await verified(store, narrow.token)).principal.ceilings
        for subject, life_s in (("group:all", DAY_S), ("service:api", 0), ("service:api", 400 * DAY_S)):
            with pytest.raises(InvalidArgumentError):
                await security.issue_token(ROOT, api.IssueToken(subject, life_s))
        await security.revoke_token(ROOT, api.RevokeToken(issued.id, issued.expires_us, "lost"))
        with pytest.raises(UnauthenticatedError):
            await verified(store, issued.token)
        await verified(store, narrow.token)
        (row,) = (await security.list_revoked(ROOT, api.ListRevoked())).tokens
        assert (row.id, row.reason, row.created_by) == (issued.id, "lost", "user:root")
        with pytest.raises(PermissionDeniedError):
            await security.revoke_token(LEAD, api.RevokeToken(narrow.id))
        with pytest.raises(FailedPreconditionError, match="signs no tokens"):
            await operations(store, None).issue_token(ROOT, api.IssueToken("service:api", DAY_S))


async def test_revoking_a_token_sweeps_what_has_expired(tmp_path: Path) -> None:
    async with opened(tmp_path, "memory") as store:
        security = operations(store)
        await security.revoke_token(ROOT, api.RevokeToken("old", 1))
        for expires_us in (-1, 2**63):
            await security.revoke_token(ROOT, api.RevokeToken("new", expires_us))
        assert [each.id for each in (await security.list_revoked(ROOT, api.ListRevoked())).tokens] == ["new"]


async def test_a_team_signs_within_its_ceiling(tmp_path: Path) -> None:
    async with opened(tmp_path, "memory") as store:
        security = operations(store)
        add = api.AddIssuer(
            "shop-team", TEAM_KEY.public_bytes, [api.CeilingGrant("cluster", roles=["producer"])], DAY_S
        )
        with pytest.raises(PermissionDeniedError):
            await security.add_issuer(LEAD, add)
        add.ceiling = [api.CeilingGrant("namespace:shop", roles=["producer", "consumer"])]
        await security.add_issuer(LEAD, add)
        (row,) = (await security.list_issuers(LEAD)).issuers
        assert (row.kid, row.name, row.longest_life_s) == (TEAM_KEY.kid, "shop-team", DAY_S)
        assert [each.name for each in (await security.list_issuers(ROOT)).issuers] == ["prod", "shop-team"]
        for ceiling, words in (
            ([api.CeilingGrant("namespace:shop")], "no permissions"),
            ([api.CeilingGrant("namespace:shop", roles=["x"])], "no role 'x'"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                await security.add_issuer(ROOT, api.AddIssuer("x", bytes(range(32)), ceiling, DAY_S))
        await security.drop_issuer(LEAD, api.DropIssuer(TEAM_KEY.kid))
        assert [each.name for each in (await security.list_issuers(ROOT)).issuers] == ["prod"]


async def test_explanations_are_for_those_who_manage_the_resource(tmp_path: Path) -> None:
    async with opened(tmp_path, "memory") as store:
        security = operations(store)
        await security.put_binding(ROOT, api.PutBinding("service:api", ["producer"], "/shop/orders*", "b-3"))
        asked = api.ExplainAccess("service:api", "consume", "/shop/orders")
        explained = await security.explain(LEAD, asked)
        assert not explained.allowed
        assert explained.reason == (
            "no binding grants Consume on /shop/orders; producer (b-3, topic:/shop/orders*) grants Lookup, Produce,"
            " Describe, ReadSchema"
        )
        assert (await security.explain(ROOT, api.ExplainAccess("service:api", "produce", "/shop/orders"))).allowed
        with pytest.raises(PermissionDeniedError):
            await security.explain(LEAD, api.ExplainAccess("service:api", "consume", "/hr/salaries"))
        for wrong in (
            api.ExplainAccess("api", "consume", "/shop/orders"),
            api.ExplainAccess("group:g", "consume", "/shop/orders"),
            api.ExplainAccess("service:api", "eat", "/shop/orders"),
            api.ExplainAccess("service:api", "consume", "/shop/ord*"),
        ):
            with pytest.raises(InvalidArgumentError):
                await security.explain(ROOT, wrong)


async def test_without_access_control_everyone_prepares_it(tmp_path: Path) -> None:
    async with open_store("memory://", data_directory=tmp_path, options={}, group=None, limits=Limits()) as store:
        security = SecurityOperations(
            store, LoadedRecords(store, "prod", LIMITS), "prod", now_us, lambda size: bytes(size), LIMITS
        )
        await security.put_binding(ANONYMOUS, api.PutBinding("user:ada", ["admin"], "cluster", "first"))
        assert [each.id for each in (await security.list_bindings(ANONYMOUS, api.ListBindings())).bindings] == ["first"]
        await security.put_binding(ANONYMOUS, api.PutBinding("user:anonymous", ["viewer"], "cluster"))
        rows = (await security.list_bindings(ANONYMOUS, api.ListBindings(subject="user:anonymous"))).bindings
        assert [each.roles for each in rows] == [["viewer"]]


async def test_a_change_that_others_always_overtake_is_given_up(tmp_path: Path) -> None:
    async with opened(tmp_path, "memory") as store:

        class Busy:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def transact(self, *parts: Any) -> TransactionResult:
                await store.put(CHANGES, b"")
                return await store.transact(*parts)

        with pytest.raises(UnavailableError, match="changed 20 times"):
            await operations(Busy()).put_role(ROOT, api.PutRole("tap", ["Lookup"]))  # type: ignore[arg-type]
