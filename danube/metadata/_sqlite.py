"""The table of the embedded metadata store, in an SQLite file with checksums. Runs on a worker thread only.

SQLite in WAL mode appends a transaction to ``metadata.db-wal``; the pages move into ``metadata.db`` at checkpoints.
With ``synchronous=NORMAL`` only checkpoints are synced: a power loss may undo the last transactions, and the log of the
Raft member, which is the durability, has them (:mod:`danube.metadata.raft`). ``locking_mode=EXCLUSIVE`` locks out other
processes and makes the shared-memory file unnecessary.

The rows carry checksums (:mod:`danube.metadata._sqlite_rows`). All of them but the bodies of the history are checked
when the file is opened.

**Opening and reading changes nothing.** The file is opened read-only at first, and a missing file is treated as
empty; the first change opens it for writing. So the owner of a store can inspect it, find that it is not in the
expected state, and leave all evidence in place. That matters because of the log: SQLite treats a damaged frame of
``metadata.db-wal`` as its end, and a file that is opened for writing loses the frames after it. Such a loss can only
be detected by an observer that has seen a later revision.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from danube.metadata._contract import EventBatch, KeyValue, LeaseId
from danube.metadata._keys import below
from danube.metadata._sqlite_rows import APPLICATION_ID, FORMAT, TABLES, Lease, RowCodec, State
from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors
from danube.model.errors import DanubeError, DataDirectoryError, LimitExceededError

__all__ = ["FILE_NAME", "FORMAT", "SqliteTable", "sync_directory"]

FILE_NAME = "metadata.db"
_CACHE_KIB = 2048


class SqliteTable:
    """Implements :class:`~danube.metadata._machine.Rows`. Not safe for two threads at once.

    Args:
        directory: of the file.

    Attributes:
        extra: bytes of the owner's, changed and stored with the transactions.
    """

    def __init__(self, directory: Path) -> None:
        self.extra = b""
        self.revision = 0
        self.compacted = 0
        self.next_lease = 1
        self.history_bytes = 0
        self.lease_count = 0
        self._item_count = 0
        self._directory = directory
        self._path = directory / FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._writable = False
        self._new_names: set[Path] = set()
        self._saved = State()  # as it is in the file
        self._codec = RowCodec(self._path)

    # Life

    def open(self) -> None:
        """Open the file to read it; raises :class:`DataDirectoryError` or :class:`DataLossError`.

        The directory is created if it is missing. A file that is missing counts as empty.
        """
        with self._opening():
            self._new_names |= {self._directory, *_make_directory(self._directory)}
            if self._is_empty():
                self._connect(":memory:")
                self._create()
            else:
                self._connect(f"{self._path.absolute().as_uri()}?mode=ro")
                if self._check_format():
                    self._check()
                else:  # it was just being created when the process died
                    self._disconnect()
                    self._connect(":memory:")
                    self._create()
            self._load()

    def _is_empty(self) -> bool:
        """Return whether the file is missing or has no bytes."""
        if self._path.exists():
            if not self._path.is_file():
                raise DataDirectoryError(f"{self._path} is not a file; move it away")
            if self._path.stat().st_size:
                return False
        log = self._path.with_name(FILE_NAME + "-wal")
        if log.exists() and log.stat().st_size:
            # SQLite would delete it.
            raise self._codec.damaged(f"it is missing or empty, and its log {log.name} is not")
        return True

    def _make_writable(self) -> None:
        """Open the file to change it, and create it if it is missing; a transaction is open before and after."""
        self._execute("ROLLBACK")
        self._disconnect()
        with self._opening():
            self._is_empty()  # raises if only its log is there
            self._connect(self._path.absolute().as_uri())
            self._writable = True
            self._execute("PRAGMA locking_mode = EXCLUSIVE")
            if self._one("PRAGMA journal_mode = WAL")[0] != "wal":
                raise DataDirectoryError(f"{self._path} cannot be written with a write-ahead log on this file system")
            self._execute("PRAGMA synchronous = NORMAL")
            if not self._check_format():
                self._create()
            if self._state() != self._saved:
                raise DataDirectoryError(f"{self._path} was changed by another process; stop it, and start again")
            for directory in self._new_names:  # also of a file that is there: its creation may have failed in between
                sync_directory(directory)
            self._new_names.clear()
        # A read-only connection leaves this behind; a writing one owns the file exclusively and needs none.
        self._path.with_name(FILE_NAME + "-shm").unlink(missing_ok=True)
        self._execute("BEGIN")

    def _connect(self, address: str) -> None:
        self._connection = sqlite3.connect(
            # Calls come from any worker thread, one at a time.
            address, uri=True, isolation_level=None, check_same_thread=False, timeout=0.0, cached_statements=64,
        )  # fmt: skip
        self._execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._execute("PRAGMA temp_store = MEMORY")

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Close the database if anything fails, and convert the exception to a Danube error."""
        try:
            yield
        except sqlite3.Error as error:
            ours = self._translate(error)  # before anything is closed: it may have used the last file descriptor
            self._disconnect()
            if _code(error) == sqlite3.SQLITE_ERROR:  # our statements are valid, so the schema is another one
                raise self._codec.damaged(str(error)) from error
            raise ours from error
        except OSError as error:
            self._disconnect()
            if is_out_of_descriptors(error):
                raise out_of_descriptors(f"metadata directory {self._directory}", error) from error
            raise DataDirectoryError(
                f"metadata directory {self._directory} cannot be used: {error.strerror}; check its path and permissions"
            ) from error
        except (ValueError, TypeError, OverflowError) as error:  # a column has a wrong type
            self._disconnect()
            raise self._codec.damaged(str(error)) from error
        except BaseException:
            self._disconnect()
            raise

    def _check_format(self) -> bool:
        """Return whether the tables exist, False if there are none at all."""
        application, version = self._pragma("application_id"), self._pragma("user_version")
        found = {sql for (sql,) in self._execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")}
        return self._codec.check_format(application, version, found)

    def _create(self) -> None:
        """Create the tables and the version number at once, or nothing."""
        self._execute("BEGIN IMMEDIATE")
        for statement in TABLES:
            self._execute(statement)
        self._execute("INSERT INTO state VALUES (1, ?)", (self._codec.seal(State()),))
        self._execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._execute(f"PRAGMA user_version = {FORMAT}")
        self._execute("COMMIT")

    def _check(self) -> None:
        """Verify data that is otherwise read only on demand, and might be missing then."""
        log = self._path.with_name(FILE_NAME + "-wal")
        size = self._path.stat().st_size
        if size % self._pragma("page_size") and not (log.exists() and log.stat().st_size):
            # SQLite treats the rest of the page as zeros. If there is a log, it may still replace the page.
            raise self._codec.damaged(f"it has been cut to {size} bytes, inside a page")
        verdict = self._one("PRAGMA integrity_check(1)")[0]
        if verdict != "ok":
            raise self._codec.damaged(verdict)
        state = self._state()
        items = 0
        for key, lease, body in self._execute("SELECT key, lease, body FROM items"):
            self._codec.check_item(key, lease, body)
            items += 1
        self._codec.check_counts(state, items, len(self._leases()))

    def _state(self) -> State:
        return self._codec.state([body for (body,) in self._execute("SELECT body FROM state")])

    def _load(self) -> None:
        """Read the counters from the file: at the beginning, and after a transaction was rolled back."""
        state = self._saved = self._state()
        self.revision, self.compacted, self.next_lease = state.revision, state.compacted, state.next_lease
        self.extra = state.extra
        self._item_count, self.lease_count = state.items, state.leases
        count, first, last, size = self._one(
            "SELECT count(*), min(revision), max(revision), sum(length(body)) FROM history"
        )
        self._codec.check_history(state, count, first, last)
        self.history_bytes = size or 0

    def close(self) -> None:
        """Close the file. SQLite first moves its log into it, which may fail harmlessly: it is replayed later."""
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._writable = False
        if connection is not None:
            connection.close()

    @property
    def is_open(self) -> bool:
        """Whether the file is open. It is not after an error of the file itself; the next transaction opens it."""
        return self._connection is not None

    # Transactions

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the calls in the block as one transaction. A power loss may undo it, and a crash of the process not.

        If anything raises, everything in the block is undone, and SQLite's errors are raised as Danube's.
        """
        with self._reporting():
            if self._connection is None:  # opening it for writing failed, for lack of space or descriptors
                self.open()
            self._execute("BEGIN")  # deferred: a transaction that only reads writes and syncs nothing
            try:
                yield
                self._save()
                self._execute("COMMIT")
            except BaseException:
                if self._connection is not None:
                    if self._connection.in_transaction:
                        self._execute("ROLLBACK")
                    self._load()
                raise

    def _present(self) -> State:
        return State(self.revision, self.compacted, self.next_lease, self._item_count, self.lease_count, self.extra)

    def _save(self) -> None:
        present = self._present()
        if present != self._saved:
            self._change("UPDATE state SET body = ? WHERE id = 1", (self._codec.seal(present),))
            self._saved = present

    def _change(self, statement: str, parameters: tuple[Any, ...]) -> sqlite3.Cursor:
        """Execute a statement that changes data."""
        if not self._writable:
            self._make_writable()
        return self._execute(statement, parameters)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> DanubeError:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL:
            return LimitExceededError(f"the disk of {self._path} is full; free space, then try again")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._codec.damaged(str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return DataDirectoryError(
                f"{self._path} is in use by another process; stop it, or use another data directory"
            )
        if code == sqlite3.SQLITE_CANTOPEN and (shortage := _shortage()) is not None:
            return out_of_descriptors(str(self._path), shortage)
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

    # Items

    def lookup(self, key: str) -> KeyValue | None:
        row = self._one("SELECT body FROM items WHERE key = ?", (key,))
        return self._codec.item(key, row[0]) if row else None

    def scan(self, prefix: str) -> list[KeyValue]:
        rows = self._execute("SELECT key, body FROM items WHERE key >= ? AND key < ? ORDER BY key", below(prefix))
        found = [self._codec.item(key, body) for key, body in rows]
        if not prefix.endswith("/") and (item := self.lookup(prefix)):
            found.insert(0, item)
        return found

    def write(self, item: KeyValue) -> None:
        self._change("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", (item.key, item.lease, self._codec.seal(item)))
        self._item_count += item.version == 1

    def erase(self, key: str) -> None:
        self._change("DELETE FROM items WHERE key = ?", (key,))
        self._item_count -= 1

    # History

    def record(self, batch: EventBatch) -> None:
        body = self._codec.seal(batch.events)
        self._change("INSERT INTO history VALUES (?, ?)", (batch.revision, body))
        self.history_bytes += len(body)

    def replay(self, after: int, max_revisions: int, max_bytes: int) -> list[EventBatch]:
        rows = self._execute(
            "SELECT revision, body FROM history WHERE revision > ? ORDER BY revision LIMIT ?", (after, max_revisions)
        )
        found: list[EventBatch] = []
        for revision, body in rows:
            found.append(EventBatch(revision, self._codec.events(revision, body)))
            max_bytes -= len(body)
            if max_bytes <= 0:
                break
        rows.close()
        return found

    def forget(self, upto: int) -> None:
        gone = self._one("SELECT sum(length(body)) FROM history WHERE revision <= ?", (upto,))[0]
        self._change("DELETE FROM history WHERE revision <= ?", (upto,))
        self.history_bytes -= gone or 0
        self.compacted = upto

    # Leases

    def add_lease(self, lease: LeaseId, ttl_s: float) -> None:
        self._change("INSERT INTO leases VALUES (?, ?)", (lease, self._codec.seal(Lease(lease, ttl_s))))
        self.lease_count += 1

    def drop_lease(self, lease: LeaseId) -> None:
        self._change("DELETE FROM leases WHERE id = ?", (lease,))
        self.lease_count -= 1

    def has_lease(self, lease: LeaseId) -> bool:
        return self._one("SELECT 1 FROM leases WHERE id = ?", (lease,)) is not None

    def leases(self) -> list[tuple[LeaseId, float]]:
        with self._reporting():
            return self._leases()

    def _leases(self) -> list[tuple[LeaseId, float]]:
        found: list[tuple[LeaseId, float]] = []
        for number, body in self._execute("SELECT id, body FROM leases ORDER BY id"):
            row = self._codec.lease(number, body)
            found.append((row.lease, row.ttl_s))
        return found

    def keys_of(self, lease: LeaseId) -> list[str]:
        return [key for (key,) in self._execute("SELECT key FROM items WHERE lease = ? ORDER BY key", (lease,))]


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code; the extended code has details in its higher bytes that are not needed."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _make_directory(directory: Path) -> list[Path]:
    """Create a directory with its parents; return the directories that got a new entry and must be synced."""
    missing = []
    path = directory
    while not path.exists():
        missing.append(path)
        path = path.parent
    directory.mkdir(parents=True, exist_ok=True)
    return [path.parent for path in missing]


def sync_directory(directory: Path) -> None:
    """Make creations and renames in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shortage() -> OSError | None:
    """Return the error of a process without free file descriptors, else None. SQLite does not report it."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error if is_out_of_descriptors(error) else None
    return None
