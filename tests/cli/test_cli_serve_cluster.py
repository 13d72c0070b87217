"""``danube serve`` refuses options about other brokers that cannot work, with code 78, before it touches anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from danube.cli.app import app


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--peers", "127.0.0.1:6650-6651", "--join", "127.0.0.1:7000"], "give one of them"),
        (["--peers", "a,,b"], "'' is not an address"),
        (["--peers", "127.0.0.1:6651-6650"], "not a range of ports"),
        (["--peers", "127.0.0.1,127.0.0.1:6650"], "lists 127.0.0.1:6650 twice"),
        (["--peers", "a,b,c"], "a:6650 is not this machine alone"),
        (["--peers", "127.0.0.1:6650-6651", "--listen", "10.0.0.1:6650"], "10.0.0.1:6650 is not this machine alone"),
        (["--join", "a"], "needs --cluster-secret FILE"),
        (["--join", "a:x"], "--join 'a:x' is not host:port"),
        (["--join", "127.0.0.1:0"], "--join 127.0.0.1:0 is no address that other brokers can connect to"),
        (["--advertise", "0.0.0.0:6650"], "--advertise 0.0.0.0:6650 is no address"),
        (["--join", "a", "--cluster-secret", "SECRET", "--listen", "0.0.0.0:0"], "add --advertise HOST:PORT"),
        (["--cluster-secret", "SECRET", "--listen", "[::]:0"], "add --advertise HOST:PORT"),
        (["--peers", "127.0.0.1:6650-6651", "--tls-cert", "c.pem"], "needs [tls] broker_ca (--tls-broker-ca FILE)"),
        (
            ["--peers", "127.0.0.1:6650-6651", "--tls-cert", "c.pem", "--tls-broker-ca", "ca.pem"],
            "[tls] broker_ca needs client_auth = 'optional' or 'required'",
        ),
        (["--tls-cert", "c.pem", "--tls-broker-ca", "ca.pem"], "[tls] broker_ca needs client_auth = 'optional'"),
        (["--rack", "row 7"], "--rack: rack name 'row 7' is not valid: use ASCII letters"),
        (["--rack", "r" * 256], "at most 255"),
        (["--cluster-secret", "missing"], "missing, cannot be read: No such file"),
        (["--cluster-secret", "OPEN"], "has mode 0644"),
        (["--cluster-secret", "EMPTY"], "is empty"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    for name, content, mode in (("SECRET", "s" * 32, 0o600), ("OPEN", "s" * 32, 0o644), ("EMPTY", "", 0o600)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    given = [str(tmp_path / each) if each.isupper() else each for each in options]
    listen = [] if "--listen" in options else ["--listen", "127.0.0.1:0"]
    words = [
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--admin-listen",
        "none",
        "--http-listen",
        "none",
        *listen,
        *given,
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 78, done.output
    assert said in done.stderr.replace("\n", " ")
    assert not os.path.exists(tmp_path / "data")


def test_a_list_without_this_broker_is_refused(tmp_path: Path) -> None:
    words = [
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--admin-listen",
        "none",
        "--http-listen",
        "none",
        "--listen",
        "127.0.0.1:0",
    ]
    done = CliRunner().invoke(app, [*words, "--peers", "127.0.0.1:1-3"])
    assert done.exit_code == 78, done.output
    assert "none of 127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3 is an address of this broker" in done.stderr
    assert os.listdir(tmp_path / "data") == ["lock"]
