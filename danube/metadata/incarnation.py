"""Incarnations of metadata: what a store is after its contents were put back from a backup.

The broker compares its journal with the metadata, and refuses metadata that are older than what the journal has seen:
their newest changes are lost. If an operator has put a backup back on purpose, that is known, and the topics that the
backup does not contain are in the journals. So whatever puts one back begins a new *incarnation* of the metadata before
anything else may change them, and each broker reconciles its journal with that once. Revisions are comparable within
an incarnation only.

A copy of the files that was put back without this is not told apart from a loss, and refused.
"""

from __future__ import annotations

import msgspec

from danube.metadata._contract import MetadataStore, Put
from danube.metadata.table import decode_record

__all__ = ["FIRST_INCARNATION", "Incarnation", "begin_incarnation", "incarnation_record", "read_incarnation"]

_KEY = "/incarnation"


class Incarnation(msgspec.Struct, frozen=True, array_like=True):
    """One incarnation; the metadata have no such record in their first one."""

    incarnation_id: int = 0
    """Random; 0: the first incarnation."""
    reason: str = ""
    """What was done, for messages."""


FIRST_INCARNATION = Incarnation()
_DECODER = msgspec.msgpack.Decoder(Incarnation)


async def read_incarnation(store: MetadataStore) -> Incarnation:
    """Return the present incarnation of the metadata.

    Raises:
        DataLossError: its record cannot be read.
        DanubeError: the metadata cannot be read.
    """
    item = await store.get(_KEY)
    return FIRST_INCARNATION if item is None else decode_record(item, _DECODER.decode)


def incarnation_record(incarnation_id: int, reason: str) -> Put:
    """Return the change that begins a new incarnation; arguments as in :func:`begin_incarnation`."""
    assert incarnation_id
    return Put(_KEY, msgspec.msgpack.encode(Incarnation(incarnation_id, reason)))


async def begin_incarnation(store: MetadataStore, incarnation_id: int, reason: str) -> None:
    """Begin a new incarnation, after the contents were put back and before they are used.

    Args:
        store: the metadata.
        incarnation_id: random, and not 0.
        reason: what was done, for messages, as "restored from /backups/monday".

    Raises:
        DanubeError: it cannot be written.
    """
    record = incarnation_record(incarnation_id, reason)
    await store.put(record.key, record.value)
