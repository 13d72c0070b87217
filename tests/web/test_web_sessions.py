"""Logins of browsers: what the cookie of a session gives, and every way of getting at it without a right."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from web_harness import API, Said, web_broker
from web_secured import Secured, secured

from danube.web.caller import ApiCall

SESSION = f"{API}/session"
TOPICS = f"{API}/topics"


def token_of(proof: dict[str, str]) -> str:
    return proof["Authorization"].removeprefix("Bearer ")


class Browser:
    """What a browser keeps of a login: its cookie, and the page's CSRF token."""

    def __init__(self, broker: Secured, said: Said) -> None:
        assert said.status == 201, said
        self.broker = broker
        self.csrf = str(said.json["csrf"])
        self.set_cookie = said.headers["set-cookie"]
        self.cookie = self.set_cookie.partition(";")[0]

    async def ask(self, method: str, path: str, body: Any = None, csrf: str | None = None, **headers: str) -> Said:
        """Send a request as the page does; ``csrf`` instead of the token."""
        given = {"Cookie": self.cookie} | {name.replace("_", "-"): value for name, value in headers.items()}
        if method != "GET":
            given["Danube-CSRF"] = self.csrf if csrf is None else csrf
        return await self.broker.web.ask(method, path, body, {name: each for name, each in given.items() if each})


async def log_in(broker: Secured, subject: str = "user:admin", **headers: str) -> Browser:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    token = token_of(broker.proof(subject))
    return Browser(broker, await broker.web.ask("POST", SESSION, {"token": token}, given))


async def audited(broker: Secured, *words: str) -> str:
    """Return the first entry of the audit log with these words; wait for it."""
    admin = broker.proof("user:admin")
    with trio.fail_after(30):
        while True:
            page = await broker.web.ask("GET", f"{TOPICS}/system/audit-b1/messages?limit=1000", headers=admin)
            for each in page.json["messages"] if page.status == 200 else []:
                if all(word in each["payload"] for word in words):
                    return str(each["payload"])
            await trio.sleep(0.05)


