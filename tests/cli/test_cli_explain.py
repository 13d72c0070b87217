"""``danube explain``, ``subscriptions list`` over all topics, ``connections``: what is behind, and what is not well."""

from __future__ import annotations

import json

import pytest
from brokers import BrokerProcess
from typer.testing import CliRunner

import danube
from danube.cli._overview import problems, wholes, worst_first
from danube.cli.app import app
from danube.model import SubscriptionType
from danube.model.overview_api import Finding, SubscriptionRow


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--log-level", "warning") as running:
        yield running
        assert running.terminate() == 0


def run(broker, *arguments, code=0):
    done = CliRunner().invoke(app, arguments, env={"DANUBE_URL": broker.url, "XDG_CONFIG_HOME": "/nonexistent"})
    assert done.exit_code == code, done.output
    return done


def row(topic, subscription="s", **changed):
    fields = {
        "type": SubscriptionType.SHARED,
        "state": "caught-up",
        "sentence": "caught up",
        "well": True,
        "backlog_messages": 0,
        "oldest_age_s": 0.0,
    }
    return SubscriptionRow(topic=topic, subscription=subscription, **{**fields, **changed})


def idle(topic, backlog, age_s, **changed):
    sentence = f"no consumer is connected; {backlog} messages in the backlog"
    state = {"state": "no-consumer", "sentence": sentence, "well": False}
    return row(topic, backlog_messages=backlog, oldest_age_s=age_s, **state, **changed)


def test_partitions_are_one_subscription_with_the_state_of_the_worst():
    found = wholes([idle("/a/b-part-0", 5, 9.0), row("/a/b-part-1"), idle("/a/b-part-2", 2, 50.0), row("/a/c")])
    assert [(each.topic, each.partitions, each.well, each.backlog_messages) for each in found] == [
        ("/a/b", 3, False, 7),
        ("/a/c", 0, True, 0),
    ]
    assert found[0].oldest_age_s == 50
    assert found[0].sentence == "no consumer is connected; 7 messages in the backlog"
    stuck = {"state": "blocked", "well": False, "sentence": "message 4 blocks"}
    (whole,) = wholes([row("/a/b-part-0"), row("/a/b-part-1", **stuck), row("/a/b-part-2", **stuck)])
    assert whole.sentence == "partition 1: message 4 blocks (and 1 more of 3 partitions)"


def test_the_worst_is_first():
    rows = [
        row("/a/fine", backlog_messages=10**6, oldest_age_s=5.0),
        idle("/a/young", 10, 1.0),
        idle("/a/old", 1, 99.0),
    ]
    assert [each.topic for each in worst_first(wholes(rows))] == ["/a/old", "/a/young", "/a/fine"]
    finding = Finding(broker="b1", kind="loop-lag", subject="b1", sentence="slow", remedy="buy")
    found = problems(wholes(rows), [finding], ["b2 is away"])
    assert [each.subject for each in found] == ["cluster", "b1", "/a/old s", "/a/young s"]
    assert found[2].sentence.endswith("the oldest is 1.65m old")
    assert found[2].remedy.endswith("danube subscriptions seek /a/old s latest")


