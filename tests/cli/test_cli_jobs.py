"""``danube jobs list`` against a broker as a process."""

from __future__ import annotations

import json
from pathlib import Path

from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli.app import app
from danube.client.sync import connect


def test_jobs_are_listed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--log-level", "warning") as broker:
        environment = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent", "COLUMNS": "200"}
        with connect(broker.url) as client:
            client.jobs.report("etl", "/default/t", kind="spark-read", rows=3, lag=7, error="no such table")
        done = CliRunner().invoke(app, ["jobs", "list", "-o", "json"], env=environment)
        (job,) = json.loads(done.output)
        assert (job["name"], job["rows"], job["lag"], job["error"]) == ("etl", 3, 7, "no such table")
        done = CliRunner().invoke(app, ["jobs", "list"], env=environment)
        assert done.exit_code == 0
        header, row = done.output.splitlines()[:2]
        assert "last error" in header
        assert row.startswith("etl")
        assert "reports" in row
        assert row.rstrip().endswith("ago: no such table")
