"""Searching over HTTP, with real processes: what is found, and that no process outlives its use or its broker."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from broker.broker_harness import wait_until
from brokers import BrokerProcess
from web_harness import API, ORDERS, TOPIC, Event, Events, Web, web_broker
from web_secured import secured

from danube.web.search import pool

SEARCH = f"{ORDERS}/messages:search"
PARTED = f"{API}/topics/default/parts"
ALL = {"filter": "", "max_matches": 10_000, "max_bytes": 64 << 20, "payload_bytes": 12 << 20}


def search_processes(parent: int | None = None) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(parent).children():
        with suppress(psutil.NoSuchProcess):
            if "danube.web.search" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


async def ended(events: Events) -> tuple[list[Event], Event]:
    """Return the matches of a search, and the event that ended it."""
    matches: list[Event] = []
    while True:
        event = await events.next()
        if event.name in ("end", "error"):
            return matches, event
        if event.name == "match":
            matches.append(event)


async def search(web: Web, text: str, path: str = SEARCH, **body: Any) -> tuple[list[Event], Event]:
    async with web.events(path, {"filter": text, **body}) as events:
        return await ended(events)


async def publish(web: Web, count: int, topic: str = ORDERS, start: int = 0) -> None:
    messages = [
        {
            "value": {"id": number, "user": f"user-{number % 10}"},
            "key": f"k{number % 7}",
            "attributes": {"type": "order.created" if number % 2 else "order.changed"},
        }
        for number in range(start, start + count)
    ]
    await web.post(f"{topic}/messages", {"messages": messages}, 201)


@asynccontextmanager
async def stuck_search(web: Web) -> AsyncGenerator[Events, None]:
    """Begin a search that does not end, because its caller does not read."""
    await web.publish(*["x" * 250_000] * 40)
    async with web.events(SEARCH, ALL) as events:
        assert (await events.next()).name in ("match", "progress")
        yield events


async def test_sealed_and_new_messages_are_searched(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        await publish(web, 500)
        await web.post(f"{ORDERS}:seal", status=200)
        await publish(web, 500, start=500)
        matches, end = await search(web, 'value.user == "user-3" and value.id >= 490 and header.type ~ "created"')
        assert end.name == "end", end
        assert [each.data["offset"] for each in matches] == list(range(493, 1000, 10))
        first = matches[0].data
        assert json.loads(first["payload"])["id"] == 493
        assert (first["topic"], first["key"], first["attributes"]) == (TOPIC, "k3", {"type": "order.created"})
        assert (matches[0].event_id, end.data["reason"], end.data["next"]) == ("0:494", "complete", "0:1000")
        assert (end.data["scanned"], end.data["total"], end.data["matches"]) == (1000, 1000, 51)

        # It ends at a bound, and another search goes on there, in the same process.
        (process,) = search_processes()
        matches, end = await search(web, "header.type == order.created", max_matches=3, start="495")
        assert ([each.data["offset"] for each in matches], end.data["reason"]) == ([495, 497, 499], "matches")
        matches, end = await search(web, "header.type == order.created", max_matches=3, start=end.data["next"])
        assert [each.data["offset"] for each in matches] == [501, 503, 505]
        assert end.data["scanned"] == 6
        _, end = await search(web, "", max_bytes=1_000)
        assert end.data["reason"] == "bytes"
        assert process in search_processes(), "a second one may have begun while the first was still ending its search"

        narrowed, end = await search(web, 'offset >= 995 and key == "k1"')
        assert ([each.data["offset"] for each in narrowed], end.data["total"]) == ([995], 5)
        matches, end = await search(web, "offset >= 998", payload_bytes=5)
        assert [each.data["truncated"] for each in matches] == [True, True]


async def test_partitions_are_searched_one_after_the_other(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[{"topic": "/default/parts", "partitions": 3}]) as web:
        await publish(web, 90, PARTED)
        matches, end = await search(web, 'value.user == "user-3"', f"{PARTED}/messages:search")
        assert sorted(json.loads(each.data["payload"])["id"] for each in matches) == list(range(3, 90, 10))
        assert [each.data["partition"] for each in matches] == sorted(each.data["partition"] for each in matches)
        one, _ = await search(web, 'value.user == "user-3"', f"{PARTED}/messages:search?partition=1")
        assert [each.data for each in one] == [each.data for each in matches if each.data["partition"] == 1]
        _, again = await search(web, "value.user", f"{PARTED}/messages:search", start=end.data["next"])
        assert again.data["scanned"] == 0


async def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    topics = [TOPIC, {"topic": "/default/none", "durability": "none"}]
    async with web_broker(tmp_path, topics=topics, limits={"search_processes": 1}) as web:
        wrong = await web.post(SEARCH, {"filter": "value.user == and"}, 400)
        assert wrong["code"] == "invalid-filter"
        assert "a value is missing after ==" in wrong["detail"]
        assert wrong["details"]["position"] == "14"
        missing = await web.post(f"{API}/topics/default/missing/messages:search", {"filter": ""}, 404)
        assert missing["code"] == "topic-not-found"
        await web.post(f"{API}/topics/default/none/messages:search", {"filter": ""}, 409)
        await web.post(SEARCH, {"filter": "", "start": "0:1,7:3"}, 400)
        await web.post(SEARCH, {"filter": "", "start": "soon"}, 400)
        assert search_processes() == []
        async with stuck_search(web):
            busy = await web.post(SEARCH, {"filter": ""}, 429)
            assert "search_processes is 1" in busy["detail"] + busy["remedy"]


async def test_a_search_ends_with_its_caller_and_a_process_that_has_nothing_to_do(tmp_path: Path) -> None:
    async with web_broker(tmp_path, limits={"search_processes": 1, "search_idle_s": 1.0}) as web:
        async with stuck_search(web):
            (process,) = search_processes()
        said = await web.ask("POST", SEARCH, {"filter": "offset == 3"})
        while said.status == 429:  # until its process has stopped the search; it is not killed
            said = await web.ask("POST", SEARCH, {"filter": "offset == 3"})
        assert said.status == 200
        assert process.pid in [each.pid for each in search_processes()]
        await wait_until(lambda: not search_processes())


async def test_a_process_that_dies_ends_its_search_with_an_error(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web, stuck_search(web) as events:
        (process,) = search_processes()
        process.kill()
        _, error = await ended(events)
        assert (error.name, error.data["code"]) == ("error", "unavailable")
        assert "search_memory_bytes" in error.data["detail"]
        matches, end = await search(web, "offset == 7")
        assert (len(matches), end.name) == (1, "end"), "the next search has another process"


async def test_a_silent_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = [sys.executable, "-c", "import time; time.sleep(1000)", "danube.web.search"]
    monkeypatch.setattr(pool, "_PROGRAM", hanging)
    async with web_broker(tmp_path, limits={"search_silence_s": 0.3}) as web:
        _, error = await search(web, "")
        assert (error.name, error.data["code"]) == ("error", "unavailable")
        assert "search_silence_s = 0.3" in error.data["detail"]
        await wait_until(lambda: not search_processes())


async def test_the_session_of_a_browser_searches_with_the_rights_of_its_login(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        web, admin = broker.web, broker.proof("user:admin")
        await broker.bind("reader", "consumer", "topic:/shop/orders")
        await web.post(f"{API}/topics/shop/orders/messages", {"messages": [{"payload": "x"}]}, 201, admin)
        token = broker.proof("service:reader")["Authorization"].removeprefix("Bearer ")
        begun = await web.ask("POST", f"{API}/session", {"token": token})
        cookie = begun.headers["set-cookie"].partition(";")[0]
        path, body = f"{API}/topics/shop/orders/messages:search", {"filter": "text == x"}
        async with web.events(path, body, Cookie=cookie, Danube_CSRF=begun.json["csrf"]) as events:
            (match,), end = await ended(events)
            assert (match.data["payload"], end.data["reason"]) == ("x", "complete")
        given = {"Cookie": cookie, "Danube-CSRF": begun.json["csrf"]}
        hidden = await web.ask("POST", f"{API}/topics/hr/salaries/messages:search", body, given)
        assert hidden.status in (403, 404)
        assert (await web.ask("POST", path, body, {"Cookie": cookie})).status == 403, "without the CSRF token"


@contextmanager
def searching(url: str) -> Iterator[None]:
    """Begin a search that does not end, because its caller does not read."""
    request = urllib.request.Request(f"{url}{SEARCH[1:]}", data=json.dumps(ALL).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.read(1)
        yield


def test_no_process_outlives_a_killed_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, http_listen="127.0.0.1:0") as broker:
        url = next(word for word in broker.ready_line.split() if word.startswith("http://"))
        for path, body in (
            (f"{API}/topics", {"topic": TOPIC}),
            (f"{ORDERS}/messages", {"messages": [{"payload": "x" * 250_000}] * 40}),
        ):
            request = urllib.request.Request(f"{url}{path[1:]}", data=json.dumps(body).encode(), method="POST")
            request.add_header("Content-Type", "application/json")
            with urllib.request.urlopen(request, timeout=30):
                pass
        with searching(url):
            (process,) = search_processes(broker.pid)
            os.kill(broker.pid, signal.SIGKILL)
            process.wait(30)
