"""Who has a message, over HTTP and by the client: each subscription says where the message is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from web_harness import API, ORDERS, TOPIC, Web, web_broker

from danube.model.errors import InvalidArgumentError, NotFoundError

PARTED = f"{API}/topics/default/parts"


async def rows(web: Web, offset: int, topic: str = ORDERS, partition: int = 0) -> dict[str, dict[str, Any]]:
    found = await web.get(f"{topic}/messages/{partition}/{offset}/deliveries")
    assert found["offset"] == offset
    assert [each["subscription"] for each in found["deliveries"]] == sorted(
        each["subscription"] for each in found["deliveries"]
    )
    return {each["subscription"]: each for each in found["deliveries"]}


async def test_each_subscription_says_where_a_message_is(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web, web.running.client() as client:
        await web.publish("0", "1", "2")
        async with client.consumer(TOPIC, subscription="billing", start="earliest", name="biller") as billing:
            messages = [await billing.receive() for _ in range(3)]
            await messages[0].ack()
            await billing.flush_acks()
            async with client.consumer(TOPIC, subscription="late", start="latest"):
                await web.post(f"{ORDERS}/subscriptions/idle:pull", {"start": "earliest", "max": 1})

                first = await rows(web, 0)
                assert (first["billing"]["state"], first["late"]["state"]) == ("acknowledged", "before-start")
                held = (await rows(web, 1))["billing"]
                assert (held["state"], held["consumer"], held["attempt"]) == ("in-flight", "biller", 1)
                assert "in flight at consumer 'biller' for " in held["sentence"]
                assert held["since_s"] >= 0
                assert held["timeout_in_s"] > 0
            await messages[1].nack(3600, "no such customer")
            await billing.flush_acks()

            async def state() -> dict[str, Any]:
                return (await rows(web, 1))["billing"]

            while (refused := await state())["state"] == "in-flight":
                pass
            assert (refused["state"], refused["failures"], refused["reason"]) == ("waiting", 1, "no such customer")
            assert 3000 < refused["due_in_s"] <= 3600
            assert "it has failed once (no such customer)" in refused["sentence"]

        found = await client.admin.find_deliveries(TOPIC, 2)
        assert {each.subscription: each.state for each in found.deliveries}["billing"] == "waiting"
        with pytest.raises(NotFoundError, match="no message at offset 3"):
            await client.admin.find_deliveries(TOPIC, 3)
        for path in ("messages/0/3", "messages/1/0", "messages/0/99999999999999999999"):
            assert (await web.ask("GET", f"{ORDERS}/{path}/deliveries")).status in (400, 404), path


async def test_poison_and_dead_letters(tmp_path: Path) -> None:
    policy = {"max_redelivery_count": 0, "poison": "dead_letter"}
    async with web_broker(tmp_path, subscription_policy=policy) as web, web.running.client() as client:
        await web.publish("0", "1")
        async with client.consumer(TOPIC, subscription="billing", start="earliest") as billing:
            await (await billing.receive()).nack(0, "broken")

            async def state() -> dict[str, Any]:
                return (await rows(web, 0))["billing"]

            while (dead := await state())["state"] in ("in-flight", "poisoned"):
                pass
            assert dead["state"] == "dead-lettered"
            assert dead["dead_letter_topic"] == "/default/orders-billing-dlq"
            assert "copied to '/default/orders-billing-dlq'" in dead["sentence"]
        await client.admin.change_subscription_policy(TOPIC, "billing", poison="block")
        async with client.consumer(TOPIC, subscription="billing") as billing:
            await (await billing.receive()).nack(0, "broken")
            while (blocked := (await rows(web, 1))["billing"])["state"] == "in-flight":
                pass
            assert (blocked["state"], blocked["dead_letter_topic"]) == ("poisoned", "")
            assert "blocks the messages behind it" in blocked["sentence"]


async def test_partitions_and_topics_that_store_nothing(tmp_path: Path) -> None:
    topics = [{"topic": "/default/parts", "partitions": 2}, {"topic": "/default/none", "durability": "none"}]
    async with web_broker(tmp_path, topics=topics) as web, web.running.client() as client:
        await web.publish(*map(str, range(40)), topic=PARTED)
        await web.post(f"{PARTED}/subscriptions/billing:pull", {"start": "earliest", "max": 1})
        row = (await rows(web, 0, PARTED, 1))["billing"]
        assert row["topic"] == "/default/parts-part-1"
        with pytest.raises(InvalidArgumentError, match="has 2 partitions"):
            await client.admin.find_deliveries("/default/parts", 0)
        said = await web.ask("GET", f"{API}/topics/default/none/messages/0/0/deliveries")
        assert said.status == 409
