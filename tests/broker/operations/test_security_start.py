"""The first key and the first administrator, and what becomes of a key that was removed."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from danube.broker.operations.security import LoadedRecords, SecurityOperations
from danube.broker.operations.security_start import SIGNING_KEY, begin_security, write_private
from danube.metadata import MetadataStore, open_store
from danube.model import security_api as api
from danube.model.errors import ConfigurationError, FailedPreconditionError, InvalidArgumentError, UnavailableError
from danube.model.limits import Limits
from danube.security import Principal, PrincipalType
from danube.security.keys import SigningKey, signing_key
from danube.security.limits import SecurityLimits

ADMIN = Principal(PrincipalType.USER, "admin")
LIMITS = SecurityLimits()


def now_us() -> int:
    return time.time_ns() // 1000


def opened(directory: Path):
    return open_store("memory://", data_directory=directory, options={}, group=None, limits=Limits())


async def begin(store: MetadataStore, directory: Path, administrator: str = "user:admin") -> SigningKey:
    records = LoadedRecords(store, "prod", LIMITS)
    return await begin_security(store, records, "prod", directory, administrator, now_us, secrets.token_bytes)


def operations(store: MetadataStore, key: SigningKey) -> SecurityOperations:
    records = LoadedRecords(store, "prod", LIMITS)
    return SecurityOperations(store, records, "prod", now_us, secrets.token_bytes, LIMITS, key)


async def test_the_first_broker_makes_a_key_and_the_first_administrator(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        key = await begin(store, tmp_path)
        assert (tmp_path / SIGNING_KEY).stat().st_mode & 0o777 == 0o600
        assert (tmp_path / SIGNING_KEY).parent.stat().st_mode & 0o777 == 0o700
        security = operations(store, key)
        (binding,) = (await security.list_bindings(ADMIN, api.ListBindings())).bindings
        assert (binding.subject, binding.roles, binding.scope) == ("user:admin", ["admin"], "cluster")
        await security.issue_token(ADMIN, api.IssueToken("user:admin", 60))
        assert (await begin(store, tmp_path)).kid == key.kid
        assert (await begin(store, tmp_path, "user:eve")).kid == key.kid
        assert len((await security.list_bindings(ADMIN, api.ListBindings())).bindings) == 1


async def test_the_start_waits_while_the_metadata_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as store:
        real, asked = store.transact, []

        async def transact(*arguments: Any) -> Any:
            asked.append(arguments)
            if len(asked) == 1:
                raise UnavailableError("the leader has changed; try again")
            if len(asked) == 2:
                await real(*arguments)
                raise UnavailableError("no answer; the change may have been made")
            return await real(*arguments)

        monkeypatch.setattr(store, "transact", transact)
        monkeypatch.setattr("danube.broker.operations.security_start._AGAIN_S", 0.01)
        with trio.fail_after(5):
            key = await begin(store, tmp_path)
        assert len(asked) == 2
        assert (await operations(store, key).list_bindings(ADMIN, api.ListBindings())).bindings


async def test_every_broker_has_a_key_also_when_they_start_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        found: list[SigningKey] = []

        async def start(name: str) -> None:
            found.append(await begin(store, tmp_path / name))

        async with trio.open_nursery() as nursery:
            for name in ("b1", "b2", "b3"):
                nursery.start_soon(start, name)
        rows = (await operations(store, found[0]).list_issuers(ADMIN)).issuers
        assert {each.kid for each in rows} == {each.kid for each in found}
        assert {each.name for each in rows} == {"prod"}


async def test_the_key_of_security_init_is_registered_even_if_there_is_an_administrator(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await begin(store, tmp_path / "b1")
        key = signing_key(bytes(range(32)))
        write_private(tmp_path / "b2" / SIGNING_KEY, key.private_pem())
        assert (await begin(store, tmp_path / "b2")).kid == key.kid


async def test_a_removed_key_signs_nothing_and_is_replaced_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        key = await begin(store, tmp_path)
        security = operations(store, key)
        await security.drop_issuer(ADMIN, api.DropIssuer(key.kid))
        with pytest.raises(FailedPreconditionError, match="restart the broker"):
            await security.issue_token(ADMIN, api.IssueToken("user:admin", 60))
        other = await begin(store, tmp_path)
        assert other.kid != key.kid
        assert [each.kid for each in (await security.list_issuers(ADMIN)).issuers] == [other.kid]
        assert (await begin(store, tmp_path)).kid == other.kid


async def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await begin(store, tmp_path)
        (tmp_path / SIGNING_KEY).chmod(0o640)
        with pytest.raises(ConfigurationError, match="mode 0640, so others may read"):
            await begin(store, tmp_path)
        (tmp_path / SIGNING_KEY).chmod(0o600)
        (tmp_path / SIGNING_KEY).write_text("secret nonsense")
        with pytest.raises(ConfigurationError) as caught:
            await begin(store, tmp_path)
        assert "nonsense" not in str(caught.value)


async def test_a_group_is_no_first_administrator(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        with pytest.raises(InvalidArgumentError):
            await begin(store, tmp_path, "group:admins")
