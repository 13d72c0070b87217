"""The table of a Raft member in an SQLite file, and the copies of it that members send each other.

The log is the durability, so transactions are not synced (``synchronous=NORMAL``): a power loss may undo the last ones,
and so does a damaged frame in SQLite's own log, which SQLite takes for its end. The entries behind the mark are then
applied again. :meth:`SqliteStateTable.sync` moves everything into the file itself; the Raft log is dropped only after
that.

A small transaction takes about 40 microseconds, which is less than the way to a worker thread and back. Only moving
pages into the file takes longer, because they are synced there. So SQLite does not do that by itself: a transaction
does it that begins while it is due, and :attr:`SqliteStateTable.may_wait` tells of it before.

Files in the directory::

    metadata.db        the table, with metadata.db-wal
    copy.db            the last copy that was made of it, to be sent
    incoming.db        the copy that is being received; renamed to metadata.db when it is complete
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from danube.metadata._sqlite import FILE_NAME, SqliteTable, sync_directory
from danube.model.errors import DataDirectoryError, DataLossError

__all__ = ["SqliteStateTable"]

_COPY: Final = "copy.db"
_INCOMING: Final = "incoming.db"
_HASHED_BYTES: Final = 1 << 20
_CHECKPOINT_ROWS: Final = 3_000
"""Pages are moved into the file after so many changed rows: three for each small change of a key."""


class SqliteStateTable(SqliteTable):
    """Implements :class:`~danube.metadata.raft.state.StateTable`. Not safe for two threads at once."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._place = directory
        self._copy: BinaryIO | None = None
        self._incoming: BinaryIO | None = None
        self._moved_rows = 0

    def _connect(self, address: str) -> None:
        super()._connect(address)
        self._execute("PRAGMA wal_autocheckpoint = 0")
        self._moved_rows = 0

    @property
    def may_wait(self) -> bool:
        """See :attr:`StateTable.may_wait`."""
        return not self._writable or self._is_checkpoint_due

    @property
    def _is_checkpoint_due(self) -> bool:
        connection = self._connection
        return connection is not None and connection.total_changes - self._moved_rows >= _CHECKPOINT_ROWS

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See :meth:`StateTable.transaction`."""
        is_due = self._is_checkpoint_due
        with super().transaction():
            yield
        if is_due:
            self._checkpoint("PASSIVE")

    def _checkpoint(self, how: str) -> None:
        """Move the pages of SQLite's log into the file."""
        with self._reporting():
            if self._writable:
                busy, _, _ = self._one(f"PRAGMA wal_checkpoint({how})")
                if busy:
                    raise DataDirectoryError(f"{self._place / FILE_NAME} is in use by another process; stop it")
                assert self._connection is not None
                self._moved_rows = self._connection.total_changes

    def close(self) -> None:
        """Close the file and the copies."""
        for file in (self._copy, self._incoming):
            if file is not None:
                file.close()
        self._copy = self._incoming = None
        super().close()

    def sync(self) -> None:
        """See :meth:`StateTable.sync`."""
        self._checkpoint("TRUNCATE")

    def export(self) -> tuple[int, bytes]:
        """See :meth:`StateTable.export`."""
        path = self._place / _COPY
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        path.unlink(missing_ok=True)
        with self._reporting():
            self._execute("VACUUM INTO ?", (str(path),))
        self._copy = path.open("rb")
        return path.stat().st_size, _hash(self._copy)

    def read_copy(self, position: int, size: int) -> bytes:
        """See :meth:`StateTable.read_copy`."""
        if self._copy is None:
            raise DataDirectoryError(f"{self._place / _COPY} is not open")
        self._copy.seek(position)
        return self._copy.read(size)

    def receive(self, position: int, piece: bytes) -> None:
        """See :meth:`StateTable.receive`."""
        if position == 0:
            if self._incoming is not None:
                self._incoming.close()
            self._incoming = (self._place / _INCOMING).open("w+b")
        assert self._incoming is not None
        self._incoming.seek(position)
        self._incoming.write(piece)

    def check_received(self, size: int, digest: bytes) -> bool:
        """See :meth:`StateTable.check_received`."""
        file = self._incoming
        if file is None:
            return False
        file.flush()
        if os.fstat(file.fileno()).st_size != size or _hash(file) != digest:
            return False
        os.fsync(file.fileno())
        return True

    def install(self) -> None:
        """See :meth:`StateTable.install`."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
        self._disconnect()
        path = self._place / FILE_NAME
        # Whatever SQLite's log still holds is older than the copy; with the copy in place it would be damage.
        path.with_name(FILE_NAME + "-wal").unlink(missing_ok=True)
        os.replace(self._place / _INCOMING, path)
        sync_directory(self._place)
        try:
            self.open()
        except sqlite3.Error as error:
            raise DataLossError(f"{path}, received from another member, is damaged: {error}") from error


def _hash(file: BinaryIO) -> bytes:
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(_HASHED_BYTES):
        digest.update(piece)
    return digest.digest()
