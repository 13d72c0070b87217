"""Child processes that never outlive the run.

Everything is started through one :class:`Processes`, whose exit ends all of them, with SIGTERM first. On Linux the
kernel also kills a child whose parent died, so that even a killed harness leaves nothing behind.

A worker speaks JSON lines: its work arrives on stdin, ``{"event": "ready"}`` goes out once it is connected and
subscribed, ``go`` on stdin starts the clock, ``{"event": "result", ...}`` ends it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec
import psutil

__all__ = ["Outcome", "Processes", "Work", "Worker", "WorkerError", "interrupt"]

_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).resolve().parents[1]
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class WorkerError(Exception):
    """A child process failed, ended early or took too long."""


class Work(msgspec.Struct, kw_only=True):
    """The task of a worker."""

    role: str
    address: str
    topic: str = ""
    count: int = 0
    """Messages to send or to receive."""
    size: int = 100
    """Payload bytes of a message."""
    settings: dict[str, int | float | str] = {}
    """What only this role knows."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a worker."""

    started_ns: int
    """Monotonic clock at the first send (or at the first wish to receive)."""
    finished_ns: int
    """Monotonic clock when the last message was acknowledged."""
    count: int
    checksum: int = 0
    """Of the payloads in order; 0 when the order is free and each was ticked off instead."""
    latencies_us: dict[str, list[float]] = {}
    arrivals: list[tuple[int, int]] = []
    """How many messages had arrived at which time of the monotonic clock, batch by batch."""
    cpu_s: float = 0.0
    values: dict[str, float] = {}
    """What else the worker has found out, by metric."""


def _begin_child(mask: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _no_interrupts() -> Iterator[set[int]]:
    """Defer Ctrl-C and SIGTERM until the end of the block; yields the signals that were blocked before.

    Python runs hooks around a fork, and an exception that a signal raises in one of them is printed and forgotten.
    """
    before: set[int] = set(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM}))
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_interrupts: list[int] = []


def interrupt(signal_number: int, _frame: object) -> None:
    """Handle a signal that ends the run; :class:`Worker` raises it again if the exception was suppressed."""
    _interrupts.append(signal_number)
    raise KeyboardInterrupt


class Worker:
    """One ``python -m benchmarks.worker`` process."""

    def __init__(self, process: subprocess.Popen[bytes], work: Work, log: Path) -> None:
        self._process = process
        self.pid = process.pid
        self._work = work
        self._log = log
        self._buffer = b""
        self.send(msgspec.json.encode(work))

    def send(self, line: bytes) -> None:
        """Write one line to the worker.

        Raises:
            WorkerError: the worker has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkerError(self._story("ended before its work began")) from error

    def wait_for(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Read the next event, which must be this one.

        Raises:
            WorkerError: the worker failed, ended, or sent another event, or the time is over.
        """
        line = self._read_line(time.monotonic() + timeout_s, event)
        message: dict[str, Any] = msgspec.json.decode(line)
        if message.get("event") == "error":
            raise WorkerError(self._story(f"failed: {message['message']}"))
        if message.get("event") != event:
            raise WorkerError(self._story(f"said {message.get('event')!r} when {event!r} was due"))
        return message

    def outcome(self, timeout_s: float) -> Outcome:
        """Wait for the result; errors as in :meth:`wait_for`."""
        return msgspec.convert(self.wait_for("result", timeout_s)["outcome"], Outcome)

    def _read_line(self, deadline: float, awaited: str) -> bytes:
        if _interrupts:
            raise KeyboardInterrupt
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise WorkerError(self._story(f"took too long; {awaited!r} was awaited"))
            data = os.read(fd, 1 << 20)
            if not data:
                raise WorkerError(self._story(f"ended before {awaited!r}"))
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _story(self, what: str) -> str:
        return f"worker {self._work.role} {what}{_tail(self._log)}"


def _tail(log: Path, lines: int = 12) -> str:
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    return "\n  " + "\n  ".join(text.splitlines()[-lines:]) if text else ""


class Processes:
    """Starts children and ends them all when the block is left."""

    def __init__(self, log_directory: Path) -> None:
        self._logs = log_directory
        self._children: list[subprocess.Popen[bytes]] = []
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()

    def _spawn(
        self,
        command: Sequence[str],
        name: str,
        stdin: int,
        stdout: int | IO[bytes],
        environment: Mapping[str, str] | None = None,
    ) -> tuple[subprocess.Popen[bytes], Path]:
        self._started += 1
        log = self._logs / f"{self._started:03}-{name}.log"
        with log.open("wb") as errors, _no_interrupts() as mask:
            child = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=errors if stdout == subprocess.STDOUT else stdout,
                stderr=errors,
                cwd=_ROOT,
                env=os.environ | dict(environment or {}),
                start_new_session=True,  # Ctrl-C reaches the harness alone, which then ends the children in order
                preexec_fn=partial(_begin_child, mask),
            )
            self._children.append(child)
        return child, log

    def worker(self, work: Work) -> Worker:
        """Start a worker process; it connects at once and waits for ``go``."""
        command = [sys.executable, "-m", "benchmarks.worker"]
        child, log = self._spawn(command, work.role, subprocess.PIPE, subprocess.PIPE)
        return Worker(child, work, log)

    def server(
        self,
        command: Sequence[str],
        name: str,
        port: int,
        timeout_s: float = 60.0,
        *,
        ready: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> psutil.Process:
        """Start a server and wait until it accepts connections on the loopback ``port``, or has printed ``ready``.

        Raises:
            WorkerError: it ended, or was not ready in time.
        """
        child, log = self._spawn(command, name, subprocess.DEVNULL, subprocess.STDOUT, environment)
        end = time.monotonic() + timeout_s
        while True:
            if child.poll() is not None:
                raise WorkerError(f"{name} ended with code {child.returncode} when it was started{_tail(log)}")
            if ready:
                if ready in log.read_text(errors="replace"):
                    return psutil.Process(child.pid)
            else:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                    return psutil.Process(child.pid)
            if time.monotonic() > end:
                raise WorkerError(f"{name} was not ready on port {port} within {timeout_s} s{_tail(log)}")
            time.sleep(0.01)

    def run(self, command: Sequence[str], name: str, timeout_s: float) -> tuple[str, float]:
        """Run an external program to its end; return its output and its CPU seconds.

        Raises:
            WorkerError: it failed or took too long.
        """
        child, log = self._spawn(command, name, subprocess.DEVNULL, subprocess.PIPE)
        assert child.stdout is not None
        end = time.monotonic() + timeout_s
        printed = b""
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                raise WorkerError(f"{name} took longer than {timeout_s} s{_tail(log)}")
            data = os.read(child.stdout.fileno(), 1 << 16)
            if not data:
                break
            printed += data
        child.stdout.close()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise WorkerError(f"{name} ended with code {child.returncode}{_tail(log)}")
        return printed.decode(errors="replace"), usage.ru_utime + usage.ru_stime

    def end(self, process: psutil.Process, timeout_s: float = 10.0, *, kill: bool = False) -> None:
        """End one server that :meth:`server` started: with SIGTERM, or with SIGKILL if requested."""
        for child in self._children:
            if child.pid == process.pid:
                if kill:
                    child.kill()
                _end(child, timeout_s)

    def end_all(self) -> None:
        """End every child that still runs: SIGTERM, then SIGKILL for those that do not end."""
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        for child in self._children:
            _end(child, 5.0)
        self._children.clear()


def _end(child: subprocess.Popen[bytes], timeout_s: float) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
