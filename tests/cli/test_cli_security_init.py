"""``danube security init`` and what follows: a broker with TLS and access control, and no secret in any output."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from brokers import BrokerProcess, danube
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from ports import free_port
from typer.testing import CliRunner

from danube.broker.operations.security_start import SIGNING_KEY
from danube.broker.runtime.config_file import load_config
from danube.cli._connecting import credentials_of, find_target
from danube.cli._context import Context, Contexts, load_contexts, save_contexts
from danube.cli.app import app
from danube.model.errors import ConfigurationError
from danube.peers.secret import read_secret
from danube.security.jws import parse_token

HOST = "127.0.0.1"


class Place:
    """The directories of one cluster, and commands in them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.security = directory / "danube-security"
        self.data = directory / "data"
        self.config = directory / "danube.toml"
        self.said = ""

    def run(self, *arguments, code=0, stdin=None, **environment):
        """Run a command; what it prints is kept, unless it is to print a secret."""
        given = {"XDG_CONFIG_HOME": str(self.directory / "home"), "DANUBE_URL": None, **environment}
        done = CliRunner().invoke(app, arguments, env=given, input=stdin)
        assert done.exit_code == code, done.output
        self.said += done.stderr
        return done

    def init(self, *arguments, code=0):
        places = ("--directory", str(self.security), "--data-dir", str(self.data), "--config", str(self.config))
        done = self.run("security", "init", *arguments, *places, code=code)
        self.said += done.stdout
        return done


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("DANUBE_URL", "DANUBE_TOKEN", "DANUBE_TOKEN_FILE", "DANUBE_CA"):
        monkeypatch.delenv(name, raising=False)
    found = Place(tmp_path)
    found.init("--host", HOST, "--host", "broker.example.org")
    return found


def names(path):
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    return [str(each.value) for each in found]


def test_what_a_broker_needs_is_written_for_its_owner_only(place):
    for name in ("ca.key", "server.key", "cluster.secret", "admin.token"):
        assert (place.security / name).stat().st_mode & 0o777 == 0o600
    assert place.security.stat().st_mode & 0o777 == 0o700
    assert (place.data / SIGNING_KEY).stat().st_mode & 0o777 == 0o600
    assert names(place.security / "server.pem") == [
        HOST,
        "broker.example.org",
        "localhost",
        "::1",
        "danube://danube/broker/b1",
    ]
    config = load_config(str(place.config))
    assert config.security.enabled
    assert config.tls.certifies_brokers
    assert (config.security.administrator, config.data_directory) == ("user:admin", str(place.data))
    assert config.advertise == f"{HOST}:6650"
    assert len(read_secret(Path(config.cluster_secret))) == 64
    claims = parse_token((place.security / "admin.token").read_text().strip(), 8192).claims
    assert (claims["sub"], claims["iss"], claims["exp"] - claims["iat"]) == ("user:admin", "danube", 365 * 86400)
    stored = load_contexts()
    assert stored.current == "admin"
    assert stored.contexts["admin"] == Context(
        f"danube+tls://{HOST}:6650",
        "administrator of danube",
        ca=str(place.security / "ca.pem"),
        token_file=str(place.security / "admin.token"),
    )
    shell = f"openssl verify -x509_strict -CAfile {place.security}/ca.pem {place.security}/server.pem"
    assert subprocess.run(shell, shell=True, capture_output=True, check=False).returncode == 0


def test_nothing_is_overwritten(place):
    before = {path: path.read_bytes() for path in place.directory.rglob("*") if path.is_file()}
    assert "--broker b2" in place.init("--host", HOST, code=73).stderr
    assert place.init("--host", "a b", "--broker", "b2", code=65).stderr.startswith("error: 'a b' is no host")
    assert {path: path.read_bytes() for path in place.directory.rglob("*") if path.is_file()} == before


def test_a_bundle_for_another_broker(place):
    assert "copy it to the machine of b2" in place.init("--host", "10.0.0.2", "--broker", "b2").stdout
    bundle = place.security / "b2"
    assert sorted(each.name for each in bundle.iterdir()) == [
        "ca.pem",
        "cluster.secret",
        "danube.toml",
        "server.key",
        "server.pem",
    ]
    assert names(bundle / "server.pem")[0] == "10.0.0.2"
    assert "danube://danube/broker/b2" in names(bundle / "server.pem")
    assert (bundle / "cluster.secret").read_text() == (place.security / "cluster.secret").read_text()
    config = load_config(str(bundle / "danube.toml"))
    assert (config.security.enabled, config.advertise) == (True, "10.0.0.2:6650")
    assert config.tls.certifies_brokers
    place.init("--host", "10.0.0.2", "--broker", "b2", code=73)
    place.init("--host", "10.0.0.2", "--broker", "two", code=65)


