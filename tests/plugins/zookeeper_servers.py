"""Real ZooKeeper servers for tests, from Debian's package: on free ports, in small heaps, without fsync."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from ports import free_ports

READY_S = 60.0
JAR = Path("/usr/share/java/zookeeper.jar")
# The manifest of the first one names those that it needs, but not all of Netty, which serves TLS.
JARS = [JAR, *(JAR.with_name(f"{name}.jar") for name in ("slf4j-simple", "netty-codec", "netty-resolver"))]
CONFIGURATION = """
tickTime=200
initLimit=15
syncLimit=15
dataDir={directory}
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,cons
maxClientCnxns=0
"""


class ZooKeeperServer:
    """One server, which can be killed and started again on its ports and directory."""

    def __init__(self, directory: Path, number: int, ports: list[int]) -> None:
        self.directory = directory
        self.number = number
        self.port, self.peer_port, self.election_port, self.secure_port = ports
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()[-4000:]

    def launch(self, configuration: str) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "myid").write_text(str(self.number))
        file = self.directory / "zoo.cfg"
        file.write_text(configuration)
        secure = "secureClientPort" in configuration
        command = [
            "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
            "-Dzookeeper.fastleader.maxNotificationInterval=500",  # else a lone server asks once in a minute
            "-Dzookeeper.cnxTimeout=1000",
            *(["-Dzookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"] * secure),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", ":".join(map(str, JARS)), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(file),
        ]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)

    def ask(self, words: str) -> str:
        """Send one of the four-letter words; an empty answer if the server does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as link:
                link.sendall(words.encode())
                answer = b""
                while part := link.recv(4096):
                    answer += part
                return answer.decode()
        except OSError:
            return ""

    def mode(self) -> str:
        """Return ``standalone``, ``leader`` or ``follower``; empty while the server does not serve."""
        return self.ask("srvr").partition("Mode: ")[2].partition("\n")[0]

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self.mode():
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class ZooKeeperEnsemble:
    """One server, or more. ``more`` is added to their configuration."""

    def __init__(self, directory: Path, servers: int = 1, more: Mapping[str, str] | None = None) -> None:
        ports = free_ports(4 * servers)
        self.servers = [
            ZooKeeperServer(directory / f"z{number}", number + 1, ports[4 * number : 4 * number + 4])
            for number in range(servers)
        ]
        self._more = dict(more or {})

    @property
    def location(self) -> str:
        return ",".join(server.endpoint for server in self.servers)

    def start(self) -> ZooKeeperEnsemble:
        if shutil.which("java") is None or not JAR.exists():
            pytest.skip("ZooKeeper is not installed: apt-get install zookeeper")
        for server in self.servers:
            self.launch(server)
        for server in self.servers:
            server.wait_ready()
        return self

    def launch(self, server: ZooKeeperServer) -> None:
        lines = [CONFIGURATION.format(directory=server.directory), f"clientPort={server.port}"]
        lines += [
            f"{name}={value}".replace("SECURE_PORT", str(server.secure_port)) for name, value in self._more.items()
        ]
        if len(self.servers) > 1:
            lines += [f"server.{one.number}=127.0.0.1:{one.peer_port}:{one.election_port}" for one in self.servers]
        server.launch("\n".join([*lines, ""]))

    def restart(self, server: ZooKeeperServer) -> None:
        self.launch(server)
        server.wait_ready()

    def leader(self) -> ZooKeeperServer:
        """Return the server that says of itself that it is the leader."""
        return next(server for server in self.servers if server.mode() == "leader")

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> ZooKeeperEnsemble:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()
