"""P3: a range of time, one per cent of a topic, and all of it."""

from __future__ import annotations

import trio

from benchmarks._history import ask
from benchmarks._payloads import CheckError
from benchmarks._run import Run, Sample
from benchmarks._spark import ROW_OVERHEAD_BYTES, load_and_seal, measure, unavailable, worker_settings
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._stored import stored_topic
from benchmarks.systems.danube import Danube
from danube.client import Client

__all__ = ["SCENARIO"]

COUNT = 5_000_000
ROW_BYTES = 144
_TIMEOUT_S = 60.0


def _prepare(run: Run) -> None:
    load_and_seal(run)
    count = int(run.memory["count"])
    for name, offset in (("first_us", count // 2), ("last_us", count // 2 + count // 100)):
        run.memory[name] = str(_append_time_us(run, offset))


def _append_time_us(run: Run, offset: int) -> int:
    topic = stored_topic(run)

    async def read(client: Client) -> int:
        async with client.consumer(topic, subscription="look", start=offset, credit_messages=1) as consumer:
            with trio.fail_after(_TIMEOUT_S):
                message = await consumer.receive()
        await client.admin.delete_subscription(topic, "look")
        if message.offset != offset:
            raise CheckError(f"offset {message.offset} came instead of {offset}")
        return message.append_time_us

    return ask(run, read)


def _repeat(run: Run) -> Sample:
    bounds = {name: int(run.memory[name]) for name in ("first_us", "last_us")}
    return measure(run, "range", worker_settings(run) | bounds)[0]


SCENARIO = Scenario(
    name="p3",
    title=f"Spark reads the messages of a range of time, about 1 % of {COUNT:,} (rows of {ROW_BYTES} B), and all",
    metrics=("share_of_full", "range_ms", "full_ms", "range_rows"),
    arms=(
        Arm(
            "danube",
            COUNT,
            ROW_BYTES - ROW_OVERHEAD_BYTES,
            "startingTimestamp, endingTimestamp; all to the noop sink, local[2], A B B A in one tuned session",
            _repeat,
            _prepare,
            label="tuned",
            server=Danube("disk"),
            needs=unavailable,
        ),
    ),
    targets=(Target("p3", "share_of_full", 0.10, at_least=False, arm="tuned"),),
    warm_up=False,
    usual=False,
)
