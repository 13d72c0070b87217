"""One stage of the store, as a value. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from danube.broker.stages.format import StageEnd, StageHead
from danube.model.errors import DanubeError
from danube.model.stage_api import StagedBatch, StageInfo, StageState

__all__ = ["StoredStage"]

_NO_END: Final = StageEnd(0, 0, 0, 0)


class StoredStage:
    """One stage: its head, its totals so far, and its state (see :class:`StageState`)."""

    __slots__ = ("end", "fail", "head", "head_size", "name", "refusal", "size", "state")

    def __init__(self, head: StageHead) -> None:
        self.head = head
        self.name = f"{head.stage_id:016x}.stage"
        self.state = StageState.OPEN
        self.head_size = 0
        self.size = 0
        """Bytes of the file."""
        self.end = _NO_END
        """Totals of the stage; those so far while it is open."""
        self.fail: Callable[[DanubeError], None] | None = None
        """Ends the stream that writes it."""
        self.refusal: DanubeError | None = None
        """Why it must not be finished any more."""

    def __str__(self) -> str:
        head = self.head
        return f"stage {head.stage_id:016x} ({head.topic}, batch {head.batch_id} of {head.producer!r})"

    def staged(self, broker: str) -> StagedBatch:
        """Return the description for its task."""
        return StagedBatch(self.head.stage_id, self.head.topic, self.end.records, self.end.part_bytes, broker)

    def info(self, now_us: int) -> StageInfo:
        """Return the description for people."""
        head, end = self.head, self.end
        return StageInfo(
            stage_id=head.stage_id,
            topic=head.topic,
            producer=head.producer,
            batch_id=head.batch_id,
            attempt=head.attempt,
            state=self.state,
            records=end.records,
            size_bytes=end.part_bytes,
            age_s=max(0.0, (now_us - head.created_us) / 1e6),
        )
