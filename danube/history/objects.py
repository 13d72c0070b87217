"""Stores built objects in a storage backend, and verifies them by reading them back.

Keys are used once: they contain time, broker, its life and a random number, so no put ever replaces an object. Uploads
are read back and compared before they are relied on: a backend that reports success but holds something else is
detected while the local copy still exists.
"""

from __future__ import annotations

import random
from typing import Final

from danube.history.packing import BuiltObject, segment_prefix
from danube.history.segment import (
    TRAILER_SIZE,
    SegmentFooter,
    extend_crc,
    read_footer,
    read_trailer,
)
from danube.model.errors import StorageUnavailableError
from danube.model.limits import KIB, MIB
from danube.storage import Storage

__all__ = ["load_footer", "object_name", "upload", "verify"]

_PIECE_BYTES: Final = 2 * MIB
_FOOTER_GUESS_BYTES: Final = 64 * KIB


def object_name(cluster: str, created_us: int, broker: str, life: int, rng: random.Random) -> str:
    """Return a unique new key of a broker in one of its lives; keys sort by time."""
    return f"{segment_prefix(cluster)}{created_us:016x}-{broker}.{life:x}-{rng.getrandbits(64):016x}.seg"


async def upload(storage: Storage, built: BuiltObject) -> None:
    """Store an object and verify it: when this returns, the backend holds exactly these bytes.

    Raises:
        StorageError: it could not be stored, or the stored bytes differ.
    """
    await storage.put(built.key, built.data, if_absent=storage.capabilities.conditional_put)
    await verify(storage, built.key, len(built.data), built.crc)


async def verify(storage: Storage, key: str, size_bytes: int, crc: int) -> None:
    """Read an object back and compare its size and checksum.

    Raises:
        StorageUnavailableError: it differs; store the data again under another key.
        StorageError: it could not be read.
    """
    found_bytes = (await storage.head(key)).size_bytes
    found = 0
    if found_bytes == size_bytes:
        for at in range(0, size_bytes, _PIECE_BYTES):
            found = extend_crc(found, await storage.get(key, at, min(at + _PIECE_BYTES, size_bytes)))
    if found_bytes != size_bytes or found != crc:
        raise StorageUnavailableError(
            f"{storage.url}/{key} differs from the object that was written ({found_bytes} of {size_bytes} bytes,"
            f" CRC32C {found:08x} instead of {crc:08x}); the local copy is kept, and the upload will be retried"
        )


async def load_footer(storage: Storage, key: str, size_bytes: int = 0) -> SegmentFooter:
    """Read the footer of an object.

    Args:
        storage, key: location of the object.
        size_bytes: of the object; 0: unknown, read from the storage.

    Raises:
        DataLossError: it is damaged.
        StorageError: it cannot be read.
    """
    where = f"{storage.url}/{key}"
    size = size_bytes or (await storage.head(key)).size_bytes
    tail = await storage.get(key, max(0, size - _FOOTER_GUESS_BYTES), size)
    trailer = read_trailer(tail, where)
    if len(tail) < trailer.footer_length + TRAILER_SIZE:
        tail = await storage.get(key, trailer.footer_start, size)
    footer_end = len(tail) - TRAILER_SIZE
    return read_footer(tail[footer_end - trailer.footer_length : footer_end], trailer, where)