def test_from_nothing_to_something_not_well_and_back(broker):
    now = ("--absent", "0.001s")
    assert run(broker, "explain").stdout == (
        "All is well, and nothing is here yet: no topic.\n  To begin one: danube produce /default/orders -m hello\n"
    )
    run(broker, "topics", "create", "silent")
    assert run(broker, "explain").stdout == (
        "All is well, and nothing is consumed: the only topic has no subscription.\n"
        "  To begin one: danube consume TOPIC -s NAME\n"
    )
    assert run(broker, "explain", "silent").stdout == (
        "/default/silent has no subscription, so nothing consumes it.\n"
        "  To begin one: danube consume /default/silent -s NAME\n"
    )
    run(broker, "topics", "create", "still")
    assert "none of the 2 topics has a subscription" in run(broker, "explain").stdout
    assert json.loads(run(broker, "explain", "-o", "json").stdout) == []

    async def fill():
        async with danube.connect(broker.url) as client:
            await client.admin.create_topic("/default/jobs", partitions=3)
            for topic in ("/default/jobs", "/default/orders"):
                async with client.producer(topic) as producer:
                    async with client.consumer(topic, subscription="billing", start="earliest"):
                        pass
                    await producer.send_many([b"x"] * 30, keys=[str(number) for number in range(30)])

    import trio

    trio.run(fill)
    away = run(broker, "explain").stdout.splitlines()
    assert away[:2] == [
        "All is well: 2 subscriptions of 2 topics, nothing needs attention.",
        "No consumer now, which is well until a message is 1h old (--absent):",
    ]
    assert sorted(line.split(":")[0] for line in away[2:]) == ["  /default/jobs billing", "  /default/orders billing"]
    assert json.loads(run(broker, "explain", "-o", "json").stdout) == []
    one = run(broker, "explain", "orders", "billing", "--absent", "2d").stdout.splitlines()
    assert one[1:] == ["  that is well until a message is 2d old (--absent)"]
    run(broker, "explain", "orders", "billing", "--absent", "0.001s", code=1)

    shown = run(broker, "explain", *now, code=1)
    assert "/default/orders billing: no consumer is connected; 30 messages in the backlog" in shown.stdout
    assert "2 things are not well." in shown.stderr
    raw = run(broker, "explain", "-o", "raw", *now, code=1).stdout.splitlines()
    assert sorted(line.split("\t")[:2] for line in raw) == [
        ["no-consumer", "/default/jobs billing"],
        ["no-consumer", "/default/orders billing"],
    ]
    assert run(broker, "explain", "orders", *now, code=1).stdout.startswith(
        "billing: no consumer is connected; 30 messages"
    )
    assert run(broker, "explain", "orders", "billing", *now, code=1).stdout.startswith(
        "no consumer is connected; 30 messages"
    )
    rows = json.loads(run(broker, "explain", "jobs", "billing", "-o", "json", *now, code=1).stdout)
    assert [each["topic"] for each in rows] == [f"/default/jobs-part-{number}" for number in range(3)]
    assert {each["state"] for each in rows} == {"no-consumer"}
    assert json.loads(run(broker, "subscriptions", "explain", "orders", "billing", "-o", "json").stdout)["sentence"]

    lines = run(broker, "subscriptions", "list").stdout.splitlines()
    assert lines[0].split() == ["topic", "subscription", "state", "backlog", "oldest", "consumers"]
    assert {line.split()[0] for line in lines[1:]} == {"/default/jobs", "/default/orders"}
    assert all(len(line) <= 80 for line in lines)
    assert len(run(broker, "subscriptions", "list", "--partitions").stdout.splitlines()) == 5
    assert run(broker, "subscriptions", "list", "-n", "other").stdout.splitlines()[1:] == []
    (whole,) = [
        each
        for each in json.loads(run(broker, "subscriptions", "list", "-o", "json").stdout)
        if each["topic"] == "/default/jobs"
    ]
    assert (whole["backlog_messages"], whole["partitions"], whole["well"]) == (30, 3, True)

    for topic in ("orders", "jobs"):
        run(broker, "consume", topic, "-s", "billing", "--until-caught-up")
    assert run(broker, "explain").stdout == "All is well: 2 subscriptions of 2 topics, nothing needs attention.\n"
    run(broker, "explain", "orders", "none", code=66)
    run(broker, "explain", "none", code=66)


def test_connections(broker):
    (line,) = run(broker, "connections", "list").stdout.splitlines()[1:]
    assert line.split()[2:4] == ["native", f"danube-python/{danube.__version__}"]
    assert json.loads(run(broker, "connections", "list", "-o", "json").stdout)[0]["id"].startswith("b1-")
    assert "connection 'b1-1' is not open" in run(broker, "connections", "kill", "b1-1", code=66).stderr
