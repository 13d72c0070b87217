"""S4: replay of stored messages."""

from __future__ import annotations

from benchmarks._payloads import CheckError
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target

__all__ = ["SCENARIO"]

_TOPIC = "stored"


def _fill(run: Run) -> None:
    run.alone(run.work("create", topic=run.topic(_TOPIC)))
    outcome = run.alone(run.work("publish", topic=run.topic(_TOPIC)))
    run.memory.update(topic=run.topic(_TOPIC), checksum=str(outcome.checksum), count=str(outcome.count))


def _repeat(run: Run) -> Sample:
    count = int(run.memory["count"])  # a warm-up reads all messages, too
    work = run.work("replay", topic=run.memory["topic"], count=count, prefix=run.tag)
    sample, _, received = run.flow([], [work], own_topic=False)
    if received[0].count != count or received[0].checksum != int(run.memory["checksum"]):
        raise CheckError(f"{count} messages were stored, the replay gave {received[0].count} or other ones")
    return sample


SCENARIO = Scenario(
    name="s4",
    title="Replay of stored 100 B messages by a new subscription, from the beginning (5 million in Danube)",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 5_000_000, 100, "batches(), batch.ack()", _repeat, _fill),
        Arm("jetstream", 100_000, 100, "push consumer, ack all", _repeat, _fill),
        Arm("redis", 300_000, 100, "XREADGROUP, XACK", _repeat, _fill),
    ),
    targets=(Target("s4", "messages_per_s", 2_000_000),),
)
