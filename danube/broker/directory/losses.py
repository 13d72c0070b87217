"""Finds the loss of data in the journal or in the metadata, by comparing their notes. Pure: no I/O, no clock.

See :mod:`danube.broker.directory.bond`, which writes the notes.
"""

from __future__ import annotations

import msgspec

from danube.log._files import journal_name
from danube.log.recovered import Standing

__all__ = ["JournalRecord", "find_losses", "is_reconciled"]


def is_reconciled(standing: Standing, record: JournalRecord | None, incarnation_id: int) -> bool:
    """Return whether these metadata know the journal, and have begun a new incarnation since.

    An operator has restored them on purpose. The journal holds all that they lack, so nothing is lost in silence.
    Everything else is refused as ever: a journal that is behind its record (its directory went back in time), that has
    lost files, or is unknown to the metadata or bound to others, which may be those of another cluster.
    """
    if record is None:
        return False
    again = standing.identity not in (0, record.identity) and standing.identity == record.former_identity
    return again or record.incarnation_id != incarnation_id


class JournalRecord(msgspec.Struct, frozen=True, array_like=True):
    """The journal's state as noted in the metadata."""

    identity: int
    file: int = 0
    """Id of a file that was begun and synced; 0: none yet."""
    sequence: int = 0
    """All entries up to this sequence were synced."""
    accepted: tuple[str, ...] = ()
    """Files that were cut, with the consent of an operator."""
    incarnation_id: int = 0
    """The incarnation of the metadata in which the two were compared last."""
    former_identity: int = 0
    """What the journal is called until its next file is begun; 0: as ``identity``. The two were reconciled just now."""


def find_losses(standing: Standing, record: JournalRecord | None, revision: int, incarnation_id: int = 0) -> list[str]:
    """Compare a journal with metadata; return the losses as messages. Empty: they match, or both are new.

    Args:
        standing: of the journal.
        record: the note of the journal in the metadata.
        revision: of the metadata.
        incarnation_id: of the metadata. In a new one they may be at any revision; see :func:`is_reconciled`.
    """
    accepted = record.accepted if record is not None else ()
    losses = [f"journal file {journal_name(file_id)} is missing" for file_id in standing.missing_files]
    losses += [
        f"journal file {name} has been cut to {size} bytes"
        for name, size in sorted(standing.cut_files.items())
        if name not in accepted
    ]
    if record is None:
        if standing.identity:
            losses.append(
                f"the metadata are empty, missing or of another broker (they are at revision {revision} and record"
                f" no journal), but the journal has recorded their revision {standing.metadata}"
            )
        return losses
    if not standing.begun:
        if record.file:
            losses.append(f"the journal is missing: the metadata record its file {journal_name(record.file)}")
        return losses
    if standing.identity not in (record.identity, record.former_identity or record.identity):
        losses.append(
            f"the journal is {standing.identity:016x}, but the metadata belong to the journal {record.identity:016x}:"
            " one of them belongs to another broker, or its headers are damaged"
        )
        return losses
    if revision < standing.metadata and not is_reconciled(standing, record, incarnation_id):
        losses.append(
            f"the metadata are at revision {revision}, but the journal has recorded revision {standing.metadata}:"
            " their newest changes are lost (a damaged log, or an old copy)"
        )
    if record.file > standing.newest_file:
        losses.append(
            f"journal file {journal_name(record.file)} is missing or empty, but the metadata record that it was"
            f" written; the newest existing one is {journal_name(standing.newest_file)}"
        )
    elif record.sequence > standing.end:
        losses.append(
            f"the journal ends at sequence {standing.end}, but the metadata record that sequence {record.sequence}"
            f" was synced: the end of {journal_name(standing.newest_file)} is lost"
        )
    return losses