def test_from_init_to_a_revoked_token(place, tmp_path):
    log = tmp_path / "log"
    with BrokerProcess(place.data, "--config", str(place.config), "--log-level", "debug", stderr=log) as broker:
        url = f"danube+tls://{HOST}:{broker.port}"
        stored = load_contexts()
        stored.contexts["admin"].url = url
        save_contexts(stored)

        def client(token):
            return {"DANUBE_URL": url, "DANUBE_CA": str(place.security / "ca.pem"), "DANUBE_TOKEN": token}

        place.run("namespaces", "create", "shop")
        reloaded = place.run("security", "reload").stdout
        assert reloaded.startswith(f"new connections use the certificate of {HOST}, ")
        # A certificate that cannot be used is reported, and changes nothing.
        server = place.security / "server.pem"
        shutil.copy(server, tmp_path)
        server.write_text("no certificate")
        assert "what was used before stays: " in place.run("security", "reload", code=78).stderr
        shutil.copy(tmp_path / "server.pem", server)
        place.run("security", "reload")
        place.run("topics", "create", "/shop/orders")
        place.run("grant", "producer", "to", "service:orders-api", "on", "/shop/orders*")
        made = place.run("tokens", "create", "service:orders-api", "--expires", "1d")
        token, key = made.stdout.strip(), place.run("keys", "create", "service:orders-api").stdout.strip()
        place.run("produce", "/shop/orders", "-m", "hello", **client(token))
        place.run("topics", "delete", "/shop/orders", code=77, **client(token))
        lines = list[str]()
        while not any(" denied service:orders-api " in line for line in lines):
            lines = place.run("security", "audit", "--since", "1h").stdout.splitlines()
        assert any("changed user:admin from 127.0.0.1 PutBinding" in line for line in lines)
        assert lines == sorted(lines)
        entry = json.loads(place.run("security", "audit", "-o", "json").stdout.splitlines()[0])
        assert (entry["kind"], entry["principal"], entry["outcome"]) == ("changed", "user:admin", "done")
        place.run("security", "audit", code=66, **client(token))
        place.run("produce", "/shop/orders", "-m", "hello", **client(key))
        for wrong in ("", "x", token[:-4] + "AAAA"):
            denied = place.run("topics", "list", code=77, **client(wrong)).stderr
            assert denied == (
                "error: no valid credentials; send a token, an API key or a client certificate of this cluster\n"
            )
        place.run("grant", "admin", "to", "service:orders-api", "on", "cluster", code=77, **client(token))
        explained = place.run("security", "explain", "service:orders-api", "consume", "/shop/orders").stdout
        assert explained.startswith("denied: no binding grants Consume on /shop/orders; producer (b-")
        place.run("tokens", "revoke", "-", "--reason", "lost", stdin=token)
        place.run("topics", "list", code=77, **client(token))
        (key_row,) = json.loads(place.run("keys", "list", "-o", "json").stdout)
        place.run("keys", "delete", key_row["id"])
        place.run("topics", "list", code=77, **client(key))
        assert broker.terminate() == 0
    secrets = [token, token.split(".")[2], key, (place.security / "admin.token").read_text().strip()]
    secrets += [(place.security / "cluster.secret").read_text().strip()]
    for path in (place.security / "ca.key", place.security / "server.key", place.data / SIGNING_KEY):
        secrets.append(path.read_text().splitlines()[1])
    outputs = place.said + log.read_text() + (tmp_path / "home" / "danube" / "contexts.toml").read_text()
    assert len(outputs) > 1000
    assert [each[:12] for each in secrets if each in outputs] == []


@contextmanager
def started(line, directory, port):
    """Run the line that init prints, with the configuration that it has written, at a free port."""
    config = directory / "danube.toml"
    text = config.read_text()
    assert 'advertise = "localhost:6650"' in text
    config.write_text('admin_listen = ["127.0.0.1:0"]\n' + text.replace(":6650", f":{port}"))
    words = shlex.split(line.removeprefix("next:").replace("0.0.0.0:6650", f"0.0.0.0:{port}"))
    assert words[:2] == ["danube", "serve"]
    broker = danube(*words[1:], stdout=subprocess.PIPE, cwd=directory)
    try:
        assert b"ready" in broker.stdout.readline()
        yield
    finally:
        broker.terminate()
        code = broker.wait(20)
        broker.stdout.close()
    assert code == 0


def test_the_lines_that_init_prints_start_brokers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    place, port = Place(tmp_path), free_port()
    made = place.run("security", "init", "--host", "localhost").stdout
    with started(made.splitlines()[-1], tmp_path, port):
        stored = load_contexts()
        stored.contexts["admin"].url = url = f"danube+tls://localhost:{port}"
        save_contexts(stored)
        place.run("topics", "create", "/default/orders")
        place.run("grant", "producer", "to", "service:orders-api", "on", "/default/orders")
        token = place.run("tokens", "create", "service:orders-api").stdout.strip()
        client = {"DANUBE_URL": url, "DANUBE_CA": str(tmp_path / "danube-security" / "ca.pem"), "DANUBE_TOKEN": token}
        place.run("produce", "/default/orders", "-m", "hello", **client)
        made = place.run("security", "init", "--host", "localhost", "--broker", "b2").stdout
        line = made.splitlines()[-1].strip().replace("--join localhost:6650", f"--join localhost:{port}")
        with started(line, tmp_path / "danube-security" / "b2", free_port()):
            assert len(json.loads(place.run("cluster", "brokers", "-o", "json").stdout)) == 2


