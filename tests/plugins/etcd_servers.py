"""Real etcd servers for tests: members on free ports, without fsync."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from ports import free_ports

READY_S = 30.0
QUICK = ("--heartbeat-interval", "30", "--election-timeout", "300")
"""For a shorter election, and leases of one second."""


class EtcdMember:
    """One member, which can be killed and started again on its ports and directory."""

    def __init__(self, directory: Path, name: str, client_port: int, peer_port: int, options: Sequence[str]) -> None:
        self.name = name
        self.client_port = client_port
        self.peer_port = peer_port
        self.directory = directory
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def launch(self, initial: str, scheme: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        client, peer = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        command = [
            "etcd", "--unsafe-no-fsync", "--name", self.name, "--data-dir", str(self.directory / "data"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", initial, "--initial-cluster-token", str(self.directory.parent), "--logger", "zap",
            *self.options,
        ]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()[-4000:]

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class EtcdCluster:
    """A cluster of one member, or more. ``options`` are etcd's."""

    def __init__(self, directory: Path, members: int = 1, *options: str, ctl: Sequence[str] = ()) -> None:
        self.directory = directory
        self.tls = "--cert-file" in options
        self.ctl_options = list(ctl)
        ports = free_ports(2 * members)
        self.members = [
            EtcdMember(directory / f"m{number}", f"m{number}", ports[2 * number], ports[2 * number + 1], options)
            for number in range(members)
        ]

    @property
    def location(self) -> str:
        return ",".join(member.endpoint for member in self.members)

    def start(self) -> EtcdCluster:
        if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
            pytest.skip("etcd is not installed: apt-get install etcd-server etcd-client")
        for member in self.members:
            self.launch(member)
        for member in self.members:
            self.wait_ready(member)
        return self

    def launch(self, member: EtcdMember) -> None:
        initial = ",".join(f"{one.name}=http://127.0.0.1:{one.peer_port}" for one in self.members)
        member.launch(initial, "https" if self.tls else "http")

    def wait_ready(self, member: EtcdMember) -> None:
        deadline = time.monotonic() + READY_S
        while True:
            member.check()
            found = self.ctl("endpoint", "health", member=member, check=False)
            if found.returncode == 0:
                return
            # With authentication, a refusal proves that the member answers.
            if b"user name is empty" in found.stdout + found.stderr:
                return
            assert time.monotonic() < deadline, (member.directory / "log").read_text()[-4000:]
            time.sleep(0.05)

    def leader(self) -> EtcdMember:
        """Return the member that says of itself that it is the leader."""
        for member in self.members:
            status = self.ctl("endpoint", "status", member=member).stdout.decode().split(", ")
            if status[4] == "true":
                return member
        raise AssertionError("there is no leader")

    def ctl(
        self, *arguments: str, member: EtcdMember | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[bytes]:
        """Run etcdctl."""
        scheme = "https" if self.tls else "http"
        endpoint = f"{scheme}://{(member or self.members[0]).endpoint}"
        command = ["etcdctl", f"--endpoints={endpoint}", "--command-timeout=5s", *self.ctl_options, *arguments]
        done = subprocess.run(
            command, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"}, capture_output=True, check=False
        )
        assert not check or done.returncode == 0, done.stderr.decode()
        return done

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def __enter__(self) -> EtcdCluster:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
