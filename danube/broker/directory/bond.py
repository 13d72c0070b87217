"""Ties journal and metadata together, so that the loss of data in one of them is detected by means of the other.

Each stores a fact about the other that can never become untrue. The journal stores its *identity* (a random number,
drawn when both were new) and the highest revision that the metadata are known to have reached; the metadata store the
same identity, and the file and sequence up to which the journal is known to be synced::

    journal    headers of files, METADATA entries     identity, revision of the metadata
    metadata   /journals/<data directory>             identity, newest file, sequence

Brokers that share metadata have a note each, below the identity of their data directory.

Before a broker trusts either of them, and before it changes anything, it compares them. A side that is behind the note
in the other has lost data: an old copy was restored, a file is missing, a log was cut at a damaged place which looks
like its end. Then the broker does not start (:class:`~danube.model.errors.DataLossError`, exit code 74): otherwise it
would not serve topics whose records are lost, and assign the offsets of lost messages again.

Both notes are written *after* the fact that they state is durable, and nothing waits for them. So a crash or a power
cut leaves a note that is late, never one that states too much: there are no false alarms. A loss that occurs between a
change and its note, some milliseconds, is not detected. The notes do not depend on the metadata engine: the revision is
the one that every store counts (for a future replicated store, the index of its log).

The journal moves to its next file without asking the metadata; its own headers state which of its files count.

Metadata that an operator has put back from a backup on purpose are a new *incarnation* of those that the journal knows
(:mod:`danube.metadata.incarnation`). They may be older than it: the two are reconciled once, which is logged, under a
new identity. A crash repeats that. Files that were copied back by hand are no new incarnation, and are refused.

To continue without the lost data, an operator creates the file ``accept-loss`` in the data directory. The broker then
logs its findings, ties the two together under a new identity, and removes the file.
"""

from __future__ import annotations

import logging
from random import Random
from typing import Final

import msgspec
import trio

from danube.broker.directory.identity_file import ACCEPT_NAME
from danube.broker.directory.losses import JournalRecord, find_losses, is_reconciled
from danube.log import Disk, Journal
from danube.metadata import MetadataStore, read_incarnation
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    MetadataConflictError,
    OwnerFencedError,
)
from danube.model.log_events import log_event

__all__ = ["Bond", "read_record"]

_log = logging.getLogger("danube.broker")

_JOURNALS: Final = "/journals/"
_RETRY_S: Final = 1.0


_RECORD: Final = msgspec.msgpack.Decoder(JournalRecord)


async def read_record(store: MetadataStore, directory_identity: str) -> tuple[JournalRecord | None, int, int]:
    """Return the metadata's note of a journal, its revision, and the revision of the metadata. Changes nothing.

    Args:
        store: the metadata.
        directory_identity: of the journal's data directory.

    Raises:
        DataLossError: the note cannot be read.
    """
    key = _JOURNALS + directory_identity
    items, revision = await store.list(key)
    for item in items:
        if item.key == key:
            try:
                return _RECORD.decode(item.value), item.mod_revision, revision
            except msgspec.MsgspecError as error:
                raise DataLossError(f"metadata key {key} cannot be read: {error}; restore the metadata") from error
    return None, 0, revision


