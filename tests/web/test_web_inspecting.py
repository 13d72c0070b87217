"""What is attached to topics, more partitions, and the broker from within, over HTTP."""

from __future__ import annotations

import io
import json
import logging
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
from broker.broker_harness import wait_until
from web_harness import API, ORDERS, TOPIC, web_broker

from danube.broker.operations.task_tree import MOST_CALLS, places_of, rows_of
from danube.web.archive import file_of

PARTS = f"{API}/topics/default/parts"


async def test_producers_readers_and_consumers_are_listed(tmp_path: Path) -> None:
    topics = [TOPIC, {"topic": "/default/parts", "partitions": 2}]
    async with web_broker(tmp_path, topics=topics) as web, web.running.client() as client:
        assert (await web.get(f"{ORDERS}/readers")) == {"items": [], "total": 0, "next": ""}
        async with (
            client.producer("/default/parts", name="till") as producer,
            client.reader("/default/parts", start="earliest") as reader,
            client.consumer(
                "/default/parts", subscription="billing", name="ann", type="shared", start="earliest"
            ) as one,
        ):
            for key in ("a", "b", "c", "d"):
                await producer.send(b"x", key=key)
            got = [await reader.receive() for _ in range(4)]
            assert len(got) == 4
            await one.receive()
            found = await web.get(f"{PARTS}/producers?q=till&sort=topic")
            assert {(row["topic"], row["name"], row["connected"]) for row in found["items"]} <= {
                (f"/default/parts-part-{number}", f"till-{number}", True) for number in range(2)
            }
            assert found["total"] >= 1
            rows = (await web.get(f"{PARTS}/readers"))["items"]
            assert [row["topic"] for row in rows] == ["/default/parts-part-0", "/default/parts-part-1"]
            assert sum(row["position"] for row in rows) == 4
            assert all(row["reader_id"].isdigit() for row in rows)
            (row,) = (await web.get(f"{PARTS}/readers?partition=1"))["items"]
            assert row == rows[1]
            rows = (await web.get(f"{PARTS}/subscriptions/billing/consumers"))["items"]
            assert [row["name"] for row in rows] == ["ann", "ann"]
            assert sum(row["in_flight_messages"] for row in rows) >= 1
            page = await web.get(f"{PARTS}/subscriptions/billing/consumers?limit=1")
            assert (len(page["items"]), page["total"]) == (1, 2)
        await wait_until(lambda: not any(topic.readers for topic in web.running.broker.directory.topics()))
        assert (await web.get(f"{PARTS}/readers"))["total"] == 0


async def test_a_topic_gets_more_partitions(tmp_path: Path) -> None:
    topics = [TOPIC, {"topic": "/default/parts", "partitions": 2}]
    async with web_broker(tmp_path, topics=topics) as web:
        await web.publish("one", topic=PARTS)
        grown = await web.post(f"{PARTS}:expand", {"partitions": 4})
        assert (grown["partitions"], grown["end_offset"]) == (4, 1)
        assert (await web.get(f"{PARTS}/partitions"))["total"] == 4
        await web.publish(*"abcdefgh", topic=PARTS)
        assert (await web.get(PARTS))["end_offset"] == 9
        assert (await web.post(f"{PARTS}:expand", {"partitions": 4}))["partitions"] == 4, "it may be repeated"
        fewer = await web.ask("POST", f"{PARTS}:expand", {"partitions": 3})
        assert (fewer.status, fewer.json["code"]) == (400, "invalid-argument")
        plain = await web.ask("POST", f"{ORDERS}:expand", {"partitions": 3})
        assert (plain.status, plain.json["code"]) == (409, "failed-precondition")
        assert (await web.ask("POST", f"{API}/topics/default/none:expand", {"partitions": 3})).status == 404
        many = await web.ask("POST", f"{PARTS}:expand", {"partitions": 10**9})
        assert 400 <= many.status < 500, many
        await web.running.restart()
        assert (await web.get(PARTS))["partitions"] == 4


