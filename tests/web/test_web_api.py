"""The HTTP API of a real broker: what is not about messages."""

from __future__ import annotations

import json
from pathlib import Path

import openapi_spec_validator
import pytest
import trio
from web_harness import API, ORDERS, TOPIC, web_broker

import danube
from danube.web.openapi import openapi
from danube.web.routes import ROUTES


async def test_health_and_the_state_of_the_broker(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        for path in ("/livez", "/readyz", "/startupz"):
            said = await web.ask("GET", path, headers={"Host": "probe.elsewhere"})
            assert (said.status, said.data) == (200, b"ok\n")
        info = await web.get(f"{API}/broker")
        assert info["version"] == danube.__version__
        assert info["topics"] == 1
        status = await web.get(f"{API}/cluster")
        assert [each["name"] for each in status["brokers"]] == ["b1"]
        assert (await web.get(f"{API}/cluster/explain?subject=b1"))["state"] == "active"
        assert (await web.get(f"{API}/findings"))["findings"] == []
        limits = {each["name"]: each for each in (await web.get(f"{API}/limits"))["limits"]}
        assert limits["http_max_sse"] == {"name": "http_max_sse", "value": 50, "source": "default"}
        assert limits["max_batch_bytes"]["source"] == "configured"
        storages = await web.get(f"{API}/storages")
        assert [each["storage"] for each in storages["storages"]] == ["default"]
        assert (await web.post(f"{API}/storages/default:check"))["ok"] is True
        assert (await web.post(f"{API}/storages/default:check", {"deep": True}))["deep"] is True
        assert (await web.get(f"{API}/stages"))["stages"] == []
        assert (await web.get(f"{API}/jobs"))["jobs"] == []


async def test_the_configuration_has_values_and_their_sources(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        found = {each["name"]: each for each in (await web.get(f"{API}/config"))["settings"]}
        assert found["durability"] == {"name": "durability", "value": "disk", "source": "default"}
        assert found["listen"] == {"name": "listen", "value": ["127.0.0.1:0"], "source": "configured"}
        assert found["security.enabled"]["value"] is False
        assert not any(name.startswith("limits") for name in found)


async def test_topics_are_made_listed_and_deleted(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[]) as web:
        made = await web.ask("POST", f"{API}/topics", {"topic": TOPIC, "retention": {"max_age_s": 60}})
        assert made.status == 201
        assert made.json["retention"]["max_age_s"] == 60
        assert made.json["topic_id"].isdigit()
        await web.post(f"{API}/topics", {"topic": "/default/parts", "partitions": 3, "durability": "os"}, 201)
        again = await web.ask("POST", f"{API}/topics", {"topic": TOPIC})
        assert (again.status, again.json["code"]) == (409, "already-exists")
        parts = await web.get(f"{API}/topics/default/parts")
        assert (parts["partitions"], parts["durability"]) == (3, "os")
        rows = (await web.get(f"{API}/topics/default/parts/partitions"))["items"]
        assert [each["topic"] for each in rows] == [f"/default/parts-part-{number}" for number in range(3)]
        assert rows[0]["topic_id"] == parts["topic_id"], "which If-Match takes"
        assert (await web.get(f"{API}/topics/default/parts?partition=2"))["topic"] == "/default/parts-part-2"

        missing = await web.ask("DELETE", ORDERS)
        assert (missing.status, missing.json["code"]) == (428, "if-match-required")
        wrong = await web.ask("DELETE", ORDERS, headers={"If-Match": '"7"'})
        assert (wrong.status, wrong.json["code"]) == (412, "if-match")
        old = await web.match()
        assert (await web.ask("DELETE", ORDERS, headers=old)).status == 204
        gone = await web.ask("GET", ORDERS)
        assert (gone.status, gone.json["code"]) == (404, "topic-not-found")
        await web.post(f"{API}/topics", {"topic": TOPIC}, 201)
        assert (await web.ask("DELETE", ORDERS, headers=old)).status == 412, "a name's next life is another topic"
        assert (await web.ask("DELETE", f"{API}/topics/default/parts", headers={"If-Match": "*"})).status == 204


async def test_lists_have_pages_filters_and_an_order(tmp_path: Path) -> None:
    names = [f"/default/t{number}" for number in range(7)]
    async with web_broker(tmp_path, topics=names) as web:
        await web.publish("a", "b", topic=f"{API}/topics/default/t3")
        first = await web.get(f"{API}/topics?limit=3")
        assert ([each["topic"] for each in first["items"]], first["total"]) == (names[:3], 7)
        second = await web.get(f"{API}/topics?limit=3&cursor={first['next']}")
        third = await web.get(f"{API}/topics?limit=3&cursor={second['next']}")
        assert [each["topic"] for page in (second, third) for each in page["items"]] == names[3:]
        assert third["next"] == ""
        assert [each["topic"] for each in (await web.get(f"{API}/topics?q=T3"))["items"]] == [names[3]]
        sorted_ = await web.get(f"{API}/topics?sort=-end_offset&limit=2")
        assert [each["topic"] for each in sorted_["items"]] == [names[3], names[0]]
        assert (await web.get(f"{API}/topics?namespace=other"))["items"] == []
        for query in ("sort=color", "cursor=nonsense", "limit=0", "limit=x", "limit=1001", "other=1"):
            said = await web.ask("GET", f"{API}/topics?{query}")
            assert (said.status, said.json["code"]) == (400, "invalid-argument"), query


async def test_namespaces_and_policies(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        assert await web.post(f"{API}/namespaces", {"namespace": "shop"}, 201) == {"namespace": "shop"}
        assert [each["namespace"] for each in (await web.get(f"{API}/namespaces?q=sh"))["items"]] == ["shop"]
        for path in (f"{API}/policies", f"{API}/namespaces/shop/policies", f"{ORDERS}/policies"):
            changed = await web.ask("PATCH", path, {"max_producers": 7})
            assert changed.json["own"] == {"max_producers": 7}
            assert (await web.get(path))["effective"]["max_producers"] == 7
            assert (await web.ask("PATCH", path, {"max_producers": None})).json["own"] == {}
            wrong = await web.ask("PATCH", path, {"max_producer": 7})
            assert (wrong.status, "max_producer" in wrong.json["detail"]) == (400, True)
        assert (await web.ask("DELETE", f"{API}/namespaces/shop")).status == 204
        full = await web.ask("DELETE", f"{API}/namespaces/default")
        assert full.status == 409
        plan = await web.ask("PATCH", f"{ORDERS}/retention", {"retention": {"max_age_s": 5}, "dry_run": True})
        assert (plan.status, plan.json["applied"]) == (200, False)
        sealed = await web.post(f"{ORDERS}:seal")
        assert sealed["topics"][0]["topic"] == TOPIC


async def test_subscriptions_are_seen_moved_and_deleted(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[TOPIC, "/default/quiet"]) as web:
        await web.publish(*"abcdef")
        for name in ("billing", "Zürich:1"):
            async with web.running.client() as client, client.consumer(TOPIC, subscription=name, start="earliest"):
                pass
        rows = await web.get(f"{ORDERS}/subscriptions")
        assert [each["subscription"] for each in rows["subscriptions"]] == ["Zürich:1", "billing"]
        odd = f"{ORDERS}/subscriptions/Z%C3%BCrich%3A1"
        assert (await web.get(odd))["subscriptions"][0]["backlog_messages"] == 6
        everywhere = await web.get(f"{API}/subscriptions?min_backlog=1&sort=-backlog_messages")
        assert {each["subscription"] for each in everywhere["items"]} == {"billing", "Zürich:1"}
        assert (await web.get(f"{API}/subscriptions?state=caught-up"))["items"] == []
        explained = await web.get(f"{ORDERS}/subscriptions/billing/explain")
        assert explained["state"] == "no-consumer"

        billing = f"{ORDERS}/subscriptions/billing"
        assert (await web.ask("POST", f"{billing}:seek", {"position": 4})).status == 428
        match = await web.match()
        assert (await web.ask("POST", f"{billing}:seek", {"position": 4}, match)).status == 204
        assert (await web.get(billing))["subscriptions"][0]["floor"] == 4
        assert (await web.ask("POST", f"{billing}:seek", {"position": "earliest"}, match)).status == 204
        assert (await web.ask("POST", f"{billing}:skip", {"messages": 2}, match)).json["position"] == 2
        assert (await web.ask("POST", f"{billing}:skip", {"messages": 99}, match)).json["position"] == 6
        changed = await web.ask("PATCH", f"{billing}/policy", {"ack_timeout_s": 7.5})
        assert changed.json["subscriptions"][0]["policy"]["ack_timeout_s"] == 7.5
        assert (await web.ask("DELETE", odd, headers=match)).status == 204
        gone = await web.ask("GET", odd)
        assert (gone.status, gone.json["code"]) == (404, "subscription-not-found")


async def test_subscriptions_are_created_without_a_consumer(tmp_path: Path) -> None:
    async with web_broker(tmp_path, topics=[TOPIC]) as web:
        await web.publish(*"abc")
        made = await web.ask("PUT", f"{ORDERS}/subscriptions/new")
        assert (made.status, made.json["subscriptions"][0]["backlog_messages"]) == (200, 0)
        body = {"type": "shared", "start": "earliest"}
        (row,) = (await web.ask("PUT", f"{ORDERS}/subscriptions/old", body)).json["subscriptions"]
        assert (row["type"], row["backlog_messages"]) == ("shared", 3)
        await web.publish("d")
        (row,) = (await web.ask("PUT", f"{ORDERS}/subscriptions/old", {"type": "shared"})).json["subscriptions"]
        assert row["backlog_messages"] == 4
        refused = await web.ask("PUT", f"{ORDERS}/subscriptions/old", {"type": "exclusive"})
        assert (refused.status, refused.json["code"]) == (409, "subscription-type-mismatch")
        assert (await web.ask("PUT", f"{ORDERS}/subscriptions/x", {"type": "odd"})).status == 400
        assert (await web.ask("PUT", f"{API}/topics/default/none/subscriptions/x")).status == 404


async def test_connections_are_seen_and_ended(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web, web.running.client() as client:
        await client.admin.info()
        (row,) = (await web.get(f"{API}/connections"))["connections"]
        assert row["protocol"] == "native"
        assert (await web.ask("DELETE", f"{API}/connections/{row['id']}")).status == 204
        gone = await web.ask("DELETE", f"{API}/connections/{row['id']}")
        assert gone.status == 404


async def test_what_no_route_takes_is_told(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        for method, path, body, status, code in (
            ("GET", "/api/v1/nothing", None, 404, "not-found"),
            ("GET", "/api/v2/topics", None, 404, "not-found"),
            ("PUT", f"{API}/topics", None, 405, "method-not-allowed"),
            ("OPTIONS", f"{API}/topics", None, 405, "method-not-allowed"),
            ("POST", f"{API}/topics", {"topic": TOPIC, "color": "red"}, 400, "invalid-argument"),
            ("POST", f"{API}/topics", {"topic": 7}, 400, "invalid-argument"),
            ("POST", f"{API}/topics", {"topic": "orders"}, 400, "invalid-name"),
            ("POST", f"{API}/topics", {"topic": "/none/x"}, 404, "namespace-not-found"),
            ("POST", f"{API}/topics", b"{}", 415, "unsupported-media-type"),
            ("POST", f"{API}/topics", None, 415, "unsupported-media-type"),
            ("GET", f"{API}/topics/default/a%2Fb", None, 400, "invalid-name"),
            ("POST", f"{ORDERS}:seal", b"x", 415, "unsupported-media-type"),
        ):
            said = await web.ask(method, path, body)
            assert (said.status, said.json["code"]) == (status, code), (method, path, said)
            assert said.headers["content-type"] == "application/problem+json"
            assert said.json["status"] == status
        allowed = await web.ask("PUT", f"{API}/topics")
        assert allowed.headers["allow"] == "GET, HEAD, POST"
        assert "access-control-allow-origin" not in allowed.headers


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
async def test_json_that_is_nested_too_deeply_or_too_large_is_refused(tmp_path: Path, opening: bytes) -> None:
    async with web_broker(tmp_path, limits={"http_max_body_bytes": 2_000_000}) as web:
        deep = await web.ask("PATCH", f"{API}/policies", opening * 100_000, kind="application/json")
        assert deep.status == 400, deep
        huge = await web.ask("PATCH", f"{API}/policies", b'{"a":"' + b"x" * 3_000_000, kind="application/json")
        assert (huge.status, "http_max_body_bytes" in huge.json["detail"]) == (413, True)
        assert (await web.ask("GET", "/livez")).status == 200


async def test_pages_of_other_sites_are_refused(tmp_path: Path) -> None:
    async with web_broker(tmp_path, http_allowed_hosts=["broker.example.org"]) as web:
        topics, body = f"{API}/topics", {"topic": "/default/evil"}
        own = f"127.0.0.1:{web.port}"
        for headers, status in (
            ({"Host": "evil.example"}, 421),
            ({"Host": f"evil.example:{web.port}"}, 421),
            ({"Host": "127.0.0.1.evil.example"}, 421),
            ({"Host": "localhost.evil.example"}, 421),
            ({"Host": own, "Origin": "http://evil.example"}, 403),
            ({"Host": own, "Origin": "null"}, 403),
            ({"Host": own, "Origin": f"https://{own}"}, 403),
            ({"Host": own, "Origin": "http://127.0.0.1:1"}, 403),
            ({"Host": own, "Sec-Fetch-Site": "cross-site"}, 403),
            ({"Host": own, "Sec-Fetch-Site": "same-site"}, 403),
        ):
            for method in ("GET", "POST"):
                said = await web.ask(method, topics, body if method == "POST" else None, headers)
                assert said.status == status, (method, headers, said)
        assert (await web.get(topics))["total"] == 1, "nothing was created"
        for number, headers in enumerate(
            (
                {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"},
                {"Host": "localhost:8650"},
                {"Host": "[::1]:8650"},
                {"Host": "Broker.Example.org"},
                {"Host": own, "Sec-Fetch-Site": "none"},
            )
        ):
            assert (await web.ask("POST", topics, {"topic": f"/default/fine{number}"}, headers)).status == 201, headers


async def test_each_answer_has_the_headers_that_bind_browsers(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        for said in (
            await web.ask("GET", "/livez"),
            await web.ask("GET", f"{API}/topics"),
            await web.ask("GET", "/nothing"),
            await web.ask("GET", f"{API}/topics", headers={"Host": "evil.example"}),
        ):
            assert said.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            assert said.headers["x-content-type-options"] == "nosniff"
        async with web.connection() as caller:
            await caller.send(b"nonsense\r\n\r\n")
            assert b"X-Content-Type-Options: nosniff" in await caller.rest()


async def test_events_tell_the_state_each_second(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web, web.events(f"{API}/events") as events:
        first, second = await events.take(2, "stats")
        assert second.data["uptime_s"] > first.data["uptime_s"]
        assert second.data["topics"] == 1


async def test_a_drain_ends_streams_and_says_that_the_broker_is_not_ready(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web, web.events(f"{API}/events") as events:
        await events.take(1, "stats")
        web.running.broker.drain()
        with trio.fail_after(10):
            while await events.caller.stream.receive_some(65536):
                pass


async def test_the_description_is_valid_and_complete(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        served = await web.get(f"{API}/openapi.json")
    assert served == json.loads(json.dumps(openapi()))
    openapi_spec_validator.validate(served)
    described = {(method.upper(), path) for path, each in served["paths"].items() for method in each}
    assert described == {(route.method, route.template) for route in ROUTES}
    names = [route.operation for route in ROUTES]
    assert len(set(names)) == len(names)
    topic_id = served["components"]["schemas"]["TopicInfo"]["properties"]["topic_id"]
    assert topic_id["type"] == "string", "JavaScript has no 64-bit integers"
