"""``If-Match`` and ``dry_run``: what destroys meets the topic that the caller means, and can be tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from web_harness import API, ORDERS, TOPIC, web_broker

from danube.model import api
from danube.model.errors import LimitExceededError, TopicReplacedError
from danube.model.ids import NO_TOPIC, TopicId
from danube.web.matching import MOST_TAGS, topic_ids_of

BILLING = f"{ORDERS}/subscriptions/billing"


def test_the_ids_of_a_header() -> None:
    assert topic_ids_of('"7"') == [7]
    assert topic_ids_of('"7", "18446744073709551615"') == [7, 2**64 - 1]
    assert topic_ids_of("*") == []
    for odd in ("7", '"x"', 'W/"7"', '""', '"', '"18446744073709551616"', '"\u0667"', ""):
        assert topic_ids_of(odd) == [NO_TOPIC], odd
    with pytest.raises(LimitExceededError):
        topic_ids_of(",".join(['"7"'] * (MOST_TAGS + 1)))


async def test_no_operation_meets_the_next_topic_of_a_name(tmp_path: Path) -> None:
    """The operations compare the ids themselves: here they are called as if a check before them had passed."""
    async with web_broker(tmp_path, topics=[TOPIC, {"topic": "/default/parts", "partitions": 2}]) as web:
        for topic in (TOPIC, "/default/parts"):
            async with web.running.client() as client, client.consumer(topic, subscription="billing"):
                pass
        operations = web.running.broker.operations
        directory = web.running.broker.directory
        old = [TopicId(7)]
        for topic in (TOPIC, "/default/parts", "/default/parts-part-1"):
            with pytest.raises(TopicReplacedError):
                await operations.subscriptions.seek_subscription(
                    api.SeekSubscription(topic, "billing", "earliest", topic_ids=old)
                )
            with pytest.raises(TopicReplacedError):
                await operations.subscriptions.delete_subscription(api.DeleteSubscription(topic, "billing", old))
        for topic in (TOPIC, "/default/parts"):
            with pytest.raises(TopicReplacedError):
                await operations.topics.delete_topic(api.DeleteTopic(topic, old))
            assert len((await web.get(f"{API}/topics{topic}/subscriptions"))["subscriptions"]) > 0
        first = directory.catalogue.find("/default/parts").topic_ids[0]
        own = directory.find("/default/parts-part-1").topic_id
        for each in (first, own):
            await operations.subscriptions.seek_subscription(
                api.SeekSubscription("/default/parts-part-1", "billing", "earliest", topic_ids=[TopicId(7), each])
            )
        await operations.topics.delete_topic(api.DeleteTopic("/default/parts", [first]))


async def test_a_request_with_an_old_id_is_refused(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        old = await web.match()
        assert (await web.ask("DELETE", ORDERS, headers=old)).status == 204
        await web.post(f"{API}/topics", {"topic": TOPIC}, 201)
        async with web.running.client() as client, client.consumer(TOPIC, subscription="billing"):
            pass
        asked: list[tuple[str, str, Any]] = [
            ("POST", f"{BILLING}:seek", {"position": "earliest"}),
            ("POST", f"{BILLING}:skip", {"messages": 1}),
            ("DELETE", BILLING, None),
            ("DELETE", ORDERS, None),
        ]
        for method, path, body in asked:
            said = await web.ask(method, path, body, old)
            assert (said.status, said.json["code"]) == (412, "if-match"), path
        new = (await web.match())["If-Match"]
        assert (await web.ask("DELETE", BILLING, headers={"If-Match": f"{old['If-Match']}, {new}"})).status == 204


async def test_seek_skip_and_retention_can_be_tried(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        await web.publish(*"abcdef")
        async with web.running.client() as client, client.consumer(TOPIC, subscription="billing", start=4):
            pass
        before = await web.get(BILLING)
        said = await web.ask("POST", f"{BILLING}:seek?dry_run=1", {"position": "earliest"})
        assert said.status == 200
        (plan,) = said.json["plans"]
        assert (plan["floor"], plan["target"], plan["repeated_messages"]) == (4, 0, 4)
        said = await web.ask("POST", f"{BILLING}:skip?dry_run=1", {"messages": 1})
        assert said.json == {"position": 5, "skipped_messages": 1}
        said = await web.ask("PATCH", f"{ORDERS}/retention?dry_run=1", {"retention": {"max_bytes": 1}})
        assert said.status == 200
        assert said.json["plans"][0]["end_offset"] == 6
        assert await web.get(BILLING) == before
        assert (await web.get(ORDERS))["retention"]["max_bytes"] == 0, "the rules are as they were"
        match = await web.match()
        assert (await web.ask("POST", f"{BILLING}:skip", {"messages": 1}, match)).json["position"] == 5
