"""``danube log-level`` against a broker as a process that logs in JSON."""

from __future__ import annotations

import json
from pathlib import Path

from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli.app import app


def test_a_level_is_changed_and_the_log_has_objects(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ("--log-format", "json", "--log-level", "warning")
    with BrokerProcess(tmp_path / "data", *options, stderr=log) as broker:
        environment = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"}

        def run(*words: str) -> str:
            done = CliRunner().invoke(app, ["log-level", *words], env=environment)
            return f"{done.exit_code} {done.output}"

        assert run("debug", "--for", "2h") == "0 danube: debug for 2h, then warning again\n"
        assert json.loads(run("info", "--logger", "danube.wire", "-o", "json")[2:]) == {
            "logger": "danube.wire",
            "level": "info",
            "former": "debug",
            "for_s": 600.0,
            "broker": "",
        }
        assert run("default") == "0 danube: warning\n"
        assert run("loud").startswith("65 error: level 'loud' is not debug, info")
        assert broker.terminate() == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    named = [line for line in lines if line["event"] == "log.level_changed"]
    assert [(line["changed"], line["to"], line["level"]) for line in named] == [
        ("danube", "debug", "warning"),
        ("danube.wire", "info", "warning"),
    ]
    assert all({"time", "level", "logger", "event", "message"} <= line.keys() for line in lines)
