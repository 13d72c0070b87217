"""A topic sealed in a storage: created once for an arm, read by its repetitions."""

from __future__ import annotations

from benchmarks._history import fill, seal
from benchmarks._run import Run

__all__ = ["fill_and_seal", "stored_topic"]

_TOPIC = "history"


def stored_topic(run: Run) -> str:
    """The topic's name."""
    return run.memory["topic"]


def fill_and_seal(run: Run) -> None:
    """Store the arm's messages, seal all of them, and remember the topic, the checksum and the number of messages."""
    topic = run.topic(_TOPIC)
    outcome = fill(run, topic, run.count)
    seal(run, topic)
    run.memory.update(topic=topic, checksum=str(outcome.checksum), count=str(outcome.count))
