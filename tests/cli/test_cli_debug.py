"""``danube debug bundle``: what is in it, and that no secret is."""

from __future__ import annotations

import json
import os
import stat
import tarfile

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli.app import app
from danube.model.redaction import HIDDEN, without_secrets, without_secrets_in_text

MARKER = "hunter2marker"
CONFIG = f"""
cluster = "shop"
[storages.a]
url = "s3://user:{MARKER}@host/bucket?secret_access_key={MARKER}"
secret_access_key = "{MARKER}"
[storages.b]
url = "disk:///data"
region = "eu"
[security.upstream]
secret = "{MARKER}"
"""
LOG = f"""\
2026-01-01 INFO Authorization: Bearer {MARKER}
2026-01-01 INFO password={MARKER}, next
2026-01-01 INFO {{"api_key": "{MARKER}", "topic": "/default/orders"}}
2026-01-01 INFO url https://user:{MARKER}@host/x?sig={MARKER}&page=2
2026-01-01 INFO key dnb_abc_{MARKER}
2026-01-01 INFO token eyJhbGciOi.{MARKER}.c2ln
-----BEGIN PRIVATE KEY-----
{MARKER}
-----END PRIVATE KEY-----
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(url, *arguments, code=0, **environment):
    env = {"XDG_CONFIG_HOME": "/nonexistent", "DANUBE_URL": url, **environment}
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exit_code == code, done.output
    return done


def files_of(path):
    with tarfile.open(path) as archive:
        return {os.path.basename(each.name): archive.extractfile(each).read() for each in archive.getmembers()}


def test_a_bundle_has_everything_but_secrets(broker, tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG)
    (tmp_path / "b.log").write_text(LOG)
    run(broker.url, "produce", "orders", "-m", "payload-of-a-message")
    run(broker.url, "consume", "orders", "-s", "billing", "--until-caught-up")
    path = tmp_path / "x.tar.gz"
    command = ["debug", "bundle", "-f", str(path), "-c", str(tmp_path / "c.toml"), "--log", str(tmp_path / "b.log")]
    done = run(broker.url, *command, DANUBE_TOKEN=MARKER)
    assert done.stdout.startswith(f"wrote {path}: 14 files")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = files_of(path)
    everything = b"".join(files.values())
    assert MARKER.encode() not in everything
    assert b"payload-of-a-message" not in everything
    assert all(name in files["README.txt"].decode() for name in files if name != "README.txt")
    assert json.loads(files["subscriptions.json"])["subscriptions"][0]["sentence"]
    assert json.loads(files["topics.json"])[0]["topic"] == "/default/orders"
    config = json.loads(files["config.json"])
    assert config["cluster"] == "shop"
    assert config["storages"]["a"] == {
        "url": f"s3://{HIDDEN}@host/bucket?secret_access_key={HIDDEN}",
        "secret_access_key": HIDDEN,
    }
    assert config["storages"]["b"] == {"url": "disk:///data", "region": "eu"}
    assert "page=2" in files["broker.log"].decode()
    assert "File exists" in run(broker.url, *command, code=1).stderr


def test_a_bundle_without_a_broker_says_so(tmp_path):
    path = tmp_path / "x.tar.gz"
    done = run("danube://127.0.0.1:1", "debug", "bundle", "-f", str(path), "-c", str(tmp_path / "none.toml"))
    files = files_of(path)
    assert files["info.json"].startswith(b"this part could not be had: no connection to a broker")
    assert json.loads(files["doctor.json"])[0]["check"] == "python"
    assert "! config.json:" in done.stderr
    assert "! info.json:" in done.stderr


def test_only_the_end_of_a_long_log_is_kept(tmp_path, monkeypatch):
    from danube.cli import _bundle

    monkeypatch.setattr(_bundle, "LOG_BYTES", 10)
    (tmp_path / "log").write_bytes(b"x" * 20 + b"\xffend")
    assert _bundle._log(str(tmp_path / "log")) == b"x" * 6 + b"\\xffend"


def test_what_is_no_secret_stays():
    plain = {"name": "a", "keys": 3, "is_token": True, "list": ["x", 1, None], "token_file": "", "sasl": "y"}
    assert without_secrets(plain) == plain
    assert without_secrets({"password": ["a", "b"]}) == {"password": [HIDDEN, HIDDEN]}
    line = "connection 3 of 127.0.0.1:5 ends: the peer speaks HTTP/1; topic '/default/orders' key 7"
    assert without_secrets_in_text(line) == line
