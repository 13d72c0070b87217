"""Forked workers: tests are imported and collected once, and each mistake is made in a child of its own.

The parent runs no test. A child plants its mistake, runs its tests one after another, and ends with the first that
fails. Each test has a limit; a child that passes it is killed with all that it started, and its mistake counts as
noticed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from .forking import settle
from .patching import Loaded, NotPlanted
from .recording import CoverageMap
from .sources import Mutant, Source

__all__ = ["Session", "Task", "Verdict"]

_MEMORY_BYTES = 4 << 30
_FIRST_S, _TIMES = 8.0, 10.0
"""A test may take so long, and so many times its usual time more: machines are busy."""


@dataclass(frozen=True)
class Task:
    """A mistake to be made, None for no mistake at all: what is noticed then is a test that fails by itself."""

    source: Source | None
    mutant: Mutant | None
    tests: Sequence[str]


@dataclass(frozen=True)
class Verdict:
    """What became of a mistake."""

    task: Task
    outcome: str
    """``killed``, ``hung`` (noticed by a limit), ``survived``, ``unreached`` (no test runs it) or ``impossible``."""
    by: str = ""
    """The test, or what was impossible."""
    took_s: float = 0.0


@dataclass
class _Child:
    task: Task
    pid: int
    pipe: int
    directory: str
    begun: float
    deadline: float
    test: str = ""
    told: bytes = b""
    lines: list[str] = field(default_factory=list)


class Session:
    """A pytest plugin that tries mistakes in place of running tests.

    ``tell`` is called with each verdict as it comes.
    """

    def __init__(self, tasks: Sequence[Task], known: CoverageMap, jobs: int, tell: Callable[[Verdict], None]) -> None:
        self._tasks = list(reversed(tasks))
        self._known = known
        self._jobs = jobs
        self._tell = tell
        self._items: dict[str, pytest.Item] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        self._loaded = Loaded()
        gc.collect()
        gc.freeze()
        children: list[_Child] = []
        try:
            while self._tasks or children:
                while self._tasks and len(children) < self._jobs:
                    if (child := self._start(self._tasks.pop())) is not None:
                        children.append(child)
                ready, _, _ = (
                    select.select([child.pipe for child in children], [], [], 0.5) if children else ([], [], [])
                )
                for child in list(children):
                    if (child.pipe in ready and self._hear(child)) or time.monotonic() > child.deadline:
                        children.remove(child)
                        self._tell(self._end(child))
        finally:
            for child in children:
                self._end(child)
        return True

    def _start(self, task: Task) -> _Child | None:
        tests = [test for test in task.tests if test in self._items]
        if not tests:
            self._tell(Verdict(task, "unreached"))
            return None
        directory = tempfile.mkdtemp(prefix="mutant-")
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                os.close(reading)
                _work(task, [self._items[test] for test in tests], self._loaded, writing, directory)
            finally:
                os._exit(0)
        os.close(writing)
        now = time.monotonic()
        return _Child(task, pid, reading, directory, now, now + _FIRST_S)

    def _hear(self, child: _Child) -> bool:
        """Read what a child says; True when it has ended."""
        heard = os.read(child.pipe, 65536)
        *lines, child.told = (child.told + heard).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            child.lines.append(word)
            if word == "run":
                child.test = rest
                child.deadline = time.monotonic() + _FIRST_S + _TIMES * self._known.durations.get(rest, 1.0)
            elif word == "impossible":
                child.test = rest
        return not heard

    def _end(self, child: _Child) -> Verdict:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        os.close(child.pipe)
        shutil.rmtree(child.directory, ignore_errors=True)
        took = time.monotonic() - child.begun
        last = child.lines[-1] if child.lines else "run"
        if last in {"survived", "impossible", "killed"}:
            return Verdict(child.task, last, child.test, took)
        # It was killed by the parent, or it ended in the midst of a test.
        return Verdict(child.task, "hung" if time.monotonic() > child.deadline else "killed", child.test, took)


class _Failures:
    def __init__(self) -> None:
        self.any = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.any = self.any or report.failed


def _work(task: Task, items: list[pytest.Item], loaded: Loaded, pipe: int, directory: str) -> None:
    """What a child does; it never returns to pytest."""

    def say(*words: str) -> None:
        os.write(pipe, (" ".join(words) + "\n").encode())

    settle(directory, os.open(os.devnull, os.O_RDWR))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if task.source is not None and task.mutant is not None:
            loaded.plant(task.source, task.mutant)
    except NotPlanted as error:
        say("impossible", str(error))
        return
    except Exception as error:  # noqa: BLE001 - a module that does not even load is noticed by every test
        say("killed", repr(error))
        return
    failures = _Failures()
    items[0].config.pluginmanager.register(failures)
    for item, following in zip(items, [*items[1:], None], strict=True):
        say("run", item.nodeid)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except BaseException:  # noqa: BLE001 - whatever gets that far has been noticed
            failures.any = True
        if failures.any:
            say("killed")
            return
    say("survived")
