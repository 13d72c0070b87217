"""W3: S3 of a broker that is watched, beside S3 of one that is not in the same run."""

from __future__ import annotations

from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios.s3 import repeat
from benchmarks.scenarios.w1 import CONSOLES, WATCHED
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

_HOW = "await send()"

SCENARIO = Scenario(
    name="w3",
    title="S3 with a scrape each second and five consoles open, and without: one durable message at a time, 100 B",
    metrics=("paced_p50_us", "paced_p99_us", "back_to_back_p50_us", "back_to_back_p99_us"),
    arms=(
        Arm("danube", 5_000, 100, _HOW, repeat),
        Arm("danube", 5_000, 100, _HOW, repeat, label=WATCHED, server=Danube(consoles=CONSOLES)),
    ),
    targets=(Target("w3", "back_to_back_p50_us", 1 / 0.97, at_least=False, against="danube", arm=WATCHED),),
    usual=False,
)
