"""The commands about sealed history, against a broker as a process."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner, Result

from danube.broker.doctor import check_broker
from danube.cli._durations import human_duration, parse_duration
from danube.cli._retention import describe_retention, read_retention
from danube.cli.app import app
from danube.model import Retention, history_api
from danube.model.errors import ConfigurationError, InvalidArgumentError


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, history: Path) -> Iterator[BrokerProcess]:
    options = ["--storage", f"disk://{history}", "--cluster", "blue", "--log-level", "warning"]
    with BrokerProcess(tmp_path_factory.mktemp("data"), *options) as running:
        yield running
        assert running.terminate() == 0


def quick(broker: BrokerProcess, *arguments: str, code: int = 0) -> Result:
    """Run a command in this process."""
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def read(broker: BrokerProcess, *arguments: str, code: int = 0) -> Any:
    return json.loads(quick(broker, *arguments, "-o", "json", code=code).stdout)


def test_lengths_of_time_and_rules() -> None:
    assert [parse_duration(text) for text in ("90s", "45s", "30m", "1.5h", "7d", "2W")] == [
        90,
        45,
        1800,
        5400,
        7 * 86400,
        14 * 86400,
    ]
    for text in ("", "d", "-1s", "7 days", "1e3", "٣d"):
        with pytest.raises(InvalidArgumentError, match="length of time"):
            parse_duration(text)
    assert [human_duration(seconds) for seconds in (0, 45, 90, 5400, 7 * 86400)] == ["0s", "45s", "1.5m", "1.5h", "7d"]
    assert read_retention(None, None, False) is None
    assert read_retention("7d", "10GiB", True) == Retention(7 * 86400.0, 10 * 2**30, True)
    with pytest.raises(InvalidArgumentError, match="keep nothing"):
        read_retention("0", None, False)
    with pytest.raises(ConfigurationError, match="not a size"):
        read_retention(None, "much", False)
    assert describe_retention(Retention()) == "everything is kept"
    assert describe_retention(Retention(86400, 2**30, True)) == (
        "deletes messages older than 1d, the oldest beyond 1.0 GiB, acknowledged messages"
    )


def test_create_seal_and_describe(broker: BrokerProcess, history: Path) -> None:
    made = quick(
        broker, *["topics", "create", "/default/t", "--storage", "default", "--max-age", "7d", "--max-bytes", "10GiB"]
    ).stdout
    assert "storage default, retention: deletes messages older than 7d, the oldest beyond 10.0 GiB" in made
    quick(broker, "topics", "create", "/default/x", "--storage", "cold", code=65)
    quick(broker, "produce", "/default/t", "-m", "one", "-m", "two")
    (row,) = read(broker, "topics", "seal", "/default/t")
    assert (row["sealed_offset"], row["end_offset"], row["objects"]) == (2, 2, 1)
    assert len(list(history.glob("segments/blue/*.seg"))) == 1
    described = read(broker, "topics", "describe", "/default/t")
    assert (described["storage"], described["sealed_offset"], described["journal_bytes"]) == ("default", 2, 0)
    assert described["sealed_bytes"] == described["stored_bytes"] > 0
    assert described["retention"] == {"max_age_s": 604800.0, "max_bytes": 10 * 2**30, "acknowledged": False}
    assert "deletes messages older than 7d" in quick(broker, "topics", "describe", "/default/t").stdout
    quick(broker, "produce", "/default/t", "-m", "three")
    assert "/default/t" in quick(broker, "topics", "unload", "/default/t").stdout
    assert quick(broker, "consume", "/default/t", "-s", "s", "--start", "earliest", "-e").stdout == "one\ntwo\nthree\n"
    assert read(broker, "info")["sealed_objects"] == 2


def test_retention(broker: BrokerProcess) -> None:
    quick(broker, "topics", "create", "/default/r")
    for text in ("one", "two"):
        quick(broker, "produce", "/default/r", "-m", text)
        quick(broker, "topics", "seal", "/default/r")
    asked = read(broker, "topics", "retention", "/default/r")
    assert not asked["changed"]
    assert asked["plans"][0]["new_start_offset"] == 0
    planned = read(broker, "topics", "retention", "/default/r", "--max-bytes", "1", "--dry-run")
    assert not planned["changed"]
    assert (planned["plans"][0]["new_start_offset"], planned["plans"][0]["freed_parts"]) == (1, 1)
    assert read(broker, "topics", "describe", "/default/r")["start_offset"] == 0
    shown = quick(broker, "topics", "retention", "/default/r", "--max-bytes", "1", "--now").stdout
    assert "deletes the oldest beyond 1 B; this was deleted:" in shown
    described = read(broker, "topics", "describe", "/default/r")
    assert (described["start_offset"], described["retention"]["max_bytes"]) == (1, 1)
    assert read(broker, "topics", "retention", "/default/r", "--clear")["changed"]
    assert read(broker, "topics", "describe", "/default/r")["retention"]["max_bytes"] == 0
    quick(broker, "topics", "retention", "/default/r", "--clear", "--max-age", "1d", code=2)
    quick(broker, "topics", "retention", "/default/r", "--now", "--dry-run", code=2)


def test_storages(broker: BrokerProcess, history: Path) -> None:
    quick(broker, "produce", "/default/s", "-m", "one")
    quick(broker, "topics", "seal", "/default/s")
    (row,) = read(broker, "storage", "list")
    assert (row["storage"], row["url"], row["durable"]) == ("default", f"disk://{history}", True)
    status = read(broker, "storage", "status")
    assert status["sealing"]["failing_for_s"] == 0
    assert status["storages"][0]["operations"]["put"]["calls"] > 0
    shown = quick(broker, "storage", "status").stdout
    for word in ("healthy", "mean ms", "sealed since start", "journal"):
        assert word in shown
    assert read(broker, "storage", "check", "--deep")[0]["ok"]
    assert read(broker, "storage", "repair", "default")[0]["deleted"] == 0
    quick(broker, "storage", "check", "cold", code=66)


def test_damage_is_an_exit_code(broker: BrokerProcess, history: Path, tmp_path: Path) -> None:
    quick(broker, "produce", "/default/d", "-m", "one")
    quick(broker, "topics", "seal", "/default/d")
    victim = max(history.glob("segments/blue/*.seg"))
    shutil.copy(victim, tmp_path / "copy")
    victim.unlink()
    done = quick(broker, "storage", "check", code=74)
    assert f"missing: default: segments/blue/{victim.name}: not there" in done.stderr
    assert "error: history is missing or damaged in storage default" in done.stderr
    assert read(broker, "storage", "check", code=74)[0]["missing"] == 1
    shutil.copy(tmp_path / "copy", victim)
    quick(broker, "storage", "check")


def test_restore(broker: BrokerProcess, history: Path, tmp_path: Path) -> None:
    quick(broker, "topics", "create", "/default/back", "--max-age", "7d")
    quick(broker, "produce", "/default/back", "-m", "one", "-m", "two")
    quick(broker, "topics", "seal", "/default/back")
    copy = tmp_path / "copy"
    shutil.copytree(history, copy)
    with BrokerProcess(tmp_path / "data", "--storage", f"disk://{copy}", "--log-level", "error") as other:
        quick(other, "topics", "restore", "--from", f"disk://{copy}", code=66)  # another cluster's history
    options = ["--storage", f"disk://{copy}", "--cluster", "blue", "--log-level", "error"]
    with BrokerProcess(tmp_path / "new", *options) as new:
        quick(new, "topics", "restore", "--from", "disk:///elsewhere", code=78)
        planned = read(new, "topics", "restore", "--from", f"disk://{copy}", "--dry-run", "--deep")
        assert {"/default/back", "/default/t"} <= {row["topic"] for row in planned["topics"]}
        quick(new, "topics", "describe", "/default/back", code=66)
        quick(new, "topics", "restore", "--from", f"disk://{copy}", "--topic", "/default/back", code=78)
        done = quick(new, "topics", "restore", "--from", f"disk://{copy}/")
        assert re.search(r"^/default/back +restored +disk +0 +2 ", done.stdout, re.MULTILINE)
        assert f"restored from disk://{copy} (cluster 'blue', epoch 1)" in done.stderr
        lines = quick(new, "consume", "/default/back", "-s", "s", "--start", "earliest", "-e").stdout
        assert lines == "one\ntwo\n"
        quick(new, "topics", "restore", "--from", f"disk://{copy}", code=78)


def test_the_doctor_asks_a_broker_if_there_is_one(broker: BrokerProcess, tmp_path: Path) -> None:
    def checks(url: str) -> dict[str, Any]:
        arguments = ["doctor", "--data-dir", str(tmp_path), "--url", url, "-o", "json"]
        done = CliRunner().invoke(app, arguments, env={"XDG_CONFIG_HOME": "/nonexistent"})
        return {row["check"]: row for row in json.loads(done.stdout)}

    found = checks(broker.url)
    assert found["sealing"]["ok"]
    assert found["storage default"]["ok"]
    assert {"sealing", "storage default"} == found.keys() - checks("danube://127.0.0.1:1").keys()


def sealing(**changes: Any) -> history_api.SealingFigures:
    well = history_api.SealingFigures(
        unsealed_bytes=0,
        unsealed_topics=0,
        oldest_age_s=0.0,
        max_age_s=600.0,
        sealed_objects=0,
        sealed_bytes=0,
        failing_for_s=0.0,
        last_error="",
        journal_used_bytes=0,
        journal_limit_bytes=100,
    )
    return msgspec.structs.replace(well, **changes)


def test_the_doctor_names_what_is_wrong() -> None:
    late = check_broker(history_api.StoragesStatus(sealing(oldest_age_s=1000.0), []))[0]
    assert not late.ok
    assert check_broker(history_api.StoragesStatus(sealing(oldest_age_s=700.0), []))[0].ok
    failing = check_broker(
        history_api.StoragesStatus(sealing(failing_for_s=3.0, last_error="denied", journal_used_bytes=80), [])
    )[0]
    assert not failing.ok
    assert "journal 80% full; failing for 3 s: denied" in failing.detail
    assert "journal_max_bytes" in failing.remedy
    storage = history_api.StorageStatus(
        storage="cold",
        url="s3://bucket",
        durable=True,
        conditional_put=True,
        shared=True,
        max_object_bytes=1,
        topics=0,
        parts=0,
        objects=0,
        object_bytes=0,
        garbage_objects=0,
        unsealed_bytes=0,
        oldest_unsealed_age_s=0.0,
        healthy=False,
        failing_for_s=5.0,
        last_error="no answer",
        last_error_age_s=1.0,
        max_concurrency=8,
        in_flight=0,
        waiting=0,
        operations={},
    )
    _, down = check_broker(history_api.StoragesStatus(sealing(), [storage]))
    assert (down.name, down.ok) == ("storage cold", False)
    assert "s3://bucket: failing for 5 s: no answer" in down.detail


def test_stranded_topics_are_listed_and_forgotten(broker: BrokerProcess) -> None:
    assert read(broker, "topics", "stranded") == []
    said = quick(broker, "topics", "forget-stranded", "00000000000000ff", "--accept-loss", code=66).output
    assert "topic 00000000000000ff is not stranded" in said
    quick(broker, "topics", "forget-stranded", "orders", code=2)
