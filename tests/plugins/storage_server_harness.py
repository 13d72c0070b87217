"""Storage servers for tests: in this process over any backend, or as a process that can be killed and started again."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio
from brokers import READY_TIMEOUT_S
from ports import free_port

from danube.model.limits import Limits
from danube.model.tls import TlsConfig
from danube.storage import MemoryBackend, StorageBackend
from danube.storage_server import Admission, StorageService
from danube.wire import ClientStream, Server, serve
from danube.wire.tls import ServerTls


class StorageServerProcess:
    """Leaves nothing running behind it."""

    def __init__(self, url: str, *options: str) -> None:
        self.url = url
        self.port = free_port()
        self.options = options
        self.ready_line = ""
        self._process: subprocess.Popen[str] | None = None

    def remote(self, space: str = "space", query: str = "") -> str:
        return f"remote://127.0.0.1:{self.port}/{space}{query}"

    def start(self) -> StorageServerProcess:
        assert self._process is None
        command = [sys.executable, "-m", "danube", "storage-server", self.url]
        command += ["--listen", f"127.0.0.1:{self.port}", "--log-level", "warning", *self.options]
        environment = os.environ | {"NO_COLOR": "1"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        watchdog = threading.Timer(READY_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            assert self._process.stdout is not None
            self.ready_line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not re.search(r"\bready\b", self.ready_line):
            raise AssertionError(f"the storage server did not become ready; exit code {self._process.wait(10)}")
        return self

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait for the end; return the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return code

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self.wait()

    def __enter__(self) -> StorageServerProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Serving:
    """A storage server in this process."""

    def __init__(self, backend: StorageBackend, service: StorageService, server: Server, port: int) -> None:
        self.backend = backend
        self.service = service
        self.server = server
        self.port = port

    def url(self, space: str = "space", query: str = "") -> str:
        return f"remote://127.0.0.1:{self.port}/{space}{query}"

    @property
    def memory_held(self) -> int:
        budget = self.service._memory
        return budget.total_bytes - budget.free_bytes


@asynccontextmanager
async def serving(
    backend: StorageBackend | None = None,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    server_tls: TlsConfig | None = None,
    admission: Admission | None = None,
    wall_s: Callable[[], float] = time.time,
    **limits: float,
) -> AsyncIterator[Serving]:
    backend = backend if backend is not None else MemoryBackend()
    bounds = msgspec.structs.replace(Limits(), **limits)
    service = StorageService(backend, bounds, admission or Admission(token), wall_s)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    wrapped = listeners if tls is None else [trio.SSLListener(one, tls) for one in listeners]
    async with trio.open_nursery() as nursery:
        certified = None if server_tls is None else ServerTls(server_tls, time.time)
        server = await nursery.start(partial(serve, tls=certified), wrapped, [service.service()], bounds)
        yield Serving(backend, service, server, port)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0, every_s: float = 0.005) -> None:
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(every_s)


async def read_all(stream: ClientStream) -> None:
    while (message := await stream.receive()) is not None:
        message.release()
