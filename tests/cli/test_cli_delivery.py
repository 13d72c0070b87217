"""Reading without a subscription, delayed messages, key filters and requests, through the commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
import trio
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli.app import app

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(broker, *arguments, code=0):
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def start(broker, *arguments):
    command = [sys.executable, "-m", "danube", *arguments, "--url", broker.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_read_leaves_no_trace(broker):
    run(broker, "produce", "/default/read", "-m", "a", "-m", "b", "-m", "c", "-k", "k")
    assert run(broker, "read", "/default/read").stdout == "a\nb\nc\n"
    assert run(broker, "read", "/default/read", "--start", "1", "-n", "1").stdout == "b\n"
    assert run(broker, "read", "/default/read", "--start", "latest").stdout == ""
    assert run(broker, "read", "/default/read", "--start", "2000-01-01", "-f", "%o %k").stdout == "0 k\n1 k\n2 k\n"
    rows = [json.loads(line) for line in run(broker, "read", "/default/read", "-o", "json").stdout.splitlines()]
    assert [(row["offset"], row["payload"]) for row in rows] == [(0, "a"), (1, "b"), (2, "c")]
    described = json.loads(run(broker, "topics", "describe", "/default/read", "-o", "json").stdout)
    assert described["subscriptions"] == []
    run(broker, "read", "/default/nothing", code=66)
    run(broker, "read", "/default/read", "--start", "soon", code=65)


def test_read_follows_until_ctrl_c(broker):
    run(broker, "produce", "/default/follow", "-m", "before")
    reader = start(broker, "read", "/default/follow", "--follow")
    assert reader.stdout.readline() == b"before\n"
    run(broker, "produce", "/default/follow", "-m", "after")
    assert reader.stdout.readline() == b"after\n"
    reader.send_signal(signal.SIGINT)
    assert reader.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert reader.returncode == 0


def test_delayed_messages_come_when_they_are_due(broker):
    run(broker, "produce", "/default/later", "-m", "later", "--deliver-after", "1.5s")
    run(broker, "produce", "/default/later", "-m", "much later", "--deliver-after", "1d")
    run(broker, "produce", "/default/later", "-m", "now")
    done = run(broker, "consume", "/default/later", "-s", "s", "--start", "earliest", "-n", "2", "-f", "%o %v")
    assert sorted(done.stdout.splitlines()) == ["0 later", "2 now"]
    (row,) = json.loads(run(broker, "subscriptions", "describe", "/default/later", "s", "-o", "json").stdout)
    assert (row["delayed_messages"], row["backlog_messages"]) == (1, 1)
    run(broker, "produce", "/default/later", "-m", "x", "--deliver-at", "noon", code=65)
    run(broker, "produce", "/default/later", "-m", "x", "--deliver-after", "1s", "--deliver-at", "2030-01-01", code=2)


def test_key_filters(broker):
    run(broker, "consume", "/default/filters", "-s", "s", "--key-filter", "a*", code=65)  # exclusive
    run(broker, "consume", "/default/filters", "-s", "s", "-t", "key_shared", "-e", code=66)
    for key in ("eu-1", "us-22", "eu-2", "us-3"):
        run(broker, "produce", "/default/filters", "-m", f"for {key}", "-k", key)
    options = ["-s", "s", "-t", "key_shared", "--start", "earliest", "--key-filter", "eu-*", "--key-filter", "us-?"]
    done = run(broker, "consume", "/default/filters", *options, "-n", "3", "--renew-leases")
    assert sorted(done.stdout.splitlines()) == ["for eu-1", "for eu-2", "for us-3"]
    (row,) = json.loads(run(broker, "subscriptions", "list", "/default/filters", "-o", "json").stdout)
    assert row["backlog_messages"] == 1
    assert run(broker, "consume", "/default/filters", "-s", "s", "-t", "key_shared", "-e").stdout == "for us-22\n"


@contextmanager
def answering(url, topic, handler):
    """Answer the requests of a topic, in a thread with an event loop of its own."""
    ready, over = threading.Event(), trio.Event()
    token = []

    async def main():
        token.append(trio.lowlevel.current_trio_token())
        async with danube.connect(url) as client, client.responder(topic, handler):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    try:
        yield
    finally:
        token[0].run_sync_soon(over.set)
        thread.join(PATIENCE_S)


def test_requests(broker):
    async def handle(message):
        if message.payload == b"boom":
            raise ValueError("no such price")
        return b"12.50 " + message.payload + b" " + (message.key or "-").encode()

    with answering(broker.url, "/default/prices", handle):
        assert run(broker, "request", "/default/prices", "tea").stdout == "12.50 tea -\n"
        assert run(broker, "request", "/default/prices", "tea", "-k", "ada").stdout == "12.50 tea ada\n"
        shown = json.loads(run(broker, "request", "/default/prices", "tea", "-o", "json").stdout)
        assert shown["payload"] == "12.50 tea -"
        assert "12.50 tea -" in run(broker, "request", "/default/prices", "tea", "-o", "table").stdout
        failed = CliRunner().invoke(app, ["request", "/default/prices", "boom", "--url", broker.url])
        assert failed.exit_code != 0
        assert "the handler failed: ValueError: no such price" in failed.stderr
    done = run(broker, "request", "/default/prices", "tea", "--timeout", "0.2s", code=75)
    assert "no reply within 0.2 s" in done.stderr
    run(broker, "request", "/default/nothing", "tea", code=66)
    run(broker, "topics", "describe", "/default/nothing", code=66)  # asking did not create it
