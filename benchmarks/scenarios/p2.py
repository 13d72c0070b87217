"""P2: a full scan by Spark of larger messages, beside Parquet."""

from __future__ import annotations

from benchmarks.scenarios._base import Scenario, Target
from benchmarks.scenarios._scan import METRICS, scan_arm

__all__ = ["SCENARIO"]

COUNT = 400_000
ROW_BYTES = 1024

SCENARIO = Scenario(
    name="p2",
    title=f"Spark scans {COUNT:,} sealed messages (rows of 1 KiB) from disk, and Parquet zstd of the same rows",
    metrics=METRICS,
    arms=(
        scan_arm("tuned", COUNT, ROW_BYTES),
        scan_arm("uneven", COUNT, ROW_BYTES, uneven=True),
        scan_arm("default", COUNT, ROW_BYTES, session="default"),
    ),
    targets=(Target("p2", "times_parquet", 1.3, at_least=False, arm="tuned"),),
    warm_up=False,
    usual=False,
)
