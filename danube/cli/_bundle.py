"""Collects the files of a debug bundle, and writes them into one archive that only its owner can read."""

from __future__ import annotations

import io
import os
import platform
import sys
import tarfile
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from danube.cli._client import run_with_client, to_plain
from danube.model.errors import DanubeError
from danube.model.redaction import without_secrets, without_secrets_in_text

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["Part", "collect", "problems_of", "write"]

LOG_BYTES: Final = 4 * 1024 * 1024
"""Of a longer log, the end is kept."""
PART_S: Final = 20.0
"""How long the broker may take for one part."""
_FAILED: Final = "this part could not be had: "
_README: Final = """\
Debug bundle of Danube, made {made} on {host}.

{files}

It contains names of topics, subscriptions, clients and addresses, and no messages (but reasons that consumers gave for
refusing one). Secrets were removed from the configuration and the log by their names and forms. Look at the files
before you give them away.
"""
_ABOUT: Final = {
    "versions.json": "versions of Danube, Python and packages; the system",
    "info.json": "status of the broker",
    "findings.json": "what is not well at the brokers",
    "subscriptions.json": "all subscriptions with state, explanation, backlog and age",
    "topics.json": "all topics",
    "connections.json": "open connections",
    "storages.json": "health and figures of the storages",
    "cluster.json": "status of the cluster",
    "policies.json": "policies of the broker",
    "tasks.json": "tasks of the broker: who waits where",
    "doctor.json": "checks of this machine and of the broker",
    "config.json": "configuration file, without secrets",
    "broker.log": "end of the log, without secrets",
}


class Part(msgspec.Struct, frozen=True):
    """One file of the bundle."""

    name: str
    data: bytes


def collect(url: str | None, context: str | None, config: str, log: str) -> list[Part]:
    """Return the files; one that cannot be had says why.

    Args:
        url, context: of the broker.
        config: path of the configuration file; empty: none.
        log: path of the log; empty: none.

    Raises:
        DanubeError: the address of the broker, or its context, is wrong.
    """
    parts = [_json("versions.json", _versions)]
    parts += _of_broker(url, context)
    parts.append(_json("doctor.json", lambda: _doctor(url, context)))
    if config:
        parts.append(_json("config.json", lambda: _configuration(config)))
    if log:
        parts.append(_made("broker.log", lambda: _log(log)))
    files = "\n".join(f"  {part.name:<20} {_ABOUT[part.name]}" for part in parts)
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return [Part("README.txt", _README.format(made=made, host=platform.node(), files=files).encode()), *parts]


def _of_broker(url: str | None, context: str | None) -> list[Part]:
    calls: dict[str, Callable[[Client], Awaitable[Any]]] = {
        "info.json": lambda client: client.admin.info(),
        "findings.json": lambda client: client.admin.findings(),
        "subscriptions.json": _subscriptions,
        "topics.json": lambda client: client.admin.list_topics(),
        "connections.json": lambda client: client.admin.list_connections(),
        "storages.json": lambda client: client.storages.status(),
        "cluster.json": lambda client: client.admin.cluster_status(),
        "policies.json": lambda client: client.admin.policies(),
        "tasks.json": lambda client: client.admin.tasks(),
    }

    async def work(client: Client) -> list[Part]:
        import trio

        parts = []
        for name, call in calls.items():
            try:
                with trio.fail_after(PART_S):
                    parts.append(_encoded(name, without_secrets(to_plain(await call(client)))))
            except (DanubeError, trio.TooSlowError) as error:
                parts.append(_failed(name, error))
        return parts

    try:
        return run_with_client(work, url, context)
    except (DanubeError, OSError) as error:
        return [_failed(name, error) for name in calls]


async def _subscriptions(client: Client) -> dict[str, Any]:
    return (await client.admin.overview())._asdict()


def _versions() -> dict[str, Any]:
    packages = sorted({(each.metadata["Name"] or "", each.version) for each in metadata.distributions()})
    return {
        "python": sys.version,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "packages": dict(packages),
    }


def _doctor(url: str | None, context: str | None) -> list[dict[str, Any]]:
    from danube.cli.doctor import run_all

    rows = [{"check": each.name, "ok": each.ok, "detail": each.detail} for each in run_all(None, url, context)]
    return [without_secrets(row) for row in rows]


def _configuration(path: str) -> Any:
    import tomllib

    return without_secrets(tomllib.loads(Path(path).read_text("utf-8")))


def _log(path: str) -> bytes:
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read(LOG_BYTES).decode("utf-8", "backslashreplace")
    return without_secrets_in_text(text).encode()


def _json(name: str, make: Callable[[], Any]) -> Part:
    return _made(name, lambda: _encoded(name, make()).data)


def _made(name: str, make: Callable[[], bytes]) -> Part:
    try:
        return Part(name, make())
    except (DanubeError, OSError, ValueError) as error:  # tomllib's and Unicode's errors are ValueErrors
        return _failed(name, error)


def _encoded(name: str, value: Any) -> Part:
    return Part(name, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _failed(name: str, error: BaseException) -> Part:
    text = without_secrets_in_text(f"{error}" or type(error).__name__)
    return Part(name, f"{_FAILED}{text}\n".encode())


def problems_of(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Return the parts that could not be had, and why."""
    start = _FAILED.encode()
    return [(each.name, each.data[len(start) :].decode().strip()) for each in parts if each.data.startswith(start)]


def write(path: Path, parts: Sequence[Part]) -> int:
    """Write the archive, readable for its owner only; return its size in bytes.

    Raises:
        OSError: it exists already, or cannot be written.
    """
    folder = path.name.removesuffix(".gz").removesuffix(".tar") or "danube-debug"
    now = int(time.time())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in parts:
            entry = tarfile.TarInfo(f"{folder}/{part.name}")
            entry.size, entry.mtime, entry.mode = len(part.data), now, 0o600
            archive.addfile(entry, io.BytesIO(part.data))
    return path.stat().st_size
