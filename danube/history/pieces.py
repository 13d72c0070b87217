"""Splits data larger than one object into pieces, which are named by an object written after them.

A backend limits the size of an object; a snapshot of everything grows with the history. Pieces are stored first, and
the object that names them last, so after any interruption all named pieces exist. Each piece is put once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from danube.model.limits import KIB, MIB
from danube.storage import Storage

__all__ = ["ROOM_BYTES", "cut", "join_pieces", "piece_bytes", "piece_key", "put_pieces"]

_PIECE_BYTES: Final = 32 * MIB
"""Maximum, even if the backend allows larger objects: each piece has its own retries and deadline."""
ROOM_BYTES: Final = 1 * KIB
"""Reserved for the other contents of an object that names pieces."""


def piece_bytes(storage: Storage) -> int:
    """Return the maximum size of a piece."""
    return min(_PIECE_BYTES, storage.capabilities.max_object_bytes)


def piece_key(key: str, number: int) -> str:
    """Return the key of a piece. Pieces sort after ``key`` and before the next sequence number."""
    return f"{key}-{number:08x}"


def cut(data: bytes, size: int) -> list[bytes]:
    """Split data into pieces of ``size`` bytes; the last one may be smaller."""
    return [data[at : at + size] for at in range(0, len(data), size)]


async def put_pieces(key: str, pieces: list[bytes], put: Callable[[str, bytes], Awaitable[None]]) -> None:
    """Store pieces in order. Raises the errors of ``put``."""
    for number, piece in enumerate(pieces):
        await put(piece_key(key, number), piece)


async def join_pieces(storage: Storage, key: str, count: int) -> bytes:
    """Read pieces and join them.

    Raises:
        StorageNotFoundError: a piece does not exist.
        StorageError: the backend failed.
    """
    return b"".join([await storage.get(piece_key(key, number)) for number in range(count)])
