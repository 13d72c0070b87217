"""``danube cluster try``: its brokers are started, shown, and ended with it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port
from typer.testing import CliRunner

from danube.cli.app import app

PATIENCE_S = 60.0


@contextmanager
def trial(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run it with one broker; it is ended with the test, whatever happens."""
    command = [sys.executable, "-m", "danube", "cluster", "try", "--brokers", "1", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watchdog = threading.Timer(PATIENCE_S, process.kill)
    watchdog.start()
    try:
        yield process
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if text in line:
            return lines
    raise AssertionError("\n".join(lines))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_broker_is_shown_and_ended_and_its_data_removed(number):
    port = free_port()
    with trial("--base-port", str(port)) as process:
        lines = read_until(process, "Ctrl-C ends them all.")
        shown = next(line for line in lines if line.startswith("-- |   b1  danube://"))
        found = re.fullmatch(rf"-- \|   b1  danube://127.0.0.1:{port}  pid \d+  (\S+)", shown)
        assert found is not None
        assert any(line.startswith("b1 | danube ") and "ready:" in line for line in lines)
        assert Path(found[1]).is_dir()
        process.send_signal(number)
        assert read_until(process, "b1 ended with exit code 0")[0] == "-- | ending all brokers"
        assert process.wait(20) == 0
        assert not Path(found[1]).parent.exists()


def test_data_that_are_to_be_kept_are_kept(tmp_path):
    with trial("--base-port", str(free_port()), "--dir", str(tmp_path / "kept")) as process:
        read_until(process, "Ctrl-C ends them all.")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert (tmp_path / "kept" / "b1").is_dir()


def test_a_broker_that_does_not_start_ends_the_trial(tmp_path):
    (tmp_path / "b1").write_text("a file in place of its data directory")
    with trial("--base-port", str(free_port()), "--dir", str(tmp_path)) as process:
        lines = read_until(process, "the cluster did not start")
        assert any(line.startswith("b1 | error: ") for line in lines)
        assert process.wait(20) not in (0, 1)


def test_a_port_that_is_taken_is_refused_before_anything_is_started():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = CliRunner().invoke(app, ["cluster", "try", "--base-port", str(port)])
    assert done.exit_code == 65
    assert f"port {port} of 127.0.0.1 cannot be used" in done.stderr
    assert "--base-port" in done.stderr
    assert CliRunner().invoke(app, ["cluster", "try", "--brokers", "0"]).exit_code == 2
