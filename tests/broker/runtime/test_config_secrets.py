"""Secrets in the configuration: where they are read from, and that nothing shows them."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from danube.broker.runtime.config_file import load_config
from danube.model.errors import ConfigurationError
from danube.model.secret import Secret, revealed

MARKER = "marker-d41d8cd98f00b204e9800998ecf8427e"
CONFIG = """
[metadata]
url = "etcd://10.0.0.1:2379"
options = {{ username = "danube", password = "{0}" }}
[storage]
url = "s3://bucket/prefix"
options = {{ region = "eu", secret_access_key = "{0}", key_file = "/etc/key" }}
[storages.cold]
url = "s3://other"
options = {{ token = "{0}" }}
[security.upstream]
secret = "{0}"
"""


def written(directory: Path, value: str, mode: int = 0o600) -> str:
    path = directory / "danube.toml"
    path.write_text(CONFIG.format(value))
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("source", ["env", "file", "plain"])
def test_secrets_are_found_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    monkeypatch.setenv("DANUBE_TEST_SECRET", MARKER)
    (tmp_path / "secret").write_text(f"{MARKER}\n")
    value = {"env": "env:DANUBE_TEST_SECRET", "file": f"file:{tmp_path}/secret", "plain": MARKER}[source]
    config = load_config(written(tmp_path, value, 0o600 if source == "plain" else 0o644))
    assert revealed(config.metadata_engine.options) == {"username": "danube", "password": MARKER}
    assert not isinstance(config.storage, str)
    assert revealed(config.storage.options)["secret_access_key"] == MARKER
    assert config.storage.options["key_file"] == "/etc/key"
    assert revealed(config.storages["cold"].options) == {"token": MARKER}
    assert config.security.upstream is not None
    caplog.set_level(logging.DEBUG)
    logging.getLogger("x").warning("%s %r %s", config, config, config.storages["cold"].options["token"])
    shown = f"{config} {config!r} {config.security.upstream.secret} {config.security.upstream.secret:>5} {caplog.text}"
    assert MARKER not in shown
    assert "***" in shown


def test_a_plain_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="others can read the file: write 'env:NAME'") as caught:
        load_config(written(tmp_path, MARKER, 0o644))
    assert MARKER not in str(caught.value)


def test_a_secret_that_is_not_there_is_an_error_that_names_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DANUBE_TEST_SECRET", raising=False)
    (tmp_path / "empty").write_text("\n")
    for value, words in (
        ("env:DANUBE_TEST_SECRET", r"\[metadata\] option password is in the environment variable DANUBE_TEST_SECRET"),
        (f"file:{tmp_path}/none", "which cannot be read: No such file"),
        (f"file:{tmp_path}/empty", "which is empty"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            load_config(written(tmp_path, value))


def test_other_options_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "danube.toml"
    path.write_text('[storage]\nurl = "s3://b"\noptions = { endpoint = "env:x", retries = 3 }\n')
    config = load_config(str(path))
    assert not isinstance(config.storage, str)
    assert config.storage.options == {"endpoint": "env:x", "retries": 3}


def test_a_secret_is_shown_by_nothing_but_reveal() -> None:
    secret = Secret(MARKER)
    assert (repr(secret), str(secret), f"{secret}", "%s" % secret) == ("'***'", "***", "***", "***")  # noqa: UP031
    assert repr({"a": [secret]}) == "{'a': ['***']}"
    assert type(secret.reveal()) is str
    assert secret.reveal() == MARKER
    with pytest.raises(TypeError):
        pickle.dumps(secret)
