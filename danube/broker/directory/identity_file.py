"""The file ``broker`` of a data directory: which broker it belongs to, and how often that was started. Pure: no I/O.

The file has two slots, each as large as a device may write at once, because the journal's disk has files of a fixed
size. What changes goes into the slot that does not hold the last state: a write that a power loss tears leaves that
whole. A slot is one line of text, so that an operator can read it, and zeros after it::

    danube broker 2 <identity, 16 hex digits> life <number> entered <number> start <16 hex digits> crc <8 hex digits>

``entered`` and ``start`` are of the last start that was to be entered in the metadata; later ones did not get that far.
Version 1 has neither: its last start counts, whatever the metadata say of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from danube.cluster.records import LastStart
from danube.log._files import number_of
from danube.metadata.raft.state import EARLIER_FORMAT
from danube.model.batch import crc32c
from danube.model.errors import DataDirectoryError, DataLossError, JournalFullError
from danube.model.space import is_out_of_space, out_of_space

__all__ = [
    "ACCEPT_NAME",
    "BROKER_NAME",
    "FILE_BYTES",
    "SLOT_BYTES",
    "BrokerFile",
    "decode_broker_file",
    "encode_slot",
    "examine_broker_file",
    "unusable",
]

ACCEPT_NAME: Final = "accept-loss"
"""Name of the file in the data directory that allows a broker to start in spite of lost data."""
METADATA_NAME: Final = "metadata.db"
"""A file that earlier Danubes had in the data directory."""
BROKER_NAME: Final = "broker"
"""Name of the file with the identity."""

SLOT_BYTES: Final = 4096
FILE_BYTES: Final = 2 * SLOT_BYTES

_LINE: Final = re.compile(
    rb"(danube broker (?:1 ([0-9a-f]{16}) life (\d{1,18})"
    rb"|2 ([0-9a-f]{16}) life (\d{1,18}) entered (\d{1,18}) start ([0-9a-f]{16}))) crc ([0-9a-f]{8})\n\0*"
)


class BrokerFile(NamedTuple):
    """The content of the file."""

    identity: str
    """16 hexadecimal digits; never changes."""
    life: int
    """Number of the last start; 0: there was none."""
    last_start: LastStart
    """The last one that was to be entered in the metadata."""
    slot: int
    """Where that is stored: 0 or 1. The next change goes into the other slot."""


def encode_slot(identity: str, life: int, last_start: LastStart) -> bytes:
    """Return the content of one slot."""
    entered, start = last_start
    text = f"danube broker 2 {identity} life {life} entered {entered} start {start:016x}".encode()
    return (text + b" crc %08x\n" % crc32c(text)).ljust(SLOT_BYTES, b"\0")


def decode_broker_file(content: bytes) -> BrokerFile | None:
    """Return what a file says; None if it is damaged. One slot may be: its write was torn."""
    if len(content) != FILE_BYTES:
        return None
    found = [
        _read(match, slot)
        for slot in (0, 1)
        if (match := _LINE.fullmatch(content, slot * SLOT_BYTES, (slot + 1) * SLOT_BYTES))
        and int(match[8], 16) == crc32c(match[1])
    ]
    if len({each.identity for each in found}) != 1:
        return None
    return max(found, key=lambda each: (each.life, each.last_start.life))


def _read(match: re.Match[bytes], slot: int) -> BrokerFile:
    if match[2]:
        return BrokerFile(match[2].decode(), int(match[3]), LastStart(int(match[3]), 0), slot)
    return BrokerFile(match[4].decode(), int(match[5]), LastStart(int(match[6]), int(match[7], 16)), slot)


def examine_broker_file(names: Iterable[str], content: bytes | None, place: str) -> BrokerFile | None:
    """Return what the file of a data directory says; None if the directory is new.

    Args:
        names: of all files in the directory.
        content: of the file; None if it does not exist.
        place: the data directory, for messages.

    Raises:
        DataLossError: the file is damaged, or it is missing and the directory holds other files of a broker.
        DataDirectoryError: an earlier Danube has written the directory.
    """
    found = None if content is None else decode_broker_file(content)
    if content is None and METADATA_NAME in names:
        raise DataDirectoryError(EARLIER_FORMAT.format(f"data directory {place}"))
    if content is None and not any(map(number_of, names)):
        return None
    if found is None:
        raise DataLossError(
            f"data directory {place}: the file {BROKER_NAME!r}, which says to which broker the directory belongs, is"
            f" {'missing' if content is None else 'damaged'}. Nothing was changed. Restore it from a copy of the"
            " directory; or, to continue as a new broker, without what is stored under the lost identity, create the"
            f" file {ACCEPT_NAME!r} there and start again"
        )
    return found


def unusable(error: OSError) -> DataDirectoryError | JournalFullError:
    """Return the error to raise when the file cannot be read or written."""
    if is_out_of_space(error):
        return out_of_space(f"the file {BROKER_NAME!r} of the data directory", error)
    return DataDirectoryError(
        f"the file {BROKER_NAME!r} of the data directory cannot be read or written ({error.strerror}); make the"
        " directory writable for the broker's user, or replace its disk"
    )
