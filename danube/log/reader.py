"""Reads journal files behind the writer: large reads, with a small cache shared by all topics.

Topics are interleaved in the journal, so subscriptions that replay different topics read the same megabytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from danube.log._files import FileTable, JournalFile
from danube.log.disk import Disk
from danube.model.errors import NotFoundError
from danube.model.limits import MIB

__all__ = ["CHUNK_BYTES", "JournalReader"]

CHUNK_BYTES: Final = 1 * MIB
_CHUNKS: Final = 16


class JournalReader:
    """Reads live journal files and caches up to 16 MiB of them."""

    def __init__(self, disk: Disk, files: FileTable) -> None:
        self._disk = disk
        self._files = files
        self._chunks: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    async def window(self, file_id: int, position: int, size: int) -> tuple[bytes, int]:
        """Return a buffer and the index of ``position`` in it; at least ``size`` bytes follow, unless the file ends.

        Only bytes written before the call may be requested; later ones are undefined.

        Raises:
            NotFoundError: the file is no longer part of the log.
            OSError: the disk cannot read it.
        """
        start = position - position % CHUNK_BYTES
        inside = position - start
        if inside + size > CHUNK_BYTES:
            # Across a boundary: read exactly the requested range, so that a large batch is read into one buffer.
            return await self._disk.read(self._file(file_id).name, position, size), 0
        key = (file_id, start)
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._chunks.move_to_end(key)
            return chunk, inside
        file = self._file(file_id)
        final = bool(file.closed and not file.in_flight) or file.written >= start + CHUNK_BYTES
        if not final:
            # The active end grows: such a buffer is used by its reader only, and starts at its position.
            return await self._disk.read(file.name, position, CHUNK_BYTES - inside), 0
        chunk = await self._disk.read(file.name, start, CHUNK_BYTES)
        if self._files.get(file_id) is file:
            self._chunks[key] = chunk
            while len(self._chunks) > _CHUNKS:
                self._chunks.popitem(last=False)
        return chunk, inside

    def forget(self, file: JournalFile) -> None:
        """Drop the cached chunks of a file that is recycled."""
        for key in [key for key in self._chunks if key[0] == file.file_id]:
            del self._chunks[key]

    def _file(self, file_id: int) -> JournalFile:
        file = self._files.get(file_id)
        if file is None:
            raise NotFoundError(f"journal file {file_id} was recycled")
        return file
