"""Staged publishing with spans: one for each stage, from its opening to its end, and one for each commit.

Stages are often made in other processes than the commit, such as Spark's executors and its driver. What a stage returns
carries the context of its span, so the commit is linked with those of all its stages, wherever they were made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

import msgspec
from opentelemetry.trace import SpanKind

from danube.client._spans import TRACEPARENT, Destination, base_topic, carriers, operation, with_carrier
from danube.client._stages import Stage, Stages
from danube.client.telemetry import Operation, carrier_of, links_of
from danube.model.stage_api import StagedBatch

if TYPE_CHECKING:
    from danube.client._pool import Pool
    from danube.client.telemetry import Telemetry
    from danube.model.batch import Record, SchemaRef
    from danube.model.stage_api import StageCommit

__all__ = ["TracedStages"]


class _TracedStage(Stage):
    """A stage whose messages carry the context of its span, if that records."""

    def __init__(self, creating: Operation, stage: Stage) -> None:
        super().__init__(stage._stream, stage.topic, stage._opened, stage._codec, stage._schema, stage._clock_us)
        self._creating = creating
        self._carrier = carrier_of(creating.span)

    async def add(self, records: Sequence[bytes] | Sequence[Record], publish_time_us: int | None = None) -> None:
        if isinstance(records, list | tuple):  # anything else is refused, or read once
            records = with_carrier(records, self._carrier)
        await super().add(records, publish_time_us)

    async def finish(self) -> StagedBatch:
        staged = await super().finish()
        self._creating.span.set_attribute("messaging.batch.message_count", staged.records)
        return msgspec.structs.replace(staged, traceparent=self._carrier.get(TRACEPARENT, ""))


class TracedStages(Stages):
    """Stages and commits with spans."""

    def __init__(self, telemetry: Telemetry, pool: Pool) -> None:
        super().__init__(pool)
        self._telemetry = telemetry

    @asynccontextmanager
    async def open(
        self,
        topic: str,
        *,
        producer: str,
        batch_id: int,
        attempt: str = "",
        write_id: str = "",
        compression: Literal["lz4", "zstd"] | None = None,
        schema: SchemaRef | None = None,
    ) -> AsyncIterator[Stage]:
        attributes = operation("create", "stage", Destination(str(topic)))
        # Several stages are open at a time, and end in any order: none of their spans is the current one.
        with Operation(self._telemetry, SpanKind.PRODUCER, attributes, current=False) as creating:
            async with super().open(
                topic,
                producer=producer,
                batch_id=batch_id,
                attempt=attempt,
                write_id=write_id,
                compression=compression,
                schema=schema,
            ) as stage:
                yield _TracedStage(creating, stage)

    async def commit(
        self, producer: str, batch_id: int, stages: Sequence[StagedBatch], *, label: str = ""
    ) -> StageCommit:
        staged = [each for each in stages if isinstance(each, StagedBatch)] if isinstance(stages, list | tuple) else []
        topics = {base_topic(each.topic) for each in staged}
        destination = Destination(topics.pop() if len(topics) == 1 else str(producer))
        count = sum(each.records for each in staged)
        attributes = operation("send", "commit", destination, count=count)
        links = links_of(carriers({TRACEPARENT: each.traceparent} for each in staged if each.traceparent))
        with Operation(self._telemetry, SpanKind.PRODUCER, attributes, links=links) as sending:
            outcome = await super().commit(producer, batch_id, stages, label=label)
            if outcome.committed:
                sending.sent(count)
            return outcome
