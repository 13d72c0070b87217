"""Connections with TLS of drivers and executors: certificates and tokens come from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokers import BrokerProcess
from certificates import make_files

from danube.model.errors import ConfigurationError, ConnectionLostError

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube._connecting import broker_client, credentials
from pyspark_danube._options import read_options


def test_the_environment_gives_certificates_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DANUBE_CA", "DANUBE_CERT", "DANUBE_KEY", "DANUBE_TOKEN", "DANUBE_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    files = make_files(tmp_path)
    cert, key = files.pair("broker")
    token = tmp_path / "token"
    token.write_text("s3cret")
    with BrokerProcess(tmp_path / "data", "--tls-cert", cert, "--tls-key", key) as broker:
        url = f"danube+tls://127.0.0.1:{broker.port}"
        with pytest.raises(ConnectionLostError, match="pass the file of its authority"), broker_client(url):
            pass
        monkeypatch.setenv("DANUBE_CA", files.ca)
        monkeypatch.setenv("DANUBE_TOKEN_FILE", str(token))
        with broker_client(url) as client, client.producer("/default/orders") as producer:
            assert producer.send(b"hello").offset == 0
    assert credentials(url) == {"ca": files.ca, "token_file": str(token)}
    assert credentials("danube://127.0.0.1") == {"token_file": str(token)}


@pytest.mark.parametrize("name", ["token", "tokenFile", "ca"])
def test_options_do_not_take_them(name: str) -> None:
    options = {"servers": "danube+tls://127.0.0.1", "topic": "/default/orders"}
    assert read_options(options).servers == "danube+tls://127.0.0.1"
    with pytest.raises(ConfigurationError, match="DANUBE_TOKEN_FILE") as caught:
        read_options(options | {name: "s3cret"})
    assert "s3cret" not in caught.value.message
