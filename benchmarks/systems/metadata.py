"""Metadata stores of three members: this project's (the third one runs in the worker), and etcd."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks._ports import free_ports
from benchmarks._processes import Processes, WorkerError
from benchmarks.systems._base import Server, System
from benchmarks.systems.cluster import GroupServer

__all__ = ["Etcd", "Members", "etcd_leader"]

_MEMBERS = 3
_READY_S = 30.0


class Members(System):
    """Two members in processes of their own. The worker is the third one, as a broker is that changes metadata.

    Args:
        leads: whether the worker's member leads.
    """

    name = "members"

    def __init__(self, *, leads: bool = True) -> None:
        self._leads = leads

    def unavailable(self) -> str | None:
        """Danube must be importable."""
        return None if find_spec("danube.metadata") else "the package danube is not installed; pip install -e ."

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start the first two members."""
        import danube

        ports = ",".join(map(str, free_ports(_MEMBERS)))
        started: list[psutil.Process] = []
        for number in range(1, _MEMBERS):
            command = [sys.executable, "-m", "benchmarks.members", "--member", str(number), "--ports", ports]
            command += ["--directory", str(directory / f"member-{number}")]
            command += ["--hand-to", str(_MEMBERS)] if self._leads else []
            port = int(ports.split(",")[number - 1])
            started.append(processes.server(command, f"member-{number}", port))
        return Server(
            system=self.name,
            address=ports,
            port=0,
            process=started[0],
            version=f"Danube {danube.__version__}",
            durability="fdatasync at a majority before the answer",
            helpers=started[1:],
        )


class Etcd(System):
    """Three members of etcd, used through the plugin ``danube-metadata-etcd``; calls go to the leader."""

    name = "etcd"

    def unavailable(self) -> str | None:
        """The server, its command and the plugin are needed."""
        if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
            return "etcd was not found; apt-get install etcd-server etcd-client"
        if find_spec("danube_metadata_etcd") is None:
            return "the metadata plugin is not installed; pip install ./plugins/danube-metadata-etcd"
        return None

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> Server:
        """Start three members that sync, and find their leader."""
        ports = free_ports(2 * _MEMBERS)
        clients, peers = ports[:_MEMBERS], ports[_MEMBERS:]
        initial = ",".join(f"m{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
        commands = []
        for number in range(_MEMBERS):
            client, peer = f"http://127.0.0.1:{clients[number]}", f"http://127.0.0.1:{peers[number]}"
            commands.append(
                [
                    "etcd", "--name", f"m{number}", "--data-dir", str(directory / f"m{number}"),
                    "--listen-client-urls", client, "--advertise-client-urls", client,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", initial, "--logger", "zap", "--log-level", "error",
                ]
            )  # fmt: skip
        version = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True).stdout
        group = GroupServer.started(
            self.name,
            version.partition("\n")[0],
            "fdatasync at a majority before the answer",
            processes,
            commands,
            clients,
            peers,  # A member accepts clients only when there is a leader, so the first one cannot be waited for alone.
        )
        group.port = etcd_leader(clients)
        group.address = f"127.0.0.1:{group.port}"
        return group


def etcd_leader(ports: Sequence[int]) -> int:
    """Return the port of the member of etcd that leads.

    Raises:
        WorkerError: none does within 30 seconds.
    """
    end = time.monotonic() + _READY_S
    while True:
        for port in ports:
            command = ["etcdctl", f"--endpoints=http://127.0.0.1:{port}", "endpoint", "status"]
            environment = {"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}
            done = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
            fields = done.stdout.split(", ")
            if not done.returncode and len(fields) > 4 and fields[4] == "true":
                return port
        if time.monotonic() > end:
            raise WorkerError(f"no member of etcd on the ports {ports} leads after {_READY_S:g} s")
        time.sleep(0.1)
