"""``python -m benchmarks.worker``: one producer or consumer in a process of its own.

Started by :class:`benchmarks._processes.Processes`; the protocol is described there. The role decides which client
library is imported, so that no worker loads another system's modules.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import time
from collections.abc import Callable

import msgspec

from benchmarks._processes import Outcome, Work

__all__ = ["Control", "main"]


class Control:
    """The worker's side of the start barrier. Its waits block the thread: use them only if no other task has to run."""

    def __init__(self, out_fd: int) -> None:
        self._out_fd = out_fd
        self._cpu_s = 0.0

    def _say(self, message: dict[str, object]) -> None:
        data = memoryview(msgspec.json.encode(message) + b"\n")
        while data:
            data = data[os.write(self._out_fd, data) :]

    @staticmethod
    def _await_line(expected: str) -> None:
        line = sys.stdin.readline()
        if line.strip() != expected:
            raise SystemExit(f"the harness is gone (read {line!r} instead of {expected!r})")

    def ready(self) -> int:
        """Report readiness, wait for the start, return the monotonic clock in nanoseconds."""
        self._say({"event": "ready"})
        self._await_line("go")
        self._cpu_s = _own_cpu()
        return time.monotonic_ns()

    def cpu_s(self) -> float:
        """CPU seconds of this process since the start."""
        return _own_cpu() - self._cpu_s

    def hold(self) -> None:
        """Report that the state to be measured is reached, and keep it until the next signal."""
        self._say({"event": "holding"})
        self._await_line("go on")

    def result(self, outcome: Outcome) -> None:
        """Report the end."""
        self._say({"event": "result", "outcome": msgspec.to_builtins(outcome)})

    def error(self, message: str) -> None:
        """Report a failure."""
        self._say({"event": "error", "message": message})


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Execute the work that stdin describes."""
    # Whatever a library prints must not mix with the protocol: keep the real stdout, point descriptor 1 at stderr.
    control = Control(os.dup(1))
    os.dup2(2, 1)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    work = msgspec.json.decode(sys.stdin.readline(), type=Work)
    system, _, name = work.role.partition(".")
    module = importlib.import_module(f"benchmarks.roles.{system}")
    role: Callable[[Work, Control], Outcome] = module.ROLES[name]
    try:
        outcome = role(work, control)
    except Exception as error:  # noqa: BLE001 - whatever went wrong must reach the harness, which raises it
        import traceback

        traceback.print_exc()
        control.error(f"{type(error).__name__}: {error}")
        return 1
    control.result(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
