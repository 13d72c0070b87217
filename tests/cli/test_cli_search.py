"""``danube search``: what matches is printed as ``danube read`` prints it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner, Result

from danube.cli.app import app

TOPIC = "/default/found"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        lines = [f'{{"user": "user-{number % 5}", "total": {number}}}' for number in range(100)]
        words = [word for line in lines for word in ("-m", line)]
        done = CliRunner().invoke(app, ["produce", TOPIC, *words], env={"DANUBE_URL": running.url})
        assert done.exit_code == 0, done.output
        yield running


def run(broker: BrokerProcess, *arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def test_what_matches_is_printed(broker: BrokerProcess) -> None:
    done = run(broker, "search", TOPIC, 'value.user == "user-3" and value.total >= 90')
    assert done.stdout == '{"user": "user-3", "total": 93}\n{"user": "user-3", "total": 98}\n'
    assert done.stderr.startswith("2 matches in 100 messages, ")
    assert run(broker, "search", TOPIC, "user-4", "-n", "2", "-f", "%o").stdout == "4\n9\n"
    assert run(broker, "search", TOPIC, "user-4", "--start", "95", "-f", "%o").stdout == "99\n"
    (row,) = map(json.loads, run(broker, "search", TOPIC, "offset == 7", "-o", "json").stdout.splitlines())
    assert (row["offset"], row["partition"], json.loads(row["payload"])["total"]) == (7, 0, 7)
    assert "user-2" in run(broker, "search", TOPIC, "offset == 7", "-o", "table").stdout
    assert run(broker, "search", TOPIC, "nowhere").stdout == ""


def test_wrong_filters_and_topics(broker: BrokerProcess) -> None:
    wrong = run(broker, "search", TOPIC, "value.user ==", code=65)
    assert wrong.stderr.count("\n") == 1
    assert "character 14: a value is missing after ==" in wrong.stderr
    run(broker, "search", "/default/nothing", "x", code=66)


def test_a_closed_output_ends_it(broker: BrokerProcess, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "danube", "search", TOPIC, "user", "--url", broker.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as searching:
        assert searching.stdout is not None
        assert searching.stderr is not None
        searching.stdout.close()
        errors = searching.stderr.read()
    assert searching.returncode == 0, errors
