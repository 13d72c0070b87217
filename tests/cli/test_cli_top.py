"""``danube top``, ``check`` and ``info``: rates, a screen of 80x24, and one line for monitoring."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import msgspec
import pytest
import trio
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli._overview import wholes
from danube.cli._rates import make_sample, top_of
from danube.cli._top_screen import screen
from danube.cli._verdict import Level, Status, line_of, parse_level, verdict_of
from danube.cli.app import app
from danube.model import Durability, SubscriptionType, api
from danube.model.errors import InvalidArgumentError
from danube.model.overview_api import Finding, SubscriptionRow

PATIENCE_S = 60.0
INFO = api.BrokerInfo(
    version="1",
    pid=1,
    data_directory="/d",
    uptime_s=90.0,
    default_durability=Durability.DISK,
    connections=3,
    topics=1,
    journal_used_bytes=50,
    journal_limit_bytes=100,
    journal_files=1,
    commits=1,
    syncs=1,
    max_message_bytes=1,
    max_batch_bytes=1,
    broker="b1",
    received_bytes=1_000,
    sent_bytes=2_000,
    cpu_s=1.0,
    max_connections=100,
)


def topic(name, end, subscriptions=("s",)):
    return api.TopicInfo(
        topic=name,
        topic_id=1,
        partitions=0,
        durability=Durability.DISK,
        start_offset=0,
        end_offset=end,
        stored_bytes=end,
        producers=[],
        subscriptions=list(subscriptions),
        created_us=0,
    )


def row(name, position, end, **changed):
    fields = {"state": "moving", "sentence": "", "well": True, "backlog_messages": end - position, **changed}
    kind = SubscriptionType.SHARED
    return SubscriptionRow(topic=name, subscription="s", type=kind, position=position, end_offset=end, **fields)


def sample(time_s, topics, rows, **info):
    return make_sample(time_s, msgspec.structs.replace(INFO, **info), topics, wholes(rows), ["b2"])


def test_rates_are_differences():
    before = sample(
        10.0, [topic("/a/b", 100), topic("/a/gone", 5)], [row("/a/b-part-0", 10, 50), row("/a/b-part-1", 0, 50)]
    )
    after = sample(
        12.0,
        [topic("/a/b", 300), topic("/a/new", 7)],
        [row("/a/b-part-0", 30, 150, redelivered_messages=4), row("/a/b-part-1", 10, 150), row("/a/new", 7, 7)],
        received_bytes=5_000,
        cpu_s=1.5,
    )
    found = top_of(before, after)
    assert (found.in_per_s, found.out_per_s, found.in_bytes_per_s, found.cpu) == (100, 17, 2_000, 0.25)
    assert [(each.topic, each.in_per_s, each.out_per_s) for each in found.topics] == [
        ("/a/b", 100, 17),
        ("/a/new", 0, 0),
    ]
    assert found.subscriptions[0].acked_per_s == 15
    assert found.silent == ["b2"]


def test_what_goes_back_has_no_rate():
    before = sample(0.0, [topic("/a/b", 100)], [row("/a/b", 90, 100)], received_bytes=9_000, pid=1)
    after = sample(1.0, [topic("/a/b", 1)], [row("/a/b", 0, 1)], received_bytes=10, pid=2)
    found = top_of(before, after)
    assert (found.in_per_s, found.out_per_s, found.in_bytes_per_s) == (0, 0, 0)


def test_orders_of_the_rows():
    names = ["/a/busy", "/a/bad", "/a/z"]
    before = sample(0.0, [topic(name, 0) for name in names], [row(name, 0, 100) for name in names])
    after = sample(
        1.0,
        [topic(name, 9 if name == "/a/busy" else 1) for name in names],
        [row("/a/busy", 50, 100), row("/a/bad", 0, 100, well=False, oldest_age_s=9.0), row("/a/z", 1, 100)],
    )
    orders = {
        sort: [each.topic for each in top_of(before, after, sort).subscriptions] for sort in ("rate", "worst", "name")
    }
    assert orders == {
        "rate": ["/a/busy", "/a/z", "/a/bad"],
        "worst": ["/a/bad", "/a/z", "/a/busy"],
        "name": ["/a/bad", "/a/busy", "/a/z"],
    }


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12), (200, 60)])
def test_the_screen_fits_and_counts_what_it_leaves_out(width, height):
    names = [f"/default/a-rather-long-name-of-a-topic-{number}" for number in range(40)]
    rows = [row(name, 0, 10**9) for name in names]
    found = top_of(
        sample(0.0, [topic(each, 0) for each in names], rows), sample(1.0, [topic(each, 10**9) for each in names], rows)
    )
    lines = screen(found, "danube://127.0.0.1:6650", "rate", width, height).plain.split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    shown = sum("name-of-a-topic" in line for line in lines)
    left = sum(int(count) for count in re.findall(r"(\d+) more", lines[-1]))
    if width >= 80:
        assert shown + left == 80
    assert lines[-1].startswith("q quit \N{MIDDLE DOT} s sort: rate")


def test_levels_and_the_line_for_monitoring():
    assert parse_level("--lag", [5]) == Level(None, 5)
    assert Level(3, 5).judge(5) is Status.WARNING
    assert Level(3, 5).judge(6) is Status.CRITICAL
    assert Level().judge(10**9) is Status.OK
    for wrong in ([5, 3], [1, 2, 3]):
        with pytest.raises(InvalidArgumentError, match="WARNING,CRITICAL"):
            parse_level("--lag", wrong)
    found = wholes([row("/a/b", 0, 7, oldest_age_s=100.0)])
    status, line = verdict_of(INFO, found, [], Level(5, 10), Level(None, 60))
    assert status is Status.CRITICAL
    assert line == (
        "DANUBE CRITICAL - /a/b s is behind by 7 messages; the oldest message of /a/b s is 1.67m old"
        " | lag=7;5;10;0 age=100s;;60;0 connections=3;;;0;100 journal=50.0%;80;;0;100 memory=0B;;;0"
    )
    assert verdict_of(INFO, [], [], Level(), Level())[1].startswith("DANUBE OK - 0 subscriptions of 0 topics, 3 conn")
    finding = Finding(broker="b1", kind="loop-lag", subject="b1", sentence="slow | very")
    assert verdict_of(INFO, [], [finding], Level(), Level())[1].startswith("DANUBE WARNING - slow / very | lag=0")
    stopped = Finding(broker="b1", kind="topic-stopped", subject="/a/b", sentence="stopped")
    assert verdict_of(INFO, [], [finding, stopped], Level(), Level())[0] is Status.CRITICAL
    assert line_of(Status.UNKNOWN, "a\nb") == "DANUBE UNKNOWN - a b"


# --- With a broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        trio.run(fill, running.url)
        yield running
        assert running.terminate() == 0


async def fill(url):
    async with danube.connect(url) as client:
        await client.admin.create_topic("/default/many", partitions=3)
        async with (
            client.producer("/default/orders") as producer,
            client.consumer("/default/orders", subscription="billing", start="earliest"),
        ):
            await producer.send_many([b"x"] * 10)


def run(broker, *arguments, code=0, **environment):
    env = {"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent", **environment}
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exit_code == code, done.output
    return done


def test_one_table_and_json_lines(broker):
    shown = run(broker, "top", "--once", "--interval", "0.2s").stdout
    assert "/default/orders billing" in shown
    assert shown.startswith(f"danube top \N{MIDDLE DOT} {broker.url}")
    found = json.loads(run(broker, "top", "--once", "--interval", "0.2s", "-o", "json").stdout)
    assert [each["topic"] for each in found["topics"]] == ["/default/many", "/default/orders"]
    assert found["subscriptions"][0]["backlog_messages"] == 10
    assert "is too short" in run(broker, "top", "--interval", "0.1s", code=65).stderr
    assert "none of rate, worst, name" in run(broker, "top", "--sort", "x", code=65).stderr


def test_live_with_keys(broker):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**os.environ, "DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent", "TERM": "xterm"}
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "danube", "top", "--interval", "0.2s"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        wait_for(ours, "sort: rate")
        os.write(ours, b"s")
        wait_for(ours, "sort: worst")
        os.write(ours, b"q")
        wait_for(ours, "\x1b[?1049l")  # the screen is as it was
        assert process.wait(PATIENCE_S) == 0
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def wait_for(descriptor, text):
    shown, deadline = "", time.monotonic() + PATIENCE_S
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([descriptor], [], [], 1.0)[0]:
            shown += os.read(descriptor, 65536).decode(errors="replace")


def test_checks_end_with_the_codes_of_monitoring(broker):
    assert run(broker, "check").stdout.startswith("DANUBE OK - 1 subscription of 1 topic, ")
    shown = run(broker, "check", "--lag", "9", code=2).stdout
    assert shown.startswith("DANUBE CRITICAL - /default/orders billing is behind by 10 messages | lag=10;;9;0")
    assert shown.count("\n") == 1
    run(broker, "check", "--lag", "9,100", "--age", "1h", code=1)
    run(broker, "check", "--lag", "9", "-s", "other")
    run(broker, "check", "--topic", "orders", "--lag", "10")
    assert run(broker, "check", "--lag", "x", code=3).stdout.startswith("DANUBE UNKNOWN - --lag 'x'")
    run(broker, "check", "--topic", "none", code=3)
    away = run(broker, "check", code=2, DANUBE_URL="danube://127.0.0.1:1").stdout
    assert away.startswith("DANUBE CRITICAL - no connection to a broker")


def test_the_status_counts_topics_and_partitions(broker):
    shown = json.loads(run(broker, "info", "-o", "json").stdout)
    assert (shown["topics"], shown["named_topics"], shown["partitions"]) == (4, 2, 3)
    assert shown["memory_bytes"] > 10_000_000
    assert shown["cpu_s"] > 0
    assert shown["addresses"] == [broker.url.removeprefix("danube://")]
    table = run(broker, "info").stdout
    assert "2 in the cluster; served here: 1 plain topic, 3 partitions" in table
    assert f"addresses           {shown['addresses'][0]}" in table
