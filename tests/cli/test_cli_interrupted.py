"""Ctrl-C at every part of a command's life: exit code 130, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""

INTERRUPTED_WHILE_STARTING = """
import os, signal, trio
from danube.broker import catalogue

async def load(*args):
    os.kill(os.getpid(), getattr(signal, {name!r}))
    await trio.sleep_forever()

catalogue.Catalogue.load = load
"""

INTERRUPTED_AT_WORK = """
import os, signal, sys, trio
import danube.cli._client

async def work():
    os.kill(os.getpid(), signal.SIGINT)
    await trio.sleep_forever()

danube.cli._client.run_with_client = lambda *args: trio.run(work)
"""

INTERRUPTED_AT_EXIT = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""


def run(prepare: str, *arguments: str, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command after some code that sees to it that it is interrupted."""
    code = f"import sys\nfrom danube.cli import main\n{prepare}\nsys.argv[1:] = {list(arguments)}\nmain()"
    disposition = signal.SIG_IGN if ignored else signal.SIG_DFL
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, disposition),
    )


def serve(directory: Path) -> list[str]:
    return ["serve", "--listen", "127.0.0.1:0", "--admin-listen", "none", "--data-dir", str(directory / "data")]


@pytest.mark.parametrize("name", ["typer", "danube.broker.run"])
def test_ctrl_c_while_it_is_loaded(tmp_path: Path, name: str) -> None:
    done = run(INTERRUPTED_WHILE_IMPORTING.format(name=name), *serve(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 0)])
def test_a_signal_while_the_broker_starts(tmp_path: Path, name: str, code: int) -> None:
    done = run(INTERRUPTED_WHILE_STARTING.format(name=name), *serve(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert f"{name}: giving up the start" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_a_command_is_at_work() -> None:
    done = run(INTERRUPTED_AT_WORK, "topics", "list")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_when_a_command_has_done_its_work() -> None:
    done = run(INTERRUPTED_AT_EXIT, "version", "--output", "json")
    assert (done.returncode, done.stderr) == (130, "")
    assert "danube" in done.stdout


def test_a_process_that_ignores_the_signal_goes_on() -> None:
    done = run(INTERRUPTED_WHILE_IMPORTING.format(name="typer"), "version", ignored=True)
    assert (done.returncode, done.stderr) == (0, "")
