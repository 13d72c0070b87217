"""Dead letters over HTTP: listed with their reasons, replayed and dropped, by the same rules as on the command line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from web_harness import API, Web, web_broker
from web_secured import secured

from danube.client.replaying import Replay, ReplayOptions
from danube.model.dead_letters import Selection, failure_of, parse_place
from danube.model.errors import InvalidArgumentError
from danube.web.letters import Choice, Handled, selection_of

ORDERS = f"{API}/topics/default/orders"
BILLING = f"{ORDERS}/subscriptions/billing"
DLQ = f"{BILLING}/dlq"
REASONS = ("no such user", "card refused: 17", "no such user", "card refused: 18", "no such user")


async def fail(web: Web, reasons: Sequence[str], headers: dict[str, str] | None = None, of: str = BILLING) -> None:
    """Let messages fail at once, each with its reason, until all of them are dead letters of the subscription."""
    topic = of.rpartition("/subscriptions/")[0]
    body = {"messages": [{"key": f"k{number}", "value": {"id": number}} for number, _ in enumerate(reasons)]}
    await web.post(f"{topic}/messages", body, 201, headers)
    policy = {"max_redelivery_count": 0, "poison": "dead_letter"}
    said = await web.ask("PATCH", f"{of}/policy", policy, headers)
    assert said.status == 200, said
    pulled = await web.post(f"{of}:pull", {"max": len(reasons), "wait_s": 10}, headers=headers)
    for message, reason in zip(pulled["messages"], reasons, strict=True):
        await web.post(f"{of}:nack", {"ack_ids": [message["ack_id"]], "reason": reason}, headers=headers)
    with trio.fail_after(30):
        while len((await web.ask("GET", f"{of}/dlq", headers=headers)).json["letters"]) < len(reasons):  # noqa: ASYNC110
            await trio.sleep(0.02)  # the broker copies them by itself


@asynccontextmanager
async def failed(directory: Path) -> AsyncGenerator[Web, None]:
    async with web_broker(directory) as web:
        await web.post(f"{BILLING}:pull", {"start": "earliest"})
        before = await web.get(DLQ)
        assert (before["exists"], before["waiting"], before["letters"]) == (False, 0, [])
        await fail(web, REASONS)
        yield web


def offsets(page: dict[str, Any]) -> list[int]:
    return [each["offset"] for each in page["letters"]]


async def test_letters_say_why_and_where_they_failed(tmp_path: Path) -> None:
    async with failed(tmp_path) as web:
        page = await web.get(DLQ)
        assert page["topic"] == "/default/orders-billing-dlq"
        assert (page["exists"], page["sends"], page["messages"], page["waiting"]) == (True, True, 5, 5)
        assert page["reasons"][0] == {"reason": "no such user", "messages": 3}
        assert {each["reason"] for each in page["reasons"]} == set(REASONS)
        first = page["letters"][0]
        assert first | {"publish_time_us": 0, "failed_us": 0, "original_producer": ""} == {
            "partition": 0,
            "offset": 0,
            "original_topic": "/default/orders",
            "original_offset": 0,
            "original_producer": "",
            "attempts": 1,
            "reason": "no such user",
            "publish_time_us": 0,
            "failed_us": 0,
            "handled": False,
            "key": "k0",
            "key_base64": None,
            "attributes": {},
            "size_bytes": 8,
            "payload": '{"id":0}',
            "payload_base64": None,
            "truncated": False,
        }
        assert first["failed_us"] >= first["publish_time_us"] > 0
        refused = await web.get(f"{DLQ}?reason=refused")
        assert offsets(refused) == [1, 3]
        assert len(refused["reasons"]) == 3, "the sums are of all"
        two = await web.get(f"{DLQ}?limit=2&payload_bytes=3")
        assert offsets(two) == [0, 1]
        assert two["more"]
        assert two["letters"][0]["payload"] == '{"i'
        assert (await web.ask("GET", f"{ORDERS}/subscriptions/none/dlq")).status == 404


async def test_replay_and_drop_by_offset_and_reason(tmp_path: Path) -> None:
    async with failed(tmp_path) as web:
        dry = await web.post(f"{DLQ}:replay", {"reason": "no such user", "dry_run": True})
        assert dry == {
            "topic": "/default/orders-billing-dlq",
            "messages": 3,
            "topics": [{"topic": "/default/orders", "messages": 3}],
            "left": 0,
            "reasons": [],
            "dry_run": True,
            "more": False,
        }
        assert (await web.get(DLQ))["waiting"] == 5, "nothing was done"
        done = await web.post(f"{DLQ}:replay", {"offsets": [2, "0:4"]})
        assert (done["messages"], done["dry_run"]) == (2, False)
        page = await web.get(DLQ)
        assert (page["waiting"], offsets(page)) == (3, [0, 1, 3]), "also those between others"
        assert page["reasons"][0]["messages"] == 1
        again = await web.post(f"{DLQ}:replay", {"offsets": [2]})
        assert again["messages"] == 0, "what was replayed is not replayed again"
        messages = (await web.get(f"{ORDERS}/messages?from=5"))["messages"]
        assert [(each["key"], each["payload"]) for each in messages] == [("k2", '{"id":2}'), ("k4", '{"id":4}')]
        assert messages[0]["attributes"] == {}, "what described the failure is removed"

        await web.post(f"{API}/topics", {"topic": "/default/elsewhere"}, 201)
        moved = await web.post(f"{DLQ}:replay", {"offsets": [0], "to": "/default/elsewhere"})
        assert moved["topics"] == [{"topic": "/default/elsewhere", "messages": 1}]
        dropped = await web.post(f"{DLQ}:drop", {"reason": "refused", "dry_run": True})
        assert (dropped["messages"], (await web.get(DLQ))["waiting"]) == (2, 2)
        assert (await web.post(f"{DLQ}:drop", {"all": True}))["messages"] == 2
        after = await web.get(DLQ)
        assert (after["waiting"], after["messages"], after["letters"], after["reasons"]) == (0, 5, [], [])
        every = await web.get(f"{DLQ}?handled=true")
        assert [each["handled"] for each in every["letters"]] == [True] * 5


async def test_letters_that_cannot_be_sent_stay(tmp_path: Path) -> None:
    async with failed(tmp_path) as web:
        await web.post(f"{ORDERS}-billing-dlq/messages", {"messages": [{"payload": "foreign"}]}, 201)
        found = await web.post(f"{DLQ}:replay", {"all": True})
        assert (found["messages"], found["left"]) == (5, 1)
        assert "it has no attribute x-original-topic" in found["reasons"][0]
        assert offsets(await web.get(DLQ)) == [5]
        for body, words in (
            ({}, "nothing says"),
            ({"all": True, "reason": "x"}, "reason and all says"),
            ({"offsets": ["1:2:3"]}, "is no offset"),
            ({"offsets": [-1]}, "is no offset"),
            ({"all": True, "to": "/default/orders-billing-dlq"}, "is the dead-letter topic itself"),
            ({"all": True, "to": "x"}, "x"),
            ({"reason": ""}, "reason"),
        ):
            said = await web.ask("POST", f"{DLQ}:replay", body)
            assert said.status == 400, body
            assert words in said.json["detail"], said.json
        assert (await web.ask("POST", f"{DLQ}:replay", {"all": True, "to": "/default/none"})).status == 404


async def test_subscriptions_that_share_a_topic_have_their_own_letters(tmp_path: Path) -> None:
    async with failed(tmp_path) as web:
        other = f"{ORDERS}/subscriptions/mail"
        await web.post(f"{other}:pull", {"start": "latest"})
        said = await web.ask("PATCH", f"{other}/policy", {"dead_letter_topic": "/default/orders-billing-dlq"})
        assert said.status == 200
        await fail(web, ["bounced"], of=other)
        page = await web.get(f"{other}/dlq")
        assert offsets(page) == [5]
        assert page["reasons"] == [{"reason": "bounced", "messages": 1}]
        assert offsets(await web.get(DLQ)) == [0, 1, 2, 3, 4]
        assert (await web.post(f"{other}/dlq:drop", {"all": True}))["messages"] == 1
        assert (await web.get(DLQ))["waiting"] == 5


async def test_letters_of_a_partitioned_topic_come_from_all_partitions(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[{"topic": "/default/orders", "partitions": 2}]) as web:
        await web.post(f"{BILLING}:pull", {"start": "earliest"})
        await fail(web, ["a", "b", "c", "d"])
        page = await web.get(DLQ)
        assert {each["original_topic"] for each in page["letters"]} <= {
            "/default/orders-part-0",
            "/default/orders-part-1",
        }
        assert (await web.post(f"{DLQ}:replay", {"all": True}))["topics"] == [
            {"topic": "/default/orders", "messages": 4}
        ]


async def test_rights_are_those_of_the_topics(tmp_path: Path) -> None:
    """To see letters, Consume on their topic; to replay them, Produce on the topic that gets them."""
    async with secured(tmp_path) as broker:
        web, admin = broker.web, broker.known
        billing = f"{API}/topics/shop/orders/subscriptions/billing"
        await web.post(f"{billing}:pull", {"start": "earliest"}, headers=admin)
        await fail(web, ["x", "y"], admin, of=billing)
        await broker.bind("viewer", "viewer", "namespace:shop")
        await broker.bind("reader", "consumer", "namespace:shop")
        viewer, reader = broker.proof("service:viewer"), broker.proof("service:reader")
        assert (await web.ask("GET", f"{billing}/dlq", headers=viewer)).status == 403
        assert (await web.ask("GET", f"{billing}/dlq", headers={})).status == 401
        assert (await web.ask("GET", f"{billing}/dlq", headers=reader)).status == 200
        everything = {"all": True}
        assert (await web.ask("POST", f"{billing}/dlq:replay", everything, viewer)).status == 403
        assert (await web.ask("POST", f"{billing}/dlq:replay", everything, reader)).status == 403
        assert (await web.ask("GET", f"{billing}/dlq", headers=reader)).json["waiting"] == 2
        assert (await web.ask("POST", f"{billing}/dlq:drop", everything, reader)).json["messages"] == 2


async def test_a_run_stops_before_it_holds_too_many_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("danube.client.replaying.MOST_HELD", 50)
    async with web_broker(tmp_path) as web, web.running.client() as client:
        async with client.producer("/default/letters") as producer:
            for _ in range(20):
                await producer.send_many([b"x"] * 10)
        options = ReplayOptions(topic="/default/letters", selection=Selection(reason="none has it"))
        replay = Replay(client, options)
        with trio.fail_after(30):
            await replay.run()
        assert replay.stopped
        assert 50 <= replay.passed < 200
        everything = Replay(client, ReplayOptions(topic="/default/letters", drop=True))
        with trio.fail_after(30):
            await everything.run()
        assert (everything.count, everything.stopped) == (200, False), "what was passed over is there again"


def test_what_handled_says() -> None:
    handled = Handled(10, [12, 15, 20, 21])
    assert [each for each in range(25) if each not in handled] == [10, 11, 15, 16, 17, 18, 19, 21, 22, 23, 24]
    assert handled.waiting(0, 25) == 11
    assert handled.waiting(13, 14) == 0
    assert handled.waiting(0, 5) == 0
    assert Handled().waiting(3, 7) == 4
    # Gaps have no messages: one below the floor, one across a range that was handled, one that the log does not reach.
    assert handled.waiting(0, 30, [(2, 8), (13, 22), (40, 50)]) == handled.waiting(0, 30) - 6
    assert Handled().waiting(3, 7, [(0, 4), (6, 9)]) == 2
    assert "x" not in handled


def test_what_a_selection_takes() -> None:
    attributes = {
        "x-original-topic": "/a/b-part-1",
        "x-original-subscription": "s",
        "x-original-topic-offset": "9" * 30,
        "x-failure-reason": "it broke",
    }
    assert Selection().takes(0, 1, None)
    assert Selection(reason="broke", origin=("/a/b", "s")).takes(0, 1, attributes)
    assert not Selection(reason="Broke").takes(0, 1, attributes)
    assert not Selection(reason="x").takes(0, 1, None)
    assert not Selection(origin=("/a/c", "s")).takes(0, 1, attributes)
    assert not Selection(origin=("/a/b", "t")).takes(0, 1, attributes)
    assert Selection(origin=("/a/b", "t")).takes(0, 1, {}), "it does not say who gave it up"
    assert not Selection(offsets=frozenset({(1, 1)})).takes(0, 1, None)
    assert failure_of(attributes).offset == "9" * 30, "no number that fits"
    assert parse_place("7") == (0, 7)
    assert parse_place("3:7") == (3, 7)
    for wrong in ("", ":", "1:", "-1", "1.0", "9" * 19, "\u0661"):
        with pytest.raises(InvalidArgumentError, match="is no offset"):
            parse_place(wrong)
    assert selection_of(Choice(offsets=[]), "/a/b", "s").offsets == frozenset()
