"""What commands say: once, in plain words; and they leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import trio
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.broker.runtime.config import make_config
from danube.cli.app import app
from danube.model.errors import ConfigurationError

PATIENCE_S = 60.0


def run(*arguments, code=0, **environment):
    env = {"XDG_CONFIG_HOME": "/nonexistent", "DANUBE_URL": "danube://127.0.0.1:1", **environment}
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topics", "create", "x", "--partitions", "-1"], "it must be at least 0"),
        (["topics", "create", "x", "--partitions", "a"], "it must be a whole number"),
        (["produce", "x", "--compression", "foo"], "'foo' is not one of 'none', 'lz4', 'zstd'."),
        (["subscriptions", "skip", "x", "s", "0"], "it must be at least 1"),
    ],
)
def test_wrong_values_are_told_in_plain_words(arguments, said):
    error = run(*arguments, code=2).stderr
    assert said in error
    assert "Value error" not in error
    assert "Input should" not in error


def test_a_failed_start_says_why_once(broker, tmp_path):
    listen = broker.url.removeprefix("danube://")
    command = [
        sys.executable,
        "-m",
        "danube",
        "serve",
        "--listen",
        listen,
        "--http-listen",
        "none",
        "--data-dir",
        str(tmp_path / "other"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 65
    assert done.stderr.count("cannot listen on") == 1
    assert done.stderr.startswith("error: cannot listen on")


def test_limits_take_sizes():
    config = make_config({"limits": {"journal_max_bytes": "5GiB", "cache_bytes": 2**26, "max_connections": 7}})
    assert config.limits.journal_max_bytes == 5 * 2**30
    assert (config.limits.cache_bytes, config.limits.max_connections) == (2**26, 7)
    for limits, said in (
        ({"journal_max_bytes": "lots"}, "c.toml: [limits] journal_max_bytes: 'lots' is not a size"),
        ({"max_connections": "many"}, "c.toml: limits.max_connections must be a whole number, not a text"),
        ({"max_connections": "7KiB"}, "c.toml: limits.max_connections must be a whole number, not a text"),
    ):
        with pytest.raises(ConfigurationError) as failed:
            make_config({"limits": limits}, where="c.toml")
        assert str(failed.value).startswith(said)


def test_doctor_makes_nothing(tmp_path):
    command = [sys.executable, "-m", "danube", "doctor", "--url", "danube://127.0.0.1:1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path)
    assert os.listdir(tmp_path) == []
    (directory,) = [each for each in json.loads(done.stdout) if each["check"] == "data directory"]
    assert directory["detail"] == f"./danube-data does not exist yet; {tmp_path} is writable"
    assert directory["ok"]


def test_doctor_looks_at_the_directory_of_the_broker(broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["doctor", "--url", broker.url, "-o", "json"])
    (directory,) = [each for each in json.loads(found.stdout) if each["check"] == "data directory"]
    info = json.loads(run("info", "-o", "json", DANUBE_URL=broker.url).stdout)
    assert directory["detail"] == f"{info['data_directory']} is writable"
    assert os.listdir(tmp_path) == []


def test_a_message_is_shown_by_its_place_and_size(broker):
    async def main():
        async with danube.connect(broker.url) as client:
            await client.admin.create_topic("/default/jobs", partitions=2)
            async with (
                client.producer("/default/jobs") as producer,
                client.consumer("/default/jobs", subscription="s", start="earliest") as consumer,
            ):
                await producer.send(b"hi", key="a")
                return await consumer.receive()

    message = trio.run(main)
    assert repr(message) == f"Message('/default/jobs' {message.partition}:0, 2 B)"
