"""Tiny real runs with the peers, and an interrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import __main__ as command_line
from benchmarks._results import load
from benchmarks.systems import ALL_SYSTEMS

ROOT = Path(__file__).parents[2]


def _needs(system: str) -> None:
    reason = ALL_SYSTEMS[system].unavailable()
    if reason is not None:
        pytest.skip(f"{system}: {reason}")


@pytest.mark.parametrize("system", ["jetstream", "redis"])
def test_peers_run_and_their_figures_reach_the_files(system: str, tmp_path: Path) -> None:
    _needs(system)
    arguments = ["-s", "s1", "--systems", system, "-r", "1", "--scale", "0.0001", "-o", str(tmp_path / "out")]
    assert command_line.main(arguments) == 0
    scenario = load(tmp_path / "out" / "result.json").scenarios[0]
    measurement = scenario.of(system)
    assert measurement is not None
    assert "always" in measurement.durability
    assert measurement.repetitions[0].values["messages_per_s"] > 0
    assert (tmp_path / "out" / "report.md").read_text().startswith("# Benchmark")
    assert command_line.main(["report", str(tmp_path / "out" / "result.json"), "--check"]) == 1  # nothing to judge


def test_an_interrupted_run_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    _needs("redis")
    command = [sys.executable, "-m", "benchmarks", "-s", "s1", "--systems", "redis", "--work-dir", str(tmp_path)]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert run.stderr is not None
    try:
        watched = psutil.Process(run.pid)
        end = time.monotonic() + 60
        # One that ends soon may be among them: the server when it is asked for its version.
        while len(children := watched.children(recursive=True)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(children) >= 2
        os.kill(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    finally:
        run.kill()
        run.communicate()
    assert run.returncode == 130
    assert "interrupted" in errors
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert list(tmp_path.iterdir()) == []


def test_unknown_scenarios_are_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["-s", "s99"])
    assert stopped.value.code == 2
    assert "known are s1, s1b" in capsys.readouterr().err
