"""S8: as S1, with values and their schemas."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["SCENARIO"]

_HOW = "send_many; batches(), values(), batch.ack()"


def _values(form: str) -> Callable[[Run], Sample]:
    def repeat(run: Run) -> Sample:
        return run.flow([run.work("publish_values", form=form)], [run.work("consume_values", form=form)])[0]

    return repeat


SCENARIO = Scenario(
    name="s8",
    title="As S1, with values of six fields: encoded, checked and decoded by their schemas",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 1_000_000, 82, f"{_HOW}; JSON", _values("json")),
        Arm("danube", 2_000_000, 82, f"{_HOW}; bytes without a schema", _values("payloads"), label="payloads"),
        Arm("danube", 1_000_000, 33, f"{_HOW}; protobuf", _values("protobuf"), label="protobuf"),
        Arm("danube", 300_000, 30, f"{_HOW}; Avro", _values("avro"), label="avro"),
    ),
    targets=(
        Target("s8", "messages_per_s", 500_000),
        Target("s8", "messages_per_s", 300_000, arm="protobuf"),
        Target("s8", "messages_per_s", 120_000, arm="avro"),
    ),
)
