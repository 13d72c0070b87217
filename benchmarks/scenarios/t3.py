"""T3: S3 over TLS, with and without a token, beside S3 without either in the same run."""

from __future__ import annotations

from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios.s3 import repeat
from benchmarks.systems.danube import Danube

__all__ = ["SCENARIO"]

_HOW = "await send()"
_TLS = "danube, TLS"
_BOTH = "danube, TLS and token"
_MORE_US = 150
"""What TLS may add to the median."""

SCENARIO = Scenario(
    name="t3",
    title="S3 with TLS, with TLS and a token, and without: one durable message at a time, 100 B",
    metrics=("paced_p50_us", "paced_p99_us", "back_to_back_p50_us", "back_to_back_p99_us"),
    arms=(
        Arm("danube", 2_500, 100, _HOW, repeat),
        Arm("danube", 2_500, 100, _HOW, repeat, label=_TLS, server=Danube(tls=True)),
        Arm("danube", 2_500, 100, _HOW, repeat, label=_BOTH, server=Danube(tls=True, secured=True)),
    ),
    targets=tuple(
        Target("t3", metric, _MORE_US, at_least=False, against="danube", arm=arm, difference=True)
        for arm in (_TLS, _BOTH)
        for metric in ("paced_p50_us", "back_to_back_p50_us")
    ),
    usual=False,
)