class Bond:
    """The tie between one journal and its metadata. Create it with :meth:`examine`.

    Attributes:
        identity: of the journal; None if the metadata engine is not durable and cannot be tied to a journal.
        synced: a sequence of the journal that was synced, according to the metadata.
        reconciling: whether the metadata are a new incarnation, which this journal meets for the first time.
    """

    def __init__(
        self,
        journal: Journal,
        disk: Disk,
        store: MetadataStore,
        directory_identity: str,
        record: JournalRecord | None,
    ) -> None:
        self.identity = record.identity if record is not None else None
        self.synced = record.sequence if record is not None else 0
        self._journal = journal
        self._disk = disk
        self._store = store
        self._directory_identity = directory_identity
        self._record = record
        self._revision = 0
        self._accepting = False
        self.reconciling = False
        self._wanted = trio.Event()

    @classmethod
    async def examine(
        cls,
        journal: Journal,
        disk: Disk,
        store: MetadataStore,
        random: Random,
        place: str,
        *,
        directory_identity: str,
    ) -> Bond:
        """Compare journal and metadata. Changes nothing unless they match; two new ones get an identity.

        Args:
            journal: not recovered yet.
            disk: of the journal.
            store: the metadata.
            random: draws the identity of new journals.
            place: the data directory, for messages.
            directory_identity: of the data directory.

        Raises:
            DataLossError: data is lost; the message says which, and what to do.
            ConfigurationError: the metadata engine is not durable, and the journal belongs to metadata that are.
        """
        standing = await journal.survey()
        if not store.capabilities.durable:
            if standing.identity:
                raise ConfigurationError(
                    f"the metadata engine loses its data when the broker stops, but the journal in {place} belongs to"
                    " metadata of another engine: without them its messages would be lost. Configure that engine, or"
                    " choose another data directory"
                )
            return cls(journal, disk, store, directory_identity, None)
        record, changed_at, revision = await read_record(store, directory_identity)
        incarnation = await read_incarnation(store)
        losses = find_losses(standing, record, revision, incarnation.incarnation_id)
        accepting = ACCEPT_NAME in standing.other_files
        if losses and not accepting:
            raise DataLossError(
                f"data directory {place}: {'; '.join(losses)}. Nothing was changed. Restore the missing or damaged"
                f" files from a copy; or, to continue without the lost data, create the file {ACCEPT_NAME} there and"
                " start again"
            )
        for loss in losses:
            _log.critical(
                "data directory %s: accepted as lost: %s", place, loss, extra=log_event("metadata.loss_accepted")
            )
        reconciling = is_reconciled(standing, record, incarnation.incarnation_id)
        if reconciling:
            _log.critical(
                "data directory %s: the metadata are a new incarnation (%s), at revision %d; the journal has seen"
                " revision %d. What the journal holds of topics that they do not know is kept, and not served",
                place,
                incarnation.reason,
                revision,
                standing.metadata,
                extra=log_event("metadata.new_incarnation"),
            )
        if record is None or losses or reconciling:
            # File and sequence are noted once the journal has them under this identity. Revisions of another
            # incarnation, which the journal has noted under its former identity, do not count any more.
            record = JournalRecord(
                random.getrandbits(64) or 1,
                accepted=tuple(sorted(standing.cut_files)),
                incarnation_id=incarnation.incarnation_id,
                former_identity=standing.identity if reconciling and not losses else 0,
            )
            changed_at = await store.put(
                _JOURNALS + directory_identity, msgspec.msgpack.encode(record), expected_revision=changed_at
            )
        self = cls(journal, disk, store, directory_identity, record)
        self._revision = changed_at
        self._accepting = accepting
        self.reconciling = reconciling
        return self

    @property
    def accepting(self) -> bool:
        """Whether an operator has accepted, for this start, that something is lost."""
        return self._accepting

    @property
    def told_file(self) -> int:
        """The file of the journal that is noted in the metadata; 0: none."""
        return self._record.file if self._record is not None else 0

    async def begin(self) -> None:
        """Note the end of the recovered journal in the metadata; to be called before the journal runs."""
        if self._record is not None:
            await self.note()
            self._journal.on_roll.append(self._rolled)
        if self._accepting:
            await self._disk.remove(ACCEPT_NAME)
            await self._disk.sync_directory()

    def _rolled(self) -> None:
        # Once an entry of the new file is synced, the file is durable and may be noted in the metadata.
        self._journal.note_metadata(0, self._wanted.set)

    async def run(self) -> None:
        """Task: note each new file of the journal in the metadata, as soon as they can be reached.

        Raises:
            OwnerFencedError: another broker has claimed the metadata.
            DataDirectoryError, DataLossError: the metadata are damaged.
        """
        if self._record is None:
            return
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while True:
                try:
                    await self.note()
                    break
                except (DataDirectoryError, DataLossError, OwnerFencedError):
                    raise
                except DanubeError as error:
                    _log.warning(
                        "the position of the journal cannot be stored in the metadata; retrying in %g s: %s",
                        _RETRY_S,
                        error,
                        extra=log_event("metadata.position_not_stored"),
                    )
                    await trio.sleep(_RETRY_S)

    async def note(self) -> None:
        """Note in the metadata how far the journal is synced.

        Raises:
            OwnerFencedError: another broker has claimed the metadata.
            DanubeError: the note cannot be written; try again.
        """
        if self._record is None:
            return
        file, sequence = self._journal.proven()
        record = msgspec.structs.replace(self._record, file=file, sequence=sequence, former_identity=0)
        if record == self._record:
            return
        while True:
            try:
                self._revision = await self._store.put(
                    _JOURNALS + self._directory_identity,
                    msgspec.msgpack.encode(record),
                    expected_revision=self._revision,
                )
                self._record = record
                return
            except MetadataConflictError as error:
                # A reply was lost, or these metadata now belong to another journal.
                present, changed_at, _ = await read_record(self._store, self._directory_identity)
                if present is None or present.identity != record.identity:
                    raise OwnerFencedError(
                        "another broker with a journal of its own has taken over the metadata of this one; stop one of"
                        " them"
                    ) from error
                self._revision = changed_at
