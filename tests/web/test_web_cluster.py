"""The HTTP API of three real brokers that form a cluster: each answers for topics of the others."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from broker.broker_harness import RunningBroker, small_config, wait_until
from ports import free_ports
from web_harness import API, Web

import danube.web
from danube.http import parse_target
from danube.model.errors import NotOwnerError
from danube.web.owners import answer_of_owner, location_of

PATIENCE_S = 60.0


@asynccontextmanager
async def web_cluster(directory: Path, **settings: Any) -> AsyncGenerator[list[Web], None]:
    """Run three brokers with HTTP ports of their own."""
    peers = [f"127.0.0.1:{port}" for port in free_ports(3)]
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            running = [
                RunningBroker(
                    small_config(
                        directory / f"b{number}",
                        listen=[address],
                        peers=",".join(peers),
                        http_listen=["127.0.0.1:0"],
                        **settings,
                    ),
                    nursery,
                    (danube.web.face,),
                )
                for number, address in enumerate(peers)
            ]
            async with trio.open_nursery() as starting:
                for each in running:
                    starting.start_soon(each.start)
            try:
                yield [Web(each) for each in running]
            finally:
                nursery.cancel_scope.cancel()


async def split(webs: list[Web], topic: str, **settings: Any) -> tuple[Web, Web]:
    """Create a topic; return its owner and another broker, once all know who owns it."""
    await webs[0].post(f"{API}/topics", {"topic": topic, **settings}, 201)

    def owners() -> list[Web]:
        return [web for web in webs if topic in {each.name for each in web.running.broker.directory.topics()}]

    await wait_until(lambda: len(owners()) == 1)
    (owner,) = owners()
    (other, *_) = [web for web in webs if web is not owner]
    await wait_until(lambda: other.running.broker.directory.catalogue.find(topic) is not None)
    return owner, other


async def test_a_broker_answers_for_topics_of_others(tmp_path: Path) -> None:
    async with web_cluster(tmp_path) as webs:
        _, web = await split(webs, "/default/orders")
        orders = f"{API}/topics/default/orders"
        billing = f"{orders}/subscriptions/billing"
        # Messages
        assert [each["offset"] for each in await web.publish("one", "two", "three")] == [0, 1, 2]
        page = await web.get(f"{orders}/messages?from=1")
        assert [each["payload"] for each in page["messages"]] == ["two", "three"]
        assert (await web.get(f"{orders}/messages/0/2"))["payload"] == "three"
        pulled = await web.post(f"{billing}:pull", {"max": 2, "start": "earliest", "wait_s": 20})
        assert [each["payload"] for each in pulled["messages"]] == ["one", "two"]
        acked = await web.post(f"{billing}:ack", {"ack_ids": [each["ack_id"] for each in pulled["messages"]]})
        assert acked == {"settled": 2, "unknown": []}
        # The topic and its subscription
        found = await web.get(orders)
        assert (found["end_offset"], found["subscriptions"]) == (3, ["billing"])
        assert (await web.get(f"{orders}/partitions"))["items"][0]["end_offset"] == 3
        (row,) = (await web.get(f"{orders}/subscriptions"))["subscriptions"]
        assert (row["floor"], row["backlog_messages"]) == (2, 1)
        assert (await web.get(billing))["subscriptions"] == [row]
        assert "is delivered" in (await web.get(f"{billing}/explain"))["sentence"]
        (held,) = (await web.get(f"{orders}/messages/0/2/deliveries"))["deliveries"]
        assert (held["subscription"], held["state"] in ("in-flight", "undelivered")) == ("billing", True)
        await web.post(f"{billing}:seek", {"position": "earliest"}, 204, await web.match(orders))
        assert (await web.get(billing))["subscriptions"][0]["floor"] == 0
        changed = await web.ask("PATCH", f"{billing}/policy", {"ack_timeout_s": 7.0})
        assert changed.status == 200, changed
        plan = await web.ask("PATCH", f"{orders}/retention", {"retention": {"max_age_s": 60}, "dry_run": True})
        assert plan.status == 200, plan
        assert (await web.post(f"{orders}:seal"))["topics"][0]["topic"] == "/default/orders"
        # What is about the cluster
        missing = await web.ask("GET", f"{API}/topics/default/nothing")
        assert (missing.status, missing.json["code"]) == (404, "topic-not-found")
        assert [each["subscription"] for each in (await web.get(f"{API}/subscriptions"))["items"]] == ["billing"]
        assert [each["end_offset"] for each in (await web.get(f"{API}/topics"))["items"]] == [3]
        rows = (await web.get(f"{API}/cluster"))["brokers"]
        assert {each["http_address"] for each in rows} == {f"http://127.0.0.1:{each.port}" for each in webs}
        brokers = {each["broker"] for each in (await web.get(f"{API}/connections"))["connections"]}
        assert len(brokers) >= 2, "of more than one broker"
        assert (await web.ask("DELETE", billing, headers=await web.match(orders))).status == 204
        assert (await web.ask("DELETE", orders, headers=await web.match(orders))).status == 204


async def test_a_request_that_only_the_owner_answers_is_sent_there(tmp_path: Path) -> None:
    async with web_cluster(tmp_path) as webs:
        owner, web = await split(webs, "/default/orders")
        directory = web.running.broker.directory
        links = web.running.broker.operations.topics.across

        class Cut:
            async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
                await trio.lowlevel.checkpoint()
                raise NotOwnerError("cut", {"address": to})

        links.calls = Cut()
        said = await web.ask("GET", f"{API}/topics/default/orders?partition=0")
        assert said.status == 404, "it has no partitions"
        said = await web.ask("GET", f"{API}/topics/default/orders")
        assert (said.status, said.json["code"]) == (307, "not-owner")
        assert said.headers["location"] == f"http://127.0.0.1:{owner.port}/api/v1/topics/default/orders"
        assert said.json["details"]["location"] == said.headers["location"]
        await web.post(f"{API}/topics", {"topic": "/default/parts", "partitions": 3}, 201)
        await wait_until(lambda: directory.catalogue.find("/default/parts") is not None)
        said = await web.ask("GET", f"{API}/topics/default/parts/subscriptions")
        assert said.status == 503, "several brokers own it: none can answer for all"


def test_the_location_is_the_same_target_at_the_owner() -> None:
    target = parse_target(b"/api/v1/topics/default/a%2Fb/subscriptions/s%3Ax?q=a+b&x=%C3%BC")
    location = location_of("http://b2:8650", target)
    assert location == "http://b2:8650/api/v1/topics/default/a%2Fb/subscriptions/s%3Ax?q=a+b&x=%C3%BC"
    error = NotOwnerError("elsewhere", {"address": "b2:6650"})
    assert answer_of_owner(error, {}, target, whole=True).status == 503
    assert answer_of_owner(error, {"b2:6650": "http://b2:8650"}, target, whole=False).status == 503
    assert answer_of_owner(error, {"b2:6650": "http://b2:8650"}, target, whole=True).status == 307


async def test_a_search_reads_all_partitions_wherever_their_owners_are(tmp_path: Path) -> None:
    async with web_cluster(tmp_path) as webs:
        topic = f"{API}/topics/default/spread"
        await webs[0].post(f"{API}/topics", {"topic": "/default/spread", "partitions": 6}, 201)
        parts = {f"/default/spread-part-{number}" for number in range(6)}

        def served() -> list[set[str]]:
            return [parts & {each.name for each in web.running.broker.directory.topics()} for web in webs]

        await wait_until(lambda: sum(map(len, served())) == 6)
        assert sum(map(bool, served())) > 1, "several brokers own some"
        await webs[0].publish(*map(str, range(60)), topic=topic)
        async with webs[1].events(f"{topic}/messages:search", {"filter": "text $= 7"}) as events:
            found = await events.take(6, "match")
            (end,) = await events.take(1, "end")
        assert sorted(each.data["payload"] for each in found) == ["17", "27", "37", "47", "57", "7"]
        assert (end.data["scanned"], end.data["reason"]) == (60, "complete")


async def test_topics_are_moved_between_brokers(tmp_path: Path) -> None:
    async with web_cluster(tmp_path) as webs:
        owner, web = await split(webs, "/default/orders")
        name = owner.running.broker.directory.broker
        found = await web.post(f"{API}/broker:drain", {"broker": name, "dry_run": True})
        assert (found["name"], found["state"], found["topics"], found["staying"]) == (name, "active", 1, 0)
        other = web.running.broker.directory.broker
        planned = await web.post(f"{API}/topics/default/orders:move", {"broker": other, "dry_run": True})
        assert [(row["topic"], row["problem"]) for row in planned["moves"]] == [("/default/orders", "")]
        refused = await web.post(f"{API}/topics/default/orders:move", {"broker": name}, 409)
        assert refused["detail"] == f"topic /default/orders is on broker {name} already"
        third = next(each for each in webs if each not in (owner, web)).running.broker.directory.broker
        assert (await web.post(f"{API}/broker:drain", {"broker": third}))["state"] == "draining"
        assert (await web.post(f"{API}/broker:activate", {"broker": third}))["state"] == "active"
        plan = await web.post(f"{API}/cluster:balance", {"dry_run": True})
        assert ([row["broker"] for row in plan["brokers"]], plan["moves"]) == ([1, 2, 3], [])
