"""``danube stages``: listing and aborting stages."""

from __future__ import annotations

import json

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli.app import app
from danube.client.sync import connect


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running


def run(broker, *arguments, code=0):
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def test_list_and_abort(broker):
    with connect(broker.url) as client:
        client.admin.create_topic("/default/a")
        staged = []
        for batch in (0, 1):
            with client.stages.open("/default/a", producer="job", batch_id=batch, attempt=f"{batch}.0") as stage:
                stage.add([b"x"] * 5)
                staged.append(stage.finish())
        found = json.loads(run(broker, "stages", "list", "-o", "json").stdout)
        assert [(one["batch"], one["attempt"], one["records"], one["state"]) for one in found["stages"]] == [
            (0, "0.0", 5, "staged"),
            (1, "1.0", 5, "staged"),
        ]
        assert found["total"] == 2
        assert 0 < found["size_bytes"] < found["limit_bytes"]
        table = run(broker, "stages", "list", "--producer", "job")
        assert f"{staged[0].stage_id:016x}" in table.stdout
        assert "of 8.0 GiB staged" in table.stderr
        assert client.stages.commit("job", 0, staged[:1]).committed
        assert "aborted batch 1 of job" in run(broker, "stages", "abort", "job", "1").stdout
        assert json.loads(run(broker, "stages", "list", "-o", "json").stdout)["stages"] == []
        refused = CliRunner().invoke(app, ["stages", "abort", "job", "0", "--url", broker.url])
        assert refused.exit_code
