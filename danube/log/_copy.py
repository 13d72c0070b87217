"""Copies the accepted tail of a journal to fresh files during recovery.

A block moves by getting a new header: its entries do not contain their position. The copy takes effect when the last
file is renamed to its final name, so a crash before that leaves the old state. Writes are
actions (:mod:`danube.log._actions`). Pure.
"""

from __future__ import annotations

from typing import Final, Protocol

from danube.log._actions import Rename, Steps, SyncDirectory, Write
from danube.log._files import FileTable, JournalFile
from danube.log.format import (
    BLOCK_HEADER_SIZE,
    FILE_HEADER_SIZE,
    TERMINATOR,
    Block,
    Entry,
    encode_block,
    encode_block_header,
    encode_file_header,
    read_block_header,
)
from danube.model.limits import MIB

__all__ = ["CopyOwner", "TailCopy", "block_of"]

_COPY_BYTES: Final = 4 * MIB


class CopyOwner(Protocol):
    """What a copy needs from the recovery."""

    identity: int
    metadata: int

    def take_fresh(self) -> Steps[tuple[str, JournalFile]]:
        """Return an unused file under its spare name, and the journal file it will become."""
        ...

    def visit(self, data: bytes, block: Block, file: JournalFile, written_at: int) -> None:
        """Pass the entries of a copied block to the visitor."""
        ...


class TailCopy:
    """Writes blocks to fresh files under spare names; :meth:`finish` makes them the end of the log.

    Usually there is one file. If there are more, all take effect with the final name of the last one.
    """

    def __init__(self, owner: CopyOwner, files: FileTable, resume_after: int, first_sequence: int) -> None:
        self._owner = owner
        self._files = files
        self._resume_after = resume_after
        self._done: list[tuple[str, JournalFile]] = []
        # The first bytes of the current file are written last: whether it is the last file is only known then.
        self._first_sequence = first_sequence
        self._buffers: list[bytes] = []
        self._buffered = 0
        self._name = ""
        self.file: JournalFile
        self.sequence = first_sequence - 1

    def start(self) -> Steps[None]:
        """Start a new file."""
        self._name, self.file = yield from self._owner.take_fresh()
        self.file.end = FILE_HEADER_SIZE
        self._first_sequence = self.sequence + 1
        self._older = self._files.listed()
        self._done.append((self._name, self.file))
        self._files.add(self.file)

    def add(self, data: bytes, block: Block) -> Steps[None]:
        """Append the block of ``data`` with a header for its new place, and pass it to the visitor."""
        if block.length > self.file.room():
            yield from self._end_file(prelude=True)
            self._files.close(self.file)
            yield from self.start()
        self.sequence += 1
        file = self.file
        position = file.end
        body = data[block.position + BLOCK_HEADER_SIZE : block.position + block.length]
        # Nothing counts as synced until the whole copy is synced.
        watermark = self._resume_after
        self._buffers.append(
            encode_block_header(block.length, file.file_id, self.sequence, watermark, block.entry_count, block.body_crc)
        )
        self._buffers.append(body)
        self._buffered += block.length
        file.end = position + block.length
        file.last_sequence = self.sequence
        self._owner.visit(data, block, file, position)
        if self._buffered >= _COPY_BYTES:
            yield from self._flush()

    def _flush(self) -> Steps[None]:
        position = self.file.end - self._buffered
        yield Write(self._name, position, [*self._buffers, TERMINATOR], sync=False)
        self._buffers = []
        self._buffered = 0

    def _end_file(self, *, prelude: bool) -> Steps[None]:
        yield from self._flush()
        header = encode_file_header(
            self.file.file_id,
            self._first_sequence,
            self._first_sequence - 1 if len(self._done) > 1 else self._resume_after,
            self._resume_after,
            self._older,
            file_size=self.file.size,
            identity=self._owner.identity,
            metadata=self._owner.metadata,
            prelude=prelude,
        )
        yield Write(self._name, 0, [header], sync=True)
        self.file.written = self.file.end

    def finish(self) -> Steps[None]:
        """Sync the files and rename them into the log."""
        yield from self._end_file(prelude=False)
        for name, file in self._done[:-1]:
            yield Rename(name, file.name)
        yield SyncDirectory()
        yield Rename(self._name, self.file.name)
        yield SyncDirectory()


def block_of(entries: list[Entry], sequence: int) -> tuple[bytes, Block]:
    """Frame entries as a block in a buffer of its own."""
    buffers, _ = encode_block(entries, file_id=0, position=0, sequence=sequence, watermark=0)
    data = b"".join(buffers)
    block = read_block_header(data, 0, 0)
    assert isinstance(block, Block)
    return data, block
