"""Figures of a process, from what Linux tells about it in ``/proc``. Pure.

The second field of ``stat`` is the name of the program in parentheses, and may contain spaces and parentheses; the
numbers begin behind the last one (see proc(5))::

    4711 (python3 -m danube) S 1 4711 4711 0 -1 4194304 ... utime stime ... num_threads itrealvalue starttime vsize rss
                             ^ field 3                      14    15        20                      22       23    24
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ProcessFigures", "parse_process"]

_UTIME, _STIME, _THREADS, _START, _VSIZE, _RSS = (field - 3 for field in (14, 15, 20, 22, 23, 24))
_BOOT: Final = "btime "
_FILES: Final = "Max open files"


class ProcessFigures(NamedTuple):
    """Figures of a process."""

    cpu_s: float
    """Processor time of all threads."""
    resident_bytes: int
    virtual_bytes: int
    threads: int
    started_at_s: float
    """Unix time; 0: not known."""
    open_fds: int
    max_fds: float
    """Infinite: there is no limit."""


def parse_process(
    stat: str, system: str, limits: str, *, open_fds: int, ticks_s: int, page_bytes: int
) -> ProcessFigures:
    """Return the figures of a process.

    Args:
        stat, limits: contents of these files of the process.
        system: of ``/proc/stat``.
        open_fds: number of its open descriptors.
        ticks_s: clock ticks of a second (``SC_CLK_TCK``).
        page_bytes: size of a page.

    Raises:
        ValueError: ``stat`` has another form.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _RSS:
        raise ValueError(f"the status of a process has {len(fields)} fields behind its name")
    boot_s = next((int(line.removeprefix(_BOOT)) for line in system.splitlines() if line.startswith(_BOOT)), 0)
    files = next((line.removeprefix(_FILES).split() for line in limits.splitlines() if line.startswith(_FILES)), ())
    return ProcessFigures(
        cpu_s=(int(fields[_UTIME]) + int(fields[_STIME])) / ticks_s,
        resident_bytes=int(fields[_RSS]) * page_bytes,
        virtual_bytes=int(fields[_VSIZE]),
        threads=int(fields[_THREADS]),
        started_at_s=boot_s + int(fields[_START]) / ticks_s if boot_s else 0.0,
        open_fds=open_fds,
        max_fds=float(files[0]) if files and files[0] != "unlimited" else float("inf"),
    )
