"""T2: S2 over TLS, with and without a token, beside S2 without either in the same run."""

from __future__ import annotations

from benchmarks._run import simple
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

_HOW = "send_many; batches(), batch.ack()"
_TLS = "danube, TLS"
_BOTH = "danube, TLS and token"
_WORK = simple("publish", "consume")

SCENARIO = Scenario(
    name="t2",
    title="S2 with TLS, with TLS and a token, and without: one producer, one exclusive consumer, 1 KiB",
    metrics=("mb_per_s", "messages_per_s"),
    arms=(
        Arm("danube", 700_000, 1024, _HOW, _WORK),
        Arm("danube", 700_000, 1024, _HOW, _WORK, label=_TLS, server=Danube(tls=True)),
        Arm("danube", 700_000, 1024, _HOW, _WORK, label=_BOTH, server=Danube(tls=True, secured=True)),
    ),
    targets=(Target("t2", "mb_per_s", 110, arm=_TLS), Target("t2", "mb_per_s", 110, arm=_BOTH)),
    usual=False,
)
