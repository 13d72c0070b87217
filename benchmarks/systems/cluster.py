"""A cluster of three brokers on one machine: processes that form it with ``danube serve --peers``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks._ports import free_ports
from benchmarks._processes import Processes
from benchmarks.systems._base import Server, System
from benchmarks.systems.danube import Danube

__all__ = ["Cluster", "GroupServer"]

_BROKERS = 3
_END_S = 30.0
"""How long a process may take to end in order."""


@dataclass(kw_only=True)
class GroupServer(Server):
    """Processes of which each can be killed or paused, and brought back with its data."""

    processes: Processes
    commands: Sequence[Sequence[str]]
    ports: Sequence[int]
    """Of clients; one of each process."""
    probed: Sequence[int]
    """Ports that accept connections as soon as a process runs."""
    members: list[psutil.Process] = field(default_factory=list)

    @property
    def addresses(self) -> str:
        """``host:port`` of all processes, with commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> str:
        """The ids of the processes in the order of their addresses, with commas."""
        return ",".join(str(member.pid) for member in self.members)

    def launch(self, number: int) -> psutil.Process:
        """Start one of the processes; it may be waiting for the others afterwards."""
        return self.processes.server(self.commands[number], f"{self.system}-{number}", self.probed[number])

    def bring_back(self, pid: int) -> None:
        """Let a process go on that was stopped with SIGSTOP, or start one again that was killed.

        Raises:
            WorkerError: it does not start.
        """
        number = next(number for number, member in enumerate(self.members) if member.pid == pid)
        old = self.members[number]
        if old.is_running() and old.status() == psutil.STATUS_STOPPED:
            old.send_signal(signal.SIGCONT)
            return
        self._start_again(number, kill=True)

    def restart(self, number: int) -> None:
        """End one of the processes in order, and start it again.

        Raises:
            WorkerError: it does not start.
        """
        self._start_again(number, kill=False)

    def _start_again(self, number: int, *, kill: bool) -> None:
        self.processes.end(self.members[number], _END_S, kill=kill)
        self.members[number] = self.launch(number)
        self.process, *self.helpers = self.members

    @classmethod
    def started(
        cls,
        system: str,
        version: str,
        durability: str,
        processes: Processes,
        commands: Sequence[Sequence[str]],
        ports: Sequence[int],
        probed: Sequence[int],
    ) -> GroupServer:
        """Start all processes.

        Raises:
            WorkerError: one does not start.
        """
        first = processes.server(commands[0], f"{system}-0", probed[0])
        group = cls(
            system=system,
            address="",
            port=ports[0],
            process=first,
            version=version,
            durability=durability,
            processes=processes,
            commands=commands,
            ports=ports,
            probed=probed,
            members=[first],
        )
        group.address = group.addresses
        group.members += [group.launch(number) for number in range(1, len(commands))]
        group.helpers = group.members[1:]
        return group


class Cluster(System):
    """Three brokers that keep the metadata together.

    Args:
        shared: keep the history in a directory that all three use, so that topics with history can move, and topics of
            durability ``remote`` have a storage.
    """

    name = "cluster"

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared

    def unavailable(self) -> str | None:
        """Danube must be importable."""
        return Danube().unavailable()

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> GroupServer:
        """Start three brokers; the workers wait until they have formed the cluster."""
        import danube

        ports = free_ports(_BROKERS)
        peers = ",".join(f"127.0.0.1:{port}" for port in ports)
        commands = []
        settings = f'log_level = "warning"\nsync_delay_ms = {float(sync_delay_ms)}\n'
        if self._shared:
            settings += f"storage = {json.dumps(f'disk://{directory}/shared?shared=true')}\n"
        for number, port in enumerate(ports):
            config = directory / f"broker-{number}.toml"
            config.write_text(settings)
            commands.append(
                [
                    sys.executable, "-m", "danube", "serve", "--config", str(config),
                    "--listen", f"127.0.0.1:{port}", "--admin-listen", "none",
                    "--data-dir", str(directory / f"broker-{number}"), "--peers", peers,
                ]
            )  # fmt: skip
        return GroupServer.started(
            self.name,
            f"Danube {danube.__version__}",
            "metadata: fdatasync at a majority before the answer",
            processes,
            commands,
            ports,
            ports,
        )

    def topic(self, name: str) -> str:
        """Topics have a namespace."""
        return f"/default/{name}"
