"""Three real broker processes form a cluster: what its commands show while one of them is killed and comes back."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_ports
from typer.testing import CliRunner

from danube.cli.app import app

PATIENCE_S = 40.0

pytestmark = pytest.mark.slow


class Trial:
    """``danube cluster try``, and commands for its cluster."""

    def __init__(self, directory: Path) -> None:
        self.port = free_ports(3)[0]
        self.lines: list[str] = []
        self.others: list[subprocess.Popen[bytes]] = []
        command = ["cluster", "try", "--brokers", "3", "--dir", str(directory), "--base-port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "danube", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def said(self, text: str) -> str | None:
        return next((line for line in list(self.lines) if text in line), None)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        limit = time.monotonic() + PATIENCE_S
        while not (found := condition()):
            if time.monotonic() > limit:
                raise AssertionError(f"{what}; it said:\n" + "\n".join(self.lines[-40:]))
            time.sleep(0.1)
        return found

    def url(self, number: int) -> str:
        return f"danube://127.0.0.1:{self.port + number - 1}"

    def run(self, *arguments: str, at: int = 1, code: int | None = 0) -> str:
        environment = {"DANUBE_URL": self.url(at), "XDG_CONFIG_HOME": "/nonexistent"}
        done = CliRunner().invoke(app, arguments, env=environment)
        assert code is None or done.exit_code == code, done.output
        return done.stdout

    def json(self, *arguments: str, at: int = 1, code: int | None = 0) -> Any:
        text = self.run(*arguments, "-o", "json", at=at, code=code)
        return json.loads(text) if text else {}

    def states(self, at: int = 1) -> dict[str, str]:
        return {
            row["name"]: row["state"] for row in self.json("cluster", "status", at=at, code=None).get("brokers", ())
        }

    def pid(self, name: str) -> int:
        line = self.said(f"-- |   {name}  danube://")
        assert line is not None
        found = re.search(r"pid (\d+)", line)
        assert found is not None
        return int(found[1])

    def start_again(self, name: str) -> None:
        """Run the command that was shown when a broker had ended."""
        position = next(index for index, line in enumerate(self.lines) if line.startswith(f"-- | {name} was ended by"))
        shown = next(line for line in self.lines[position:] if "to start it again:" in line)
        words = shlex.split(shown.partition("again:")[2])
        assert words[0] == "danube"
        self.others.append(
            subprocess.Popen(
                [sys.executable, "-m", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
            )
        )

    def end(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def trial(directory: Path) -> Iterator[Trial]:
    running = Trial(directory)
    try:
        running.until(lambda: running.said("-- | the cluster runs:"), "the cluster did not start")
        running.until(lambda: running.said("Ctrl-C ends them all."), "the cluster did not start")
        yield running
    finally:
        for process in running.others:
            process.terminate()
            process.wait(20)
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
            try:
                running.process.wait(20)
            except subprocess.TimeoutExpired:
                running.process.send_signal(signal.SIGINT)  # kills the brokers
                running.process.wait(20)
        running.close()


def test_a_cluster_of_three_processes(tmp_path: Path) -> None:
    with trial(tmp_path) as running:
        assert running.lines[0] == f"-- | starting 3 brokers in {tmp_path}; that takes some seconds"
        # All three are there, whichever is asked.
        running.until(lambda: running.json("cluster", "status")["coordinator"], "there is no coordinator")

        def sees_all(number: int) -> bool:
            found = running.json("cluster", "status", at=number, code=None)
            states = [row["state"] for row in found.get("brokers", ())]
            return states == ["active"] * 3 and bool(found["metadata"]["leader"]) and not found["warnings"]

        for number in (1, 2, 3):
            running.until(lambda: sees_all(number), f"b{number} does not see all")  # noqa: B023
            found = running.json("cluster", "status", at=number)
            assert {row["name"]: row["state"] for row in found["brokers"]} == {f"b{n}": "active" for n in (1, 2, 3)}
            assert found["broker"] == number
            assert found["metadata"]["leader"]
            assert len(found["metadata"]["members"]) == 3
            assert found["warnings"] == []
        checks = running.json("doctor", "--cluster", code=None)
        assert {check["check"] for check in checks} >= {"metadata", "tables", "links of b3", "clock of b2", "versions"}
        # On a busy machine loops are late; that is for people to judge.
        assert [check for check in checks if not check["ok"] and not check["check"].startswith("loop of ")] == []

        # Topics are spread over them, and found from any.
        running.run("topics", "create", "/default/first", "--partitions", "6", at=2)
        running.run("produce", "/default/first", "-m", "hello", "-n", "600", at=3)
        explained = running.until(
            lambda: (found := running.json("cluster", "explain", "/default/first"))["state"] == "served" and found,
            "the topic is not served",
        )
        owners = {place["broker"] for place in explained["topics"]}
        assert owners == {1, 2, 3}

        # One that does not answer these commands is killed.
        os.kill(running.pid("b3"), signal.SIGKILL)
        running.until(lambda: running.said("-- | b3 was ended by SIGKILL"), "the end of b3 was not noticed")
        running.until(lambda: running.states().get("b3") == "away", "b3 is not away")
        status = running.until(
            lambda: (
                (found := running.json("cluster", "status"))["coordinator"] in (1, 2)
                and found["metadata"]["leader"]
                and found
            ),
            "there is no coordinator or leader",
        )
        (waiting,) = status["waiting"]
        assert (waiting["broker"], waiting["durability"], waiting["count"]) == (3, "disk", 2)
        lost = next(place["topic"] for place in explained["topics"] if place["broker"] == 3)
        waits = running.json("cluster", "explain", lost, at=2)
        assert waits["state"] == "waiting"
        assert "waits for broker b3 at 127.0.0.1:" in waits["sentence"]
        assert running.json("cluster", "explain", "b3")["state"] == "away"
        checks = running.json("doctor", "--cluster", code=1)
        assert "broker b3" in {check["check"] for check in checks if not check["ok"]}

        # Started again as it was shown, it serves its topics again.
        running.start_again("b3")
        running.until(lambda: running.states().get("b3") == "active", "b3 did not come back")
        running.until(
            lambda: running.json("cluster", "explain", "/default/first", code=None).get("state") == "served",
            "its topics are not served again",
        )
        assert running.run("read", "/default/first", at=2).count("hello") == 600
        assert running.end() == 0
        running.until(lambda: running.said("-- | b1 ended with exit code 0"), "b1 was killed")
