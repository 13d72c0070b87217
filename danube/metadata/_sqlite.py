"""The table of a metadata machine in an SQLite file. Runs on a worker thread only.

SQLite in WAL mode with ``synchronous=FULL`` appends a transaction to ``metadata.db-wal`` and syncs it before COMMIT
returns; the pages move into ``metadata.db`` at checkpoints. ``locking_mode=EXCLUSIVE`` keeps every other process out
and saves the shared-memory file.

SQLite's pages carry no checksum, so rows do. The body of an item and of a history row is::

    0        4                              n
    +--------+------------------------------+
    | CRC32C | msgpack                      |   items: KeyValue   history: tuple of events
    +--------+------------------------------+
      little endian, over the msgpack bytes

The columns beside a body only find it; what counts is in the body, and they are compared. History has a row for each
revision from ``compacted + 1`` to ``revision`` and none is missing, which is checked when the file is opened.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec

from danube.metadata._contract import Event, EventBatch, KeyValue, LeaseId
from danube.metadata._keys import below
from danube.model.errors import DanubeError, DataDirectoryError, DataLossError, LimitExceededError

__all__ = ["FILE_NAME", "FORMAT", "SqliteTable"]

FILE_NAME = "metadata.db"
FORMAT = 1
"""Version of the tables, in SQLite's ``user_version``."""
_APPLICATION_ID = 0x44414E55  # "DANU", in SQLite's ``application_id``: the file is ours

