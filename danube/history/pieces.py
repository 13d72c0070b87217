"""What is too large for one object: it is cut into pieces, which an object behind them names.

A backend says how large an object may be; a snapshot of everything grows with the history. Pieces are stored first, and
the object that names them last, so whatever is cut off in between, what is named is there. Each piece is put once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from danube.model.limits import KIB, MIB
from danube.storage import Storage

__all__ = ["ROOM_BYTES", "cut", "join_pieces", "piece_bytes", "piece_key", "put_pieces"]

_PIECE_BYTES: Final = 32 * MIB
"""Not more, even where an object may be larger: each piece has its own attempts and deadline."""
ROOM_BYTES: Final = 1 * KIB
"""Left for what an object that names pieces has beside them."""


def piece_bytes(storage: Storage) -> int:
    """Return how large a piece is at most."""
    return min(_PIECE_BYTES, storage.capabilities.max_object_bytes)


def piece_key(key: str, number: int) -> str:
    """Return the key of a piece. Pieces sort behind ``key`` and before the next sequence number."""
    return f"{key}-{number:08x}"


def cut(data: bytes, size: int) -> list[bytes]:
    """Cut data into pieces of ``size`` bytes; the last one may be smaller."""
    return [data[at : at + size] for at in range(0, len(data), size)]


async def put_pieces(key: str, pieces: list[bytes], put: Callable[[str, bytes], Awaitable[None]]) -> None:
    """Store pieces, one after the other. Raises what ``put`` raises."""
    for number, piece in enumerate(pieces):
        await put(piece_key(key, number), piece)


async def join_pieces(storage: Storage, key: str, count: int) -> bytes:
    """Read pieces back.

    Raises:
        StorageNotFoundError: one is not there.
        StorageError: the backend failed.
    """
    return b"".join([await storage.get(piece_key(key, number)) for number in range(count)])
