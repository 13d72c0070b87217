"""Blocking form of staged publishing; behaviour and errors as in :class:`danube.client.Client`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from danube.client import _stages
from danube.model.batch import Record
from danube.model.stage_api import StageCommit, StagedBatch, StageInfo

if TYPE_CHECKING:
    from danube.client._client import Client
    from danube.client.sync._loop import Loop

__all__ = ["Stage", "StageCalls"]


class Stage:
    """Messages being written to the broker's disk, not visible yet; made by :meth:`Client.stage`."""

    def __init__(self, stage: _stages.Stage, loop: Loop) -> None:
        self._stage = stage
        self._loop = loop
        self.topic = stage.topic
        """The topic or partition."""
        self.stage_id = stage.stage_id
        self.committed = stage.committed
        """Whether this batch was committed before; see :class:`danube.client.Stage`."""

    @property
    def records(self) -> int:
        """Number of added records."""
        return self._stage.records

    @property
    def size_bytes(self) -> int:
        """Size of the parts that were sent."""
        return self._stage.size_bytes

    def add(self, records: Sequence[bytes] | Sequence[Record], publish_time_us: int | None = None) -> None:
        """Add messages, many in one call; wait while the broker's disk is behind."""
        self._loop.run(self._stage.add, records, publish_time_us)

    def finish(self) -> StagedBatch:
        """Send the remaining messages, and return the stage when it is on the broker's disk."""
        return self._loop.run(self._stage.finish)


class StageCalls:
    """The part of :class:`Client` that stages and commits."""

    _client: Client
    _loop: Loop

    @contextmanager
    def stage(
        self,
        topic: str,
        *,
        producer: str,
        batch_id: int,
        attempt: str = "",
        write_id: str = "",
        compression: Literal["lz4", "zstd"] | None = None,
    ) -> Iterator[Stage]:
        """Stage messages for one topic or partition; see :meth:`danube.client.Client.stage`."""
        opening = self._client.stage(
            topic,
            producer=producer,
            batch_id=batch_id,
            attempt=attempt,
            write_id=write_id,
            compression=compression,
        )
        with self._loop.enter(opening) as stage:
            yield Stage(stage, self._loop)

    def commit_stages(
        self, producer: str, batch_id: int, stages: Sequence[StagedBatch], *, label: str = ""
    ) -> StageCommit:
        """Make stages visible: all of them or none, once; see :meth:`danube.client.Client.commit_stages`."""
        return self._loop.run(self._client.commit_stages, producer, batch_id, stages, label=label)

    def abort_stages(
        self, producer: str, batch_id: int, stages: Sequence[StagedBatch] = (), *, write_id: str = ""
    ) -> bool:
        """Drop stages, and return whether the batch is committed; see :meth:`danube.client.Client.abort_stages`."""
        return self._loop.run(self._client.abort_stages, producer, batch_id, stages, write_id=write_id)

    def last_batch(self, producer: str) -> int | None:
        """Return the last committed batch of a producer; None if there is none, or the broker has forgotten it."""
        return self._loop.run(self._client.last_batch, producer)

    def list_stages(self, producer: str = "") -> list[StageInfo]:
        """Return the stages, the oldest first."""
        return self._loop.run(self._client.list_stages, producer)
