"""Metrics, boards and alerts before the real Prometheus: promtool, and a server that scrapes a broker under load."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker
from ports import free_port

import danube
import danube.web
from danube.metrics.alerts import ALERTS, rules_file
from danube.metrics.boards import BOARDS
from danube.metrics.scrape_config import scrape_config

pytestmark = pytest.mark.extended

DEBIAN = "tests/extended/install-debian-packages installs it"
TOPIC, SUBSCRIPTION = "/default/orders", "billing"
BROKER = {"job": "danube", "instance": "a:8650"}
OF_SUBSCRIPTION = {**BROKER, "topic": TOPIC, "subscription": SUBSCRIPTION}
WHOLE = f"subscription {SUBSCRIPTION} of {TOPIC}"


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip(f"promtool is missing ({DEBIAN})")
    return found


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def histogram(name: str, *, slow: bool) -> list[dict[str, str]]:
    """Buckets in which every observation takes 0.5 to 1 s, or at most 0.1 ms."""
    bounds = [("0.0001", not slow), ("0.5", not slow), ("1", True), ("+Inf", True)]
    return [series(f"{name}_bucket", "0+10x60" if grows else "0x60", **BROKER, le=bound) for bound, grows in bounds]


def subscription(name: str, values: str, **more: str) -> list[dict[str, str]]:
    return [series(f"danube_subscription_{name}", values, **OF_SUBSCRIPTION, **more)]


CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, str]], dict[str, str], str]] = {
    "BrokerDown": (
        [series("up", "0x60", **BROKER)],
        [series("up", "1x60", **BROKER)],
        BROKER,
        "the broker at a:8650 does not answer",
    ),
    "JournalFenced": (
        [series("danube_journal_fenced", "1x60", **BROKER)],
        [series("danube_journal_fenced", "0x60", **BROKER)],
        BROKER,
        "the journal of a:8650 has failed: look at its disk, and start the broker again",
    ),
    "JournalNearlyFull": (
        [
            series("danube_journal_used_bytes", "90x60", **BROKER),
            series("danube_journal_limit_bytes", "100x60", **BROKER),
        ],
        [
            series("danube_journal_used_bytes", "80x60", **BROKER),
            series("danube_journal_limit_bytes", "100x60", **BROKER),
        ],
        BROKER,
        "the journal of a:8650 is 90% full; full, it takes no messages",
    ),
    "PublishPaused": (
        [series("danube_publish_paused_seconds_total", "0+60x60", **BROKER, by="journal")],
        [series("danube_publish_paused_seconds_total", "0+60x60", **BROKER, by="publish_rate")],
        {**BROKER, "by": "journal"},
        "publishers of a:8650 wait for room in the journal",
    ),
    "SyncSlow": (
        histogram("danube_journal_sync_duration_seconds", slow=True),
        histogram("danube_journal_sync_duration_seconds", slow=False),
        BROKER,
        "one of 100 syncs of a:8650 takes more than 995ms",
    ),
    "LoopLag": (
        histogram("danube_loop_lag_seconds", slow=True),
        histogram("danube_loop_lag_seconds", slow=False),
        BROKER,
        "the event loop of a:8650 is late by 995ms",
    ),
    "SubscriptionStuck": (
        subscription("stuck_seconds", "601x60"),
        subscription("stuck_seconds", "599x60"),
        OF_SUBSCRIPTION,
        f"{WHOLE} has not moved for 10m 1s",
    ),
    "SubscriptionBehind": (
        subscription("oldest_unacked_age_seconds", "3660x60"),
        subscription("oldest_unacked_age_seconds", "3600x60"),
        OF_SUBSCRIPTION,
        f"the oldest message that {WHOLE} has not acknowledged is 1h 1m 0s old",
    ),
    "DeadLetters": (
        subscription("dlq_total", "0+1x60"),
        subscription("dlq_total", "7x60"),
        OF_SUBSCRIPTION,
        f"{WHOLE} has dead letters: its consumers cannot process 15 messages",
    ),
    "PoisonBlocked": (
        subscription("state", "1x60", state="blocked"),
        subscription("state", "1x60", state="moving"),
        {**OF_SUBSCRIPTION, "state": "blocked"},
        f"a message that has failed too often blocks {WHOLE}",
    ),
    "StorageFailing": (
        [series("danube_storage_failing_seconds", "90x60", **BROKER, storage="default")],
        [series("danube_storage_failing_seconds", "30x60", **BROKER, storage="default")],
        {**BROKER, "storage": "default"},
        "storage default has not answered a:8650 for 1m 30s",
    ),
    "SealingBehind": (
        [
            series("danube_sealing_oldest_age_seconds", "1900x60", **BROKER, storage="default"),
            series("danube_sealing_max_age_seconds", "600x60", **BROKER),
        ],
        [
            series("danube_sealing_oldest_age_seconds", "1700x60", **BROKER, storage="default"),
            series("danube_sealing_max_age_seconds", "600x60", **BROKER),
        ],
        {**BROKER, "storage": "default"},
        "messages have waited for 31m 40s to be sealed into storage default",
    ),
    "TopicStopped": (
        [series("danube_topic_stopped", "1x60", **BROKER, topic=TOPIC)],
        [series("danube_topic_stopped", "0x60", **BROKER, topic=TOPIC)],
        {**BROKER, "topic": TOPIC},
        f"{TOPIC} has stopped, because stored data is damaged",
    ),
    "FdsNearlyUsed": (
        [series("process_open_fds", "900x60", **BROKER), series("process_max_fds", "1000x60", **BROKER)],
        [series("process_open_fds", "900x60", job="other"), series("process_max_fds", "1000x60", job="other")],
        BROKER,
        "the broker at a:8650 has opened 90% of its file descriptors",
    ),
    "CertificateExpires": (
        # At 30 minutes (1,800 s) of the test's own time, which begins at 0.
        [series("danube_certificate_expiry_timestamp_seconds", "88200x60", **BROKER)],
        [series("danube_certificate_expiry_timestamp_seconds", "1300000x60", **BROKER)],
        BROKER,
        "the certificate of a:8650 expires in 1d 0h 0m 0s",
    ),
}


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == [alert.name for alert in ALERTS]


def test_rules_are_valid(promtool: str, tmp_path: Path) -> None:
    rules = tmp_path / "danube-alerts.yml"
    rules.write_text(rules_file())
    subprocess.run([promtool, "check", "rules", "--lint-fatal", rules], check=True)
    config = tmp_path / "prometheus.yml"
    config.write_text(scrape_config(["127.0.0.1:8650"], rules=rules.name))
    subprocess.run([promtool, "check", "config", config], check=True)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_fires_when_it_should_and_only_then(promtool: str, tmp_path: Path, alert: Any) -> None:
    (tmp_path / "rules.yml").write_text(rules_file())
    firing, quiet, labels, summary = CASES[alert.name]
    names = {"topic": TOPIC, "subscription": SUBSCRIPTION}
    runbook = alert.runbook
    for name, value in names.items():
        runbook = runbook.replace(f"{{{{ $labels.{name} }}}}", value)
    expected = {
        "exp_labels": {**labels, "severity": alert.severity.value},
        "exp_annotations": {"summary": summary, "runbook": runbook},
    }
    case = {"eval_time": "30m", "alertname": alert.name}
    tests = [
        {"interval": "1m", "input_series": firing, "alert_rule_test": [{**case, "exp_alerts": [expected]}]},
        {"interval": "1m", "input_series": quiet, "alert_rule_test": [{**case, "exp_alerts": []}]},
    ]
    file = tmp_path / "test.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
    ran = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


async def load(client: danube.Client, number: int) -> None:
    """Publish and consume in all ways that show on a board."""
    shared = {"redelivery_delay_s": 0.0, "max_redelivery_count": 0, "poison": "dead_letter"}
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, subscription=SUBSCRIPTION, type="shared", start="earliest", policy=shared) as consumer,
    ):
        await producer.send_many([b"x" * 100 for _ in range(100)])
        for index in range(100):
            message = await consumer.receive()
            if index == number:
                await message.nack(reason="odd")
            else:
                await message.ack()
        await consumer.flush_acks()
        await producer.send(b"left over")
    await client.admin.seal_topic(TOPIC)


def ask(url: str, expression: str) -> list[dict[str, Any]]:
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    result: list[dict[str, Any]] = found["data"]["result"]
    return result


async def test_no_panel_is_empty(promtool: str, tmp_path: Path) -> None:
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip(f"prometheus is missing ({DEBIAN})")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    faces = (danube.web.face,)
    async with (
        running_broker(tmp_path / "broker", patience_s=90, faces=faces, http_listen=["127.0.0.1:0"]) as running,
        running.client() as client,
    ):
        await client.admin.create_topic(TOPIC)
        config = tmp_path / "prometheus.yml"
        (tmp_path / "rules.yml").write_text(rules_file())
        config.write_text(scrape_config(running.broker.http_addresses, rules="rules.yml").replace("15s", "1s"))
        command = [prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, command)
            for number in range(8):
                await load(client, number)
                await trio.sleep(1)
            with trio.fail_after(60):
                while not any(  # noqa: ASYNC110 - another process
                    each["metric"]["topic"] == TOPIC and float(each["value"][1]) == 808
                    for each in await trio.to_thread.run_sync(ask, url, "danube_topic_messages_in_total")
                ):
                    await trio.sleep(0.2)
            text = await client.admin.metrics()
            empty = await _empty_panels(url)
            (up,) = await trio.to_thread.run_sync(ask, url, "up")
            same = await trio.to_thread.run_sync(ask, url, "danube_topic_messages_in_total")
            nursery.cancel_scope.cancel()
    assert empty == []
    assert up["value"][1] == "1"
    assert {each["metric"]["topic"]: float(each["value"][1]) for each in same}[TOPIC] == 808
    check = [promtool, "check", "metrics"]
    ran = await trio.run_process(check, stdin=text.encode(), capture_stdout=True, capture_stderr=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


async def _serve(command: list[str]) -> None:
    await trio.run_process(command, check=False)


async def _empty_panels(url: str) -> list[str]:
    """Return the panels without a number."""
    found = []
    for board in BOARDS:
        for panel in (panel for row in board.rows for panel in row.panels):
            values = []
            for query in panel.queries:
                expression = query.expression.replace("$__rate_interval", "20s")
                for name in ("instance", "topic", "subscription"):
                    expression = expression.replace(f"${name}", ".+")
                values += await trio.to_thread.run_sync(ask, url, expression)
            if not any(math.isfinite(float(each["value"][1])) for each in values):
                found.append(f"{board.title} / {panel.title}")
    return found
