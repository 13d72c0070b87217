"""H3: latency of the first message after a seek far back.

For each sample the broker is restarted. Its first seek, into the first half of the topic, includes the initialisation
of the storage's client library and is reported separately. The second one goes into the other half, which has not been
read yet.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta

import trio

from benchmarks._history import ask, go_cold
from benchmarks._machine import CpuWatch
from benchmarks._payloads import CheckError, sequence_of
from benchmarks._run import Run, Sample
from benchmarks._stats import percentile
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._stored import fill_and_seal, stored_topic
from benchmarks.systems.danube import Danube
from danube.client import Client, Message

__all__ = ["SCENARIO"]

COUNT = 20_000_000
SAMPLES = 30
_TIMEOUT_S = 60.0
_HOW = "consumer(start=<time>), receive(); nothing is in the page cache; after_start: the first call of the broker"


def _prepare(run: Run) -> None:
    fill_and_seal(run)
    last = int(run.memory["count"]) - 1
    for name, offset in (("first_us", 0), ("last_us", last)):
        _, message = _first_message(run, f"look-{offset}", offset)
        if message is None:
            raise CheckError(f"offset {offset} cannot be read")
        run.memory[name] = str(message.append_time_us)


def _repeat(run: Run) -> Sample:
    rng = random.Random(run.tag)
    first_us, last_us = int(run.memory["first_us"]), int(run.memory["last_us"])
    watch = CpuWatch()
    first: list[float] = []
    second: list[float] = []
    for number in range(max(2, int(SAMPLES * min(1.0, run.scale)))):
        go_cold(run)
        for samples, half in ((first, 0.0), (second, 0.5)):
            moment_us = first_us + int((half + rng.uniform(0.05, 0.45)) * (last_us - first_us))
            moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment_us)
            samples.append(_seek(run, f"{run.tag}-{number}-{half}", moment))
    values = {f"first_message_p{share}_ms": percentile(second, share) * 1000 for share in (50, 99)}
    values |= {f"after_start_p{share}_ms": percentile(first, share) * 1000 for share in (50, 99)}
    return Sample(2 * len(second), values, load_1m=watch.load_1m)


def _seek(run: Run, subscription: str, moment: datetime) -> float:
    """Return the seconds from opening a consumer, on an open connection, to its first message."""
    took, message = _first_message(run, subscription, moment)
    if message is None:
        raise CheckError(f"no message came within {_TIMEOUT_S} s after a seek to {moment}")
    if message.append_time_us < moment.timestamp() * 1e6 or message.offset != sequence_of(message.payload):
        raise CheckError(f"{moment} gave offset {message.offset}, appended at {message.append_time_us} us")
    return took


def _first_message(run: Run, subscription: str, start: datetime | int) -> tuple[float, Message | None]:
    topic = stored_topic(run)

    async def read(client: Client) -> tuple[float, Message | None]:
        await client.admin.info()
        before = time.perf_counter()
        message: Message | None = None
        async with client.consumer(topic, subscription=subscription, start=start, credit_messages=1_000) as consumer:
            with trio.move_on_after(_TIMEOUT_S):
                message = await consumer.receive()
            took = time.perf_counter() - before
        await client.admin.delete_subscription(topic, subscription)
        return took, message

    return ask(run, read)


SCENARIO = Scenario(
    name="h3",
    title=f"First message of a seek by time into 2 GB of sealed history, everything cold; {SAMPLES} seeks",
    metrics=("first_message_p50_ms", "first_message_p99_ms", "after_start_p50_ms", "after_start_p99_ms"),
    arms=(
        Arm("danube", COUNT, 100, _HOW, _repeat, _prepare, label="s3", server=Danube("s3")),
        Arm("danube", COUNT, 100, _HOW, _repeat, _prepare, label="disk", server=Danube("disk")),
    ),
    targets=(Target("h3", "first_message_p50_ms", 50, at_least=False, arm="s3"),),
    warm_up=False,
    usual=False,
)
