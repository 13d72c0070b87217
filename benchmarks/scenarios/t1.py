"""T1: S1 with access control, without and with TLS, beside S1 without either in the same run."""

from __future__ import annotations

from benchmarks._run import simple
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

_HOW = "send_many; batches(), batch.ack()"
_TOKEN = "danube, token"
_TLS = "danube, TLS and token"
_WORK = simple("publish", "consume")

SCENARIO = Scenario(
    name="t1",
    title="S1 with a token, with TLS and a token, and without: one producer, one exclusive consumer, 100 B",
    metrics=("messages_per_s",),
    arms=(
        Arm("danube", 3_000_000, 100, _HOW, _WORK),
        Arm("danube", 3_000_000, 100, _HOW, _WORK, label=_TOKEN, server=Danube(secured=True)),
        Arm("danube", 3_000_000, 100, _HOW, _WORK, label=_TLS, server=Danube(tls=True, secured=True)),
    ),
    targets=(
        Target("t1", "messages_per_s", 0.98, against="danube", arm=_TOKEN),
        Target("t1", "messages_per_s", 0.6, against="danube", arm=_TLS),
    ),
    usual=False,
)
