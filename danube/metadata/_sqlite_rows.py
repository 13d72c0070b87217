"""What is in the rows of the embedded metadata store's file, and whether it can be right. Pure.

SQLite's pages carry no checksum, so rows do. The body of each row is::

    0        4                              n
    +--------+------------------------------+
    | CRC32C | msgpack                      |   state: State, items: KeyValue, history: tuple of events, leases: Lease
    +--------+------------------------------+
      little endian, over the msgpack bytes

The other columns are only for lookups; the body is authoritative, and they are compared with it. The one row of
``state`` has the counters, and the numbers of items and leases. History has a row for each revision from
``compacted + 1`` to ``revision`` without gaps.

Format 1 had the counters in rows without a checksum.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from danube.metadata._contract import Event, KeyValue, LeaseId
from danube.model.batch import crc32c
from danube.model.errors import DataDirectoryError, DataLossError

__all__ = ["APPLICATION_ID", "FORMAT", "TABLES", "Lease", "RowCodec", "State"]

FORMAT: Final = 2
"""Version of the tables, in SQLite's ``user_version``."""
APPLICATION_ID: Final = 0x44414E55
""""DANU", in SQLite's ``application_id``: the file is ours."""
_MOST_FORMATS: Final = 1000
"""A version beyond this is not one of Danube's."""

TABLES: Final = (
    "CREATE TABLE state (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE items (key TEXT PRIMARY KEY, lease INTEGER, body BLOB NOT NULL) WITHOUT ROWID",
    "CREATE INDEX items_by_lease ON items (lease) WHERE lease IS NOT NULL",
    "CREATE TABLE history (revision INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE leases (id INTEGER PRIMARY KEY, body BLOB NOT NULL)",
)


class State(msgspec.Struct, frozen=True, array_like=True):
    """The counters of a table, and the numbers of its rows."""

    revision: int = 0
    compacted: int = 0
    next_lease: int = 1
    items: int = 0
    leases: int = 0
    extra: bytes = b""


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A row of leases."""

    lease: LeaseId
    ttl_s: float


class RowCodec:
    """Encodes and checks the rows of one file. Errors name the file, and what in it is wrong.

    Args:
        path: of the file, for errors.

    Every method but :meth:`seal` raises DataLossError for what is damaged.
    """

    def __init__(self, path: object) -> None:
        self._path = path
        self._encoder = msgspec.msgpack.Encoder()
        self._state_decoder = msgspec.msgpack.Decoder(State)
        self._item_decoder = msgspec.msgpack.Decoder(KeyValue)
        self._events_decoder = msgspec.msgpack.Decoder(tuple[Event, ...])
        self._lease_decoder = msgspec.msgpack.Decoder(Lease)

    def damaged(self, what: str) -> DataLossError:
        """Return the error of a damaged file."""
        return DataLossError(f"{self._path} is damaged: {what}; restore it from a backup")

    def check_format(self, application: int, version: int, found: Collection[str]) -> bool:
        """Return whether the tables exist, False if there are none at all.

        Args:
            application: SQLite's ``application_id``.
            version: its ``user_version``.
            found: the statements of its schema.

        Raises:
            DataDirectoryError: the file is another program's, or of another version.
        """
        if not found and not application and not version:
            return False
        if application != APPLICATION_ID and not set(found) & set(TABLES):
            raise DataDirectoryError(f"{self._path} is an SQLite file, but not one of Danube's; move it away")
        if application == APPLICATION_ID and version != FORMAT and version < _MOST_FORMATS:
            raise DataDirectoryError(
                f"{self._path} has metadata format {version}, and this Danube knows format {FORMAT};"
                f" start the {'newer' if version > FORMAT else 'older'} Danube that wrote it"
            )
        if (application, version) != (APPLICATION_ID, FORMAT):
            raise self.damaged(f"its header has application id {application:#x} and version {version}")
        if set(found) != set(TABLES):
            raise self.damaged("its schema is not the one that Danube writes")
        return True

    def check_history(self, state: State, count: int, first: int | None, last: int | None) -> None:
        """Check that the history has the revisions of the state, given their number, the first and the last one."""
        if count != state.revision - state.compacted or (
            count and (first, last) != (state.compacted + 1, state.revision)
        ):
            raise self.damaged(
                f"it should have the history of revisions {state.compacted + 1} to {state.revision},"
                f" and has {count} from {first} to {last}"
            )

    def check_counts(self, state: State, items: int, leases: int) -> None:
        """Check that the file has as many keys and leases as the state says."""
        if (items, leases) != (state.items, state.leases):
            raise self.damaged(
                f"it should have {state.items} keys and {state.leases} leases, and has {items} and {leases}"
            )

    def seal(self, value: object) -> bytes:
        """Return the body of a row."""
        body = self._encoder.encode(value)
        return int(crc32c(body)).to_bytes(4, "little") + body

    def _unseal(self, body: bytes, decoder: msgspec.msgpack.Decoder[Any], what: str) -> Any:
        content = body[4:]
        if content and crc32c(content) == int.from_bytes(body[:4], "little"):
            try:
                return decoder.decode(content)
            except msgspec.MsgspecError as error:
                raise self.damaged(f"{what} does not decode: {error}") from error
        raise self.damaged(f"{what} does not match its checksum")

    def state(self, bodies: Sequence[bytes]) -> State:
        """Return the state, given all of its rows."""
        if len(bodies) != 1:
            raise self.damaged(f"it has {len(bodies)} states instead of one")
        state: State = self._unseal(bodies[0], self._state_decoder, "its state")
        return state

    def item(self, key: str, body: bytes) -> KeyValue:
        """Return the item of a row with this key."""
        item: KeyValue = self._unseal(body, self._item_decoder, f"key {key!r}")
        if item.key != key:
            raise self.damaged(f"the row of key {key!r} holds {item.key!r}")
        return item

    def check_item(self, key: str, lease: LeaseId | None, body: bytes) -> None:
        """Check all columns of a row of items."""
        item = self.item(key, body)
        if item.lease != lease:
            raise self.damaged(f"the row of key {key!r} names lease {lease} instead of {item.lease}")

    def events(self, revision: int, body: bytes) -> tuple[Event, ...]:
        """Return the events of a revision."""
        events: tuple[Event, ...] = self._unseal(body, self._events_decoder, f"the history of revision {revision}")
        return events

    def lease(self, number: int, body: bytes) -> Lease:
        """Return the lease of a row with this number."""
        row: Lease = self._unseal(body, self._lease_decoder, f"lease {number}")
        if row.lease != number:
            raise self.damaged(f"the row of lease {number} holds {row.lease}")
        return row
