"""Access control over HTTP: each call has the rights of its caller, and no others."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from http_callers import Caller
from security import rights_matrix
from web_harness import API, web_broker
from web_secured import Secured, secured

from danube.model.errors import ConfigurationError, http_status
from danube.security.rights import RULES
from danube.security.verdicts import Verdict, judge
from danube.web import routes
from danube.web.face import check_rights
from danube.web.routes import ROUTES, Route

ORDERS, BILLING = f"{API}/topics/shop/orders", f"{API}/topics/shop/orders/subscriptions/billing"
MESSAGE = {"messages": [{"payload": "x"}]}
BODIES: dict[str, Any] = {
    "change_log_level": {"level": "", "logger": "danube.nothing"},
    "create_namespace": {"namespace": "shop"},
    "begin_session": {"token": "nonsense"},
    "create_topic": {"topic": "/shop/orders"},
    "publish": MESSAGE,
    "replay_dead_letters": {"all": True},
    "drop_dead_letters": {"all": True},
    "skip_messages": {"messages": 1},
    "ack_messages": {"ack_ids": []},
    "nack_messages": {"ack_ids": []},
    "apply_definitions": {"definitions": {"topics": {"/shop/fresh": {}}}},
    "plan_definitions": {"definitions": {}},
    "expand_topic": {"partitions": 2},
    "register_schema": {"schema": {"schema_type": "string", "text": ""}},
    "change_subject": {"level": "none"},
    "check_schema": {"schema": {"schema_type": "string", "text": ""}},
    "extend_messages": {"ack_ids": []},
    "search_messages": {"filter": "x"},
    "drain_broker": {"broker": "b1", "dry_run": True},
    "forget_broker": {"broker": "b1"},
    "forget_gap": {"dry_run": True},
    "activate_broker": {"broker": "b1"},
    "move_topic": {"broker": "b1"},
}
PIECEWISE = ("export_definitions", "plan_definitions", "apply_definitions")
"""They make a call for each thing that there is, or that is to change, and each is judged by itself."""


def target_of(route: Route) -> str:
    """Return a path of a route, about the topic and the subscription of the matrix."""
    values = {
        "namespace": "shop",
        "name": "orders",
        "subscription": "billing",
        "storage": "default",
        "id": "b1-999",
        "subject": "service:nobody",
        "partition": "0",
        "offset": "0",
        "version": "1",
    }
    queries = {"explain_cluster": "?subject=/shop/orders", "list_topics": "?namespace=shop"}
    return route.template.format(**values) + queries.get(route.operation, "")


async def outcome(broker: Secured, route: Route, headers: dict[str, str]) -> int:
    body = BODIES.get(route.operation, {} if route.body is not None else None)
    given = {**headers, **({"If-Match": "*"} if route.matched else {})}
    if routes.EVENTS not in route.answer_types:
        return (await broker.web.ask(route.method, target_of(route), body, given)).status
    data = b"" if body is None else json.dumps(body).encode()
    if body is not None:
        given |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    async with broker.web.connection() as caller:
        await caller.send(
            f"{route.method} {target_of(route)} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode() + data
        )
        return int((await caller.until(b"\r\n")).split()[1])


async def test_each_route_needs_a_proof(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        for headers in (
            {},
            {"Authorization": "Bearer nonsense"},
            {"Authorization": "Basic " + base64.b64encode(b"any:dnb_x_y").decode()},
            {"Authorization": "Digest x"},
            {"X-Danube-Internal-Broker": "1"},
        ):
            for route in ROUTES:
                if route.operation in ("ack_messages", "nack_messages", "extend_messages"):
                    continue  # without a pull, which needs a proof, there is nothing that they could tell or change
                status = await outcome(broker, route, headers)
                assert status == (401 if route.calls else 200), (route, headers)
        said = await broker.web.ask("GET", f"{API}/topics")
        assert said.json["code"] == "unauthenticated"
        assert said.headers["www-authenticate"]


@pytest.mark.parametrize(
    ("role", "scope"),
    [
        ("", ""),
        ("viewer", "namespace:shop"),
        ("consumer", "namespace:shop"),
        ("producer", "namespace:hr"),
        ("operator", "cluster"),
    ],
)
async def test_each_route_is_judged_as_the_matrix_says(tmp_path: Path, role: str, scope: str) -> None:
    """What is refused is refused by the same rule as the native call; what is allowed reaches the operation."""
    async with secured(tmp_path) as broker:
        await broker.web.post(f"{BILLING}:pull", headers=broker.proof("user:admin"))
        if role:
            await broker.bind("caller", role, scope)
        proof = broker.proof("service:caller")
        gate = broker.web.running.broker._access.gate
        assert gate is not None
        rights = gate._guard.book.rights
        principal = rights_matrix.Principal(rights_matrix.PrincipalType.SERVICE, "caller")
        for route in ROUTES:
            if not route.calls or route.operation in ("ack_messages", "nack_messages", "extend_messages"):
                continue
            if route.operation == "begin_session" or route.operation.endswith("_dead_letters"):
                continue  # see test_web_sessions.py and test_web_dead_letters.py: other proofs, other topics
            if route.operation in PIECEWISE:
                continue
            verdicts = [
                judge(RULES[path], principal, rights, rights_matrix.request_of(RULES[path]), rights_matrix.Belongings())
                for path in route.calls
            ]
            status = await outcome(broker, route, proof)
            if Verdict.DENIED in verdicts and Verdict.HIDDEN not in verdicts:
                assert status == 403, route
            elif Verdict.HIDDEN in verdicts:
                assert status in (403, 404), route
            elif Verdict.DENIED not in verdicts:
                assert status not in (401, 403), (route, status)


async def test_definitions_are_those_that_the_caller_may_see_and_change(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        web = broker.web
        await broker.bind("caller", "viewer", "namespace:shop")
        viewer, admin = broker.proof("service:caller"), broker.proof("user:admin")
        found = (await web.ask("GET", f"{API}/definitions", headers=viewer)).json
        assert (list(found["namespaces"]), list(found["topics"])) == (["shop"], ["/shop/orders"])
        everything = (await web.ask("GET", f"{API}/definitions", headers=admin)).json
        assert {"/hr/salaries", "/shop/orders"} <= set(everything["topics"])
        body = {"definitions": {"topics": {"/shop/fresh": {}}}}
        assert (await web.ask("POST", f"{API}/definitions:plan", body, viewer)).json["lines"] == [
            "+ create topic /shop/fresh"
        ]
        assert (await web.ask("POST", f"{API}/definitions:apply", body, viewer)).status == 403
        foreign = {"definitions": {"topics": {"/shop/orders": {}}}, "prune": True}
        lines = (await web.ask("POST", f"{API}/definitions:plan", foreign, viewer)).json["lines"]
        assert lines == [], "what the caller does not see is not deleted"
        assert (await web.ask("POST", f"{API}/definitions:apply", body, admin)).status == 200
        assert (await web.ask("GET", f"{API}/definitions", headers={})).status == 401


async def test_messages_need_rights_on_their_topic(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        web = broker.web
        await broker.bind("reader", "consumer", "topic:/shop/orders")
        orders, reader = broker.proof("service:orders"), broker.proof("service:reader")
        await web.post(f"{ORDERS}/messages", MESSAGE, 201, orders)
        assert (await web.ask("POST", f"{API}/topics/hr/salaries/messages", MESSAGE, orders)).status == 403
        assert (await web.ask("POST", f"{ORDERS}/messages", MESSAGE, reader)).status == 403
        assert (await web.ask("GET", f"{ORDERS}/messages", headers=orders)).status == 403
        found = await web.ask("GET", f"{ORDERS}/messages", headers=reader)
        assert found.json["messages"][0]["payload"] == "x"
        assert (await web.ask("GET", f"{API}/topics/hr/salaries/messages", headers=reader)).status in (403, 404)
        pulled = await web.post(f"{BILLING}:pull", {"start": "earliest"}, headers=reader)
        ids = [each["ack_id"] for each in pulled["messages"]]
        assert len(ids) == 1
        other = broker.proof("service:reader")
        stolen = await web.post(f"{BILLING}:ack", {"ack_ids": ids}, headers=other)
        assert stolen == {"settled": 0, "unknown": ids}, "who has not pulled a message cannot settle it"
        nobody = await web.post(f"{BILLING}:ack", {"ack_ids": ids})
        assert nobody["settled"] == 0
        assert (await web.post(f"{BILLING}:ack", {"ack_ids": ids}, headers=reader))["settled"] == 1
        listed = await web.ask("GET", f"{API}/topics", headers=broker.proof("user:admin"))
        assert {each["topic"] for each in listed.json["items"]} >= {"/shop/orders", "/hr/salaries"}
        await broker.bind("viewer", "viewer", "namespace:shop")
        seen = await web.ask("GET", f"{API}/topics", headers=broker.proof("service:viewer"))
        assert [each["topic"] for each in seen.json["items"]] == ["/shop/orders"], "lists are filtered"
        hidden = await web.ask("GET", f"{API}/topics/hr/salaries", headers=broker.proof("service:viewer"))
        assert hidden.status == 404


async def test_an_api_key_is_a_password(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        web = broker.web
        async with web.running.client(token=broker.proof("user:admin")["Authorization"].split()[1]) as client:
            made = await client.security.create_key("service:orders")
        basic = {"Authorization": "Basic " + base64.b64encode(f"any:{made.text}".encode()).decode()}
        for proof in (basic, {"Authorization": f"Bearer {made.text}"}):
            await web.post(f"{ORDERS}/messages", MESSAGE, 201, proof)
            assert (await web.ask("GET", f"{API}/broker", headers=proof)).status == 200


async def test_streams_end_with_the_right_of_their_caller(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("reader", "consumer", "topic:/shop/orders")
        proof = broker.proof("service:reader")
        async with broker.web.events(f"{ORDERS}/messages:tail", **proof) as events:
            await events.next()
            await broker.write(reader=None)
            with trio.fail_after(10):
                (error,) = await events.take(1, "error")
            assert error.data["status"] == 403
        status = f"{API}/events"
        async with broker.web.events(status, **proof) as events:
            await events.take(1, "stats")
            broker_state = broker.web.running.broker._access.gate
            assert broker_state is not None


async def test_a_search_has_the_rights_of_its_caller(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        web = broker.web
        await broker.bind("reader", "consumer", "topic:/shop/orders")
        reader = broker.proof("service:reader")
        for path in (ORDERS, f"{API}/topics/hr/salaries"):
            await web.post(f"{path}/messages", MESSAGE, 201, broker.proof("user:admin"))
            await web.post(f"{path}:seal", headers=broker.proof("user:admin"))
        async with web.events(f"{ORDERS}/messages:search", {"filter": "text == x"}, **reader) as events:
            (match,) = await events.take(1, "match")
            assert match.data["topic"] == "/shop/orders"
            await events.take(1, "end")
        for path, proof in ((f"{API}/topics/hr/salaries", reader), (ORDERS, broker.proof("service:orders"))):
            refused = await web.ask("POST", f"{path}/messages:search", {"filter": "x"}, proof)
            assert refused.status in (403, 404)


async def test_changes_are_audited_with_the_address_of_the_caller(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        admin = broker.proof("user:admin")
        await broker.web.post(f"{API}/topics", {"topic": "/shop/new"}, 201, admin)
        found: list[dict[str, Any]] = []
        with trio.fail_after(15):
            while not any("/shop/new" in str(each["payload"]) for each in found):
                page = await broker.web.ask("GET", f"{API}/topics/system/audit-b1/messages?limit=1000", headers=admin)
                found = page.json["messages"] if page.status == 200 else []
                await trio.sleep(0.05)
        (entry,) = [
            each["payload"] for each in found if "Topics/Create" in each["payload"] and "new" in each["payload"]
        ]
        assert '"127.0.0.1' in entry
        assert "user:admin" in entry


def test_a_route_without_a_row_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = Route("GET", f"{API}/odd", "odd", "x", ("/danube.native.v1.Odd/Call",))
    monkeypatch.setattr(sys.modules["danube.web.face"], "ROUTES", (*ROUTES, odd))
    with pytest.raises(ConfigurationError, match="no row in the table of rights"):
        check_rights()
    assert http_status(ConfigurationError()) == 400


async def test_wrong_proofs_close_the_connection_at_last(tmp_path: Path) -> None:
    """An address that guesses is slowed down as on the other ports."""
    limits = {"failed_proofs_burst": 3, "failed_proofs_per_s": 0.1, "refused_proof_pause_s": 0.05}
    security = {"enabled": True, "limits": limits}
    async with web_broker(tmp_path, topics=[], security=security) as web:
        statuses = []
        for number in range(6):
            async with web.connection() as stream:
                caller: Caller = stream
                said = await caller.ask("GET", f"{API}/broker", {"Authorization": f"Bearer guess{number}"})
                statuses.append(said.status)
        assert statuses[0] == 401
        assert statuses[-1] == 503, statuses
