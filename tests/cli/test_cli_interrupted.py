"""Ctrl-C at every part of a command's life: exit code 130, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import danube

INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""

SCRIPT = """
import sys
from danube import _command
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(_command())
"""
"""What an installer makes of the entry point."""

INTERRUPTED_WHILE_STARTING = """
import os, signal, trio
from danube.broker.catalogue import catalogue

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
    return [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "none",
        "--http-listen",
        "none",
        "--data-dir",
        str(directory / "data"),
    ]


@pytest.mark.parametrize("name", ["danube.cli.serve", "danube.broker.run"])
def test_ctrl_c_while_it_is_loaded(tmp_path: Path, name: str) -> None:
    done = run(INTERRUPTED_WHILE_IMPORTING.format(name=name), *serve(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / "data").exists()


def test_ctrl_c_while_typer_is_loaded() -> None:
    done = run(INTERRUPTED_WHILE_IMPORTING.format(name="typer"), "version")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def early(tmp_path: Path, name: str, program: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program of its own, interrupted when the interpreter is asked for a module."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_WHILE_IMPORTING.format(name=name))
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    return subprocess.run(
        [sys.executable, *program, "version", "--output", "json"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("name", ["danube.__main__", "danube.cli", "danube.cli._interrupts", "danube.cli._streams"])
def test_ctrl_c_before_the_command_line_is_loaded(tmp_path: Path, name: str) -> None:
    done = early(tmp_path, name, ["-m", "danube"])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", ["danube.cli", "danube.cli._interrupts"])
def test_ctrl_c_while_the_installed_command_is_loaded(tmp_path: Path, name: str) -> None:
    script = tmp_path / "danube"
    script.write_text(SCRIPT)
    done = early(tmp_path, name, [str(script)])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert 'danube = "danube:_command"' in (Path(danube.__file__).parent.parent / "pyproject.toml").read_text()


@pytest.mark.parametrize("program", ["import danube", "import danube.client", "import danube.cli"])
def test_a_program_that_uses_danube_keeps_its_own_ctrl_c(tmp_path: Path, program: str) -> None:
    """The name of a program is its own affair, and so is what it does with Ctrl-C."""
    (tmp_path / "danube_user").mkdir()
    (tmp_path / "danube_user" / "__init__.py").write_text(program)
    (tmp_path / "danube_user" / "__main__.py").write_text("import signal; print(signal.getsignal(signal.SIGINT))")
    done = early(tmp_path, "none", ["-m", "danube_user"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "default_int_handler" in done.stdout


MOMENTS = [4, pytest.param(200, marks=[pytest.mark.extended, pytest.mark.timeout(300)])]


@pytest.mark.parametrize("count", MOMENTS)
def test_ctrl_c_at_any_moment_of_the_start(count: int) -> None:
    """What comes up in the interpreter's own start, before it has found the package, is the interpreter's affair."""
    package = f"{Path(danube.__file__).parent}{os.sep}"
    for number in range(count):
        process = subprocess.Popen(
            [sys.executable, "-m", "danube", "version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        with process:
            time.sleep(0.2 * number / count)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        assert package not in said.replace(f"{package}__init__.py", ""), said
        if said:
            # Mostly a traceback; an interpreter that is looking for runpy says so in a sentence.
            assert "KeyboardInterrupt" in said, said
        else:
            assert process.returncode in (130, -signal.SIGINT, 0)


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
