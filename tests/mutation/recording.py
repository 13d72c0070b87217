"""Which test reaches which line of which module, and how long each test takes.

Recorded by coverage.py, each test file in a process of its own, and kept on disk: the record of a test file counts as
long as the product, the helpers of the tests and that file are, byte for byte, what they were. The processes are forked
from one that has imported and collected all of the tests: for most files that takes longer than to run them.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import coverage
import pytest

from .forking import settle
from .targets import ELSEWHERE, PACKAGES, ROOT, sources_of

__all__ = ["CoverageMap", "RecordingError", "record"]

_PLAN = "DANUBE_MUTATION_RECORDING"
_OWN = {"examples.py", "forking.py", "recording.py", "targets.py"}
"""Modules of this package on which a record depends."""
_FILE_TIMEOUT_S = 900.0


class RecordingError(Exception):
    """Tests could not be recorded, so it is not known which of them reach a mistake."""


class CoverageMap:
    """Answers which tests run a line."""

    def __init__(self, records: Iterable[dict[str, dict[str, object]]]) -> None:
        self.durations: dict[str, float] = {}
        self._lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for recorded in records:
            for test, seen in recorded.items():
                self.durations[test] = float(seen["duration_s"])  # type: ignore[arg-type]
                for path, lines in seen["lines"].items():  # type: ignore[attr-defined]
                    for line in lines:
                        self._lines[path][line].add(test)

    def tests(self, path: str, lines: tuple[int, int], budget_s: float) -> list[str]:
        """The tests that run one of these lines (of any line of the file: ``(0, 0)``), the fastest first.

        They end where they would take more than ``budget_s`` together; at least one is among them if there is any.
        """
        known = self._lines.get(path, {})
        wanted = known if lines == (0, 0) else range(lines[0], lines[1] + 1)
        found = sorted({test for line in wanted for test in known.get(line, ())}, key=lambda t: (self.durations[t], t))
        chosen: list[str] = []
        spent = 0.0
        for test in found:
            spent += self.durations[test]
            if chosen and spent > budget_s:
                break
            chosen.append(test)
        return chosen


def record(tests: Sequence[str], cache: Path, jobs: int) -> CoverageMap:
    """The map of these tests (directories and files below the root), from the cache as far as it is there.

    Raises:
        RecordingError: the process that records tests has failed, or has left some out.
    """
    cache.mkdir(parents=True, exist_ok=True)
    files = list(dict.fromkeys(file for name in tests for file in _files(ROOT / name)))
    surroundings = _hash(_surroundings())
    places = {file: cache / f"{file.stem}-{_hash([file], surroundings)}.json" for file in files}
    missing = [file for file, place in places.items() if not place.exists()]
    if missing:
        _record_files({file: places[file] for file in missing}, jobs)
    for file, place in places.items():
        for old in set(cache.glob(f"{file.stem}-*.json")) - {place}:
            old.unlink()
    return CoverageMap(json.loads(place.read_text()) for place in places.values())


def _files(path: Path) -> list[Path]:
    if path.suffix == ".py":
        return [path]
    return [file for file in sorted(path.rglob("test_*.py")) if str(file.relative_to(ROOT)) not in ELSEWHERE]


def _surroundings() -> list[Path]:
    """All that any test may depend on but itself."""
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    mine = Path(__file__).parent
    helpers = [path for path in helpers if mine not in path.parents or path.name in _OWN]
    return [*(ROOT / "danube").rglob("*.py"), *helpers, ROOT / "pyproject.toml"]


def _hash(files: Iterable[Path], begin: str = "") -> str:
    digest = hashlib.blake2b(f"{begin} {sys.version} {coverage.__version__}".encode(), digest_size=10)
    for file in sorted(files):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


def _record_files(places: dict[Path, Path], jobs: int) -> None:
    """Run files of tests under coverage. Tests that fail here are not in the record; no test is a reason to go on."""
    with tempfile.TemporaryDirectory() as directory:
        plan = Path(directory, "plan.json")
        plan.write_text(json.dumps({"jobs": jobs, "places": {str(file): str(place) for file, place in places.items()}}))
        plugins = ["-p", "tests.mutation.examples", "-p", "tests.mutation.recording", "-p", "no:cacheprovider"]
        options = ["-q", "-s", "-o", f"test_timeout_s={_FILE_TIMEOUT_S}", *plugins]
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *map(str, places)],
            cwd=ROOT,
            env=os.environ | {_PLAN: str(plan)},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        missing = [file for file, place in places.items() if not place.exists()]
        if ended.returncode or missing:
            names = ", ".join(str(file.relative_to(ROOT)) for file in missing) or "the tests"
            raise RecordingError(
                f"{names} could not be recorded; pytest ended with {ended.returncode}:\n{ended.stdout[-4000:]}"
            )


@dataclass
class _Child:
    """A process that records one file of tests."""

    file: Path
    place: Path
    directory: Path
    pid: int
    deadline: float

    @property
    def out(self) -> Path:
        return self.directory / "record.json"

    @property
    def said(self) -> Path:
        return self.directory / "said.txt"


class _Recording:
    """The plugin of the process that imports and collects all tests, once, and forks a child for each file of them."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._jobs: int = plan["jobs"]
        self._places = {Path(file): Path(place) for file, place in plan["places"].items()}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items: dict[Path, list[pytest.Item]] = {file: [] for file in self._places}
        for item in session.items:
            items[item.path].append(item)
        left = list(reversed(self._places))
        children: dict[int, _Child] = {}
        gc.collect()
        gc.freeze()
        try:
            while left or children:
                while left and len(children) < self._jobs:
                    child = self._start(file := left.pop(), items[file])
                    children[child.pid] = child
                time.sleep(0.01)
                for child in list(children.values()):
                    pid, status = os.waitpid(child.pid, os.WNOHANG)
                    if pid:
                        del children[pid]
                        self._end(child, os.waitstatus_to_exitcode(status))
                    elif time.monotonic() > child.deadline:
                        raise RuntimeError(f"{child.file} takes longer than {_FILE_TIMEOUT_S:g} s")
        finally:
            for child in children.values():
                os.killpg(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                shutil.rmtree(child.directory, ignore_errors=True)
        return True

    def _start(self, file: Path, items: list[pytest.Item]) -> _Child:
        directory = Path(tempfile.mkdtemp(prefix="record-"))
        child = _Child(file, self._places[file], directory, os.fork(), time.monotonic() + _FILE_TIMEOUT_S)
        if child.pid == 0:
            code = 1
            try:
                said = os.open(child.said, os.O_RDWR | os.O_CREAT)
                settle(str(directory), said)
                _Recorder().record(items, child.out)
                code = 0
            except BaseException:  # noqa: BLE001 - the parent raises it
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(child.pid, child.pid)  # as the child does itself: whichever comes first
        return child

    def _end(self, child: _Child, code: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what its tests have left
        name = child.file.relative_to(ROOT)
        if code:
            raise RuntimeError(f"{name} ended with {code}:\n{child.said.read_text(errors='replace')[-4000:]}")
        recorded = json.loads(child.out.read_text())
        new = child.place.with_suffix(".new")
        new.write_text(json.dumps(recorded["tests"]))
        new.replace(child.place)
        shutil.rmtree(child.directory, ignore_errors=True)
        for test, why in recorded["failed"].items():
            print(f"{test} fails and is left out:\n{why[-1500:]}", file=sys.stderr)  # noqa: T201
        print(f"recorded {name}", file=sys.stderr, flush=True)  # noqa: T201


class _Recorder:
    """Runs the tests of a file in the process that records them."""

    def __init__(self) -> None:
        # Only of modules with mutants is the record ever asked.
        traced = [str(source.path) for source in sources_of(PACKAGES)]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=traced, messages=False)
        # Tests that run the product in processes of their own run none of its lines here.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._durations: dict[str, float] = {}
        self._failed: dict[str, str] = {}

    def record(self, items: Sequence[pytest.Item], out: Path) -> None:
        """Run tests, one after another, and write down what was seen."""
        if items:
            items[0].config.pluginmanager.register(self)
        self._coverage.start()
        for item, following in zip_longest(items, items[1:]):
            self._coverage.switch_context(item.nodeid)
            begun = time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._durations[item.nodeid] = time.perf_counter() - begun
        self._coverage.stop()
        out.write_text(json.dumps({"tests": self._whole(), "failed": self._failed}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed[report.nodeid] = report.longreprtext

    def _whole(self) -> dict[str, dict[str, object]]:
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = defaultdict(dict)
        for path in data.measured_files():
            name = str(Path(path).relative_to(ROOT))
            seen: dict[str, list[int]] = defaultdict(list)
            for line, tests in data.contexts_by_lineno(path).items():
                for test in tests:
                    seen[test].append(line)
            for test, some in seen.items():
                lines[test][name] = sorted(some)
        return {
            test: {"duration_s": round(took, 4), "lines": lines.get(test, {})}
            for test, took in self._durations.items()
            if test not in self._failed
        }


def pytest_configure(config: pytest.Config) -> None:
    if (plan := os.environ.get(_PLAN)) is not None:
        config.pluginmanager.register(_Recording(json.loads(Path(plan).read_text())))
