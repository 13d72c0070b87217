"""``danube trace``: the way of one message, from its producer to each subscription."""

from __future__ import annotations

import json
import threading

import pytest
import trio
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli import _trail
from danube.cli.app import app
from danube.model.errors import InvalidArgumentError
from danube.model.overview_api import MessageDelivery


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(broker, *arguments, code=0):
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize(("text", "place"), [("", (0, None)), ("7", (0, 7)), ("2:17", (2, 17))])
def test_a_message_is_named_by_its_place(text, place):
    assert _trail.parse_message(text) == place


@pytest.mark.parametrize("text", ["x", ":", "1:", ":1", "-1", "1:2:3", "1.5", "9" * 30])
def test_a_wrong_place_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="neither OFFSET nor PARTITION:OFFSET"):
        _trail.parse_message(text)


def test_only_what_has_changed_is_told():
    def at(subscription, state, **more):
        return MessageDelivery(topic="/a/b", subscription=subscription, state=state, sentence=f"{state}!", **more)

    before = [at("x", "undelivered"), at("y", "in-flight", attempt=1)]
    after = [at("x", "undelivered"), at("y", "in-flight", attempt=2), at("z", "waiting")]
    assert _trail.changes(before, after) == ["  y: in-flight!", "  z: waiting!"]
    assert _trail.changes(after, after) == []


def test_the_way_of_a_message(broker):
    topic = "/default/traced"
    run(broker, "topics", "create", topic, "--partitions", "2")
    assert "has no messages; publish one first: danube produce" in run(broker, "trace", "traced", code=66).stderr
    for name in ("audit", "billing"):
        run(broker, "consume", topic, "-s", name, "--start", "earliest", "--until-caught-up")
    for number in range(4):
        run(broker, "produce", topic, "-m", f"order {number}", "-k", f"k{number}")
    run(broker, "consume", topic, "-s", "audit", "--until-caught-up")
    head, published, stored, *places = run(broker, "trace", topic, code=1).stdout.splitlines()
    assert head.startswith(f"{topic}-part-")
    assert head.endswith(": 7 B, key k3")
    assert published.split()[0] == "published"
    assert "later" in stored
    assert [place.split(":")[0].strip() for place in places] == ["audit", "billing"]
    rows = [line.split("\t") for line in run(broker, "trace", topic, "0:0", "-o", "raw", code=1).stdout.splitlines()]
    assert [row[:2] for row in rows] == [["audit", "acknowledged"], ["billing", "undelivered"]]
    run(broker, "consume", topic, "-s", "billing", "--until-caught-up")
    found = json.loads(run(broker, "trace", topic, "0:0", "-o", "json").stdout)
    assert (found["topic"], found["offset"]) == (f"{topic}-part-0", 0)
    assert [each["state"] for each in found["deliveries"]] == ["acknowledged"] * 2
    assert "there are 2, from 0 on" in run(broker, "trace", topic, "7:0", code=66).stderr
    run(broker, "trace", topic, "0:999", code=66)
    run(broker, "trace", "nothing", code=66)
    run(broker, "topics", "create", "fleeting", "--durability", "none")
    assert run(broker, "trace", "fleeting", "0", code=78).stderr


def test_waiting_shows_what_happens_and_ends_with_the_last_acknowledgement(broker):
    topic = "/default/followed"
    run(broker, "topics", "create", topic)
    run(broker, "consume", topic, "-s", "billing", "--start", "earliest", "--until-caught-up")
    run(broker, "produce", topic, "-m", "order")

    async def consume():
        async with (
            danube.connect(broker.url) as client,
            client.consumer(topic, subscription="billing") as consumer,
        ):
            message = await consumer.receive()
            await trio.sleep(1.2)
            await message.ack()

    consumer = threading.Thread(target=trio.run, args=(consume,))
    consumer.start()
    shown = run(broker, "trace", topic, "--wait", "60s").stdout
    consumer.join()
    assert "billing: " in shown
    assert "acknowledged" in shown.splitlines()[-1]