def test_the_lines_are_quoted_for_a_shell(place, tmp_path):
    other = tmp_path / "two words; $HOME"
    other.mkdir()
    config = other / "b1.toml"
    places = ("--directory", str(other / "s"), "--data-dir", str(other / "d"), "--config", str(config))
    made = place.run("security", "init", "--host", "::1", *places).stdout
    words = shlex.split(made.splitlines()[-1].removeprefix("next:"))
    assert words == ["danube", "serve", "--config", str(config), "--listen", "0.0.0.0:6650"]
    made = place.run("security", "init", "--host", "h2", "--broker", "b2", *places).stdout
    assert made.rstrip().endswith("--join '[::1]:6650'")  # brackets are a pattern


class TestCredentials:
    @pytest.fixture(autouse=True)
    def nothing_of_the_surroundings(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
        for name in ("DANUBE_URL", "DANUBE_TOKEN", "DANUBE_TOKEN_FILE", "DANUBE_CA"):
            monkeypatch.delenv(name, raising=False)

    def test_those_of_a_named_context_then_of_the_environment_then_of_the_current_context(self, tmp_path, monkeypatch):
        key = tmp_path / "key"
        key.write_text("dnb_x\n")
        own = Context("danube://h", ca="/own.pem", token_file="/t")
        by_key, by_certificate = (
            Context("danube://h", api_key_file=str(key)),
            Context("danube://h", cert="/c", key="/k"),
        )
        of_own = {"ca": "/own.pem", "token_file": "/t"}
        assert credentials_of(own) == of_own
        monkeypatch.setenv("DANUBE_TOKEN_FILE", "/file")
        assert credentials_of(Context("danube://h")) == {"token_file": "/file"}
        assert credentials_of(own) == {"ca": "/own.pem", "token_file": "/file"}
        monkeypatch.setenv("DANUBE_TOKEN", "of-the-environment")
        monkeypatch.setenv("DANUBE_CA", "/ca.pem")
        environment = {"ca": "/ca.pem", "token": "of-the-environment"}
        unusable = Context("danube://h", token_command="nothing-of-this-name")
        for context in (Context("danube://h"), own, by_key, unusable):
            assert credentials_of(context) == environment
        assert credentials_of(by_certificate) == {"cert": "/c", "key": "/k", **environment}
        assert credentials_of(Context("danube://h"), is_named=True) == environment
        assert credentials_of(own, is_named=True) == of_own
        assert credentials_of(by_key, is_named=True) == {"ca": "/ca.pem", "api_key": "dnb_x"}
        assert credentials_of(by_certificate, is_named=True) == {"ca": "/ca.pem", "cert": "/c", "key": "/k"}

    def test_what_a_command_names_decides(self, monkeypatch):
        save_contexts(Contexts("mine", {name: Context("danube://h", token_file=f"/{name}") for name in ("mine", "b")}))

        def options(url, context):
            return find_target(url, context)._options

        assert options(None, None) == {"token_file": "/mine"}
        assert options("danube://h", None) == {}
        monkeypatch.setenv("DANUBE_TOKEN", "t")
        assert options(None, None) == options("danube://h", None) == {"token": "t"}
        assert options(None, "b") == {"token_file": "/b"}

    def test_a_command_prints_a_token(self):
        command = f"{sys.executable} -c \"print('tok' + 'en')\""
        assert credentials_of(Context("danube://h", token_command=command)) == {"token": "token"}
        failing = f"{sys.executable} -c 'raise SystemExit(3)'"
        for wrong in ("nothing-of-this-name", f"{sys.executable} -c pass", failing, "'"):
            with pytest.raises(ConfigurationError, match="token_command"):
                credentials_of(Context("danube://h", token_command=wrong))

    def test_one_of_them_is_given(self):
        with pytest.raises(ConfigurationError, match="token_file and api_key_file"):
            credentials_of(Context("danube://h", token_file="/t", api_key_file="/k"))
        with pytest.raises(ConfigurationError, match="cannot be read"):
            credentials_of(Context("danube://h", api_key_file="/nowhere"))

    def test_contexts_are_stored_with_absolute_paths(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        place = Place(tmp_path)
        place.run("context", "add", "a", "danube+tls://h", "--ca", "ca.pem", "--token-file", "~/t")
        file = tmp_path / "home" / "danube" / "contexts.toml"
        stored = msgspec.toml.decode(file.read_bytes())["contexts"]["a"]
        assert stored == {
            "url": "danube+tls://h",
            "ca": str(tmp_path / "ca.pem"),
            "token_file": os.path.expanduser("~/t"),
        }
        place.run("context", "add", "b", "danube://h", "--token-file", "t", "--api-key-file", "k", code=65)
