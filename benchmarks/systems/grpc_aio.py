"""grpcio's asyncio server with a handler that does nothing (:mod:`benchmarks._echo`): a reference for unary calls."""

from __future__ import annotations

import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks._ports import free_port
from benchmarks._processes import Processes
from benchmarks.systems._base import Server, System

__all__ = ["GrpcAio"]


class GrpcAio(System):
    """No broker: it stores nothing."""

    name = "grpc-aio"

    def unavailable(self) -> str | None:
        """Grpcio must be importable."""
        return None if find_spec("grpc") is not None else "grpcio is not installed; pip install grpcio"

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start the server; it needs no directory."""
        port = free_port()
        process = processes.server([sys.executable, "-m", "benchmarks._echo", str(port)], self.name, port)
        return Server(
            system=self.name,
            address=f"127.0.0.1:{port}",
            port=port,
            process=process,
            version=f"grpcio {version('grpcio')}",
            durability="none: an echo",
        )
