"""Three machines on one switch: network namespaces with an interface each, whose cables can be pulled.

A bridge in the namespace of the tests joins them, so tests reach all of them. :meth:`Machines.pull` takes a machine off
the network; :meth:`Machines.mute` loses, silently, what one machine sends to another, and nothing else: it gets a
neighbour entry with a link-layer address that does not exist.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from types import TracebackType

import pytest

_NOWHERE = "02:00:00:00:00:99"


def require_network_namespaces() -> None:
    """Skip the calling test where there can be no network namespaces."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("ip is missing: install iproute2")
    name = f"dp{os.getpid()}"
    probe = _try("ip", "link", "add", name, "type", "bridge")
    if probe.returncode:
        pytest.skip(f"no bridges here: {probe.stderr.strip()}")
    _run("ip", "link", "del", name)
    probe = _try("ip", "netns", "add", name)
    if probe.returncode:
        pytest.skip(f"no network namespaces here: {probe.stderr.strip()}")
    _run("ip", "netns", "del", name)


class Machines:
    """A context manager: some machines with addresses of a network of this process."""

    def __init__(self, count: int = 3) -> None:
        number = os.getpid()
        self._network = f"10.{64 + number % 64}.{number // 64 % 256}"
        self._bridge = f"dvb{number}"
        self.names = [f"dv{number}-{index}" for index in range(count)]
        self.addresses = [f"{self._network}.{index + 1}" for index in range(count)]
        self._stack = ExitStack()

    def __enter__(self) -> Machines:
        with ExitStack() as stack:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            stack.callback(_try, "ip", "link", "del", self._bridge)
            _run("ip", "address", "add", f"{self._network}.254/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for name, address in zip(self.names, self.addresses, strict=True):
                _run("ip", "netns", "add", name)
                stack.callback(_try, "ip", "netns", "del", name)
                outer = f"v{name}"
                _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
                stack.callback(_try, "ip", "link", "del", outer)
                _run("ip", "link", "set", outer, "master", self._bridge)
                _run("ip", "link", "set", outer, "up")
                self._within(name, "link", "set", "lo", "up")
                self._within(name, "address", "add", f"{address}/24", "dev", "eth0")
                self._within(name, "link", "set", "eth0", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def prefix(self, index: int) -> tuple[str, ...]:
        """What runs a command on a machine, put before it."""
        return ("ip", "netns", "exec", self.names[index])

    def pull(self, index: int) -> None:
        """Pull the cable of a machine: it hears nothing, and is not heard."""
        _run("ip", "link", "set", f"v{self.names[index]}", "down")

    def plug(self, index: int) -> None:
        """Plug it in again."""
        _run("ip", "link", "set", f"v{self.names[index]}", "up")

    def mute(self, sender: int, receiver: int) -> None:
        """Lose what one machine sends to another."""
        entry = (self.addresses[receiver], "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")
        self._within(self.names[sender], "neigh", "replace", *entry)

    def unmute(self, sender: int, receiver: int) -> None:
        """Deliver it again."""
        self._within(self.names[sender], "neigh", "del", self.addresses[receiver], "dev", "eth0")

    def _within(self, name: str, *command: str) -> None:
        _run("ip", "-n", name, *command)


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _run(*command: str) -> None:
    done = _try(*command)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
