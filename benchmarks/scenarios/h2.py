"""H2: replay of sealed history."""

from __future__ import annotations

from benchmarks._history import go_cold
from benchmarks._payloads import CheckError
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._stored import fill_and_seal, stored_topic
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

COUNT = 10_000_000
_HOW = "batches(), batch.ack(); the broker was just started, nothing is in the page cache"


def _repeat(run: Run) -> Sample:
    go_cold(run)
    count = int(run.memory["count"])
    work = run.work("replay", topic=stored_topic(run), count=count, prefix=run.tag)
    sample, _, received = run.flow([], [work], own_topic=False)
    if received[0].count != count or received[0].checksum != int(run.memory["checksum"]):
        raise CheckError(f"{count} messages were stored, the replay gave {received[0].count} or other ones")
    return sample


SCENARIO = Scenario(
    name="h2",
    title="Replay of 1 GB of sealed 100 B messages by a new subscription, from offset 0, everything cold",
    metrics=("messages_per_s", "mb_per_s"),
    arms=(
        Arm("danube", COUNT, 100, _HOW, _repeat, fill_and_seal, label="disk", server=Danube("disk")),
        Arm("danube", COUNT, 100, _HOW, _repeat, fill_and_seal, label="s3", server=Danube("s3")),
    ),
    targets=(
        Target("h2", "messages_per_s", 2_000_000, arm="disk"),
        Target("h2", "messages_per_s", 1_000_000, arm="s3"),
    ),
    warm_up=False,
    usual=False,
)
