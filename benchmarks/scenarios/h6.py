"""H6: the effect of consumers that catch up on those at the tail."""

from __future__ import annotations

from benchmarks._payloads import CheckError
from benchmarks._run import READY_TIMEOUT_S, Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._paced import paced_flow
from benchmarks.scenarios._stored import fill_and_seal, stored_topic
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

RATE_PER_S = 200_000
COUNT = 10_000_000
READERS = 4
_MARGIN_S = 2.0
"""For so long the readers are busy before the tail is measured."""


def _tail_alone(run: Run) -> Sample:
    return paced_flow(run, stored_topic(run), _rate(run), start="latest")


def _tail_beside_readers(run: Run) -> Sample:
    seconds = run.seconds + 2 * _MARGIN_S
    work = run.work(
        "replay_again_and_again",
        topic=stored_topic(run),
        count=int(run.memory["count"]),
        consumers=READERS,
        seconds=seconds,
        prefix=f"history-{run.tag}",
    )
    readers = run.processes.worker(work)
    readers.wait_for("ready", READY_TIMEOUT_S)
    readers.send(b"go")
    sample = paced_flow(run, stored_topic(run), _rate(run), start="latest", beside=[readers])
    outcome = readers.outcome(run.result_timeout_s)
    if not outcome.count:
        raise CheckError("the readers of history have read nothing")
    sample.values["replayed_per_s"] = outcome.count / ((outcome.finished_ns - outcome.started_ns) / 1e9)
    return sample


def _rate(run: Run) -> int:
    return max(1_000, int(RATE_PER_S * min(1.0, run.scale)))


def _arms(storage: str) -> tuple[Arm, Arm]:
    how = f"send_many in ticks of 5 ms at the tail of 1 GB of history in {storage}"
    return (
        Arm("danube", COUNT, 100, how, _tail_alone, fill_and_seal, label=f"{storage}-alone", server=Danube(storage)),
        Arm(
            "danube",
            COUNT,
            100,
            f"{how}, which {READERS} consumers replay",
            _tail_beside_readers,
            fill_and_seal,
            label=storage,
            server=Danube(storage),
        ),
    )


SCENARIO = Scenario(
    name="h6",
    title=(
        f"The tail of a topic at a fixed {RATE_PER_S:,} messages/s (100 B, from the intended send time), alone and "
        f"while {READERS} consumers replay its sealed history"
    ),
    metrics=(
        "messages_per_s",
        "ack_p50_us",
        "ack_p99_us",
        "end_to_end_p50_us",
        "end_to_end_p99_us",
        "replayed_per_s",
    ),
    arms=(*_arms("disk"), *_arms("s3")),
    targets=tuple(
        target
        for storage in ("disk", "s3")
        for target in (
            Target("h6", "messages_per_s", RATE_PER_S * 0.99, arm=storage),
            Target("h6", "ack_p99_us", 2, at_least=False, against=f"{storage}-alone", arm=storage),
            Target("h6", "end_to_end_p99_us", 2, at_least=False, against=f"{storage}-alone", arm=storage),
        )
    ),
    warm_up=False,
    usual=False,
)