async def test_the_broker_from_within(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        checks = {each["check"]: each for each in (await web.get(f"{API}/doctor"))["checks"]}
        assert {"python", "data directory", "sealing", "storage default"} <= set(checks), sorted(checks)
        assert checks["data directory"]["ok"]
        plugins = (await web.get(f"{API}/plugins"))["plugins"]
        assert ("storage", "disk", True) in {(each["kind"], each["scheme"], each["built_in"]) for each in plugins}
        tree = await web.get(f"{API}/debug/tasks")
        assert tree["total"] == len(tree["tasks"])
        assert tree["tasks"][0]["depth"] == 0
        assert any("danube.broker.broker:" in place for task in tree["tasks"] for place in task["where"])
        assert str(tmp_path) not in json.dumps(tree)
        few = await web.get(f"{API}/debug/tasks?limit=3")
        assert (len(few["tasks"]), few["total"] > 3) == (3, True)


async def test_a_bundle_has_the_state_and_no_secrets(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        await web.publish("a message that nobody else reads")
        said = await web.ask("GET", f"{API}/debug/bundle")
        assert said.status == 200
        assert said.headers["content-type"] == "application/gzip"
        with tarfile.open(fileobj=io.BytesIO(said.data)) as archive:
            files = {name.name.partition("/")[2]: archive.extractfile(name) for name in archive.getmembers()}
            texts = {name: file.read().decode() for name, file in files.items() if file is not None}
        assert json.loads(texts["topics.json"])["topics"][0]["topic"] == TOPIC
        assert json.loads(texts["tasks.json"])["total"] > 5
        assert "danube_build_info" in texts["metrics.txt"]
        failed = [name for name, text in texts.items() if text.startswith("this part")]
        assert failed == []
        assert "nobody else reads" not in "".join(texts.values())


async def test_the_level_of_the_log_is_changed_for_a_time(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        path = f"{API}/debug/log-level"
        said = await web.ask("PUT", path, {"level": "debug", "logger": "danube.metadata", "for_s": 60})
        assert (said.status, said.json["level"], said.json["for_s"]) == (200, "debug", 60.0)
        assert logging.getLogger("danube.metadata").level == logging.DEBUG
        said = await web.ask("PUT", path, {"level": "", "logger": "danube.metadata"})
        assert said.json["for_s"] == 0
        assert (await web.ask("PUT", path, {"level": "loud"})).status == 400


def test_a_tree_of_tasks_is_bounded() -> None:
    def deep(calls: int) -> list[Any]:
        def call() -> None: ...

        return [("module", call.__code__, number) for number in range(calls)]

    assert places_of(deep(1)) == ["module:0 test_a_tree_of_tasks_is_bounded.<locals>.deep.<locals>.call"]
    places = places_of(deep(100))
    assert len(places) == MOST_CALLS + 1
    assert places[MOST_CALLS // 2] == f"({100 - MOST_CALLS} calls)"

    def task(name: str, *children: Any) -> Any:
        nursery = SimpleNamespace(child_tasks=list(children))
        return SimpleNamespace(name=name, child_nurseries=[nursery], iter_await_frames=lambda: iter(()))

    rows, total = rows_of(task("root", task("b"), task("a", task("c" * 1000))), 3)
    assert [(row.depth, row.name[:4]) for row in rows] == [(0, "root"), (1, "a"), (2, "cccc")]
    assert (len(rows[2].name), total) == (200, 4)
    assert rows_of(None, 3) == ([], 0)


def test_a_part_of_a_bundle_is_bounded() -> None:
    assert len(file_of({"values": ["x" * 100] * 20}, 1_000)) < 1_100
    assert len(file_of(("x" * 100 + "\n") * 20, 1_000)) < 1_100
    assert file_of({"value": "x"}, 1_000) == b'{\n  "value": "x"\n}\n'
    assert b"hunter2" not in file_of({"url": "s3://bucket?secret=hunter2"})


async def test_tasks_with_deep_calls_are_shown() -> None:
    async def wait(depth: int) -> None:
        if depth:
            await wait(depth - 1)
        else:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 50)
        await trio.testing.wait_all_tasks_blocked()
        rows, _ = rows_of(trio.lowlevel.current_root_task(), 1_000)
        (row,) = [row for row in rows if "test_tasks_with_deep_calls_are_shown" in row.name and "wait" in row.name]
        assert len(row.where) == MOST_CALLS + 1
        nursery.cancel_scope.cancel()