async def test_a_browser_logs_in_works_and_logs_out(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        browser = await log_in(broker)
        port = broker.web.running.broker.http_addresses[0].rpartition(":")[2]
        assert re.fullmatch(r"danube-session=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict", browser.set_cookie), (
            browser.set_cookie
        )
        own_port = await log_in(broker, Host=f"localhost:{port}")
        assert own_port.set_cookie.startswith(f"danube-session-{port}="), "browsers tell no ports of a host apart"

        state = (await browser.ask("GET", SESSION)).json
        assert (state["subject"], state["secured"], state["csrf"]) == ("user:admin", True, browser.csrf)
        assert state["proof"] == "token t2"
        (grant,) = state["grants"]
        assert grant["scope"] == "cluster"
        assert {"ManageSecurity", "ManageTopic", "Consume"} <= set(grant["permissions"])
        assert 0 < state["ends_in_s"] <= 3630, "the token lives for an hour, and half a minute more"
        assert (await browser.ask("POST", TOPICS, {"topic": "/shop/more"})).status == 201
        found = await browser.ask("POST", f"{TOPICS}/shop/more/messages", {"messages": [{"payload": "x"}]})
        assert found.status == 201
        assert (await browser.ask("GET", f"{TOPICS}/shop/more/messages")).json["messages"][0]["payload"] == "x"

        out = await browser.ask("DELETE", SESSION)
        assert out.status == 204
        assert "Max-Age=0" in out.headers["set-cookie"]
        for method, path in (("GET", SESSION), ("GET", TOPICS), ("DELETE", SESSION)):
            assert (await browser.ask(method, path)).status == 401, "the cookie is worth nothing now"
        for outcome in ("begun", "ended"):
            entry = await audited(broker, '"kind":"session"', f'"outcome":"{outcome}"')
            for word in ("user:admin", "token t2", '"127.0.0.1'):
                assert word in entry
            assert browser.cookie.partition("=")[2] not in entry
            assert browser.csrf not in entry


async def test_an_api_key_and_narrow_rights(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        token = token_of(broker.proof("user:admin"))
        async with broker.web.running.client(token=token) as client:
            made = await client.security.create_key("service:orders")
            me = await client.security.who_am_i()
            assert (me.subject, me.secured) == ("user:admin", True)
        browser = Browser(broker, await broker.web.ask("POST", SESSION, {"token": f" {made.text}\n"}))
        state = (await browser.ask("GET", SESSION)).json
        assert (state["subject"], state["proof"]) == ("service:orders", f"api-key {made.id}")
        (grant,) = state["grants"]
        assert (grant["scope"], grant["permissions"]) == (
            "namespace:shop",
            ["Lookup", "Produce", "Describe", "ReadSchema"],
        )
        assert (await browser.ask("POST", TOPICS, {"topic": "/shop/more"})).status == 403, "no more than its holder"
        assert (await browser.ask("GET", f"{TOPICS}/hr/salaries")).status == 404
        async with broker.web.running.client(token=token) as client:
            await client.security.drop_key(made.id)
        assert (await browser.ask("GET", SESSION)).status == 401, "a session ends with its credential"


async def test_the_console_is_not_asked_by_the_browser_for_a_password(tmp_path: Path) -> None:
    """A browser that sees the scheme Basic opens a window of its own, and the page waits for it."""
    async with secured(tmp_path) as broker:
        program = await broker.web.ask("GET", SESSION)
        assert program.headers["www-authenticate"].startswith("Basic"), "the last one of two"
        page = await broker.web.ask("GET", SESSION, headers={"Danube-Console": "1"})
        assert (page.status, page.json["code"]) == (401, "unauthenticated")
        assert page.headers["www-authenticate"].startswith("Bearer")


async def test_calls_that_change_something_need_the_csrf_token(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        browser, other = await log_in(broker), await log_in(broker)
        topic = {"topic": "/shop/forged"}
        for wrong in ("", "x", other.csrf, browser.csrf[:-1], browser.csrf + "A"):
            refused = await browser.ask("POST", TOPICS, topic, csrf=wrong)
            assert (refused.status, refused.json["code"]) == (403, "csrf"), wrong
        # Of each kind of call, and before anything of it is looked at.
        for method, path in (
            ("PATCH", f"{API}/policies"),
            ("DELETE", f"{TOPICS}/shop/orders"),
            ("DELETE", SESSION),
            ("POST", f"{TOPICS}/shop/orders/messages"),
        ):
            said = await browser.ask(method, path, {}, csrf="x", If_Match="*")
            assert (said.status, said.json["code"]) == (403, "csrf"), path
        assert (await browser.ask("GET", f"{TOPICS}/shop/forged")).status == 404
        await audited(broker, '"kind":"refused"', "CSRF")
        # A program needs none, also one that sends the cookie as well: the cookie does not count then.
        proof = broker.proof("user:admin")
        assert (await broker.web.ask("POST", TOPICS, topic, proof)).status == 201
        both = await browser.ask("POST", TOPICS, {"topic": "/shop/both"}, csrf="x", **broker.proof("service:orders"))
        assert (both.status, both.json["code"]) == (403, "permission-denied")


async def test_other_pages_get_nothing_by_the_cookie(tmp_path: Path) -> None:
    """A browser that sends the cookie nevertheless says which page makes it do so."""
    async with secured(tmp_path) as broker:
        browser = await log_in(broker)
        for site in ("cross-site", "same-site"):
            said = await browser.ask("GET", SESSION, Sec_Fetch_Site=site, Sec_Fetch_Mode="cors")
            assert said.status == 403
            said = await browser.ask("GET", TOPICS, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")
            assert said.status == 401, "a link from elsewhere opens without a session"
        said = await browser.ask("POST", TOPICS, {"topic": "/shop/x"}, Origin="http://localhost:3000")
        assert said.status == 403
        said = await browser.ask("GET", TOPICS, Host="evil.example")
        assert said.status == 421, "a name that was bound to this address"
        refused = await broker.web.ask(
            "POST", SESSION, {"token": token_of(broker.proof("user:admin"))}, {"Origin": "http://evil.example"}
        )
        assert refused.status == 403, "another page logs no browser in, with a token of its own, say"
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            said = await broker.web.ask("POST", SESSION, b'{"token": "x"}', kind=kind)
            assert said.status == 415, "what forms can send is no login"
        assert (await browser.ask("GET", SESSION, Sec_Fetch_Site="same-origin")).status == 200


async def test_no_session_is_fixed_or_kept_by_a_login(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        chosen = "danube-session=" + "A" * 43
        browser = await log_in(broker, Cookie=chosen)
        assert browser.cookie != chosen, "an id that came with the login is never used"
        assert (await broker.web.ask("GET", SESSION, headers={"Cookie": chosen})).status == 401
        again = Browser(
            broker,
            await broker.web.ask(
                "POST", SESSION, {"token": token_of(broker.proof("user:admin"))}, {"Cookie": browser.cookie}
            ),
        )
        assert again.cookie != browser.cookie
        assert again.csrf != browser.csrf
        assert (await browser.ask("GET", SESSION)).status == 401, "a login ends the session that the browser had"
        # Two cookies of one name: another server of the host has set one. Neither counts.
        double = {"Cookie": f"{chosen}; {again.cookie}"}
        assert (await broker.web.ask("GET", SESSION, headers=double)).status == 401
        assert (await again.ask("GET", SESSION)).status == 200


async def test_a_cookie_of_another_broker_is_worth_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path / "a") as first, secured(tmp_path / "b") as second:
        browser = await log_in(first)
        browser.broker = second
        assert (await browser.ask("GET", SESSION)).status == 401
        assert (await browser.ask("POST", TOPICS, {"topic": "/shop/x"})).status == 401
        browser.broker = first
        assert (await browser.ask("GET", SESSION)).status == 200


async def test_revoked_and_suspended_callers_lose_their_sessions_and_streams(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        await broker.bind("reader", "consumer", "topic:/shop/orders")
        browser = await log_in(broker, "service:reader")
        tail = f"{TOPICS}/shop/orders/messages:tail"
        async with broker.web.events(tail, Cookie=browser.cookie) as events:
            await events.next()
            await broker.write(reader=None)
            with trio.fail_after(10):
                (error,) = await events.take(1, "error")
            assert error.data["status"] == 403
        state = (await browser.ask("GET", SESSION)).json
        assert state["grants"] == [], "who it is can still be told"
        async with broker.web.running.client(token=token_of(broker.proof("user:admin"))) as client:
            await client.security.revoke_token(state["proof"].removeprefix("token "))
        assert (await browser.ask("GET", SESSION)).status == 401


async def test_a_logout_ends_the_streams_of_the_session(tmp_path: Path) -> None:
    async with secured(tmp_path) as broker:
        browser, other = await log_in(broker), await log_in(broker)
        async with (
            broker.web.events(f"{API}/events", Cookie=browser.cookie) as events,
            broker.web.events(f"{API}/events", Cookie=other.cookie) as others,
        ):
            await events.take(1, "stats")
            assert (await browser.ask("DELETE", SESSION)).status == 204
            with trio.fail_after(10):
                (error,) = await events.take(1, "error")
            assert error.data["status"] == 401
            await others.take(2, "stats")


async def test_a_logout_ends_a_stream_that_is_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, ended, native = trio.Event(), trio.Event(), ApiCall.native

    async def slow(self: ApiCall, *arguments: Any) -> Any:
        found = await native(self, *arguments)
        if self.route.operation == "events":
            opening.set()
            await ended.wait()
        return found

    async with secured(tmp_path) as broker, trio.open_nursery() as nursery:
        browser = await log_in(broker)
        monkeypatch.setattr(ApiCall, "native", slow)

        async def log_out() -> None:
            await opening.wait()
            assert (await browser.ask("DELETE", SESSION)).status == 204
            ended.set()

        nursery.start_soon(log_out)
        async with broker.web.events(f"{API}/events", Cookie=browser.cookie) as events:
            with trio.fail_after(10):
                (error,) = await events.take(1, "error")
        assert error.data["status"] == 401


async def test_floods_of_sessions_end_the_callers_own(tmp_path: Path) -> None:
    limits = {"http_max_sessions": 5, "http_max_sessions_per_caller": 3}
    async with secured(tmp_path, limits=limits) as broker:
        await broker.bind("a", "viewer", "cluster")
        victim = await log_in(broker)
        flood = [await log_in(broker, "service:a") for _ in range(8)]
        alive = [(await each.ask("GET", SESSION)).status for each in flood]
        assert alive == [401] * 5 + [200] * 3
        assert (await victim.ask("GET", SESSION)).status == 200
        await log_in(broker, "service:b")
        token = token_of(broker.proof("service:c"))
        full = await broker.web.ask("POST", SESSION, {"token": token})
        assert full.status == 429
        assert "http_max_sessions is 5" in full.json["detail"]
        assert (await victim.ask("DELETE", SESSION)).status == 204
        assert (await broker.web.ask("POST", SESSION, {"token": token})).status == 201


async def test_guesses_of_tokens_are_slowed_down_and_audited(tmp_path: Path) -> None:
    security = {"failed_proofs_burst": 3, "failed_proofs_per_s": 0.001, "refused_proof_pause_s": 0.05}
    async with secured(tmp_path, throttled=security) as broker:
        statuses = []
        for number in range(6):
            said = await broker.web.ask("POST", SESSION, {"token": f"guess{number}"})
            statuses.append(said.status)
            assert "guess" not in said.data.decode()
        assert statuses[:3] == [401] * 3
        assert statuses[-1] == 503, "not looked at"
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(broker.web.running.client(token=token_of(broker.known)))
            assert (await client.security.who_am_i()).subject == "user:admin", "a known credential is not kept out"


async def test_without_access_control_logins_are_refused(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        state = await web.get(SESSION)
        assert (state["subject"], state["secured"], state["csrf"]) == ("user:anonymous", False, "")
        refused = await web.post(SESSION, {"token": "x"}, 409)
        assert "no access control" in refused["detail"]
        async with web.running.client() as client:
            me = await client.security.who_am_i()
            assert (me.subject, me.secured) == ("user:anonymous", False)
            assert "ManageCluster" in me.grants[0].permissions


@pytest.mark.parametrize("body", [{}, {"token": ""}, {"token": "x" * 20_000}, {"token": 1}, {"token": "x", "a": 1}])
async def test_logins_of_another_form_are_invalid(body: dict[str, Any], tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        assert (await web.ask("POST", SESSION, body)).status == 400
