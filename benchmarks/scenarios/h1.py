"""H1: the cost of sealing for publishers."""

from __future__ import annotations

from functools import partial

from benchmarks._history import Gauge, ask, broker_of, storages_status
from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._paced import paced_flow
from benchmarks.systems.danube import Danube
from danube.model.limits import GIB

__all__ = ["SCENARIO"]

RATE_PER_S = 300_000


def _repeat(run: Run, *, sealed: bool) -> Sample:
    broker, topic = broker_of(run), run.topic()
    ask(run, lambda client: client.admin.create_topic(topic, durability="disk"))
    with Gauge(broker.process, broker.directory) as gauge:
        sample = paced_flow(run, topic, max(1_000, int(RATE_PER_S * min(1.0, run.scale))))
    sample.values |= gauge.values()
    if sealed:
        status = storages_status(run)
        sample.values["behind_mb"] = status.sealing.unsealed_bytes / 1e6
        sample.values["sealed_mb"] = status.sealing.sealed_bytes / 1e6
    ask(run, lambda client: client.admin.delete_topic(topic))
    return sample


SCENARIO = Scenario(
    name="h1",
    title=(
        f"S1 at a fixed {RATE_PER_S:,} messages/s (100 B, from the intended send time) while sealing to a local S3 "
        "server, and without; memory of the broker and its disk space at the beginning, in the middle and at the end"
    ),
    metrics=(
        "messages_per_s",
        "ack_p50_us",
        "ack_p99_us",
        "end_to_end_p99_us",
        "resident_start_mb",
        "resident_middle_mb",
        "resident_end_mb",
        "disk_start_mb",
        "disk_middle_mb",
        "disk_end_mb",
        "behind_mb",
    ),
    arms=(
        Arm(
            "danube",
            0,
            100,
            "send_many in ticks of 5 ms; batches(), batch.ack()",
            partial(_repeat, sealed=True),
            label="sealed",
            server=Danube("s3"),
        ),
        Arm(
            "danube",
            0,
            100,
            "the same, journal limit 64 GiB",
            partial(_repeat, sealed=False),
            label="unsealed",
            server=Danube("memory", {"journal_max_bytes": 64 * GIB}),
        ),
    ),
    targets=(
        Target("h1", "messages_per_s", RATE_PER_S * 0.99, arm="sealed"),
        Target("h1", "ack_p99_us", 2, at_least=False, against="unsealed", arm="sealed"),
    ),
    warm_up=False,
    usual=False,
)