_SCHEMA = (
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE items (key TEXT PRIMARY KEY, lease INTEGER, body BLOB NOT NULL) WITHOUT ROWID",
    "CREATE INDEX items_by_lease ON items (lease) WHERE lease IS NOT NULL",
    "CREATE TABLE history (revision INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE leases (id INTEGER PRIMARY KEY, ttl_s REAL NOT NULL)",
    "INSERT INTO counters VALUES ('revision', 0), ('compacted', 0), ('next_lease', 1)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

_CACHE_KIB = 2048


class SqliteTable:
    """Implements :class:`~danube.metadata._machine.Table`. Not safe for two threads at once."""

    def __init__(self, directory: Path) -> None:
        self.revision = 0
        self.compacted = 0
        self.next_lease = 1
        self.history_bytes = 0
        self.lease_count = 0
        self._directory = directory
        self._path = directory / FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._saved = (0, 0, 1)  # counters as they are in the file
        self._encoder = msgspec.msgpack.Encoder()
        self._item_decoder = msgspec.msgpack.Decoder(KeyValue)
        self._events_decoder = msgspec.msgpack.Decoder(tuple[Event, ...])

    # Life

    def open(self) -> None:
        """Open the file, or create it; raises :class:`DataDirectoryError` or :class:`DataLossError`."""
        try:
            created = _make_directory(self._directory)
            new = not self._path.exists()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._connection = sqlite3.connect(
                # Calls come from whichever worker thread is free, one at a time.
                self._path, isolation_level=None, check_same_thread=False, timeout=0.0, cached_statements=64,
            )  # fmt: skip
            self._configure()
            with self._reporting():
                if self._pragma("user_version") != FORMAT:
                    self._create()
                self._check()
                self._load()
            if new:
                for directory in {self._directory, *created}:
                    _sync_directory(directory)
        except sqlite3.Error as error:
            self._abandon()
            raise self._translate(error) from error
        except OSError as error:
            self._abandon()
            raise self._unusable(error) from error
        except BaseException:
            self._abandon()
            raise

    def _unusable(self, error: OSError) -> DataDirectoryError:
        return DataDirectoryError(
            f"metadata directory {self._directory} cannot be used: {error.strerror}; check its path and permissions"
        )

    def _damaged(self, what: str) -> DataLossError:
        return DataLossError(f"{self._path} is damaged: {what}; restore it from a backup")

    def _configure(self) -> None:
        self._execute("PRAGMA locking_mode = EXCLUSIVE")
        with self._reporting():
            application, version = self._pragma("application_id"), self._pragma("user_version")
            empty = self._one("SELECT count(*) FROM sqlite_schema")[0] == 0
            if not empty and application != _APPLICATION_ID:
                raise DataDirectoryError(f"{self._path} is an SQLite file, but not one of Danube's; move it away")
            if version > FORMAT:
                raise DataDirectoryError(
                    f"{self._path} has metadata format {version}, and this Danube knows formats up to {FORMAT};"
                    " start the newer Danube that wrote it"
                )
            if self._one("PRAGMA journal_mode = WAL")[0] != "wal":
                raise DataDirectoryError(f"{self._path} cannot be written with a write-ahead log on this file system")
            self._execute("PRAGMA synchronous = FULL")
            self._execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._execute("PRAGMA temp_store = MEMORY")

    def _create(self) -> None:
        """Make the tables; all of them and the version number at once, or nothing."""
        self._execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            self._execute(statement)
        self._execute("COMMIT")

    def _check(self) -> None:
        verdict = self._one("PRAGMA quick_check(1)")[0]
        if verdict != "ok":
            raise self._damaged(verdict)

    def _load(self) -> None:
        """Read the counters from the file: at the beginning, and after a transaction was rolled back."""
        counters = dict(self._execute("SELECT name, value FROM counters").fetchall())
        try:
            self._saved = counters["revision"], counters["compacted"], counters["next_lease"]
        except KeyError as error:
            raise self._damaged(f"counter {error} is missing") from error
        self.revision, self.compacted, self.next_lease = self._saved
        count, first, last, size = self._one(
            "SELECT count(*), min(revision), max(revision), sum(length(body)) FROM history"
        )
        if count != self.revision - self.compacted or (count and (first, last) != (self.compacted + 1, self.revision)):
            raise self._damaged(
                f"it should have the history of revisions {self.compacted + 1} to {self.revision},"
                f" and has {count} from {first} to {last}"
            )
        self.history_bytes = size or 0
        self.lease_count = self._one("SELECT count(*) FROM leases")[0]

    def close(self) -> None:
        """Close the file. SQLite moves its log into it first, which may fail without harm: it is replayed later."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _abandon(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Transactions

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the calls in the block one transaction; it is on disk when the block has ended.

        If anything raises, everything in the block is undone, and SQLite's errors come out as Danube's.
        """
        with self._reporting():
            self._execute("BEGIN")  # deferred: a transaction that only reads writes and syncs nothing
            try:
                yield
                self._save()
                self._execute("COMMIT")
            except BaseException:
                if self._connection is not None and self._connection.in_transaction:
                    self._execute("ROLLBACK")
                self._load()
                raise

    def _save(self) -> None:
        present = self.revision, self.compacted, self.next_lease
        for name, value, saved in zip(("revision", "compacted", "next_lease"), present, self._saved, strict=True):
            if value != saved:
                self._execute("UPDATE counters SET value = ? WHERE name = ?", (value, name))
        self._saved = present

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> DanubeError:
        # The extended code says more than we distinguish; its low byte is the primary one.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return LimitExceededError(f"the disk of {self._path} is full; free space, then try again")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._damaged(str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DataDirectoryError(
                f"{self._path} is in use by another process; stop it, or use another data directory"
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return DataDirectoryError(f"{self._path} cannot be written: {error}; check permissions and the file system")
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return DataDirectoryError(
            f"{self._path}: {error} ({name}); the metadata store stops, check the disk and start again"
        )

    def _execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        if self._connection is None:
            raise DataDirectoryError(f"{self._path} is not open")
        return self._connection.execute(statement, parameters)

    def _one(self, statement: str, parameters: tuple[Any, ...] = ()) -> Any:
        return self._execute(statement, parameters).fetchone()

    def _pragma(self, name: str) -> int:
        value: int = self._one(f"PRAGMA {name}")[0]
        return value

    # Rows

    def _seal(self, value: Any) -> bytes:
        body = self._encoder.encode(value)
        return int(google_crc32c.value(body)).to_bytes(4, "little") + body

    def _unseal(self, body: bytes, decoder: msgspec.msgpack.Decoder[Any], what: str) -> Any:
        content = memoryview(body)[4:]
        if len(body) > 4 and google_crc32c.value(bytes(content)) == int.from_bytes(body[:4], "little"):
            try:
                return decoder.decode(content)
            except msgspec.MsgspecError as error:
                raise self._damaged(f"{what} does not decode: {error}") from error
        raise self._damaged(f"{what} does not match its checksum")

    def _item(self, key: str, body: bytes) -> KeyValue:
        item: KeyValue = self._unseal(body, self._item_decoder, f"key {key!r}")
        if item.key != key:
            raise self._damaged(f"the row of key {key!r} holds {item.key!r}")
        return item

    # Items

    def lookup(self, key: str) -> KeyValue | None:
        row = self._one("SELECT body FROM items WHERE key = ?", (key,))
        return self._item(key, row[0]) if row else None

    def scan(self, prefix: str) -> list[KeyValue]:
        rows = self._execute("SELECT key, body FROM items WHERE key >= ? AND key < ? ORDER BY key", below(prefix))
        found = [self._item(key, body) for key, body in rows]
        if not prefix.endswith("/") and (item := self.lookup(prefix)):
            found.insert(0, item)
        return found

    def write(self, item: KeyValue) -> None:
        self._execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", (item.key, item.lease, self._seal(item)))

    def erase(self, key: str) -> None:
        self._execute("DELETE FROM items WHERE key = ?", (key,))

    # History

    def record(self, batch: EventBatch) -> None:
        body = self._seal(batch.events)
        self._execute("INSERT INTO history VALUES (?, ?)", (batch.revision, body))
        self.history_bytes += len(body)

    def replay(self, after: int, max_revisions: int, max_bytes: int) -> list[EventBatch]:
        rows = self._execute(
            "SELECT revision, body FROM history WHERE revision > ? ORDER BY revision LIMIT ?", (after, max_revisions)
        )
        found: list[EventBatch] = []
        for revision, body in rows:
            events = self._unseal(body, self._events_decoder, f"the history of revision {revision}")
            found.append(EventBatch(revision, events))
            max_bytes -= len(body)
            if max_bytes <= 0:
                break
        rows.close()
        return found

    def forget(self, upto: int) -> None:
        gone = self._one("SELECT sum(length(body)) FROM history WHERE revision <= ?", (upto,))[0]
        self._execute("DELETE FROM history WHERE revision <= ?", (upto,))
        self.history_bytes -= gone or 0
        self.compacted = upto

    # Leases

    def add_lease(self, lease: LeaseId, ttl_s: float) -> None:
        self._execute("INSERT INTO leases VALUES (?, ?)", (lease, ttl_s))
        self.lease_count += 1

    def drop_lease(self, lease: LeaseId) -> None:
        self._execute("DELETE FROM leases WHERE id = ?", (lease,))
        self.lease_count -= 1

    def has_lease(self, lease: LeaseId) -> bool:
        return self._one("SELECT 1 FROM leases WHERE id = ?", (lease,)) is not None

    def leases(self) -> list[tuple[LeaseId, float]]:
        with self._reporting():
            return [
                (LeaseId(lease), ttl_s) for lease, ttl_s in self._execute("SELECT id, ttl_s FROM leases ORDER BY id")
            ]

    def keys_of(self, lease: LeaseId) -> list[str]:
        return [key for (key,) in self._execute("SELECT key FROM items WHERE lease = ? ORDER BY key", (lease,))]


def _make_directory(directory: Path) -> list[Path]:
    """Make a directory with its parents; return the directories that got a new entry and must be synced."""
    missing = []
    path = directory
    while not path.exists():
        missing.append(path)
        path = path.parent
    directory.mkdir(parents=True, exist_ok=True)
    return [path.parent for path in missing]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
