"""D1: the effect of a stuck consumer on others of its subscription.

Three consumers of one subscription work alone, or beside a fourth one that is connected, takes one batch and
acknowledges nothing. The same number of messages is sent in both cases; the three stop at a number that they reach
in both. Throughput is measured with all messages sent at once, the latencies at a fixed rate that is far below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks._history import ask
from benchmarks._payloads import CheckError
from benchmarks._processes import Work, Worker
from benchmarks._run import READY_TIMEOUT_S, Run, Sample, latency_values
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._paced import TICK_S
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

CONSUMERS = 3
KEYS = 1_000
RATE_PER_S = 5_000
COUNTS = {"shared": 3_000_000, "key_shared": 800_000}
"""Messages sent at once: work for five seconds. What a machine does in less than one differs too much."""
CREDIT = 2_000
"""What the fourth one may be given: the client's default for a shared subscription."""
KINDS = ("shared", "key_shared")
SETTLE_S = 1.0
"""Of the latencies at a fixed rate, those of the first second do not count."""
UNBOUNDED = {"max_unacked_messages": 10_000_000, "max_ack_ranges": 10_000_000}
"""For key-shared, where all messages of the fourth one's keys wait in the window until its ack timeout."""


def _repeat(run: Run, *, kind: str, stuck: bool) -> Sample:
    keys = KEYS if kind == "key_shared" else 0
    burst = run.topic("-burst")
    ask(run, lambda client: client.admin.create_topic(burst, durability="disk"))
    with _beside(run, burst, kind, stuck=stuck) as beside:
        sample, _, _ = run.flow(
            [run.work("publish", topic=burst, keys=keys)],
            [_group(run, burst, kind, _reached(kind, run.count))],
            own_topic=False,
            part=True,
            beside=beside,
        )
    ask(run, lambda client: client.admin.delete_topic(burst))

    paced = run.topic("-paced")
    per_tick = max(1, int(RATE_PER_S * min(1.0, run.scale) * TICK_S))
    ticks = max(40, int((run.seconds + SETTLE_S) / TICK_S))
    work = run.work("publish_at_rate", topic=paced, count=ticks * per_tick, per_tick=per_tick, tick_s=TICK_S, keys=keys)
    ask(run, lambda client: client.admin.create_topic(paced, durability="disk"))
    with _beside(run, paced, kind, stuck=stuck) as beside:
        group = _group(run, paced, kind, _reached(kind, work.count), repeated=1)
        _, sent, received = run.flow([work], [group], own_topic=False, part=True, beside=beside)
    ask(run, lambda client: client.admin.delete_topic(paced))
    for kind_of_latency, (outcome,) in {"ack": sent, "flush": received}.items():
        values = outcome.latencies_us[kind_of_latency]
        settled = int(len(values) * SETTLE_S / (run.seconds + SETTLE_S))
        outcome.latencies_us[kind_of_latency] = values[settled:]
    sample.values |= latency_values(sent, "ack", "ack_") | latency_values(received, "flush", "flush_")
    return sample


def _reached(kind: str, count: int) -> int:
    """Number of messages that the three receive in any case: all but those that the fourth one may hold."""
    if kind == "key_shared":
        return count * 6 // 10  # a fourth of the keys are the fourth one's, more or less
    return count - min(count // 3, 2 * CREDIT)


def _group(run: Run, topic: str, kind: str, count: int, *, repeated: int = 0) -> Work:
    return run.work("consume_group", topic=topic, count=count, kind=kind, consumers=CONSUMERS, repeated=repeated)


@contextmanager
def _beside(run: Run, topic: str, kind: str, *, stuck: bool) -> Iterator[list[Worker]]:
    """Run the fourth consumer during the block, if it is wanted."""
    if not stuck:
        yield []
        return
    worker = run.processes.worker(run.work("stick", topic=topic, kind=kind))
    worker.wait_for("ready", READY_TIMEOUT_S)
    worker.send(b"go")
    worker.wait_for("holding", READY_TIMEOUT_S)
    yield [worker]
    worker.send(b"go on")
    if not worker.outcome(run.result_timeout_s).count:
        raise CheckError("the consumer that was to stick was given nothing to hold")


def _arms(kind: str, server: Danube) -> tuple[Arm, Arm]:
    how = f"send_many{', keys=' if kind == 'key_shared' else ''}; async for, message.ack(), {CONSUMERS} connections"
    if kind == "key_shared":
        how += ", max_unacked_messages and max_ack_ranges out of the way"
    return (
        Arm(
            "danube",
            COUNTS[kind],
            100,
            how,
            partial(_repeat, kind=kind, stuck=False),
            label=f"{kind}-alone",
            server=server,
        ),
        Arm(
            "danube",
            COUNTS[kind],
            100,
            f"{how}, beside one that sticks",
            partial(_repeat, kind=kind, stuck=True),
            label=kind,
            server=server,
        ),
    )


SCENARIO = Scenario(
    name="d1",
    title=(
        f"{CONSUMERS} consumers of a shared and of a key-shared subscription ({KEYS:,} keys), 100 B, alone and beside "
        f"a fourth one that sticks: their throughput, and at {RATE_PER_S:,} messages/s the latencies of publish acks "
        "(from the intended send time) and of flush_acks"
    ),
    metrics=("messages_per_s", "ack_p50_us", "ack_p99_us", "flush_p50_us", "flush_p99_us"),
    arms=(*_arms("shared", Danube()), *_arms("key_shared", Danube(limits=UNBOUNDED))),
    targets=tuple(
        target
        for kind in KINDS
        for target in (
            Target("d1", "messages_per_s", 0.95, against=f"{kind}-alone", arm=kind),
            Target("d1", "ack_p99_us", 1.1, at_least=False, against=f"{kind}-alone", arm=kind),
            Target("d1", "flush_p99_us", 1.1, at_least=False, against=f"{kind}-alone", arm=kind),
        )
    ),
    usual=False,
)
