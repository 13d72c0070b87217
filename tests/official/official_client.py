"""The official Python client in processes of its own: its import name is ours, so the two cannot share an interpreter.

``DANUBE_OFFICIAL_CLIENT`` names the Python that has it. The scripts in ``scripts/`` are all that runs there; they get
a job as JSON and tell what happens as JSON lines.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import trio
from brokers import BrokerProcess

VARIABLE = "DANUBE_OFFICIAL_CLIENT"
REQUIREMENT = "danube-client==0.5.0"
SCRIPTS = Path(__file__).parent / "scripts"

Line = dict[str, Any]


def official_python() -> str:
    """Return the interpreter that has the official client; skip the test if there is none."""
    python = os.environ.get(VARIABLE, "")
    if not os.access(python, os.X_OK):
        pytest.skip(
            f"{VARIABLE} is {python!r}, and not a Python with the official client; make one with 'tox -e"
            f" official-client', or with 'python -m venv official && official/bin/pip install {REQUIREMENT}' and"
            f" {VARIABLE}=official/bin/python"
        )
    return python


class Script:
    """A running script, and what it has said so far."""

    def __init__(self, name: str, process: trio.Process, errors: Path) -> None:
        self.name = name
        self.lines: list[Line] = []
        self.messages: list[Line] = []
        self.sent: list[str] = []
        self.acked: list[int] = []
        self.distinct_texts: set[str] = set()
        self.distinct_acked: set[int] = set()
        self._process = process
        self._errors = errors
        self._ended = False
        self._news = trio.Condition()

    async def read(self) -> None:
        """Collect the lines."""
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *whole, rest = (rest + data).split(b"\n")
            for each in whole:
                self._learn(json.loads(each))
            async with self._news:
                self._news.notify_all()
        self._ended = True
        async with self._news:
            self._news.notify_all()

    def _learn(self, line: Line) -> None:
        self.lines.append(line)
        if "text" in line:
            self.messages.append(line)
            self.distinct_texts.add(line["text"])
        elif "acked" in line:
            self.acked.append(line["acked"])
            self.distinct_acked.add(line["acked"])
        elif "sent" in line:
            self.sent.append(line["sent"])

    async def until(self, enough: Callable[[Self], object]) -> None:
        """Wait until a condition holds, looking whenever there is another line."""
        async with self._news:
            while not enough(self):
                if self._ended:
                    raise AssertionError(f"{self.name} has ended; it said {self.lines[-3:]}, {self.errors()}")
                await self._news.wait()

    async def ready(self) -> Self:
        await self.until(lambda script: {"ready": True} in script.lines)
        return self

    async def go(self) -> None:
        """Let a waiting script begin."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"go\n")

    async def stop(self) -> None:
        """End the input, and wait until the script has ended well."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        code = await self._process.wait()
        assert code == 0, f"{self.name} ended with {code}: {self.errors()}"
        await self.until(lambda script: script._ended)

    async def done(self) -> list[str]:
        """Wait until a producing script has sent everything; return the texts that were acknowledged."""
        await self.until(lambda script: script.with_field("done"))
        assert self.with_field("failed") == []
        return self.sent

    async def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        await self._process.wait()

    def errors(self) -> str:
        return self._errors.read_text()[-2000:]

    def with_field(self, field: str) -> list[Line]:
        return [line for line in self.lines if field in line]

    @property
    def texts(self) -> list[str]:
        return [line["text"] for line in self.messages]


class Official:
    """The official client, and the broker that it talks to."""

    def __init__(self, broker: BrokerProcess, topic: str, directory: Path) -> None:
        self.broker = broker
        self.topic = topic
        self._python = official_python()
        self._directory = directory
        self._count = 0

    @asynccontextmanager
    async def _running(self, name: str, job: Line) -> AsyncGenerator[Script, None]:
        self._count += 1
        errors = self._directory / f"{name}-{self._count}.stderr"
        job = {"url": f"http://127.0.0.1:{self.broker.port}", "topic": self.topic, **job}
        environment = {each: value for each, value in os.environ.items() if each != "PYTHONPATH"}
        with errors.open("wb") as stderr:
            process = await trio.lowlevel.open_process(
                [self._python, str(SCRIPTS / f"{name}.py"), json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
            )
        script = Script(name, process, errors)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(script.read)
                yield await script.ready()
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with trio.CancelScope(shield=True):
                        await stream.aclose()

    def producing(self, **job: Any) -> Any:
        """Run a script that produces: entered when its producers are there. See ``scripts/produce.py``."""
        return self._running("produce", job)

    def consuming(self, **job: Any) -> Any:
        """Run a script that consumes: entered when it has subscribed. See ``scripts/consume.py``."""
        return self._running("consume", {"subscription": "s", **job})

    def schemas(self, **job: Any) -> Any:
        """Run a script that uses the schema registry. See ``scripts/schemas.py``."""
        return self._running("schemas", job)
