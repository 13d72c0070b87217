"""The log of one topic: assigns offsets, and reads batches from the cache, the journal or sealed history.

Readers request "the batches from offset X on"; whether these are read from memory, the local disk or a remote storage
is transparent to them. What belongs where, and what is read next, is decided by :mod:`danube.log._topic_state`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from danube.log._topic_state import FindSealed, Reading, ReadSealed, Submitter, TopicState, Window
from danube.log.cache import BatchCache, StoredBatch
from danube.log.journal import Journal
from danube.log.recovered import RecoveredTopic
from danube.model.errors import DanubeError
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId
from danube.model.policies import Durability

__all__ = ["SealedReader", "Submitter", "TopicLog"]

_T = TypeVar("_T")


class SealedReader(Protocol):
    """Reads batches that are sealed and no longer in the journal."""

    async def read(self, topic_id: TopicId, offset: Offset, max_bytes: int) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset`` on (or the next behind it); empty if nothing is sealed."""
        ...

    async def offset_at(self, topic_id: TopicId, time_us: int) -> Offset | None:
        """Return the first sealed offset appended at or after a time; None if all are older."""
        ...


class NothingSealed:
    """The reader of a log without history."""

    async def read(self, topic_id: TopicId, offset: Offset, max_bytes: int) -> list[StoredBatch]:
        """Return nothing."""
        return []

    async def offset_at(self, topic_id: TopicId, time_us: int) -> Offset | None:
        """Return None."""
        return None


class TopicLog(TopicState):
    """The log of one topic, with its reads; see :class:`~danube.log._topic_state.TopicState`.

    Args:
        topic_id, durability, cache, owner_epoch, next_offset, start_offset, recovered: see there.
        journal: holds its batches while they are not sealed.
        sealed_offset, submitter, on_unsealed, seal_bytes: see there.
        sealed: reads batches below ``sealed_offset``.
    """

    def __init__(
        self,
        topic_id: TopicId,
        durability: Durability,
        journal: Journal,
        cache: BatchCache,
        owner_epoch: OwnerEpoch = NO_OWNER_EPOCH,
        next_offset: Offset = FIRST_OFFSET,
        start_offset: Offset = FIRST_OFFSET,
        recovered: RecoveredTopic | None = None,
        *,
        sealed_offset: Offset = FIRST_OFFSET,
        sealed: SealedReader | None = None,
        submitter: Submitter | None = None,
        on_unsealed: Callable[[TopicLog], None] | None = None,
        seal_bytes: int = 0,
    ) -> None:
        self._files = journal
        self._sealed: SealedReader = sealed if sealed is not None else NothingSealed()
        super().__init__(
            topic_id,
            durability,
            journal,
            cache,
            owner_epoch,
            next_offset,
            start_offset,
            recovered,
            sealed_offset=sealed_offset,
            submitter=submitter,
            on_unsealed=on_unsealed,
            seal_bytes=seal_bytes,
        )

    async def read(self, offset: Offset, max_bytes: int) -> list[StoredBatch]:
        """Return batches from the one that holds ``offset`` on; at least one, and about ``max_bytes`` at most.

        An empty list means that there is nothing between ``offset`` and the end. Below ``start_offset``, reading begins
        there. Does not wait if the first batch is cached.

        Raises:
            DataLossError: stored bytes are damaged; it names the offsets.
            StorageError: sealed batches cannot be read now.
            OSError: the disk cannot be read.
        """
        return await self._carry_out(self.read_steps(offset, max_bytes))

    async def offset_at(self, time_us: int) -> Offset:
        """Return the first offset appended at or after a time; the end offset if there is none."""
        return await self._carry_out(self.offset_steps(time_us))

    async def _carry_out(self, steps: Reading[_T]) -> _T:
        try:
            request = next(steps)
            while True:
                result: Any
                try:
                    if isinstance(request, Window):
                        result = await self._files.window(request.file_id, request.position, request.size)
                    elif isinstance(request, ReadSealed):
                        result = await self._sealed.read(self.topic_id, request.offset, request.max_bytes)
                    else:
                        assert isinstance(request, FindSealed)
                        result = await self._sealed.offset_at(self.topic_id, request.time_us)
                except DanubeError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(result)
        except StopIteration as stop:
            value: _T = stop.value
            return value
