"""Messages over HTTP: published, read, followed, pulled and settled, with real brokers."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from broker.broker_harness import wait_until
from web_harness import API, ORDERS, TOPIC, web_broker

PARTS = {"topic": "/default/parts", "partitions": 3}
PARTED = f"{API}/topics/default/parts"


async def test_messages_are_published_in_three_forms_and_read(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        body = {
            "messages": [
                {"payload": "grüezi", "key": "ada", "attributes": {"color": "blue"}},
                {"value": {"b": [1, None]}},
                {"payload_base64": base64.b64encode(b"\xff\x00").decode(), "key_base64": "/w=="},
            ]
        }
        receipts = (await web.post(f"{ORDERS}/messages", body, 201))["receipts"]
        assert receipts == [{"topic": TOPIC, "partition": 0, "offset": offset} for offset in range(3)]
        raw = await web.ask(
            "POST",
            f"{ORDERS}/messages",
            b"\xfe",
            {"Danube-Key": "bob", "Danube-Attribute-Color": "grün".encode().decode("latin-1")},
        )
        assert (raw.status, raw.json["receipts"][0]["offset"]) == (201, 3)
        lines = b'{"payload": "one"}\n\n{"value": 2}'
        assert (await web.ask("POST", f"{ORDERS}/messages", lines, kind="application/x-ndjson")).status == 201

        page = await web.get(f"{ORDERS}/messages")
        shown = [
            (each["payload"], each["payload_base64"], each["key"], each["attributes"]) for each in page["messages"]
        ]
        assert shown == [
            ("grüezi", None, "ada", {"color": "blue"}),
            ('{"b":[1,null]}', None, None, {}),
            (None, "/wA=", None, {}),
            (None, "/g==", "bob", {"color": "grün"}),
            ("one", None, None, {}),
            ("2", None, None, {}),
        ]
        assert page["messages"][2]["key_base64"] == "/w=="
        assert (page["next"], page["caught_up"]) == ("0:6", True)
        async with web.running.client() as client, client.reader(TOPIC, start="earliest") as reader:
            assert (await reader.receive()).payload == "grüezi".encode(), "the same as any client reads"


async def test_pages_go_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        await web.publish(*(str(number) for number in range(10)))
        before = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        found, position = [], "earliest"
        while True:
            page = await web.get(f"{ORDERS}/messages?from={position}&limit=4")
            found += [each["payload"] for each in page["messages"]]
            position = page["next"]
            if page["caught_up"]:
                break
        assert found == [str(number) for number in range(10)]
        for start, first in (("-3", "7"), ("5", "5"), ("0:2", "2"), ("@2020-01-01T00:00:00Z", "0"), ("-99", "0")):
            page = await web.get(f"{ORDERS}/messages?from={start}")
            assert page["messages"][0]["payload"] == first, start
            assert page["messages"][-1]["payload"] == "9"
        for start in ("latest", "10", f"@{before}"):
            assert (await web.get(f"{ORDERS}/messages?from={start}"))["messages"] == [], start
        for start in ("nonsense", "0:x", "-0", "@yesterday", "0:1,0:2", "5:1", ""):
            said = await web.ask("GET", f"{ORDERS}/messages?from={start}")
            assert said.status == 400, (start, said)


async def test_partitions_are_read_together_and_alone(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[PARTS]) as web:
        body = {"messages": [{"payload": str(number), "key": f"k{number}"} for number in range(30)]}
        receipts = (await web.post(f"{PARTED}/messages", body, 201))["receipts"]
        assert {each["partition"] for each in receipts} == {0, 1, 2}
        found, position = [], "earliest"
        while len(found) < 30:
            page = await web.get(f"{PARTED}/messages?from={position}&limit=7")
            found += [(each["partition"], each["offset"], int(each["payload"])) for each in page["messages"]]
            position = page["next"]
        assert sorted(found) == sorted((each["partition"], each["offset"], at) for at, each in enumerate(receipts))
        last = await web.get(f"{PARTED}/messages?from=-5")
        assert len(last["messages"]) == 5
        alone = await web.get(f"{PARTED}/messages?partition=1&limit=1000")
        assert {each["partition"] for each in alone["messages"]} == {1}
        offsets = [each["offset"] for each in alone["messages"]]
        assert offsets == list(range(len(offsets)))
        one = await web.get(f"{PARTED}/messages/1/0")
        assert one == alone["messages"][0]
        assert alone["next"] == f"1:{len(offsets)}"
        again = await web.get(f"{PARTED}/messages?partition=1&from={alone['next']}")
        assert (again["messages"], again["caught_up"]) == ([], True)


async def test_one_message_is_shown_or_downloaded(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        payload = "<img src=x onerror=alert(1)>" * 10_000
        await web.publish(payload, "two")
        cut = (await web.get(f"{ORDERS}/messages?payload_bytes=10"))["messages"][0]
        assert (cut["payload"], cut["truncated"], cut["size_bytes"]) == (payload[:10], True, len(payload))
        assert (await web.get(f"{ORDERS}/messages/0/0"))["payload"] == payload
        file = await web.ask("GET", f"{ORDERS}/messages/0/0?download")
        assert file.data == payload.encode()
        assert file.headers["content-type"] == "application/octet-stream"
        assert file.headers["content-disposition"] == 'attachment; filename="orders-0-0.bin"'
        for path in ("0/2", "1/0", "0/99999999999999999999", "0/x"):
            said = await web.ask("GET", f"{ORDERS}/messages/{path}")
            assert said.status in (400, 404), path


async def test_what_publishers_send_is_checked(tmp_path: Path) -> None:
    async with web_broker(tmp_path, auto_create_topics=False) as web:
        for body in (
            {"messages": []},
            {"messages": [{}]},
            {"messages": [{"payload": "x", "value": 1}]},
            {"messages": [{"payload_base64": "?"}]},
            {"messages": [{"payload": "x", "key": "k", "key_base64": ""}]},
            {"messages": [{"payload": "x", "deliver_at": "soon"}]},
            {"messages": [{"payload": "x", "deliver_after_s": -1}]},
            {"messages": [{"payload": "x", "colour": "blue"}]},
            {"message": []},
        ):
            said = await web.ask("POST", f"{ORDERS}/messages", body)
            assert (said.status, said.json["code"]) == (400, "invalid-argument"), (body, said)
        said = await web.ask("POST", f"{ORDERS}/messages", b'{"payload": "x"}\n{"payload"', kind="application/x-ndjson")
        assert "line 2" in said.json["detail"]
        large = await web.ask("POST", f"{ORDERS}/messages", bytes(600_000))
        assert (large.status, large.json["code"]) == (413, "message-too-large")
        form = await web.ask("POST", f"{ORDERS}/messages", b"x", kind="application/x-www-form-urlencoded")
        assert (form.status, "Content-Type" in form.json["remedy"]) == (415, True)
        none = await web.ask("POST", f"{API}/topics/default/none/messages", {"messages": [{"payload": "x"}]})
        assert (none.status, none.json["code"]) == (404, "topic-not-found")
        assert (await web.get(f"{ORDERS}/messages"))["messages"] == []


async def test_delayed_messages_are_delivered_later(tmp_path: Path) -> None:
    async with (
        web_broker(tmp_path) as web,
        web.running.client() as client,
        client.consumer(TOPIC, subscription="s", type="shared") as consumer,
    ):
        said = await web.ask("POST", f"{ORDERS}/messages", b"late", {"Danube-Deliver-After": "0.3"})
        assert said.status == 201
        await web.publish("early")
        assert (await consumer.receive()).payload == b"early"
        assert (await consumer.receive()).payload == b"late"


async def test_a_tail_misses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[PARTS]) as web:
        await web.publish("old", topic=PARTED)
        count, seen, last = 60, [], ""

        async def publish() -> None:
            for number in range(count):
                body = {"messages": [{"payload": str(number), "key": f"k{number}"}]}
                await web.post(f"{PARTED}/messages", body, 201)

        async with web.events(f"{PARTED}/messages:tail") as events:
            opened = await events.next()
            assert opened.name == "open"
            last = opened.event_id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            while len(seen) < count:
                async with web.events(f"{PARTED}/messages:tail", Last_Event_ID=last) as events:
                    for event in await events.take(min(7, count - len(seen))):
                        seen.append(int(event.data["payload"]))
                        last = event.event_id
        assert sorted(seen) == list(range(count))


async def test_a_tail_ends_with_its_caller_and_with_its_topic(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        async with web.events(f"{ORDERS}/messages:tail?from=earliest"):
            await wait_until(lambda: web.running.topic(TOPIC).readers)
        await wait_until(lambda: not web.running.topic(TOPIC).readers)
        async with web.events(f"{ORDERS}/messages:tail") as events:
            await events.next()
            assert (await web.ask("DELETE", ORDERS, headers=await web.match())).status == 204
            (error,) = await events.take(1, "error")
            assert error.data["code"] == "topic-not-found"
            assert await events.caller.rest() is not None
        missing = await web.ask("GET", f"{ORDERS}/messages:tail")
        assert missing.status == 404, "an error before the first event is a status"


async def test_messages_are_pulled_and_settled(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        billing = f"{ORDERS}/subscriptions/billing"
        await web.publish(*"abc")
        policy = {"redelivery_delay_s": 0.05, "max_redelivery_count": -1}
        pulled = await web.post(f"{billing}:pull", {"max": 2, "start": "earliest"})
        assert [each["payload"] for each in pulled["messages"]] == ["a", "b"]
        assert pulled["ack_timeout_s"] == 30
        assert (await web.ask("PATCH", f"{billing}/policy", policy)).status == 200
        a, b = (each["ack_id"] for each in pulled["messages"])
        assert await web.post(f"{billing}:ack", {"ack_ids": [a, "9-9-9-9"]}) == {"settled": 1, "unknown": ["9-9-9-9"]}
        assert await web.post(f"{billing}:ack", {"ack_ids": [a]}) == {"settled": 0, "unknown": [a]}
        assert (await web.get(billing))["subscriptions"][0]["floor"] == 1, "durable when it was answered"
        assert await web.post(f"{billing}:extend", {"ack_ids": [b], "lease_s": 60}) == {"settled": 1, "unknown": []}
        assert (await web.post(f"{billing}:nack", {"ack_ids": [b], "reason": "no"}))["settled"] == 1
        rest = []
        while len(rest) < 2:
            rest += (await web.post(f"{billing}:pull", {"wait_s": 5}))["messages"]
        assert sorted((each["payload"], each["attempt"]) for each in rest) == [("b", 2), ("c", 1)]
        ids = [each["ack_id"] for each in rest]
        assert (await web.post(f"{billing}:ack", {"ack_ids": ids}))["settled"] == 2
        assert (await web.post(f"{billing}:pull"))["messages"] == []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(web.publish, "d")
            assert (await web.post(f"{billing}:pull", {"wait_s": 20}))["messages"][0]["payload"] == "d"
        other = await web.ask("POST", f"{billing}:pull", {"type": "failover"})
        assert other.status == 400
        for body in ({"max": 0}, {"max": 1001}, {"wait_s": 61}, {"start": "@2020-01-01"}):
            said = await web.ask("POST", f"{ORDERS}/subscriptions/new:pull", body)
            assert said.status == 400, (body, said)


async def test_pulls_are_bounded_and_share_with_other_consumers(tmp_path: Path) -> None:
    limits = {"http_max_pulls": 1, "http_max_pulled_messages": 3}
    async with web_broker(tmp_path, limits=limits) as web:
        await web.publish(*"abcdef")
        one = f"{ORDERS}/subscriptions/one"
        assert len((await web.post(f"{one}:pull", {"start": "earliest"}))["messages"]) == 3
        full = await web.ask("POST", f"{one}:pull")
        assert (full.status, "http_max_pulled_messages" in full.json["detail"]) == (429, True)
        other = await web.ask("POST", f"{ORDERS}/subscriptions/two:pull")
        assert (other.status, "http_max_pulls" in other.json["detail"]) == (429, True)
        assert other.headers["retry-after"] == "1"


async def test_an_exclusive_subscription_is_refused_while_another_consumer_has_it(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web, web.running.client() as client:
        async with client.consumer(TOPIC, subscription="s"):
            said = await web.ask("POST", f"{ORDERS}/subscriptions/s:pull", {"type": "exclusive"})
            assert (said.status, said.json["code"]) == (409, "subscription-busy")
        taken = await web.ask("POST", f"{ORDERS}/subscriptions/s:pull", {"type": "exclusive"})
        assert taken.status == 200


async def test_a_puller_that_stays_away_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube.web.pulls._LOOK_S", 0.05)
    async with web_broker(
        tmp_path, limits={"http_pull_idle_s": 2.0}, subscription_policy={"ack_timeout_s": 0.2}
    ) as web:
        await web.publish("a")
        one = f"{ORDERS}/subscriptions/one"
        first = (await web.post(f"{one}:pull", {"start": "earliest"}))["messages"]
        subscription = web.running.topic(TOPIC).subscriptions["one"]
        assert len(subscription.consumers) == 1
        await wait_until(lambda: not subscription.consumers)
        ids = [each["ack_id"] for each in first]
        assert await web.post(f"{one}:ack", {"ack_ids": ids}) == {"settled": 0, "unknown": ids}
        again: list[dict[str, object]] = []
        while not again:
            again = (await web.post(f"{one}:pull", {"wait_s": 5}))["messages"]
        assert again[0]["payload"] == "a"
