"""A backup of a running broker's metadata, put back after the metadata were lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from broker.broker_harness import read_all, running_broker, wait_until
from typer.testing import CliRunner

from danube.broker.operations.backups import BackupOperations
from danube.cli.app import app
from danube.cluster.backup_format import decode_backup
from danube.cluster.rebuilding import restore_metadata
from danube.model.cluster_api import BackupMetadata, BackupPiece
from danube.model.errors import FailedPreconditionError, UnavailableError

TOPIC = "/default/orders"


async def test_a_broker_goes_on_with_its_journal_and_a_backup_of_its_metadata(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"before")
            backup = await client.admin.backup_metadata()
            await producer.send(b"after")
        directory = Path(running.config.data_directory)
    found = decode_backup(backup, "the backup")
    assert found.head.cluster == "danube"
    assert any(item.key.startswith("/topics") for item in found.items)
    (tmp_path / "monday").write_bytes(backup)
    shutil.rmtree(directory / "metadata")
    await restore_metadata(directory, tmp_path / "monday", Random(1))
    async with running_broker(tmp_path) as running, running.client() as client:
        assert await read_all(client, TOPIC) == [b"before", b"after"]
        async with client.producer(TOPIC) as producer:
            assert (await producer.send(b"again")).offset == 2


async def test_one_backup_is_made_at_a_time_and_given_up_when_it_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        backups = running.broker.operations.backups
        first = await backups.backup(BackupMetadata())
        with pytest.raises(UnavailableError, match="another backup"):
            await backups.backup(BackupMetadata())
        monkeypatch.setattr("danube.broker.operations.backups.KEPT_S", 0.0)
        with pytest.raises(FailedPreconditionError, match="given up"):
            await backups.backup(BackupMetadata(first.revision))
        monkeypatch.undo()
        assert decode_backup(await client.admin.backup_metadata(), "the backup").items


async def rest(backups: BackupOperations, begun: BackupPiece) -> list[BackupPiece]:
    """Fetch a backup to its end; return all its pieces."""
    pieces = [begun]
    while not pieces[-1].last:
        pieces.append(await backups.backup(BackupMetadata(begun.revision, pieces[-1].position)))
    return pieces


async def test_the_last_piece_is_the_same_when_it_is_fetched_again(tmp_path: Path) -> None:
    """Its answer may be lost; the backup then ended as one of no keys."""
    async with running_broker(tmp_path) as running:
        backups = running.broker.operations.backups
        pieces = await rest(backups, await backups.backup(BackupMetadata()))
        last = BackupMetadata(pieces[0].revision, pieces[-1].position)
        assert await backups.backup(last) == pieces[-1]
        with pytest.raises(FailedPreconditionError, match="given up"):
            await backups.backup(BackupMetadata(last.revision, 0))
        assert decode_backup(b"".join(each.data for each in pieces), "the backup").items


async def test_an_abandoned_backup_does_not_end_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        backups = running.broker.operations.backups
        old = await backups.backup(BackupMetadata())
        monkeypatch.setattr("danube.broker.operations.backups.KEPT_S", 0.0)
        await client.admin.create_topic(TOPIC)
        begun = await backups.backup(BackupMetadata())
        monkeypatch.undo()
        assert begun.revision > old.revision
        with pytest.raises(FailedPreconditionError, match="given up"):
            await backups.backup(BackupMetadata(old.revision, old.position))
        pieces = await rest(backups, begun)
        assert decode_backup(b"".join(each.data for each in pieces), "the backup").items


async def test_of_two_backups_that_begin_together_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as running:
        backups = running.broker.operations.backups
        store = running.broker.directory.catalogue.store
        begun: list[BackupPiece] = []
        refused: list[UnavailableError] = []
        read = store.list

        async def slow(prefix: str) -> Any:
            found = await read(prefix)
            await trio.testing.wait_all_tasks_blocked()
            return found

        async def begin() -> None:
            try:
                begun.append(await backups.backup(BackupMetadata()))
            except UnavailableError as error:
                refused.append(error)

        monkeypatch.setattr(store, "list", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            nursery.start_soon(begin)
        assert (len(begun), len(refused)) == (1, 1)
        pieces = await rest(backups, begun[0])
        assert decode_backup(b"".join(each.data for each in pieces), "the backup").items


async def test_the_commands(tmp_path: Path) -> None:
    file = str(tmp_path / "monday")

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["cluster", *arguments])
        assert not done.exit_code, done.output
        return done.output

    async with running_broker(tmp_path) as running:
        said = await trio.to_thread.run_sync(run, "backup", file, "--url", running.url)
        assert "metadata of the cluster 'danube' at revision" in said
        directory = Path(running.config.data_directory)
        await wait_until(lambda: not (tmp_path / "monday.part").exists())
    shutil.rmtree(directory / "metadata")
    said = await trio.to_thread.run_sync(run, "restore", file, "--data-dir", str(directory))
    assert said.endswith(
        f"1. {directory} has the new metadata. Start the broker in it, b1, with the options of before.\n"
    )
