"""P1: a full scan by Spark of small messages, beside Parquet."""

from __future__ import annotations

from benchmarks.scenarios._base import Scenario, Target
from benchmarks.scenarios._scan import METRICS, scan_arm

__all__ = ["SCENARIO"]

COUNT = 5_000_000
ROW_BYTES = 144

SCENARIO = Scenario(
    name="p1",
    title=f"Spark scans {COUNT:,} sealed messages (rows of {ROW_BYTES} B) from disk, and Parquet zstd of the same rows",
    metrics=METRICS,
    arms=(
        scan_arm("tuned", COUNT, ROW_BYTES),
        scan_arm("uneven", COUNT, ROW_BYTES, uneven=True),
        scan_arm("default", COUNT, ROW_BYTES, session="default"),
    ),
    targets=(
        Target("p1", "times_parquet", 1.5, at_least=False, arm="tuned"),
        Target("p1", "rows_per_s", 3_000_000, arm="tuned"),
    ),
    warm_up=False,
    usual=False,
)
