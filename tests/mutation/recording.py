"""Which test reaches which line of which module, and how long each test takes.

Recorded by coverage.py in processes of their own, one test file after another, and kept on disk: the record of a test
file counts as long as the product, the helpers of the tests and that file are, byte for byte, what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import coverage
import pytest

from .targets import ELSEWHERE, ROOT

__all__ = ["CoverageMap", "record"]

_OUT = "DANUBE_MUTATION_RECORD"
_FILE_TIMEOUT_S = 900.0


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
    """The map of these tests (directories and files below the root), from the cache as far as it is there."""
    cache.mkdir(parents=True, exist_ok=True)
    files = list(dict.fromkeys(file for name in tests for file in _files(ROOT / name)))
    surroundings = _hash(_surroundings())
    places = {file: cache / f"{file.stem}-{_hash([file], surroundings)}.json" for file in files}
    missing = [file for file, place in places.items() if not place.exists()]
    with ThreadPoolExecutor(jobs) as pool:
        for file in pool.map(lambda file: _record_file(file, places[file]), missing):
            print(f"recorded {file.relative_to(ROOT)}", file=sys.stderr, flush=True)  # noqa: T201
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
    helpers = [path for path in helpers if mine not in path.parents or path.name in {"recording.py"}]
    return [*(ROOT / "danube").rglob("*.py"), *helpers, ROOT / "pyproject.toml"]


def _hash(files: Iterable[Path], begin: str = "") -> str:
    digest = hashlib.blake2b(f"{begin} {sys.version} {coverage.__version__}".encode(), digest_size=10)
    for file in sorted(files):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()


def _record_file(file: Path, place: Path) -> Path:
    """Run a file of tests under coverage. Tests that fail here are not in the record; no test is a reason to go on."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "record.json")
        plugins = ["-p", "tests.mutation.examples", "-p", "tests.mutation.recording", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-q", "-o", f"test_timeout_s={_FILE_TIMEOUT_S}", *plugins, str(file)]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {_OUT: str(out)},
            capture_output=True,
            text=True,
            timeout=_FILE_TIMEOUT_S,
            check=False,
        )
        if not out.exists():
            raise RuntimeError(f"{file} could not be recorded:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}")
        if ended.returncode:
            print(f"{file}: tests fail and are left out:\n{ended.stdout[-1500:]}", file=sys.stderr)  # noqa: T201
        new = place.with_suffix(".new")
        new.write_bytes(out.read_bytes())
        new.replace(place)
    return file


class _Recorder:
    """The pytest plugin in the process that records."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(ROOT / "danube")], messages=False
        )
        # Tests that run the product in processes of their own run none of its lines here.
        self._coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self._durations: dict[str, float] = {}
        self._failed: set[str] = set()

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            self._durations[item.nodeid] = time.perf_counter() - begun

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
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
        whole = {
            test: {"duration_s": round(took, 4), "lines": lines.get(test, {})}
            for test, took in self._durations.items()
            if test not in self._failed
        }
        self._out.write_text(json.dumps(whole))


def pytest_configure(config: pytest.Config) -> None:
    if (out := os.environ.get(_OUT)) is not None:
        config.pluginmanager.register(_Recorder(Path(out)))
