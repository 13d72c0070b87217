"""The port of the REST interface: bound first, left out where it is only a default, refused where it is configured."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from broker.broker_harness import running_broker, small_config
from brokers import BrokerProcess
from registry_broker import registry_url

import danube.registry
from danube.broker.runtime import config as config_module
from danube.broker.runtime.config import BrokerConfig, make_config
from danube.model.errors import AddressTakenError, ConfigurationError, exit_code

FACES = (danube.registry.face,)
SMALL_FILES = ("--journal-file-size", "16MiB")


def test_the_ready_line_names_it_and_it_drains(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SMALL_FILES, registry_listen="127.0.0.1:0") as broker:
        address = registry_url(broker).removeprefix("http://")
        with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
            connection.request("GET", "/subjects")
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == (200, [])
        assert broker.terminate() == 0


def test_a_configured_address_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["serve", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--admin-listen", "none"]
        words += [*SMALL_FILES, "--http-listen", "none", "--registry-listen", address]
        command = [sys.executable, "-m", "danube", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78 == exit_code(AddressTakenError())
    assert f"cannot listen on {address}" in done.stderr
    assert "--registry-listen" in done.stderr
    assert done.stdout == ""


async def test_a_taken_default_address_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for module in (config_module, sys.modules["danube.broker.runtime.ports"]):
            monkeypatch.setattr(module, "DEFAULT_REGISTRY_PORT", port)
        async with running_broker(tmp_path, faces=FACES) as running:
            assert running.broker.registry_addresses == []
    assert f"no REST interface of the schema registry: port {port} of this machine is taken" in caplog.text


async def test_without_http_there_is_none_unless_it_is_configured(tmp_path: Path) -> None:
    assert BrokerConfig().registry_addresses == ("127.0.0.1:8081",)
    assert small_config(tmp_path, http_listen=[]).registry_addresses == ()
    assert small_config(tmp_path, registry_listen=[]).registry_addresses == ()
    assert make_config({"registry_listen": ["[::1]"], "http_listen": []}).registry_addresses == ("[::1]:8081",)
    with pytest.raises(ConfigurationError):
        make_config({"registry_listen": ["127.0.0.1:99999"]})
    async with running_broker(tmp_path / "a", registry_listen=["127.0.0.1:0"]) as running:
        assert running.broker.registry_addresses == [], "without a face there is nothing to serve"
    async with running_broker(tmp_path / "b", faces=FACES, http_listen=[]) as running:
        assert running.broker.registry_addresses == []
