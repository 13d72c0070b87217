"""Real brokers for tests: a process that can be killed and started again on the same port and directory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from ports import free_port

READY_TIMEOUT_S = 60.0


class BrokerProcess:
    """``python -m danube serve`` with a fixed port and data directory; leaves nothing running behind it.

    ``prefix`` is put before the command (a tracer that gets out of the way, ``strace -D``, say), ``stderr`` is a file
    that gets what the broker logs. ``admin_listen`` is the address of its admin port: by default it has none, since
    there is one default port and there are many brokers; ``http_listen`` is the same for its HTTP API, and
    ``registry_listen`` for the schema registry. ``host`` is the address it listens on.
    """

    def __init__(
        self,
        data_directory: Path,
        *options: str,
        prefix: Sequence[str] = (),
        stderr: Path | None = None,
        admin_listen: str = "none",
        http_listen: str = "none",
        registry_listen: str = "none",
        host: str = "127.0.0.1",
    ) -> None:
        self.host = host
        self.port = free_port()
        self.data_directory = data_directory
        self.options = options
        self.prefix = prefix
        self.stderr = stderr
        self.admin_listen = admin_listen
        self.http_listen = http_listen
        self.registry_listen = registry_listen
        self.ready_line = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"danube://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> BrokerProcess:
        """Start the broker and wait for its ready line."""
        self.launch()
        if not self.wait_ready():
            assert self._process is not None
            code = self._process.wait(10)
            self._close()
            raise AssertionError(f"the broker did not become ready; exit code {code}, said {self.ready_line!r}")
        return self

    def launch(self) -> None:
        """Start the process and wait for nothing."""
        assert self._process is None
        command = [*self.prefix, sys.executable, "-m", "danube", "serve", "--listen", f"{self.host}:{self.port}"]
        command += ["--admin-listen", self.admin_listen, "--http-listen", self.http_listen]
        command += ["--registry-listen", self.registry_listen]
        command += ["--data-dir", str(self.data_directory), *self.options]
        environment = os.environ | {"NO_COLOR": "1"}
        with self.stderr.open("ab") if self.stderr else nullcontext() as stderr:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)

    def wait_ready(self) -> bool:
        """Wait for the ready line; return False if the broker ended without one."""
        assert self._process is not None
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            assert self._process.stdout is not None
            self.ready_line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        return re.search(r"\bready\b", self.ready_line) is not None

    def kill(self) -> None:
        """SIGKILL, as ``kill -9`` does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close()

    def terminate(self, timeout_s: float = 30.0) -> int:
        """SIGTERM; return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout_s)
        self._close()
        return code

    def request_drain(self) -> None:
        """SIGTERM, without waiting for anything."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait until the broker has ended by itself; return the exit code (minus the signal that killed it)."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._close()
        return code

    def poll(self) -> int | None:
        """Return the exit code if the broker has ended by itself."""
        assert self._process is not None
        return self._process.poll()

    def _close(self) -> None:
        assert self._process is not None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> BrokerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()


def danube(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Start a ``danube`` command."""
    return subprocess.Popen([sys.executable, "-m", "danube", *arguments], **options)  # type: ignore[call-overload, no-any-return]
