"""Without access control ``danube serve`` and ``danube storage-server`` listen on this machine only."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.broker.runtime.config import BrokerConfig
from danube.cli.app import app

EVERYWHERE = ["0.0.0.0:0", "[::]:0"]


@pytest.fixture(autouse=True)
def _undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DANUBE_INSECURE", raising=False)


@pytest.mark.parametrize("address", EVERYWHERE)
@pytest.mark.parametrize("port", ["listen", "admin_listen", "http_listen"])
def test_a_broker_that_others_could_reach_does_not_start(tmp_path: Path, port: str, address: str) -> None:
    addresses = dict.fromkeys(["listen", "admin_listen", "http_listen"], "127.0.0.1:0") | {port: address}
    words = ["serve", "--data-dir", str(tmp_path / "data")]
    for name, each in addresses.items():
        words += [f"--{name.replace('_', '-')}", each]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78, done.output
    assert f"other machines can reach {address.rpartition(':')[0]}:" in done.stderr
    assert "`danube security init`" in done.stderr
    assert "--insecure (DANUBE_INSECURE=1)" in done.stderr
    assert os.listdir(tmp_path / "data") == ["lock"]


def test_a_name_is_what_it_resolves_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def resolve(host: object, *rest: object, **named: object) -> object:
        return real("0.0.0.0" if host in ("here", b"here") else host, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    words = [
        "serve",
        "--data-dir",
        str(tmp_path),
        "--admin-listen",
        "none",
        "--http-listen",
        "none",
        "--listen",
        "here:0",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78, done.output
    assert "other machines can reach 0.0.0.0:" in done.stderr


def test_the_risk_can_be_accepted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with BrokerProcess(tmp_path / "data", "--insecure", host="0.0.0.0", stderr=log) as broker:
        assert "listening on 0.0.0.0:" in broker.ready_line
    assert log.read_text().count("security is off, and other machines can reach this broker at 0.0.0.0:") == 1


@pytest.mark.parametrize("said", ["--insecure", "DANUBE_INSECURE", "insecure = true"])
def test_the_risk_is_accepted_in_one_of_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    accepted: list[bool] = []

    def run_broker(config: BrokerConfig, faces: object) -> int:
        accepted.append(config.insecure)
        return 0

    monkeypatch.setattr("danube.broker.run.run_broker", run_broker)
    options: list[str] = []
    if said == "--insecure":
        options = [said]
    elif said == "DANUBE_INSECURE":
        monkeypatch.setenv(said, "1")
    else:
        (tmp_path / "danube.toml").write_text(said)
        options = ["--config", str(tmp_path / "danube.toml")]
    assert CliRunner().invoke(app, ["serve", *options]).exit_code == 0
    assert accepted == [True]


def test_the_option_overrides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [
        "serve",
        "--data-dir",
        str(tmp_path),
        "--admin-listen",
        "none",
        "--http-listen",
        "none",
        "--listen",
        "0.0.0.0:0",
    ]
    monkeypatch.setenv("DANUBE_INSECURE", "1")
    assert CliRunner().invoke(app, [*words, "--no-insecure"]).exit_code == 78
    monkeypatch.setenv("DANUBE_INSECURE", "yes")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 65
    assert "DANUBE_INSECURE is 'yes'; set it to 1 or 0" in done.stderr


@pytest.mark.parametrize("address", EVERYWHERE)
@pytest.mark.parametrize(
    ("token", "risk"),
    [
        (True, "there is no TLS: the token is sent unencrypted"),
        (False, "all of them could read and delete all objects"),
    ],
)
def test_a_storage_server_that_others_could_reach_does_not_start(
    tmp_path: Path, address: str, token: bool, risk: str
) -> None:
    (tmp_path / "token").write_text("token")
    options = ["--token-file", str(tmp_path / "token")] if token else []
    done = CliRunner().invoke(app, ["storage-server", "memory://", "--listen", address, *options])
    assert done.exit_code == 78, done.output
    assert risk in done.stderr
    assert (
        "give it --token-file and --tls-cert, or, if you trust all of that network, start with --insecure"
        in done.stderr
    )


def test_with_security_a_broker_may_be_reached_but_wants_tls(tmp_path: Path) -> None:
    (tmp_path / "danube.toml").write_text("[security]\nenabled = true\n")
    log = tmp_path / "log"
    options = ("--config", str(tmp_path / "danube.toml"))
    with BrokerProcess(tmp_path / "data", *options, host="0.0.0.0", stderr=log) as broker:
        assert "listening on 0.0.0.0:" in broker.ready_line
    assert log.read_text().count("without [tls] it accepts no credentials of theirs") == 1
