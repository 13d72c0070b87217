"""W1: S1 of a broker that is watched, beside S1 of one that is not in the same run."""

from __future__ import annotations

from benchmarks._run import simple
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["CONSOLES", "SCENARIO", "WATCHED"]

CONSOLES = 5
WATCHED = f"danube, scraped each second, {CONSOLES} consoles"
_HOW = "send_many; batches(), batch.ack()"
_WORK = simple("publish", "consume")

SCENARIO = Scenario(
    name="w1",
    title="S1 with a scrape each second and five consoles open, and without: 100 B, one producer, one consumer",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 6_000_000, 100, _HOW, _WORK),
        Arm("danube", 6_000_000, 100, _HOW, _WORK, label=WATCHED, server=Danube(consoles=CONSOLES)),
    ),
    targets=(Target("w1", "messages_per_s", 0.97, against="danube", arm=WATCHED),),
    usual=False,
)
