"""The commands as processes against a broker as a process: pipes, signals, kills, exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

from danube.cli.app import app

DANUBE = [sys.executable, "-m", "danube"]
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def environment(url):
    return {**os.environ, "DANUBE_URL": url, "XDG_CONFIG_HOME": "/nonexistent", "COLUMNS": "200"}


def danube(broker, *arguments, stdin=b"", code=0):
    """Run a command as a process: for pipes and exit codes."""
    done = subprocess.run(
        [*DANUBE, *arguments], input=stdin, capture_output=True, env=environment(broker.url), timeout=PATIENCE_S
    )
    assert done.returncode == code, done.stderr.decode()
    return done


def quick(broker, *arguments, code=0):
    """Run a command in this process: the same command without the second that a process takes to start."""
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def start(broker, *arguments, **options):
    return subprocess.Popen([*DANUBE, *arguments], env=environment(broker.url), stderr=subprocess.PIPE, **options)


def without_waits(stderr):
    """Return what a command has said, without what it waited for: on a busy machine anything may take a second."""
    return b"".join(line for line in stderr.splitlines(keepends=True) if not line.startswith(b"waiting: "))


def read_all(broker, topic, subscription="check"):
    done = quick(broker, "consume", topic, "-s", subscription, "--start", "earliest", "-e", "--no-ack")
    return done.stdout_bytes.splitlines()


def test_lines_from_standard_input_come_out_again(broker):
    lines = [b"line %d" % number for number in range(5_000)]
    done = danube(broker, "produce", "/default/pipe", "-o", "json", stdin=b"\n".join(lines))
    summary = json.loads(done.stdout)
    assert summary["messages"] == 5_000
    assert summary["topics"] == [{"topic": "/default/pipe", "messages": 5_000, "first_offset": 0, "last_offset": 4_999}]
    done = danube(broker, "consume", "/default/pipe", "-s", "one", "--start", "earliest", "-n", "1234")
    assert done.stdout.splitlines() == lines[:1234]
    # What was printed was acknowledged, and nothing else: the next run goes on where this one stopped.
    done = danube(broker, "consume", "/default/pipe", "-s", "one", "-e")
    assert done.stdout.splitlines() == lines[1234:]
    assert danube(broker, "consume", "/default/pipe", "-s", "one", "-e").stdout == b""


def test_json_out_has_the_key_and_the_bytes(broker):
    danube(broker, "produce", "/default/keys", "--key-field", "id", stdin=b'{"id": 7}\n{"id": "x"}\n{}\n')
    danube(broker, "produce", "/default/keys", "-k", "bin", stdin=b"\xff\xfe\n")
    done = danube(broker, "consume", "/default/keys", "-s", "s", "--start", "earliest", "-e", "-o", "json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["offset"], row["key"]) for row in rows] == [(0, "7"), (1, "x"), (2, None), (3, "bin")]
    assert [row.get("encoding") for row in rows] == [None, None, None, "base64"]
    done = danube(
        broker, "consume", "/default/keys", "-s", "s2", "--start", "1", "-n", "2", "--format", r"%t %p %o %k %v\n"
    )
    assert done.stdout == b'/default/keys 0 1 x {"id": "x"}\n/default/keys 0 2  {}\n'


def test_topics_namespaces_and_subscriptions(broker):
    quick(broker, "namespaces", "create", "shop")
    assert {"namespace": "shop"} in json.loads(quick(broker, "namespaces", "list", "-o", "json").stdout)
    made = json.loads(quick(broker, "topics", "create", "/shop/orders", "--partitions", "3", "-o", "json").stdout)
    assert (made["topic"], made["partitions"]) == ("/shop/orders", 3)
    assert "error: " in quick(broker, "topics", "create", "/shop/orders", code=73).stderr
    quick(broker, "topics", "create", "/shop/log", "--durability", "os")
    listed = json.loads(quick(broker, "topics", "list", "shop", "-o", "json").stdout)
    assert {"/shop/log"} <= {row["topic"] for row in listed}
    quick(broker, "produce", "/shop/log", "-m", "one", "-m", "two")
    described = json.loads(quick(broker, "topics", "describe", "/shop/log", "-o", "json").stdout)
    assert (described["durability"], described["end_offset"]) == ("os", 2)
    quick(broker, "consume", "/shop/log", "-s", "audit", "--start", "earliest", "-e")
    rows = json.loads(quick(broker, "subscriptions", "list", "/shop/log", "-o", "json").stdout)
    assert [(row["subscription"], row["floor"], row["backlog_messages"]) for row in rows] == [("audit", 2, 0)]
    quick(broker, "subscriptions", "seek", "/shop/log", "audit", "1")
    rows = json.loads(quick(broker, "subscriptions", "describe", "/shop/log", "audit", "-o", "json").stdout)
    assert rows[0]["backlog_messages"] == 1
    explained = json.loads(quick(broker, "subscriptions", "explain", "/shop/log", "audit", "-o", "json").stdout)
    assert explained["sentence"]
    shown = quick(broker, "subscriptions", "explain", "/shop/log", "audit").stdout
    assert shown.count("\n") == 1
    assert quick(broker, "consume", "/shop/log", "-s", "audit", "-e").stdout == "two\n"
    quick(broker, "subscriptions", "delete", "/shop/log", "audit")
    assert json.loads(quick(broker, "subscriptions", "list", "/shop/log", "-o", "json").stdout) == []
    quick(broker, "topics", "delete", "/shop/log")
    quick(broker, "topics", "describe", "/shop/log", code=66)
    quick(broker, "topics", "delete", "/shop/orders")
    quick(broker, "namespaces", "delete", "shop")


def test_info(broker):
    shown = json.loads(quick(broker, "info", "-o", "json").stdout)
    assert shown["pid"] == broker.pid
    assert f"broker              b1 {shown['version']}, pid {shown['pid']}" in quick(broker, "info").stdout


def test_errors_are_one_line(broker):
    for arguments, code in (
        (["topics", "describe", "/default/nothing"], 66),
        (["produce", "no slash", "-m", "x"], 65),
        (["produce", "/nowhere/t", "-m", "x"], 66),
        (["produce", "/default/e", "--file", "/nonexistent"], 1),
        (["consume", "/default/pipe", "-s", "s", "--format", "%y"], 65),
        (["consume", "/default/pipe", "-s", "s", "--start", "soon"], 65),
    ):
        done = quick(broker, *arguments, code=code)
        assert done.stdout == ""
        assert re.fullmatch(rb"error: [^\n]+\n", without_waits(done.stderr_bytes)), done.stderr


def test_a_closed_pipe_ends_it_quietly(broker):
    quick(broker, "produce", "/default/head", "-m", "x" * 1000, "-n", "20000")
    consumer = start(broker, "consume", "/default/head", "-s", "s", "--start", "earliest", stdout=subprocess.PIPE)
    assert consumer.stdout.readline() == b"x" * 1000 + b"\n"
    consumer.stdout.close()
    assert consumer.wait(PATIENCE_S) == 0
    assert without_waits(consumer.stderr.read()) == b""
    consumer.stderr.close()


def test_ctrl_c_ends_a_consumer_cleanly(broker):
    quick(broker, "produce", "/default/ctrl-c", "-m", "only")
    consumer = start(broker, "consume", "/default/ctrl-c", "-s", "s", "--start", "earliest", stdout=subprocess.PIPE)
    assert consumer.stdout.readline() == b"only\n"
    consumer.send_signal(signal.SIGINT)
    assert consumer.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert consumer.returncode == 0
    assert danube(broker, "consume", "/default/ctrl-c", "-s", "s", "-e").stdout == b""


def test_ctrl_c_ends_a_producer_with_its_summary(broker):
    producer = start(broker, "produce", "/default/stopped", "-o", "json", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    producer.stdin.write(b"a\nb\n")
    producer.stdin.flush()
    wait_for_messages(broker, "/default/stopped", 2)
    producer.send_signal(signal.SIGINT)
    summary = json.loads(producer.communicate(timeout=PATIENCE_S)[0])
    assert (summary["messages"], summary["interrupted"]) == (2, True)
    assert producer.returncode == 130


def wait_for_messages(broker, topic, count):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        done = CliRunner().invoke(app, ["topics", "describe", topic, "-o", "json", "--url", broker.url])
        if done.exit_code == 0 and json.loads(done.stdout)["end_offset"] >= count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{topic} did not reach {count} messages")


def wait_for_backlog(broker, topic, subscription, count):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        (row,) = json.loads(quick(broker, "subscriptions", "describe", topic, subscription, "-o", "json").stdout)
        if row["backlog_messages"] == count:
            return
        time.sleep(0.02)
    raise AssertionError(f"{topic} {subscription} did not come to a backlog of {count} messages")


def test_bench(broker):
    shown = json.loads(quick(broker, "bench", "publish", "-n", "5000", "-o", "json").stdout)
    assert shown["messages"] == 5_000
    assert shown["durability"] == "disk"
    assert shown["call_p50_ms"] <= shown["call_p99_ms"] <= shown["call_max_ms"]
    shown = json.loads(quick(broker, "bench", "consume", "-n", "5000", "--durability", "os", "-o", "json").stdout)
    assert (shown["messages"], shown["durability"]) == (5_000, "os")
    shown = json.loads(quick(broker, "bench", "latency", "--rate", "200", "--duration", "0.5", "-o", "json").stdout)
    assert (shown["messages"], shown["not_arrived"]) == (100, 0)
    assert 0 < shown["receipt_p50_ms"] <= shown["receipt_max_ms"]
    names = [row["topic"] for row in json.loads(quick(broker, "topics", "list", "-o", "json").stdout)]
    assert not [name for name in names if "bench-" in name]


# --- The broker dies -------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal_broker(tmp_path):
    with BrokerProcess(tmp_path / "data", "--log-level", "warning") as running:
        yield running


def test_produce_goes_on_after_the_broker_was_killed(mortal_broker, tmp_path):
    lines = [b"%06d" % number for number in range(20_000)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    producer = start(
        mortal_broker, "produce", "/default/kill", "-f", str(file), "--rate", "20000", "-o", "json",
        stdout=subprocess.PIPE,
    )  # fmt: skip
    wait_for_messages(mortal_broker, "/default/kill", 2_000)
    mortal_broker.kill()
    mortal_broker.start()
    output, errors = producer.communicate(timeout=PATIENCE_S)
    assert producer.returncode == 0, errors
    assert json.loads(output)["messages"] == 20_000
    assert read_all(mortal_broker, "/default/kill") == lines


@pytest.mark.parametrize("partitions", [0, 3])
def test_a_killed_produce_resumes_without_loss_or_repetition(mortal_broker, tmp_path, partitions):
    lines = [b"%06d" % number for number in range(20_000)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines) + b"\n")
    command = ["produce", "/default/resume", "-f", str(file), "--producer-name", "till", "--resume", "-o", "json"]
    command += ["--partitions", str(partitions)]
    first = start(mortal_broker, *command, "--rate", "20000", stdout=subprocess.DEVNULL)
    wait_for_messages(mortal_broker, "/default/resume", 2_000)
    first.kill()
    first.communicate()
    mortal_broker.kill()
    mortal_broker.start()
    summary = json.loads(quick(mortal_broker, *command).stdout)
    assert summary["skipped"] >= 2_000
    assert summary["skipped"] + summary["messages"] == 20_000
    stored = read_all(mortal_broker, "/default/resume")
    assert sorted(stored) == lines
    if not partitions:
        assert stored == lines
    again = json.loads(quick(mortal_broker, *command).stdout)
    assert (again["skipped"], again["messages"]) == (20_000, 0)


def test_consume_goes_on_after_the_broker_was_killed(mortal_broker):
    quick(mortal_broker, "produce", "/default/both", "-m", "before")
    consumer = start(
        mortal_broker, "consume", "/default/both", "-s", "s", "--start", "earliest", "-n", "2", stdout=subprocess.PIPE
    )
    assert consumer.stdout.readline() == b"before\n"
    wait_for_backlog(mortal_broker, "/default/both", "s", 0)  # the acknowledgement is on its way when the line is there
    mortal_broker.kill()
    mortal_broker.start()
    quick(mortal_broker, "produce", "/default/both", "-m", "after")
    stdout, stderr = consumer.communicate(timeout=PATIENCE_S)
    assert (stdout, without_waits(stderr)) == (b"after\n", b"")
    assert consumer.returncode == 0


def test_a_second_broker_on_the_same_data_is_refused(broker):
    done = subprocess.run(
        [
            *DANUBE,
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "none",
            "--http-listen",
            "none",
            "--data-dir",
            str(broker.data_directory),
        ],
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 78
    assert b"error: " in done.stderr
