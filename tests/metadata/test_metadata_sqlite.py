"""The table of the embedded store in its file: damage, full disks, wrong formats, other processes."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import contextmanager
from pathlib import Path

import pytest
from descriptors import descriptors_left

from danube.metadata import Delete, Put, _sqlite
from danube.metadata._machine import StoreMachine
from danube.metadata._sqlite import FORMAT, SqliteTable
from danube.model.errors import DataDirectoryError, DataLossError, LimitExceededError, OutOfDescriptorsError
from danube.model.limits import Limits


def change(table, operations):
    """Make one change, in a transaction of its own; return its revision."""
    with table.transaction():
        return StoreMachine(table, Limits()).transact((), operations).revision


@contextmanager
def opened(directory):
    """A table, open in a block."""
    table = SqliteTable(directory)
    table.open()
    try:
        yield table
    finally:
        table.close()


def filled(directory: Path) -> Path:
    with opened(directory) as table:
        for number in range(200):
            change(table, [Put(f"/k/{number:03}", b"value-%03d" % number * 20)])
    return directory / "metadata.db"


def fill_again(directory):
    (directory / "metadata.db").unlink()
    return filled(directory)


def read_everything(directory):
    with opened(directory) as table, table.transaction():
        table.scan("/")
        table.replay(0, 1000, 1 << 30)


def test_every_flipped_bit_in_a_value_is_found(tmp_path):
    file = filled(tmp_path)
    content = bytearray(file.read_bytes())
    place = content.index(b"value-123")
    content[place + 3] ^= 0x10
    file.write_bytes(content)
    with pytest.raises(DataLossError, match=r"metadata\.db is damaged"):
        read_everything(tmp_path)


@pytest.mark.parametrize("page", [0, 1, 2, 3, 4, 8, 20])
def test_overwritten_pages_are_found(tmp_path, page):
    file = filled(tmp_path)
    content = bytearray(file.read_bytes())
    content[page * 4096 : (page + 1) * 4096] = b"\xa5" * 4096
    file.write_bytes(content)
    with pytest.raises((DataLossError, DataDirectoryError)) as caught:
        read_everything(tmp_path)
    assert str(file) in caught.value.message


def test_truncated_file_is_found(tmp_path):
    file = filled(tmp_path)
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(DataLossError, match="damaged"):
        read_everything(tmp_path)


def test_swapped_and_missing_rows_are_found(tmp_path):
    file = filled(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("UPDATE items SET body = (SELECT body FROM items WHERE key = '/k/001') WHERE key = '/k/002'")
    raw.close()
    with pytest.raises(DataLossError, match="'/k/002' holds '/k/001'"):
        read_everything(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("DELETE FROM items WHERE key = '/k/002'")
    raw.close()
    with pytest.raises(DataLossError, match="should have 200 keys and 0 leases, and has 199 and 0"):
        read_everything(tmp_path)
    fill_again(tmp_path)
    with sqlite3.connect(file) as raw:
        raw.execute("DELETE FROM history WHERE revision = 77")
    raw.close()
    with pytest.raises(DataLossError, match="history of revisions 1 to 200"):
        read_everything(tmp_path)


def test_other_files_are_refused(tmp_path):
    with opened(tmp_path / "newer") as table:
        change(table, [Put("/k", b"")])
    for directory, statement, message in (
        ("newer", f"PRAGMA user_version = {FORMAT + 1}", "newer Danube"),
        ("foreign", "CREATE TABLE t (x)", "not one of Danube's"),
    ):
        (tmp_path / directory).mkdir(exist_ok=True)
        with sqlite3.connect(tmp_path / directory / "metadata.db") as raw:
            raw.execute(statement)
        raw.close()
        with pytest.raises(DataDirectoryError, match=message):
            read_everything(tmp_path / directory)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "metadata.db").write_text("Dear diary, " * 1000)
    with pytest.raises(DataLossError, match="not a database"):
        read_everything(tmp_path / "text")


def test_one_process_at_a_time(tmp_path):
    with opened(tmp_path) as table:
        change(table, [Put("/k", b"")])
        with pytest.raises(DataDirectoryError, match="in use by another process"):
            read_everything(tmp_path)


def test_another_process_that_came_first_is_noticed(tmp_path):
    with opened(tmp_path) as table:
        assert table.lookup("/k") is None
        with opened(tmp_path) as other:
            change(other, [Put("/k", b"")])
        with pytest.raises(DataDirectoryError, match="changed by another process"):
            change(table, [Put("/k", b"")])


def test_opening_and_reading_change_nothing(tmp_path):
    """Opening an invalid store changes neither it nor its log."""

    def files():
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        return {name: content for name, content in found.items() if name != "metadata.db-shm"}

    with opened(tmp_path) as table:
        assert table.revision == 0
    assert files() == {}
    running = tmp_path / "running"
    with opened(running) as table:
        for number in range(5):
            change(table, [Put(f"/k/{number}", b"value")])
        for name in ("metadata.db", "metadata.db-wal"):  # as a crash leaves them
            (tmp_path / name).write_bytes((running / name).read_bytes())
    shutil.rmtree(running)
    before = files()
    with opened(tmp_path) as table, table.transaction():
        assert (len(table.scan("/")), table.revision) == (5, 5)
    assert files() == before
    with opened(tmp_path) as table:
        assert change(table, [Put("/k/5", b"value")]) == 6
    assert set(files()) == {"metadata.db"}


def test_a_log_whose_file_is_gone_is_damage(tmp_path):
    (tmp_path / "metadata.db-wal").write_bytes(b"log")
    for _ in range(2):
        with pytest.raises(DataLossError, match="missing or empty"):
            read_everything(tmp_path)
        (tmp_path / "metadata.db").write_bytes(b"")
    assert (tmp_path / "metadata.db-wal").read_bytes() == b"log"


def test_unusable_directories(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        read_everything(tmp_path / "file" / "below")
    (tmp_path / "directory" / "metadata.db").mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match="not a file"):
        read_everything(tmp_path / "directory")


def test_read_only_database(tmp_path):
    filled(tmp_path)
    with opened(tmp_path) as table:
        change(table, [Put("/b", b"")])
        table._execute("PRAGMA query_only = ON")
        with pytest.raises(DataDirectoryError, match="cannot be written"):
            change(table, [Put("/a", b"")])


def test_full_disk_refuses_and_recovers(tmp_path):
    """A full disk fails what does not fit; nothing is half done, and with space it goes on."""
    with opened(tmp_path) as table:
        change(table, [Put("/first", b"")])
        pages = table._pragma("page_count")
        table._execute(f"PRAGMA max_page_count = {pages + 20}")
        kept = -1

        def fill():
            nonlocal kept
            for number in range(100):
                change(table, [Put(f"/k/{number}", bytes(3000)), Put("/last", b"%d" % number)])
                kept = number

        with pytest.raises(LimitExceededError, match="full; free space"):
            fill()
        assert len(table.scan("/")) == kept + 3
        assert table.revision == kept + 2
        assert table.lookup("/last").value == b"%d" % kept
        table._execute(f"PRAGMA max_page_count = {pages + 1000}")
        assert change(table, [Put("/new", bytes(3000)), Delete("/k/0")]) == kept + 3


@pytest.mark.parametrize("new", [True, False])
def test_a_first_change_without_descriptors_is_refused_and_the_table_goes_on(tmp_path, new):
    """The file is opened for writing by the first change; until then it is open to be read, or missing."""
    if not new:
        with opened(tmp_path) as table:
            change(table, [Put("/old", b"1")])
    with opened(tmp_path) as table:
        before = table.revision
        refused: list[str] = []
        for spare in range(20):
            with descriptors_left(spare):
                try:
                    change(table, [Put("/a", b"2")])
                except OutOfDescriptorsError as error:
                    refused.append(str(error))
                else:
                    break
        assert refused or not new, "to write takes no more descriptors than to read"
        assert all("ulimit -n" in text for text in refused)
        assert change(table, [Put("/a", b"3")]) == before + 2, "refused changes have no effect"
        assert [item.key for item in table.scan("/")] == ["/a"] + ["/old"] * (not new)


@pytest.mark.parametrize("restarts", [True, False])
def test_a_new_file_whose_directory_was_not_synced_is_synced_by_the_next_change(tmp_path, monkeypatch, restarts):
    directory = tmp_path / "metadata"
    synced: list[Path] = []
    missing = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def sync(path: Path) -> None:
        if missing:
            raise missing.pop()
        synced.append(path)

    monkeypatch.setattr(_sqlite, "sync_directory", sync)
    with opened(directory) as table:
        with pytest.raises(OutOfDescriptorsError):
            change(table, [Put("/a", b"1")])
        if not restarts:
            change(table, [Put("/a", b"2")])
            assert set(synced) == {directory, tmp_path}
    with opened(directory) as table:
        change(table, [Put("/b", b"1")])
        change(table, [Put("/c", b"1")])
    assert directory in synced


def test_the_file_is_locked_and_its_log_is_not_synced(tmp_path):
    """The Raft log is the durability."""
    with opened(tmp_path) as table:
        change(table, [Put("/k", b"")])
        assert table._one("PRAGMA journal_mode")[0] == "wal"
        assert table._pragma("synchronous") == 1
        assert table._one("PRAGMA locking_mode")[0] == "exclusive"
