"""``danube metrics`` and ``danube generate``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import BrokerProcess
from metrics_text import parse
from typer.testing import CliRunner, Result

from danube.cli.app import app


def invoke(*arguments: str, url: str = "", code: int = 0) -> Result:
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running


def test_metrics_are_printed(broker: BrokerProcess) -> None:
    invoke("produce", "/default/a", "-m", "one", url=broker.url)
    series = parse(invoke("metrics", url=broker.url).stdout)
    assert series.one("danube_topic_messages_in_total", topic="/default/a") == 1
    # Of the process of the broker, and not of this one.
    assert series.one("process_resident_memory_bytes") > 1e6
    assert series.one("process_open_fds") >= 5
    details = parse(invoke("metrics", "--detailed", "--topic", "*/a", url=broker.url).stdout)
    assert details.one("danube_topic_end_offset") == 1
    assert details.all("danube_journal_used_bytes") == {}
    nothing = parse(invoke("metrics", "--detailed", "--topic", "*/b", url=broker.url).stdout)
    assert nothing.labels("danube_topic_end_offset", "topic") == set()
    assert invoke("metrics", "--openmetrics", url=broker.url).stdout.endswith("# EOF\n")


def test_a_pattern_needs_detailed() -> None:
    assert "--detailed" in invoke("metrics", "--topic", "*", code=2).output


def test_boards_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "boards"
    printed = invoke("generate", "dashboards", "-d", str(folder)).stdout.split()
    assert [Path(path).name for path in printed] == [
        "overview.json", "topics.json", "subscriptions.json", "journal.json", "history.json"
    ]  # fmt: skip
    assert all(json.loads(Path(path).read_text())["panels"] for path in printed)


def test_rules_and_configuration_are_printed() -> None:
    assert invoke("generate", "alerts").stdout.startswith("groups:\n")
    text = invoke("generate", "prometheus-config", "--target", "a:1", "--target", "b:2", "--token-file", "t").stdout
    assert '["a:1", "b:2"]' in text
    assert 'credentials_file: "t"' in text
    assert "127.0.0.1:8650" in invoke("generate", "prometheus-config").stdout
