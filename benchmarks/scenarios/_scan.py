"""Full scans of sealed history by Spark beside Parquet: shared by P1 and P2."""

from __future__ import annotations

from benchmarks._run import Run, Sample
from benchmarks._spark import ROW_OVERHEAD_BYTES, SESSIONS, load_and_seal, measure, unavailable, worker_settings
from benchmarks.scenarios._base import Arm
from benchmarks.systems.danube import Danube

__all__ = ["METRICS", "scan_arm"]

METRICS = ("times_parquet", "rows_per_s", "parquet_rows_per_s", "mb_per_s", "row_bytes")


def scan_arm(label: str, count: int, row_bytes: int, *, session: str = "tuned", uneven: bool = False) -> Arm:
    """Rows of ``row_bytes`` in Arrow, all columns, in a session of this kind.

    With ``uneven``, payloads are of different sizes, from half to one and a half times as long as the others.
    """
    size = row_bytes - ROW_OVERHEAD_BYTES

    def prepare(run: Run) -> None:
        load_and_seal(run, uneven=size if uneven else 0)

    def repeat(run: Run) -> Sample:
        return measure(run, "scan", worker_settings(run) | {"session": session})[0]

    sizes = f"payloads of {size // 2} to {size * 3 // 2} B" if uneven else f"payloads of {size} B"
    how = (
        f"{sizes}, rows of {row_bytes} B in Arrow with all columns; all to the noop sink, local[2], A B B A with "
        f"Parquet (zstd) of the same rows in one session, {SESSIONS[session]}"
    )
    return Arm("danube", count, size, how, repeat, prepare, label=label, server=Danube("disk"), needs=unavailable)
