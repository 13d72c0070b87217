"""Publishes at a fixed rate, and measures latencies from the time when each message was due.

Messages are due in ticks of 5 ms. One call sends all due messages; those that become due during the call are sent by
the next one. A tick's latency runs from its due time: to its acknowledgement, and to the arrival of its last message.
The first tenth of the time is a warm-up and counts for neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._processes import Outcome, Work, Worker
from benchmarks._run import Run, Sample, latency_values

__all__ = ["end_to_end_us", "paced_flow"]

TICK_S = 0.005
WARM_UP_SHARE = 0.1


def paced_flow(
    run: Run, topic: str, rate_per_s: int, *, start: str = "earliest", beside: Sequence[Worker] = ()
) -> Sample:
    """Publish to ``topic``, which exists, for ``run.seconds`` at a rate; one consumer reads at the tail.

    Args:
        run: the repetition.
        topic: the target topic.
        rate_per_s: messages a second.
        start: where the consumer starts: ``latest`` if the topic has messages already.
        beside: workers that are busy in the meantime; their CPU time does not count as other load.

    Returns:
        A sample with ``messages_per_s``, ``ack_p50_us`` ... and ``end_to_end_p50_us`` ...

    Raises:
        CheckError: the received messages differ from the sent ones.
    """
    per_tick = max(1, int(rate_per_s * TICK_S))
    ticks = max(20, int(run.seconds / TICK_S))
    count = ticks * per_tick
    warm_up = int(ticks * WARM_UP_SHARE)
    producer = run.work("publish_at_rate", topic=topic, count=count, per_tick=per_tick, tick_s=TICK_S)
    consumer: Work = run.work("consume_tail", topic=topic, count=count, start=start, prefix=f"tail-{run.tag}")
    sample, sent, received = run.flow([producer], [consumer], own_topic=False, beside=beside)
    acks = sent[0].latencies_us["ack"][warm_up:]
    arrivals = end_to_end_us(sent[0], received[0], per_tick)[warm_up:]
    pooled = Outcome(started_ns=0, finished_ns=0, count=0, latencies_us={"ack": acks, "arrival": arrivals})
    sample.values |= latency_values([pooled], "ack", "ack_") | latency_values([pooled], "arrival", "end_to_end_")
    return sample


def end_to_end_us(sent: Outcome, received: Outcome, per_tick: int) -> list[float]:
    """Time from the due time of each tick to the arrival of its last message."""
    interval_ns = int(TICK_S * 1e9)
    latencies = []
    arrivals = iter(received.arrivals)
    arrived, at_ns = 0, 0
    for tick in range(sent.count // per_tick):
        while arrived < (tick + 1) * per_tick:
            arrived, at_ns = next(arrivals)
        latencies.append((at_ns - sent.started_ns - tick * interval_ns) / 1000)
    return latencies
