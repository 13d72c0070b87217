"""Definitions over HTTP and by the command line, against a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brokers import BrokerProcess
from typer.testing import CliRunner
from web_harness import API, TOPIC, web_broker

from danube.cli.app import app

WANTED: dict[str, Any] = {
    "namespaces": {"shop": {"policies": {"max_producers": 10}}},
    "topics": {
        "/shop/orders": {
            "partitions": 2,
            "durability": "os",
            "policies": {"message_ttl_s": 60.0},
            "subscriptions": {
                "billing": {"type": "shared", "start": "earliest", "policy": {"ack_timeout_s": 7.0}},
                "audit": {"policy": {"poison": "dead-letter"}},
            },
        }
    },
}


async def test_definitions_are_planned_applied_and_exported(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        planned = await web.post(f"{API}/definitions:plan", {"definitions": WANTED})
        assert [step["action"] for step in planned["steps"]] == [
            "create",
            "change",
            "create",
            "change",
            "create",
            "create",
        ]
        assert planned["lines"][0] == "+ create namespace shop"
        assert (await web.get(f"{API}/namespaces?q=shop"))["items"] == [], "nothing has changed"
        body = {"definitions": WANTED, "fingerprint": planned["fingerprint"]}
        assert await web.post(f"{API}/definitions:apply", body) == planned
        late = await web.ask("POST", f"{API}/definitions:apply", body)
        assert (late.status, late.json["code"]) == (409, "failed-precondition"), "another plan now"
        assert (await web.post(f"{API}/definitions:apply", {"definitions": WANTED}))["lines"] == []

        found = await web.get(f"{API}/definitions")
        orders = found["topics"]["/shop/orders"]
        assert (orders["partitions"], orders["durability"], orders["policies"]) == (2, "os", {"message_ttl_s": 60.0})
        assert orders["subscriptions"]["billing"]["policy"]["ack_timeout_s"] == 7.0
        assert orders["subscriptions"]["billing"]["type"] == "shared"
        assert found["namespaces"]["shop"]["policies"] == {"max_producers": 10}
        assert (await web.post(f"{API}/definitions:plan", {"definitions": found, "prune": True}))["steps"] == []

        more = json.loads(json.dumps(WANTED))
        more["topics"]["/shop/orders"].update(partitions=3, policies={})
        del more["topics"]["/shop/orders"]["subscriptions"]["audit"]
        lines = (await web.post(f"{API}/definitions:apply", {"definitions": more, "prune": True}))["lines"]
        assert lines == [
            "~ expand topic /shop/orders: partitions = 3",
            "~ change topic /shop/orders: message_ttl_s = null",
            "- delete subscription audit of /shop/orders",
            f"- delete topic {TOPIC}",
        ]
        assert (await web.get(f"{API}/topics"))["total"] == 1
        less = {"topics": {"/shop/orders": {"partitions": 2}}}
        said = await web.ask("POST", f"{API}/definitions:apply", {"definitions": less})
        assert said.status == 409
        assert "cannot have 2" in said.json["detail"] + said.json["remedy"]
        wrong = await web.ask("POST", f"{API}/definitions:plan", {"definitions": {"topics": {"orders": {}}}})
        assert wrong.status == 400


def test_definitions_by_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "wanted.json"
    file.write_text(json.dumps(WANTED))
    with BrokerProcess(tmp_path / "data") as broker:

        def run(*arguments: str, code: int = 0) -> str:
            done = CliRunner().invoke(app, ["definitions", *arguments], env={"DANUBE_URL": broker.url})
            assert done.exit_code == code, (done.stdout, done.stderr)
            return done.stdout

        assert "+ create topic /shop/orders" in run("plan", str(file))
        assert run("apply", str(file)).splitlines()[-1] == "6 steps done"
        assert run("apply", str(file)) == "it is so already\n"
        exported = tmp_path / "exported.json"
        exported.write_text(run("export"))
        assert run("plan", str(exported), "--prune") == ""
        file.write_text(json.dumps({"topics": {"/shop/orders": {}}}))
        assert run("plan", str(file), code=1).startswith("! topic /shop/orders has 2 partitions")
        file.write_text('{"topics": {"orders": {}}}')
        run("apply", str(file), code=65)
        run("plan", str(tmp_path / "missing"), code=65)
        file.write_text(json.dumps({"namespaces": {}}))
        assert "- delete topic /shop/orders" in run("apply", str(file), "--prune", "--yes")
        assert run("plan", str(file), "--prune") == ""
