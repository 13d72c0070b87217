"""``Idempotency-Key``: answers are lost, brokers restart, requests are made at once, and nothing is stored twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import wait_until
from test_web_cluster import split, web_cluster
from web_harness import API, ORDERS, TOPIC, Said, Web, web_broker

from danube.client._once import MOST_BATCHES, OnceMessage, cut, prepared
from danube.model.errors import InvalidArgumentError, LimitExceededError
from danube.web.idempotency import KeyBook, KeyReusedError, checked_key, fingerprint
from danube.web.messages import Outgoing

PARTS = f"{API}/topics/default/parts"


async def publish(web: Web, key: str, *payloads: str, topic: str = ORDERS, **fields: Any) -> Said:
    body = {"messages": [{"payload": each, **fields} for each in payloads]}
    return await web.ask("POST", f"{topic}/messages", body, {"Idempotency-Key": key})


async def payloads(web: Web, topic: str = ORDERS) -> list[str]:
    return [each["payload"] for each in (await web.get(f"{topic}/messages?limit=1000"))["messages"]]


async def test_a_repeated_request_has_the_same_receipts(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        first = await publish(web, "k1", "one", "two")
        assert first.status == 201
        await web.publish("between")
        assert (await publish(web, '"k1"', "one", "two")).json == first.json, "also in the form of a structured header"
        other = await publish(web, "k2", "one", "two")
        assert [each["offset"] for each in other.json["receipts"]] == [3, 4]
        await web.running.restart(crash=True)
        assert (await publish(web, "k1", "one", "two")).json == first.json
        assert await payloads(web) == ["one", "two", "between", "one", "two"]


async def test_a_raw_body_and_lines_take_a_key_too(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        for kind, body in (("text/plain", b"raw"), ("application/x-ndjson", b'{"payload": "a"}\n{"payload": "b"}\n')):
            said = [
                await web.ask("POST", f"{ORDERS}/messages", body, {"Idempotency-Key": kind}, kind=kind)
                for _ in range(2)
            ]
            assert said[0].json == said[1].json, said
        assert await payloads(web) == ["raw", "a", "b"]


async def test_a_key_is_for_one_body(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        await publish(web, "k", "one")
        for wrong in (("two",), ("one", "two")):
            said = await publish(web, "k", *wrong)
            assert (said.status, said.json["code"]) == (409, "idempotency-key-reused")
        await web.running.restart()
        said = await publish(web, "k", "one", "two")
        assert (said.status, said.json["code"]) == (409, "idempotency-key-reused"), "the broker knows it, too"
        for key in ("", "x" * 256, "ä"):
            said = await web.ask("POST", f"{ORDERS}/messages", b"x", {"Idempotency-Key": key})
            assert said.status == 400, key
        said = await web.ask("POST", f"{ORDERS}/messages?producer=p", b"x", {"Idempotency-Key": "z"})
        assert said.status == 400
        assert await payloads(web) == ["one"]


async def test_requests_that_are_made_at_once_are_stored_once(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[TOPIC, {"topic": "/default/parts", "partitions": 3}]) as web:
        body = [f"m{number}" for number in range(20)]
        for topic in (ORDERS, PARTS):
            answers: list[Said] = []

            async def ask(topic: str, answers: list[Said]) -> None:
                answers.append(await publish(web, "k", *body, topic=topic))

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(ask, topic, answers)
            assert {each.status for each in answers} == {201}, answers
            assert len({each.data for each in answers}) == 1
            assert sorted(await payloads(web, topic)) == sorted(body)


async def test_a_request_whose_answer_was_lost_is_repeated(tmp_path: Path) -> None:
    """The connection ends at any moment of the request; the repetition stores what is missing."""
    async with web_broker(tmp_path) as web:
        body = json.dumps({"messages": [{"payload": f"m{number}"} for number in range(5)]}).encode()
        for number, delay_s in enumerate((0.0, 0.002, 0.004, 0.008, 0.016, 0.032)):
            head = (
                f"POST {ORDERS}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Idempotency-Key: k{number}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            async with web.connection() as caller:
                await caller.send(head.encode() + body)
                await trio.sleep(delay_s)
            said = await publish(web, f"k{number}", *(f"m{each}" for each in range(5)))
            assert said.status == 201, said
            offsets = [each["offset"] for each in said.json["receipts"]]
            assert offsets == list(range(offsets[0], offsets[0] + 5))
        assert sorted(await payloads(web)) == sorted([f"m{each}" for each in range(5)] * 6)


async def test_keys_choose_partitions_and_delays_are_kept(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[{"topic": "/default/parts", "partitions": 4}]) as web:
        body = {"messages": [{"payload": f"{key}", "key": key, "deliver_after_s": 60} for key in "abcdefgh"]}
        said = [await web.ask("POST", f"{PARTS}/messages", body, {"Idempotency-Key": "k"}) for _ in range(3)]
        assert len({each.data for each in said}) == 1, said
        assert len({each["partition"] for each in said[0].json["receipts"]}) > 1
        assert len(await payloads(web, PARTS)) == 8


async def test_a_request_is_repeated_at_another_broker(tmp_path: Path) -> None:
    async with web_cluster(tmp_path) as webs:
        owner, other = await split(webs, TOPIC)
        await wait_until(lambda: all(web.running.broker.directory.catalogue.find(TOPIC) for web in webs))
        answers = [await publish(web, "k", "one", "two") for web in (owner, other, *webs)]
        assert {each.status for each in answers} == {201}, answers
        assert len({each.data for each in answers}) == 1
        assert await payloads(other) == ["one", "two"]


# --- Rules


def test_messages_are_cut_alike_each_time() -> None:
    messages = [OnceMessage(b"x" * 40, key=f"k{number % 7}") for number in range(50)]
    ready = [prepared(each, 1_000) for each in messages]
    cuts = cut(ready, 3, "token", 300, 4)
    assert cuts == cut([prepared(each, 99_000) for each in messages], 3, "token", 300, 4)
    assert sorted(index for each in cuts for index in each.indexes) == list(range(50))
    for partition in range(3):
        mine = [index for each in cuts if each.partition == partition for index in each.indexes]
        assert mine == sorted(mine), "in their order"
    assert all(len(each.indexes) <= 4 and each.size <= 300 for each in cuts)
    late = [prepared(OnceMessage(b"x", deliver_after_s=delay), 0) for delay in (1, 1, 2)]
    assert [each.indexes for each in cut(late, 1, "t", 1_000, 10)] == [[0, 1], [2]]
    assert len({each.partition for each in cut([prepared(OnceMessage(b"x"), 0)] * 9, 5, "t", 60, 1)}) == 1
    with pytest.raises(LimitExceededError, match=str(MOST_BATCHES)):
        cut([prepared(OnceMessage(b"x"), 0)] * (MOST_BATCHES + 1), 1, "t", 1_000, 1)


def test_a_book_of_keys_is_bounded() -> None:
    book = KeyBook(2)
    body, other = fingerprint([Outgoing(b"x")]), fingerprint([Outgoing(b"x", b"key")])
    assert body != other
    for key in "abc":
        book.use(TOPIC, key, body)
    assert len(book) == 2
    book.use(TOPIC, "a", other)
    with pytest.raises(KeyReusedError):
        book.use(TOPIC, "a", body)
    book.use("/default/other", "a", body)


def test_keys_are_visible_ascii() -> None:
    assert checked_key(' "8e03978e" ') == "8e03978e"
    assert checked_key("8e03978e") == "8e03978e"
    for wrong in ("", '""', "ü", "a\tb", "x" * 256):
        with pytest.raises(InvalidArgumentError):
            checked_key(wrong)
