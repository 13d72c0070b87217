"""Dead letters on the command line: listing them, and sending them back without losing one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import trio
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli import _replay
from danube.cli.app import app
from danube.client import Producer, replaying
from danube.model import PoisonPolicy, SubscriptionPolicy

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


def as_json(broker, *arguments, code=0):
    return json.loads(run(broker, *arguments, "-o", "json", code=code).stdout)


def payloads(broker, topic):
    return run(broker, "read", topic).stdout.splitlines()


def let_fail(broker, topic, records, partitions=0):
    """Publish ``(key, payload)`` records and refuse them until all of them are dead letters; return their topic."""

    async def main():
        async with danube.connect(broker.url) as client:
            if partitions:
                await client.admin.create_topic(topic, partitions=partitions)
            async with client.producer(topic, name=f"till{topic.replace('/', '-')}") as producer:
                await producer.send_many(
                    [payload for _, payload in records], keys=[key for key, _ in records], attributes={"color": "red"}
                )
            policy = SubscriptionPolicy(max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER)
            async with client.consumer(topic, subscription="billing", start="earliest", policy=policy) as consumer:
                async for batch in consumer.batches(until_caught_up=True):
                    await batch.nack(reason="no such user")
                with trio.fail_after(PATIENCE_S):
                    while sum(  # noqa: ASYNC110 - another process
                        row.dead_lettered_messages for row in await client.admin.describe_subscription(topic, "billing")
                    ) < len(records):
                        await trio.sleep(0.05)

    trio.run(main)
    return f"{topic}-billing-dlq"


def test_listing_a_dead_letter_topic(broker):
    letters = let_fail(broker, "/default/seen", [("ada", b"one"), (None, b"\xff"), ("bob\n", b"x" * 100)])
    rows = as_json(broker, "dlq", "list", letters)
    assert [row["payload"] for row in rows] == ["one", "/w==", "x" * 100]
    assert rows[0] | {"publish_time": ""} == {
        "topic": letters,
        "partition": 0,
        "offset": 0,
        "original_topic": "/default/seen",
        "original_offset": 0,
        "original_producer": "till-default-seen",
        "subscription": "billing",
        "attempts": 1,
        "reason": "no such user",
        "key": "ada",
        "payload": "one",
        "publish_time": "",
        "attributes": {"color": "red"},
    }
    shown = run(broker, "dlq", "list", letters).stdout.splitlines()
    assert len(shown) == 4
    assert "bob\\n" in shown[3]
    assert shown[3].endswith("x" * 59 + "…")
    done = run(broker, "dlq", "list", letters, "-n", "2", "-o", "raw")
    assert [line.split("\t")[1] for line in done.stdout.splitlines()] == ["0", "1"]
    assert "there are more than 2" in done.stderr
    assert run(broker, "dlq", "list", letters, "--start", "1", "-n", "2").stderr == ""
    run(broker, "dlq", "list", "/default/nothing", code=66)


def test_replay_goes_on_where_it_stopped(broker):
    letters = let_fail(broker, "/default/again", [("k", b"a"), ("k", b"b"), ("k", b"c")])
    expected = {"topic": letters, "left": 0, "interrupted": False}
    topics = [{"topic": "/default/again", "messages": 3}]
    dry = as_json(broker, "dlq", "replay", letters, "--dry-run")
    assert dry == expected | {"replayed": 3, "dry_run": True, "topics": topics}
    assert as_json(broker, "subscriptions", "list", letters) == []
    assert as_json(broker, "dlq", "replay", letters, "--limit", "1")["replayed"] == 1
    assert as_json(broker, "dlq", "replay", letters, "--dry-run")["replayed"] == 2
    assert run(broker, "dlq", "replay", letters).stdout == "2 messages replayed\n  /default/again: 2 messages\n"
    assert as_json(broker, "dlq", "replay", letters)["replayed"] == 0
    done = run(broker, "read", "/default/again", "--start", "3", "-f", "%k %v %a")
    assert done.stdout.splitlines() == [f'k {letter} {{"color":"red"}}' for letter in "abc"]


def test_partitions_go_back_to_their_topic_by_key(broker):
    records = [(f"key-{number}", b"%d" % number) for number in range(20)]
    letters = let_fail(broker, "/default/wide", records, partitions=3)
    before = run(broker, "read", "/default/wide", "-f", "%t %k").stdout.splitlines()
    assert len({line.split()[0] for line in before}) > 1
    found = as_json(broker, "dlq", "replay", letters)
    assert found["topics"] == [{"topic": "/default/wide", "messages": 20}]
    after = run(broker, "read", "/default/wide", "-f", "%t %k").stdout.splitlines()
    assert sorted(after) == sorted(before * 2)


def test_dead_letters_that_cannot_be_replayed_stay(broker):
    letters = let_fail(broker, "/default/gone", [("k", b"a")])
    run(broker, "produce", letters, "-m", "foreign")
    run(broker, "topics", "delete", "/default/gone")
    done = run(broker, "dlq", "replay", letters, code=1)
    assert done.stdout == "0 messages replayed, 2 left\n"
    assert f"left: {letters}, offset 0: topic '/default/gone' does not exist" in done.stderr
    assert f"left: {letters}, offset 1: it has no attribute x-original-topic" in done.stderr
    run(broker, "topics", "describe", "/default/gone", code=66)  # replaying did not create it again
    run(broker, "dlq", "replay", letters, "--to", letters, code=65)
    run(broker, "dlq", "replay", letters, "--to", "/default/nowhere", code=66)
    run(broker, "dlq", "replay", "/default/nothing", code=66)
    run(broker, "topics", "create", "/default/home")
    assert as_json(broker, "dlq", "replay", letters, "--to", "/default/home")["replayed"] == 2
    assert payloads(broker, "/default/home") == ["a", "foreign"]


def test_a_killed_replay_loses_nothing(broker):
    records = [("k", b"%05d" % number) for number in range(3_000)]
    letters = let_fail(broker, "/default/kill", records)
    environment = {**os.environ, "DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"}
    replay = subprocess.Popen([sys.executable, "-m", "danube", "dlq", "replay", letters], env=environment)
    deadline = time.monotonic() + PATIENCE_S
    while as_json(broker, "topics", "describe", "/default/kill")["end_offset"] == 3_000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    replay.kill()
    replay.wait()
    run(broker, "dlq", "replay", letters)
    assert set(payloads(broker, "/default/kill")[3_000:]) == {payload.decode() for _, payload in records}


def test_only_durable_replays_are_acknowledged(broker, monkeypatch):
    letters = let_fail(broker, "/default/durable", [("k", b"%d" % number) for number in range(10)])
    send = Producer.send_nowait
    sent = []

    def send_some(self, payload, **options):
        if len(sent) == 4:
            raise OSError("the cable was pulled")
        sent.append(payload)
        return send(self, payload, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send_nowait", send_some)
        run(broker, "dlq", "replay", letters, code=1)
    rows = as_json(broker, "subscriptions", "list", letters)
    assert rows[0]["backlog_messages"] == 10  # the batch was not finished, so nothing of it counts as replayed
    assert as_json(broker, "dlq", "replay", letters)["replayed"] == 10


def test_a_signal_ends_it_with_its_sums(broker, monkeypatch, capfd):
    letters = let_fail(broker, "/default/stop", [("k", b"a")])
    replay = replaying.Replay.handle

    async def interrupt(self, *arguments):
        await replay(self, *arguments)
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep(0.2)

    monkeypatch.setattr(replaying.Replay, "handle", interrupt)
    assert _replay.run(replaying.ReplayOptions(topic=letters), broker.url, None, _replay.Output.JSON) == 130
    found = json.loads(capfd.readouterr().out)
    assert (found["replayed"], found["interrupted"]) == (1, True)


def test_some_letters_are_replayed_and_others_dropped(broker):
    letters = let_fail(broker, "/default/some", [("k", b"a"), ("k", b"b"), ("k", b"c"), ("k", b"d")])
    assert as_json(broker, "dlq", "replay", letters, "--offset", "2", "--dry-run")["replayed"] == 1
    assert as_json(broker, "dlq", "replay", letters, "--offset", "0:2")["replayed"] == 1
    assert payloads(broker, "/default/some")[4:] == ["c"]
    assert as_json(broker, "dlq", "replay", letters, "--reason", "another")["replayed"] == 0
    run(broker, "dlq", "drop", letters, code=65)
    run(broker, "dlq", "drop", letters, "--offset", "x", code=65)
    would = run(broker, "dlq", "drop", letters, "--reason", "such user", "--dry-run").stdout
    assert would == "3 messages would be dropped\n  /default/some: 3 messages\n"
    assert as_json(broker, "dlq", "drop", letters, "--offset", "0")["dropped"] == 1
    row = as_json(broker, "subscriptions", "list", letters)[0]
    assert (row["backlog_messages"], row["floor"]) == (2, 1)
    assert run(broker, "dlq", "drop", letters, "--all").stdout == "2 messages dropped\n  /default/some: 2 messages\n"
    assert as_json(broker, "dlq", "replay", letters)["replayed"] == 0
    assert payloads(broker, "/default/some")[4:] == ["c"]
