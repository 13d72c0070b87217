"""A broker that is started alone loads only what it needs: every module costs its start time, and memory for good."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SPARED = {
    "danube.cli.app": "`danube serve` reads its options by danube/cli/_plain_options.py",
    "typer": "only commands that print need it, see danube/cli/_plain_options.py",
    "click": "as typer",
    "pydantic": "typer imports it",
    "rich": "only tables need it",
    "danube.client": "a broker does not use its own client",
    "danube.storage_server": "it is another program",
    "danube.schema": "only a broker with schemas needs it",
    "danube.broker.schemas.service": "only a broker with schemas needs it",
    "danube.broker.operations.schemas": "only a broker with schemas needs it",
    "danube.security": "only calls about access control need it",
    "danube.testing": "it is for tests",
    "danube.wire.tls": "only ports with TLS need it",
    "danube.wire._tls_door": "only ports with TLS need it",
    "danube.wire._tls_transport": "only connections with TLS need it",
    "cryptography": "only proofs with signatures need it, see danube/security/keys.py",
    "danube.broker.doctor": "it is for `danube doctor`",
    "danube.cluster.checkup": "it is for `danube doctor --cluster`",
    "danube.cluster.rebuilding": "it is for `danube cluster restore` and `recover`",
    "danube.storage.fsspec": "only storages of this scheme need it",
    "fsspec": "only storages of this scheme need it",
    "importlib.metadata": "built-in plugins are found without it, see danube/model/entry_points.py",
    "tomllib": "only a configuration file needs it",
    "h11": "only HTTP needs it",
    "danube.http": "only a broker with an HTTP port needs it",
    "danube.registry": "only a broker with the port of the schema registry needs it",
    "danube.web": "only a broker with an HTTP port needs it",
    "asyncio": "the broker runs on Trio",
    "numpy": "something optional was imported",
    "grpc": "the broker has its own implementation",
}
"""Modules and packages that are not imported by `danube serve` when it is ready, and why."""
MOST_MODULES = 760
"""Of the project, of others and of Python."""


def imported_by(*arguments: str, cwd: Path) -> list[str]:
    """Return the modules that a broker has imported when it is ready."""
    log = cwd / "stderr"
    with log.open("wb") as errors:
        command = [sys.executable, "-X", "importtime", "-m", "danube", *arguments]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=cwd)
        try:
            assert broker.stdout is not None
            line = broker.stdout.readline()
            found = re.findall(r"^import time: +\d+ \| +\d+ \| *(\S+)$", log.read_text(), re.MULTILINE)
        finally:
            broker.terminate()
            broker.communicate()
    assert b"ready" in line, log.read_text()
    return found


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    listen = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--http-listen", "none"]
    return imported_by("serve", "--data-dir", "data", *listen, cwd=tmp_path_factory.mktemp("alone"))


def test_a_broker_alone_does_without_what_only_others_need(loaded: list[str]) -> None:
    assert "danube.broker.broker" in loaded
    found = {
        name: SPARED[spared] for name in loaded for spared in SPARED if name == spared or name.startswith(f"{spared}.")
    }
    assert found == {}, "`python -X importtime -m danube serve` shows which module imports these"


def test_http_comes_without_the_client(tmp_path: Path) -> None:
    listen = ["--listen", "127.0.0.1:0", "--admin-listen", "none", "--http-listen", "127.0.0.1:0"]
    listen += ["--registry-listen", "none"]
    loaded = imported_by("serve", "--data-dir", "data", *listen, cwd=tmp_path)
    assert {"h11", "danube.http.server", "danube.web.face"} <= set(loaded)
    spared = ("danube.client", "danube.security", "asyncio", "typer", "email", "http.client", "urllib.request")
    found = [name for name in loaded if name in spared or name.startswith(tuple(f"{each}." for each in spared))]
    assert found == [], "the client is loaded when the first message is published or read"


def test_the_registry_comes_without_its_routes(tmp_path: Path) -> None:
    listen = ["--listen", "127.0.0.1:0", "--admin-listen", "none", "--http-listen", "none"]
    listen += ["--registry-listen", "127.0.0.1:0"]
    loaded = imported_by("serve", "--data-dir", "data", *listen, cwd=tmp_path)
    assert {"h11", "danube.http.server", "danube.registry.face"} <= set(loaded)
    spared = ("danube.registry.routes", "danube.schema", "danube.web", "danube.security")
    assert [name for name in loaded if name.startswith(spared)] == [], "they are loaded with the first request"


def test_a_broker_alone_loads_few_modules(loaded: list[str]) -> None:
    assert len(set(loaded)) <= MOST_MODULES, (
        "each costs about 1 ms of every start and 15 kB of every broker: import what only some brokers need when they"
        " need it"
    )


READERS = {
    "danube.history.direct": ("danube.log.journal", "danube.metadata", "danube.raft", "danube.wire", "danube.client"),
    "danube.client.sync": ("danube.wire.server", "danube.log", "danube.history", "danube.broker"),
}
"""Modules that short-lived processes import, such as those of a Spark query, and what must not come with them."""


@pytest.mark.parametrize("module", READERS)
def test_readers_come_without_the_broker(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    spared = READERS[module]
    assert module in done.stdout.split()
    found = [name for name in done.stdout.split() if name in spared or name.startswith(tuple(f"{s}." for s in spared))]
    assert found == [], f"`python -X importtime -c 'import {module}'` shows which module imports these"


def test_a_wrong_option_is_left_to_typer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "danube", "serve", "--lisen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "No such option: --lisen" in done.stderr
    assert "--listen" in done.stderr
