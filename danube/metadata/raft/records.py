"""What a Raft member writes to its journal, byte for byte, and how a restart reads it. Pure.

The journal keeps a file as long as an entry in it is needed. For that, each payload begins with the number up to which
something of its kind must be released for the entry to be free (``end``)::

    entry      0     8      9      16      24     32
               +-----+------+------+-------+------+---------~~-+
               | end | kind | zero | index | term | data ...   |      end = index + 1, journal topic 1
               +-----+------+------+-------+------+---------~~-+
                 u64   u8            u64     u64

    standing   0     8
               +-----+----------------------------------~~-+
               | end | msgpack: see Standing               |          end = generation + 1, journal topic 2
               +-----+----------------------------------~~-+
                 u64

A standing is everything but the entries; the last one counts. It is written before the entries that were handed out
with it. ``last`` in it cuts the log: entries behind it that were written before are void. So entries that a new leader
has replaced never come back, even if the file that replaced them is gone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import DataLossError
from danube.model.ids import TopicId
from danube.raft import Base, Entry, EntryKind, HardState, NodeId

__all__ = ["LOG", "STANDING", "Contents", "Standing", "encode_entry", "encode_standing", "recover_contents"]

LOG: Final = TopicId(1)
"""The journal's topic of entries."""
STANDING: Final = TopicId(2)
"""The journal's topic of standings."""

_ENTRY: Final = struct.Struct("<QB7xQQ")
_END: Final = struct.Struct("<Q")


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """The durable state of a member besides its entries and its table."""

    generation: int
    """Rises by one with each standing."""
    member: NodeId
    """The id of this member in its group."""
    hard: HardState
    base: Base
    """Start of the log."""
    last: int
    """The last entry of the log before the entries that follow this standing."""
    installing: int = 0
    """Index of the copy that is replacing the table; 0: none is. The table may be the old or the new one then."""


class Contents(msgspec.Struct, frozen=True):
    """What a journal holds."""

    standing: Standing
    entries: tuple[Entry, ...]
    """Behind ``standing.base``, without gaps."""


def encode_entry(entry: Entry) -> tuple[bytes, bytes]:
    """Return the payload of an entry, in two buffers."""
    return _ENTRY.pack(entry.index + 1, entry.kind, entry.index, entry.term), entry.data


def encode_standing(standing: Standing) -> tuple[bytes]:
    """Return the payload of a standing."""
    return (_END.pack(standing.generation + 1) + _encode(standing),)


def recover_contents(payloads: Iterable[tuple[int, bytes]]) -> Contents | None:
    """Return what was written, from the journal topics and payloads in their order; None if nothing was.

    Raises:
        DataLossError: the payloads contradict themselves, or entries are missing.
    """
    standing: Standing | None = None
    entries: list[Entry] = []
    for topic, payload in payloads:
        try:
            if topic == LOG:
                entry = _decode_entry(payload)
                _cut(entries, entry.index - 1)
                if entries and entries[-1].index != entry.index - 1:
                    entries.clear()  # what lay in between was released, and so was this
                entries.append(entry)
            elif topic == STANDING:
                standing = _decode_standing(memoryview(payload)[_END.size :])
                _cut(entries, standing.last)
                if entries and entries[0].index <= standing.base.index:
                    del entries[: standing.base.index + 1 - entries[0].index]
            else:
                raise DataLossError(f"the metadata log holds an entry of topic {topic}, which it never writes")
        except (struct.error, ValueError, *UNDECODABLE) as error:
            raise DataLossError(f"the metadata log holds an entry that does not decode: {error}") from error
    if standing is None:
        if entries:
            raise DataLossError("the metadata log has entries, and nothing says where it begins")
        return None
    first = entries[0].index if entries else standing.base.index + 1
    last = entries[-1].index if entries else standing.base.index
    if first != standing.base.index + 1 or last < standing.last:
        raise DataLossError(
            f"the metadata log should have entries {standing.base.index + 1} to {standing.last} at least, and has"
            f" {first} to {last}"
        )
    if entries and entries[0].term < standing.base.term:
        raise DataLossError(f"entry {first} of the metadata log is older than the one before it")
    return Contents(standing, tuple(entries))


def _cut(entries: list[Entry], last: int) -> None:
    """Drop the entries behind ``last``."""
    if entries and entries[-1].index > last:
        del entries[max(0, last + 1 - entries[0].index) :]


def _decode_entry(payload: bytes) -> Entry:
    _, kind, index, term = _ENTRY.unpack_from(payload)
    return Entry(index, term, EntryKind(kind), payload[_ENTRY.size :])


_encode = msgspec.msgpack.Encoder().encode
_decode_standing = msgspec.msgpack.Decoder(Standing).decode
