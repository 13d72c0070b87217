"""The harness's interface to a system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil

from benchmarks._processes import Processes

__all__ = ["Server", "System"]


@dataclass(kw_only=True)
class Server:
    """A running server."""

    system: str
    address: str
    port: int
    process: psutil.Process
    version: str
    durability: str
    helpers: list[psutil.Process] = field(default_factory=list)
    """Further processes that work for it (a storage server, say): their CPU time is not foreign."""


class System(ABC):
    """A message broker that can be measured."""

    name: ClassVar[str]

    @abstractmethod
    def unavailable(self) -> str | None:
        """The reason why it cannot be started here, with the remedy; None if it can."""

    @abstractmethod
    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start a fresh server that keeps its data in ``directory`` and listens on the loopback interface.

        ``sync_delay_ms`` is for systems that can simulate a slower disk; others ignore it.
        """

    def topic(self, name: str) -> str:
        """Return a topic's name in the system's notation."""
        return name
