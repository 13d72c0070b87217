"""Danube, as ``python -m danube serve`` starts it, with its defaults."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks._processes import Processes, free_port
from benchmarks.systems._base import Server, System

__all__ = ["Danube"]


class Danube(System):
    """The broker of this project."""

    name = "danube"

    def unavailable(self) -> str | None:
        """Danube must be importable."""
        return None if find_spec("danube.broker") else "the package danube is not installed; pip install -e ."

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start the broker from a configuration file that says where to listen and what to imitate."""
        import danube

        port = free_port()
        config = directory / "danube.toml"
        config.write_text(
            f'listen = ["127.0.0.1:{port}"]\n'
            f"data_directory = {json.dumps(str(directory / 'data'))}\n"
            'log_level = "warning"\n'
            f"sync_delay_ms = {float(sync_delay_ms)}\n"
        )
        process = processes.server([sys.executable, "-m", "danube", "serve", "--config", str(config)], self.name, port)
        delay = f" + {sync_delay_ms:g} ms injected" if sync_delay_ms else ""
        return Server(
            system=self.name,
            address=f"danube://127.0.0.1:{port}",
            port=port,
            process=process,
            version=f"Danube {danube.__version__}",
            durability=f"disk: fdatasync before the ack{delay}",
        )

    def topic(self, name: str) -> str:
        """Topics live in a namespace."""
        return f"/default/{name}"
