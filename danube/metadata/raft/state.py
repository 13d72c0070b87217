"""The replicated state of the metadata store: applies log entries to a table. Pure: no clock, no I/O of its own.

Everything that decides about an outcome is part of the state, so that all members agree, whatever their settings: keys,
leases, the history of watches with its bounds, and the *mark*: the last applied entry with the configuration as of
there. The mark is stored in the same transaction as the changes, so a table is always exactly the state at its mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

import msgspec

from danube.metadata._contract import LeaseId, TransactionResult
from danube.metadata._machine import Effects, Rows, StoreMachine
from danube.metadata.raft.commands import (
    Compare,
    Grant,
    Proposal,
    Revoke,
    SetBounds,
    Transact,
    decode_proposal,
)
from danube.model.batch import crc32c
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    DanubeError,
    DataDirectoryError,
    DataLossError,
    LimitExceededError,
    MetadataConflictError,
    NotFoundError,
)
from danube.model.limits import Limits
from danube.raft import Base, Conf, Entry, EntryKind

__all__ = [
    "EARLIER_FORMAT",
    "FIRST_BOUNDS",
    "Applied",
    "Bounds",
    "Mark",
    "Outcome",
    "ReplicatedState",
    "StateTable",
    "digest_of",
]

Outcome = TransactionResult | LeaseId | int | None | DanubeError
"""What a command returns to its caller, or the error that it raises there; then it has changed nothing."""


class Bounds(msgspec.Struct, frozen=True, array_like=True):
    """Limits that are part of the replicated state."""

    history_revisions: int
    history_bytes: int
    leases: int

    @classmethod
    def of(cls, limits: Limits) -> Bounds:
        """Return the bounds that a broker's limits ask for."""
        return cls(limits.metadata_history_revisions, limits.metadata_history_bytes, limits.metadata_max_leases)


EARLIER_FORMAT: Final = (
    "{} holds metadata of an earlier Danube, without the log that this one needs; nothing was changed: start the Danube"
    " that wrote them, or use an empty data directory"
)
"""Format of a message; its argument is the place."""

FIRST_BOUNDS: Final = Bounds(10_000, 32 << 20, 10_000)
"""Of an empty log. Never changed, whatever the defaults of brokers are."""


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """How far a table has come; stored in it."""

    index: int
    """The last applied entry."""
    term: int
    conf: Conf
    """The configuration as of ``index``."""
    bounds: Bounds

    @property
    def base(self) -> Base:
        """The start of a log that continues this table."""
        return Base(self.index, self.term, self.conf)


class StateTable(Rows, Protocol):
    """A table that can be sent to another member. Calls are synchronous and come from one thread at a time.

    A transaction need not be durable when it ends. A crash loses transactions only from the end, and never those before
    the last :meth:`sync`.
    """

    extra: bytes
    """The encoded mark; empty in a new table. Changed inside a transaction."""

    def open(self) -> None:
        """Open the table, or create it."""

    def close(self) -> None:
        """Close it."""

    @property
    def may_wait(self) -> bool:
        """Whether the next transaction may wait for the disk, however small it is."""

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context in which all changes are made together, or none if it raises."""

    def sync(self) -> None:
        """Make all transactions durable."""

    def export(self) -> tuple[int, bytes]:
        """Copy the present table to a place of its own, replacing the last copy; return its size and SHA-256."""

    def read_copy(self, position: int, size: int) -> bytes:
        """Return a piece of the last copy."""

    def receive(self, position: int, piece: bytes) -> None:
        """Write a piece of another member's copy; position 0 begins a new one."""

    def check_received(self, size: int, digest: bytes) -> bool:
        """Return whether the received copy is complete and has this digest; make it durable then."""

    def install(self) -> None:
        """Replace the table by the received copy, durably and at once.

        Raises:
            DataLossError: the copy is damaged.
        """


class Applied(msgspec.Struct, frozen=True):
    """An applied entry."""

    index: int
    term: int
    kind: EntryKind
    proposal: Proposal | None
    """Of DATA."""
    outcomes: tuple[Outcome, ...]
    """Of each command."""


