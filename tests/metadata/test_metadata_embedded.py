"""The embedded store and its file: crashes, damage, full disks, wrong formats, group commit."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio
from descriptors import descriptors_left

from danube.metadata import Delete, EmbeddedStore, Put, open_store
from danube.metadata._sqlite import FORMAT, SqliteTable
from danube.model.errors import (
    ConfigurationError,
    DataDirectoryError,
    DataLossError,
    LimitExceededError,
    OutOfDescriptorsError,
)

WRITER = """
    import sys, trio
    from danube.metadata import EmbeddedStore, Put

    async def main():
        async with EmbeddedStore(sys.argv[1]) as store, trio.open_nursery() as nursery:
            async def write(name):
                for number in range(1_000_000):
                    value = b"%d" % number
                    result = await store.transact([], [Put(f"/{name}/a", value), Put(f"/{name}/b", value)])
                    sys.stdout.write(f"{name} {number} {result.revision}\\n")
                    sys.stdout.flush()
            for name in "xyz":
                nursery.start_soon(write, name)

    trio.run(main)
"""


def acknowledged(directory, lines):
    """Start a writer, kill it after so many acknowledgements, and return all that it has told."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as writer:
        told = [writer.stdout.readline() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        told += writer.stdout.read().splitlines()
    return [line.split() for line in told if line.count(" ") == 2]


async def test_acknowledged_changes_survive_kill(tmp_path):
    revision = 0
    for round_number in range(2):
        told = await trio.to_thread.run_sync(acknowledged, tmp_path, 100 + 37 * round_number)
        floor = {}
        for name, number, changed in told:
            floor[name] = int(number)
            revision = max(revision, int(changed))
        async with EmbeddedStore(tmp_path) as store:
            items, present = await store.list("/")
            found = {item.key: int(item.value) for item in items}
            assert present >= revision
            for name, number in floor.items():
                assert found[f"/{name}/a"] == found[f"/{name}/b"]
                assert found[f"/{name}/a"] in (number, number + 1)  # the one under way may have happened
            async with store.watch("/", 1) as watch:  # the history has no gap either
                for expected in range(1, present + 1):
                    assert (await watch.__anext__()).revision == expected


async def filled(directory):
    async with EmbeddedStore(directory) as store:
        for number in range(200):
            await store.put(f"/k/{number:03}", b"value-%03d" % number * 20)
    return directory / "metadata.db"


async def fill_again(directory):
    (directory / "metadata.db").unlink()
    return await filled(directory)


async def read_everything(directory):
    async with EmbeddedStore(directory) as store:
        await store.list("/")
        async with store.watch("/", 1) as watch:
            for _ in range(200):
                await watch.__anext__()


async def test_every_flipped_bit_in_a_value_is_found(tmp_path):
    file = await filled(tmp_path)
    content = bytearray(file.read_bytes())
    place = content.index(b"value-123")
    content[place + 3] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(DataLossError, match=r"metadata\.db is damaged"):
        await read_everything(tmp_path)


@pytest.mark.parametrize("page", [0, 1, 2, 3, 4, 8, 20])
async def test_overwritten_pages_are_found(tmp_path, page):
    file = await filled(tmp_path)
    content = bytearray(file.read_bytes())
    content[page * 4096 : (page + 1) * 4096] = b"\xa5" * 4096
    file.write_bytes(content)
    with pytest.raises((DataLossError, DataDirectoryError)) as caught:
        await read_everything(tmp_path)
    assert str(file) in caught.value.message


async def test_truncated_file_is_found(tmp_path):
    file = await filled(tmp_path)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(DataLossError, match="damaged"):
        await read_everything(tmp_path)


async def test_swapped_and_missing_rows_are_found(tmp_path):
    file = await filled(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("UPDATE items SET body = (SELECT body FROM items WHERE key = '/k/001') WHERE key = '/k/002'")
    raw.close()
    with pytest.raises(DataLossError, match="'/k/002' holds '/k/001'"):
        await read_everything(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("DELETE FROM items WHERE key = '/k/002'")
    raw.close()
    with pytest.raises(DataLossError, match="should have 200 keys and 0 leases, and has 199 and 0"):
        await read_everything(tmp_path)
    await fill_again(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("DELETE FROM history WHERE revision = 77")
    raw.close()
    with pytest.raises(DataLossError, match="history of revisions 1 to 200"):
        await read_everything(tmp_path)


async def test_other_files_are_refused(tmp_path):
    async with EmbeddedStore(tmp_path / "newer") as store:
        await store.put("/k", b"")
    for directory, statement, message in (
        ("newer", f"PRAGMA user_version = {FORMAT + 1}", "newer Danube"),
        ("foreign", "CREATE TABLE t (x)", "not one of Danube's"),
    ):
        (tmp_path / directory).mkdir(exist_ok=True)
        with sqlite3.connect(tmp_path / directory / "metadata.db") as raw:
            raw.execute(statement)
        raw.close()
        with pytest.raises(DataDirectoryError, match=message):
            await read_everything(tmp_path / directory)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "metadata.db").write_text("Dear diary, " * 1000)
    with pytest.raises(DataLossError, match="not a database"):
        await read_everything(tmp_path / "text")


async def test_one_process_at_a_time(tmp_path):
    async with EmbeddedStore(tmp_path) as store:
        await store.put("/k", b"")
        with pytest.raises(DataDirectoryError, match="in use by another process"):
            await read_everything(tmp_path)


async def test_another_process_that_came_first_is_noticed(tmp_path):
    async with EmbeddedStore(tmp_path) as store:
        assert await store.get("/k") is None
        async with EmbeddedStore(tmp_path) as other:
            await other.put("/k", b"")
        with pytest.raises(DataDirectoryError, match="changed by another process"):
            await store.put("/k", b"")


async def test_opening_and_reading_change_nothing(tmp_path):
    """Opening an invalid store changes neither it nor its log."""

    def files():
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        return {name: content for name, content in found.items() if name != "metadata.db-shm"}

    async with EmbeddedStore(tmp_path) as store:
        assert (await store.list("/"))[1] == 0
    assert files() == {}
    running = tmp_path / "running"
    async with EmbeddedStore(running) as store:
        for number in range(5):
            await store.put(f"/k/{number}", b"value")
        for name in ("metadata.db", "metadata.db-wal"):  # as a crash leaves them
            (tmp_path / name).write_bytes((running / name).read_bytes())
    shutil.rmtree(running)
    before = files()
    async with EmbeddedStore(tmp_path) as store:
        items, revision = await store.list("/")
        assert (len(items), revision) == (5, 5)
    assert files() == before
    async with EmbeddedStore(tmp_path) as store:
        assert await store.put("/k/5", b"value") == 6
    assert set(files()) == {"metadata.db"}


async def test_a_log_whose_file_is_gone_is_damage(tmp_path):
    (tmp_path / "metadata.db-wal").write_bytes(b"log")
    for _ in range(2):
        with pytest.raises(DataLossError, match="missing or empty"):
            await read_everything(tmp_path)
        (tmp_path / "metadata.db").write_bytes(b"")
    assert (tmp_path / "metadata.db-wal").read_bytes() == b"log"


async def test_unusable_directories(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        await read_everything(tmp_path / "file" / "below")
    (tmp_path / "directory" / "metadata.db").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match="not a file"):
        await read_everything(tmp_path / "directory")


async def test_read_only_database(tmp_path):
    await filled(tmp_path)
    store = EmbeddedStore(tmp_path)
    async with store:
        await store.put("/b", b"")
        store._table._execute("PRAGMA query_only = ON")
        with pytest.raises(DataDirectoryError, match="cannot be written"):
            await store.put("/a", b"")
        with pytest.raises(DataDirectoryError, match="cannot be written"):
            await store.get("/k/001")  # after an error that is not understood nothing is trusted


async def test_full_disk_refuses_and_recovers(tmp_path):
    """A full disk fails what does not fit; nothing is half done, and with space it goes on."""
    async with EmbeddedStore(tmp_path) as store:
        await store.put("/first", b"")
        pages = store._table._pragma("page_count")
        store._table._execute(f"PRAGMA max_page_count = {pages + 20}")
        kept = -1

        async def fill():
            nonlocal kept
            for number in range(100):
                await store.transact([], [Put(f"/k/{number}", bytes(3000)), Put("/last", b"%d" % number)])
                kept = number

        with pytest.raises(LimitExceededError, match="full; free space"):
            await fill()
        items, revision = await store.list("/")
        assert len(items) == kept + 3
        assert revision == kept + 2
        assert (await store.get("/last")).value == b"%d" % kept
        store._table._execute(f"PRAGMA max_page_count = {pages + 1000}")
        assert (await store.transact([], [Put("/new", bytes(3000)), Delete("/k/0")])).revision == revision + 1


@pytest.mark.parametrize("new", [True, False])
async def test_a_first_change_without_descriptors_is_refused_and_the_store_goes_on(tmp_path, new):
    """The file is opened for writing by the first change; until then it is open to be read, or missing."""
    if not new:
        async with EmbeddedStore(tmp_path) as store:
            await store.put("/old", b"1")
    async with EmbeddedStore(tmp_path) as store:
        _, before = await store.list("/")
        refused: list[str] = []
        for spare in range(20):
            with descriptors_left(spare):
                try:
                    await store.put("/a", b"2")
                except OutOfDescriptorsError as error:
                    refused.append(str(error))
                else:
                    break
        assert refused or not new, "to write takes no more descriptors than to read"
        assert all("ulimit -n" in text for text in refused)
        assert await store.put("/a", b"3") == before + 2, "refused changes have no effect"
        assert [item.key for item in (await store.list("/"))[0]] == ["/a"] + ["/old"] * (not new)
    async with EmbeddedStore(tmp_path) as store:
        assert (await store.get("/a")).value == b"3"


async def test_failed_sync_is_final(tmp_path, monkeypatch):
    """After an I/O error at commit nothing more is accepted, and no caller hangs."""
    async with EmbeddedStore(tmp_path) as store:
        await store.put("/a", b"1")
        execute = SqliteTable._execute

        def failing(self, statement, parameters=()):
            if statement == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode, error.sqlite_errorname = 1034, "SQLITE_IOERR_FSYNC"
                raise error
            return execute(self, statement, parameters)

        errors = []

        async def put(number):
            try:
                await store.put(f"/b/{number}", b"")
            except DataDirectoryError as error:
                errors.append(error)

        with monkeypatch.context() as patch:
            patch.setattr(SqliteTable, "_execute", failing)
            async with trio.open_nursery() as nursery:
                for number in range(5):
                    nursery.start_soon(put, number)
        assert len(errors) == len({id(error) for error in errors}) == 5
        with pytest.raises(DataDirectoryError, match="SQLITE_IOERR_FSYNC"):
            await store.put("/c", b"")
    async with EmbeddedStore(tmp_path) as store:
        assert [item.key for item in (await store.list("/"))[0]] == ["/a"]


async def test_concurrent_changes_share_a_commit(tmp_path, monkeypatch):
    commits = []
    execute = SqliteTable._execute

    def counting(self, statement, parameters=()):
        if statement == "COMMIT":
            commits.append(self.revision)
        return execute(self, statement, parameters)

    async with EmbeddedStore(tmp_path) as store:
        monkeypatch.setattr(SqliteTable, "_execute", counting)
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(store.put, f"/k/{number}", b"")
        assert (await store.list("/"))[1] == 300
    assert len(commits) < 20


async def test_commits_are_synced(tmp_path):
    """The journal mode and the sync level are what durability rests on."""
    async with EmbeddedStore(tmp_path) as store:
        await store.put("/k", b"")
        assert store._table._one("PRAGMA journal_mode")[0] == "wal"
        assert store._table._pragma("synchronous") == 2
        assert store._table._one("PRAGMA locking_mode")[0] == "exclusive"


async def test_errors_of_the_body_come_out_as_they_are(tmp_path):
    async def fail():
        async with open_store("embedded://", data_directory=tmp_path) as store:
            await store.put("/a", b"")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with trio.move_on_after(0.01) as scope:
        async with EmbeddedStore(tmp_path) as store:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    async with open_store(f"embedded://{tmp_path}") as store:
        assert await store.get("/a") is not None


async def test_embedded_needs_a_directory():
    with pytest.raises(ConfigurationError, match="needs a directory"):
        async with open_store("embedded://"):
            pass
    with pytest.raises(ConfigurationError, match="three slashes: embedded:///data/x"):
        async with open_store("embedded://data/x"):
            pass
