"""A broker whose metadata refuse everything for a while, for whatever reason, goes on and recovers. In virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from broker.broker_harness import running_broker, wait_until

from danube.model.errors import (
    ClosedError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    LimitExceededError,
    PermissionDeniedError,
    UnavailableError,
)

pytestmark = pytest.mark.virtual

AWAY_S = 15.0
"""Long enough for the session to end, and for each task to try several times."""


@pytest.mark.parametrize(
    "error", [UnavailableError, DeadlineExceededError, LimitExceededError, PermissionDeniedError, InvalidArgumentError]
)
async def test_a_broker_outlives_metadata_that_refuse_everything(tmp_path: Path, error: type[DanubeError]) -> None:
    async with running_broker(tmp_path, patience_s=600) as running, running.client() as client:
        await client.admin.create_topic("/default/kept")
        await client.admin.create_topic("/default/fleeting", durability="none")
        async with client.producer("/default/kept") as producer:
            await producer.send(b"before")
            assert running.machine is not None
            store = running.machine.node._metadata_store
            assert store is not None
            membership = running.broker.directory.membership
            first = membership.session_revision
            store.error, store.refuse, store.break_watch = error, 1.0, 1.0
            await trio.sleep(AWAY_S)
            assert not membership.is_certain()
            await producer.send(b"meanwhile")
            store.refuse = store.break_watch = 0.0
            await wait_until(lambda: membership.is_certain() and membership.session_revision > first, 30)
            await producer.send(b"after")
        await client.admin.create_topic("/default/new")
        async with client.producer("/default/fleeting") as producer:
            await producer.send(b"after")


@pytest.mark.parametrize("error", [UnavailableError, LimitExceededError, PermissionDeniedError])
async def test_a_deletion_is_completed_when_the_metadata_accept_changes_again(
    tmp_path: Path, error: type[DanubeError], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(tmp_path, patience_s=600) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        async with client.producer("/default/t") as producer:
            await producer.send(b"x")
        assert running.machine is not None
        store = running.machine.node._metadata_store
        assert store is not None
        directory = running.broker.directory

        def refuse() -> None:
            if directory.catalogue.find("/default/t") is None:
                store.error, store.refuse = error, 1.0

        directory.following.on_change.append(refuse)
        await client.admin.delete_topic("/default/t")
        await trio.sleep(AWAY_S)
        directory.following.on_change.remove(refuse)
        warnings = [record for record in caplog.records if "of deleted topic '/default/t'" in record.getMessage()]
        assert 1 <= len(warnings) <= 5, "the pauses get longer"
        store.refuse = 0.0
        tables, assignments = directory.catalogue.tables, directory.membership.assignments
        await wait_until(lambda: not tables.deleted.values and not assignments.values, 60)
        assert "at the next start" not in caplog.text


@pytest.mark.parametrize("error", [ClosedError, DataLossError, DataDirectoryError, InternalError])
async def test_metadata_that_are_damaged_end_the_broker(tmp_path: Path, error: type[DanubeError]) -> None:
    async def refuse() -> None:
        async with running_broker(tmp_path, patience_s=600) as running:
            assert running.machine is not None
            store = running.machine.node._metadata_store
            assert store is not None
            store.error, store.refuse = error, 1.0
            await trio.sleep(AWAY_S)

    with pytest.raises(error, match="injected"):
        await refuse()