class ReplicatedState:
    """Applies entries to a table.

    Args:
        table: open, or to be opened before :meth:`load`.
        limits: for the checks before a command is proposed; those that must be equal on all members are in the mark.
        conf: the configuration at the very start of the log.

    Attributes:
        mark: of the table.
        machine: for reading; its ``check_`` methods may be called from any thread.
    """

    def __init__(self, table: StateTable, limits: Limits, conf: Conf) -> None:
        self.table = table
        self._limits = limits
        self._first = Mark(0, 0, conf, FIRST_BOUNDS)
        self.mark = self._first
        self.machine = StoreMachine(table, limits)

    def load(self) -> None:
        """Read the mark from the table, which has just been opened or replaced.

        Raises:
            DataDirectoryError: the table was not written by a Raft member.
            DataLossError: the mark cannot be read.
        """
        if self.table.revision and not self.table.extra:
            raise DataDirectoryError(EARLIER_FORMAT.format("the metadata directory"))
        if self.table.extra:
            try:
                self.mark = _decode_mark(self.table.extra)
            except UNDECODABLE as error:
                raise DataLossError(f"the mark of the metadata table does not decode: {error}") from error
        else:
            self.mark = self._first
        self._adopt(self.mark.bounds)

    def _adopt(self, bounds: Bounds) -> None:
        self.machine.limits = msgspec.structs.replace(
            self._limits,
            metadata_history_revisions=bounds.history_revisions,
            metadata_history_bytes=bounds.history_bytes,
            metadata_max_leases=bounds.leases,
        )

    def apply(self, entries: Sequence[Entry]) -> tuple[list[Applied], Effects]:
        """Apply entries in one transaction of the table; return what came of them.

        Raises:
            DanubeError: the table has failed, or an entry is not understood; nothing was applied.
        """
        before = self.mark
        try:
            with self.table.transaction():
                applied = [self._apply(entry) for entry in entries]
                self.table.extra = _encode(self.mark)
        except BaseException:
            self.machine.take_effects()
            self.mark = before
            self._adopt(before.bounds)
            raise
        return applied, self.machine.take_effects()

    def _apply(self, entry: Entry) -> Applied:
        mark = self.mark
        assert entry.index == mark.index + 1, f"entry {entry.index} follows {mark.index}"
        proposal: Proposal | None = None
        outcomes: tuple[Outcome, ...] = ()
        conf = mark.conf
        if entry.kind is EntryKind.CONF:
            conf = _decode_conf(entry.data)
        elif entry.kind is EntryKind.DATA:
            try:
                proposal = decode_proposal(entry.data)
            except UNDECODABLE as error:
                raise DataDirectoryError(
                    f"entry {entry.index} of the metadata log is not known to this version: {error}; start the version"
                    " that wrote it"
                ) from error
            outcomes = tuple([self._run(command) for command in proposal.commands])
        self.mark = Mark(entry.index, entry.term, conf, self.mark.bounds)
        return Applied(entry.index, entry.term, entry.kind, proposal, outcomes)

    def _run(self, command: object) -> Outcome:
        machine = self.machine
        try:
            match command:
                case Transact():
                    return machine.transact(*command.parts())
                case Grant():
                    return machine.grant(command.ttl_s)
                case Revoke():
                    return machine.revoke(command.lease)
                case SetBounds():
                    bounds = Bounds(command.history_revisions, command.history_bytes, command.leases)
                    self.mark = msgspec.structs.replace(self.mark, bounds=bounds)
                    self._adopt(bounds)
                case Compare():
                    return digest_of(machine.table)
        except (MetadataConflictError, NotFoundError) as error:
            return error.with_traceback(None)  # which would hold the outcomes of all entries applied with this one
        except LimitExceededError as error:
            if type(error) is LimitExceededError and machine.table.lease_count >= self.mark.bounds.leases:
                return error.with_traceback(None)
            raise  # of the disk
        return None


def digest_of(table: Rows) -> int:
    """Return a checksum of all that members must agree on at an equal index; tables of all kinds have the same."""
    digest: int = crc32c(_encode([table.revision, table.compacted, table.next_lease]))
    for row in _rows(table):
        digest = crc32c(digest.to_bytes(4, "little") + _encode(row))
    return digest


def _rows(table: Rows) -> Iterator[object]:
    yield from table.scan("/")
    yield from sorted(table.leases())
    position = table.compacted
    while position < table.revision:
        for batch in table.replay(position, 256, 1 << 20):
            position = batch.revision
            yield (batch.revision, batch.events)


_encode = msgspec.msgpack.Encoder().encode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode
_decode_conf = msgspec.msgpack.Decoder(Conf).decode
