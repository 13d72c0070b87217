"""P7: the first query of a Spark session: load(), and the first row of a small topic."""

from __future__ import annotations

from functools import partial

from benchmarks._run import Run, Sample
from benchmarks._spark import SESSIONS, load_and_seal, measure, unavailable, worker_settings
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

COUNT = 1_000
SIZE = 100


def _repeat(run: Run, *, session: str) -> Sample:
    return measure(run, "first", worker_settings(run) | {"session": session})[0]


def _arm(session: str) -> Arm:
    how = f"load(), then limit(1).collect(), as the first query of a session and once more; session {SESSIONS[session]}"
    repeat = partial(_repeat, session=session)
    return Arm(
        "danube", COUNT, SIZE, how, repeat, load_and_seal, label=session, server=Danube("disk"), needs=unavailable
    )


SCENARIO = Scenario(
    name="p7",
    title=f"The first query of a Spark session that exists: a topic of {COUNT:,} messages of {SIZE} B, local[2]",
    metrics=("first_s", "load_s", "row_s", "again_s", "session_s"),
    arms=(_arm("plain"), _arm("archive"), _arm("warm"), _arm("default"), _arm("tuned")),
    targets=(
        Target("p7", "first_s", 2.5, at_least=False, arm="plain"),
        Target("p7", "first_s", 2.5, at_least=False, arm="archive"),
        Target("p7", "first_s", 2.5, at_least=False, arm="warm"),
    ),
    warm_up=False,
    usual=False,
)
