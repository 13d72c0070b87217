"""The store of stages: the table of a broker's stages, and their files.

A stage is written from front to back by one task, finished (or dropped), and read at most twice: to check it before a
commit is decided, and to append it. A dropped stage leaves the table at once; its file is removed by the next
:meth:`StageStore.sweep`, so that no caller waits for an unlink, and its bytes count until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from danube.broker.runtime.stage_disk import StageDisk
from danube.broker.stages.format import (
    END_SIZE,
    MAX_HEAD_SIZE,
    StageEnd,
    StageHead,
    chain_part,
    cut_parts,
    encode_end,
    encode_head,
    frame_part,
    read_end,
    read_head,
)
from danube.broker.stages.stored import StoredStage
from danube.log import with_descriptors
from danube.model.batch import BatchHeader, check_part
from danube.model.errors import CorruptBatchError, DataLossError, LimitExceededError, UnavailableError
from danube.model.limits import MIB, Limits
from danube.model.log_events import log_event
from danube.model.space import is_out_of_space
from danube.model.stage_api import StageState

__all__ = ["StageReader", "StageStore"]

_log = logging.getLogger("danube.broker")

_READ_BYTES: Final = 4 * MIB
_SWEEP_RETRY_S: Final = 30.0


class StageStore:
    """The stages of a broker and their files; see the module.

    Args:
        disk: of the files.
        limits: ``max_staged_bytes`` and ``max_stages``.
    """

    def __init__(self, disk: StageDisk, limits: Limits) -> None:
        self._disk = disk
        self._limits = limits
        self._stages: dict[int, StoredStage] = {}
        self._doomed: list[tuple[str, int]] = []
        self._swept = trio.Event()
        self.used_bytes = 0
        """Bytes of all files, including those that are to be removed."""

    def __len__(self) -> int:
        return len(self._stages)

    def __iter__(self) -> Iterator[StoredStage]:
        return iter(list(self._stages.values()))

    def find(self, stage_id: int) -> StoredStage | None:
        """Return a stage, or None."""
        return self._stages.get(stage_id)

    # --- Start ---

    async def load(self) -> None:
        """Load the finished stages from the disk; unfinished ones will be removed.

        Raises:
            OSError: the disk cannot be read.
            OutOfDescriptorsError: no file descriptor was available for ``start_descriptor_wait_s``.
        """
        what, wait_s = "the stages", self._limits.start_descriptor_wait_s
        for name, size in sorted((await with_descriptors(what, self._disk.list, wait_s)).items()):
            stage = await with_descriptors(what, partial(self._examine, name, size), wait_s)
            self.used_bytes += size
            if stage is None:
                self._doom(name, size)
            else:
                self._stages[stage.head.stage_id] = stage

    async def _examine(self, name: str, size: int) -> StoredStage | None:
        end = read_end(await self._disk.read(name, max(0, size - END_SIZE), END_SIZE))
        if end is None:
            return None
        try:
            head, head_size = read_head(await self._disk.read(name, 0, MAX_HEAD_SIZE))
        except CorruptBatchError:
            return None
        stage = StoredStage(head)
        expected = head_size + 4 * end.parts + end.part_bytes + END_SIZE
        if stage.name != name or expected != size:
            return None
        stage.state, stage.end, stage.head_size, stage.size = StageState.STAGED, end, head_size, size
        return stage

    # --- Writing ---

    def create(self, head: StageHead) -> StoredStage:
        """Create a stage; its file is created with its first bytes.

        Raises:
            LimitExceededError: there are too many.
        """
        if len(self._stages) >= self._limits.max_stages:
            raise LimitExceededError(
                f"topic {head.topic!r}: nothing more can be staged: limit max_stages = {self._limits.max_stages} is"
                " reached; commit or abort what is staged (danube stages list)"
            )
        stage = self._stages[head.stage_id] = StoredStage(head)
        return stage

    async def append(
        self, stage: StoredStage, parts: Sequence[tuple[bytes, BatchHeader]], *, finish: bool = False
    ) -> None:
        """Append parts, and the end with ``finish``; return when they are durable.

        One task at a time. A finished stage survives a crash.

        Raises:
            LimitExceededError: too much is staged, or the disk is full. The stage is unusable then.
            UnavailableError: the disk has failed. The stage is unusable then.
        """
        buffers: list[bytes] = []
        if not stage.size:
            buffers.append(encode_head(stage.head))
            stage.head_size = len(buffers[0])
        count, records, part_bytes, chain = stage.end
        for part, header in parts:
            buffers += frame_part(part)
            count += 1
            records += header.record_count
            part_bytes += len(part)
            chain = chain_part(chain, part)
        end = StageEnd(count, records, part_bytes, chain)
        if finish:
            buffers.append(encode_end(end))
        await self._write(stage, buffers)
        stage.end = end
        if finish:
            await self._attempt(stage, self._disk.sync_directory)
            stage.state = StageState.STAGED
            stage.fail = None

    async def _write(self, stage: StoredStage, buffers: Sequence[bytes]) -> None:
        size = sum(map(len, buffers))
        limit = self._limits.max_staged_bytes
        if self.used_bytes + size > limit:
            raise LimitExceededError(
                f"{stage}: nothing more can be staged: limit max_staged_bytes = {limit} is reached; commit or abort"
                " what is staged (danube stages list)"
            )
        position = stage.size
        if not position:
            await self._attempt(stage, self._disk.create, stage.name, 0)
        # Count first, and keep the count on failure: some bytes may have been written.
        self.used_bytes += size
        stage.size += size
        await self._attempt(stage, self._disk.write, stage.name, position, buffers, sync=True)

    async def _attempt(self, stage: StoredStage, call: Callable[..., object], *args: object, **options: object) -> None:
        try:
            await call(*args, **options)  # type: ignore[misc]
        except OSError as error:
            if is_out_of_space(error):
                raise LimitExceededError(
                    f"{stage}: the disk of the broker is full; free space on it, or commit or abort what is staged"
                ) from error
            raise UnavailableError(f"{stage}: the disk of the broker has failed ({error}); stage again") from error

    # --- Reading ---

    def read(self, stage: StoredStage) -> StageReader:
        """Return a reader at the beginning of a finished stage."""
        return StageReader(self._disk, stage)

    # --- Dropping ---

    def drop(self, stage: StoredStage) -> None:
        """Drop a stage that is not being written. No-op if it was dropped before."""
        if self._stages.pop(stage.head.stage_id, None) is not None and stage.size:
            self._doom(stage.name, stage.size)

    def _doom(self, name: str, size: int) -> None:
        self._doomed.append((name, size))
        self._swept.set()

    async def sweep(self) -> None:
        """Remove the files of dropped stages; runs forever."""
        while True:
            while self._doomed:
                name, size = self._doomed[-1]
                try:
                    await self._disk.remove(name)
                except OSError as error:
                    _log.warning(
                        "stage file %s cannot be removed now: %s", name, error, extra=log_event("stage.file_left")
                    )
                    await trio.sleep(_SWEEP_RETRY_S)
                    continue
                self._doomed.remove((name, size))
                self.used_bytes -= size
            self._swept = trio.Event()
            await self._swept.wait()


class StageReader:
    """Reads the parts of a finished stage, front to back, and verifies all of it."""

    def __init__(self, disk: StageDisk, stage: StoredStage) -> None:
        self._disk = disk
        self._stage = stage
        self._position = stage.head_size
        self._left = stage.size - stage.head_size - END_SIZE
        self._parts = 0
        self._chain = 0

    async def next_parts(self) -> list[tuple[bytes, BatchHeader]]:
        """Return the next parts, about 4 MiB of them, with their headers; an empty list at the end.

        Raises:
            DataLossError: the file is damaged or missing.
            UnavailableError: the disk cannot be read now.
        """
        stage = self._stage
        if not self._left:
            if (self._parts, self._chain) != (stage.end.parts, stage.end.chain):
                raise self._damaged("parts are missing")
            return []
        want = min(_READ_BYTES, self._left)
        while True:
            data = await self._read(want)
            try:
                parts = [(part, check_part(part)) for part in cut_parts(data)]
            except CorruptBatchError as error:
                raise self._damaged(error.message) from error
            if parts or want == self._left:
                break
            want = min(2 * want, self._left)  # one part is larger than that
        if not parts:
            raise self._damaged("a part has no end")
        taken = sum(4 + len(part) for part, _ in parts)
        self._position += taken
        self._left -= taken
        self._parts += len(parts)
        for part, _ in parts:
            self._chain = chain_part(self._chain, part)
        return parts

    async def _read(self, size: int) -> bytes:
        stage = self._stage
        try:
            data = await self._disk.read(stage.name, self._position, size)
        except FileNotFoundError as error:
            raise self._damaged("its file is missing") from error
        except OSError as error:
            raise UnavailableError(f"{stage}: the disk of the broker cannot be read ({error})") from error
        if len(data) < size:
            raise self._damaged("its file is too short")
        return data

    def _damaged(self, why: str) -> DataLossError:
        return DataLossError(
            f"{self._stage}: its file {self._stage.name} is damaged at byte {self._position}: {why}; before its commit"
            " is decided, abort it and stage again"
        )
