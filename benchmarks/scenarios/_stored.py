"""A topic that lies sealed in a storage: made once for an arm, read by its repetitions."""

from __future__ import annotations

import time

from benchmarks._history import fill, seal
from benchmarks._run import Run

__all__ = ["fill_and_seal", "stored_topic"]

_TOPIC = "history"


def stored_topic(run: Run) -> str:
    """The topic's name."""
    return run.memory["topic"]


def fill_and_seal(run: Run) -> None:
    """Store the arm's messages and seal all of them.

    Remembered are the topic, the checksum, how many messages there are, and between which wall-clock times they came.
    """
    topic = run.topic(_TOPIC)
    outcome = fill(run, topic, run.count)
    to_wall_clock = time.time() - time.monotonic()
    seal(run, topic)
    run.memory.update(
        topic=topic,
        checksum=str(outcome.checksum),
        count=str(outcome.count),
        began=str(outcome.started_ns / 1e9 + to_wall_clock),
        ended=str(outcome.finished_ns / 1e9 + to_wall_clock),
    )
