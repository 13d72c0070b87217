"""A streaming query's knowledge of its topics: from a real broker, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from sparks import publish

from danube.client.sync import Client, Logs, connect
from danube.model.errors import ConnectionLostError, DataLossError, TopicNotFoundError, UnavailableError
from danube.model.policies import Retention
from danube.model.query_api import LogState

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube._options import read_options
from pyspark_danube._plan import GUESSED_MESSAGE_BYTES
from pyspark_danube._positions import LogKey
from pyspark_danube._watch import Watch
from pyspark_danube._weights import Weights


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def watch_of(broker: BrokerProcess, **options: str) -> Watch:
    return Watch(read_options({"servers": broker.url} | options, streaming=True))


def test_a_watch_sees_what_is_published_without_asking(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/watched", [b"a", b"b"])
    watch = watch_of(broker, topic="/default/watched")
    key = LogKey("/default/watched", 0)
    known = watch.logs
    assert known.states[key].end_offset == 2
    assert watch.logs is known
    began = time.monotonic()
    publish(client, "/default/watched", [b"c"])
    eventually(lambda: watch.logs.states[key].end_offset == 3)
    assert time.monotonic() - began < 5.0
    assert watch.logs.version == known.version + 1


def test_a_watch_sees_new_partitions_and_topics(broker: BrokerProcess, client: Client) -> None:
    watch = watch_of(broker, topicsPattern="/default/grow-.*")
    assert watch.logs.states == {}
    publish(client, "/default/grow-a", [b"a"], partitions=2)
    publish(client, "/default/else", [b"a"])
    publish(client, "/default/grow-lossy", [b"a"], durability="none")
    eventually(lambda: len(watch.logs.states) == 2)
    assert sorted(watch.logs.states) == [LogKey("/default/grow-a", 0), LogKey("/default/grow-a", 1)]
    client.admin.create_topic("/default/grow-b")
    eventually(lambda: LogKey("/default/grow-b", 0) in watch.logs.states)


def test_a_topic_that_keeps_nothing_is_no_news(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, "/default/mixed-kept", [b"a"])
    publish(client, "/default/mixed-lossy", [b"a"], durability="none")
    calls = 0
    states = Logs.states

    def counted(self: Logs, *args: Any, **options: Any) -> list[LogState]:
        nonlocal calls
        calls += options.get("pattern") == "/default/mixed-.*"
        return states(self, *args, **options)

    monkeypatch.setattr(Logs, "states", counted)
    watch = watch_of(broker, topicsPattern="/default/mixed-.*")
    publish(client, "/default/mixed-lossy", [b"b"] * 10, durability="none")
    time.sleep(0.5)
    assert calls <= 3  # where it begins, the wait, and one more for a change that came in between
    assert list(watch.logs.states) == [LogKey("/default/mixed-kept", 0)]
    publish(client, "/default/mixed-kept", [b"b"])
    eventually(lambda: watch.logs.states[LogKey("/default/mixed-kept", 0)].end_offset == 2)


def test_a_missing_topic_is_told_at_once(broker: BrokerProcess) -> None:
    with pytest.raises(TopicNotFoundError, match="/default/nowhere"):
        watch_of(broker, topic="/default/nowhere")
    # What may have been deleted since is no mistake of a query that goes on, only of one that begins.
    loose = watch_of(broker, topic="/default/nowhere", failOnDataLoss="false")
    assert loose.logs.states == {}
    with pytest.raises(TopicNotFoundError, match="/default/nowhere"):
        loose.begin()


def test_a_deleted_topic_fails_the_watch_or_leaves_the_others(broker: BrokerProcess, client: Client) -> None:
    publish(client, "/default/stays", [b"a"])
    publish(client, "/default/goes", [b"a"])
    topics = "/default/stays, /default/goes"
    strict, loose = (watch_of(broker, topics=topics, failOnDataLoss=fail) for fail in ("true", "false"))
    client.admin.delete_topic("/default/goes")
    # The next call notices it, and a message ends the one that is waiting.
    publish(client, "/default/stays", [b"b"])
    eventually(lambda: list(loose.logs.states) == [LogKey("/default/stays", 0)])
    with pytest.raises(DataLossError, match=r"goes.*deleted while the query was running"):
        eventually(lambda: strict.logs.version < 0)
    publish(client, "/default/stays", [b"c"])
    eventually(lambda: loose.logs.states[LogKey("/default/stays", 0)].end_offset == 3)


def test_a_watch_survives_a_restart_of_the_broker_and_gives_up_in_the_end(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:
        with connect(process.url) as client:
            publish(client, "/default/watched", [b"a"])
        patient = watch_of(process, topic="/default/watched")
        process.kill()
        process.start()
        with connect(process.url) as client:
            publish(client, "/default/watched", [b"b"])
        eventually(lambda: patient.logs.states[LogKey("/default/watched", 0)].end_offset == 2)
        impatient = Watch(
            read_options({"servers": process.url, "topic": "/default/watched"}, streaming=True), patience_s=1.0
        )
    with pytest.raises(UnavailableError):
        eventually(lambda: impatient.logs.version < 0)
    assert patient.logs.states
    with pytest.raises(ConnectionLostError):
        watch_of(process, topic="/default/watched")


def test_messages_are_weighed_by_parts_and_the_tail_by_what_is_known(client: Client) -> None:
    publish(client, "/default/weighed", [b"x" * 100] * 1_000)
    weights = Weights()
    (log,) = client.logs.states(["/default/weighed"])
    ((start, end, weight),) = weights.runs(client, log, 0, 1_000)
    assert (start, end) == (0, 1_000)
    assert 100 < weight < 110

    client.admin.seal_topic("/default/weighed")
    publish(client, "/default/weighed", [b"x" * 1_000] * 100)
    (log,) = client.logs.states(["/default/weighed"])
    runs = Weights().runs(client, log, 500, 1_100)
    assert [(start, end) for start, end, _ in runs] == [(0, 1_000), (1_000, 1_100)]
    assert all(100 < weight < 110 for _, _, weight in runs)


def test_missing_messages_are_weighed_by_an_estimate(client: Client) -> None:
    topic = "/default/unweighed"
    publish(client, topic, [b"x" * 100] * 100)
    (log,) = client.logs.states([topic])
    client.admin.seal_topic(topic)
    publish(client, topic, [b"x" * 1_000] * 100)
    client.admin.change_retention(topic, Retention(max_bytes=1), now=True)
    weights = Weights()
    # The state is older than the retention.
    assert weights.runs(client, log, 0, 100) == [(0, 100, GUESSED_MESSAGE_BYTES)]
    (log,) = client.logs.states([topic])
    ((_, _, weight),) = weights.runs(client, log, 100, 200)
    assert 1_000 < weight < 1_010
    client.admin.delete_topic(topic)
    # Sealed when the state was asked for, and no topic at all any more.
    assert Weights().runs(client, log, 0, 200) == [(0, 200, GUESSED_MESSAGE_BYTES)]
    publish(client, topic, [b"y"])
    assert Weights().runs(client, log, 199, 200) == [(199, 200, GUESSED_MESSAGE_BYTES)]
