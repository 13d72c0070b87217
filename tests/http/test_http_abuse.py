"""Callers that mean no good, or know HTTP only roughly: each gets an answer that says so, and costs little."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from http_callers import echo, serving

from danube.http import Request, Response

SMUGGLED = {
    "both lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "lengths in one": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 6\r\n\r\nhello!",
    "negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "signed length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
    "other coding": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": b"POST / HTTP/1.1\r\nHost: x\r\n" + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n0\r\n\r\n",
    "coding with a tab": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "coding of 1.0": b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before the colon": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello",
    "bad chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "signed chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    "endless chunk size": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1" * 40
    + b"\r\nhello\r\n",
    "chunk without its end": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "two origins": b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://x\r\nOrigin: http://y\r\n\r\n",
    "NUL in a header": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    "CR in a header": b"GET / HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n",
    "no version": b"GET /\r\nHost: x\r\n\r\n",
    "another version": b"GET / HTTP/3.0\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
    "nonsense": b"\x00\x01\x02\r\n\r\n",
    "a proxy's request": b"GET http://elsewhere/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an echo": b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
    "another expectation": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: more\r\n\r\nx",
}
TARGETS = [
    "/../etc/passwd",
    "/a/../b",
    "/a/%2e%2e/b",
    "/a/.%2E/b",
    "/a%2F..%2Fb",
    "/a/%2F../b",
    "/%2F..",
    "/a/./b",
    "/a//b",
    "/a/",
    "//elsewhere/x",
    "/a%00b",
    "/a%0d%0ab",
    "/a%5Cb",
    "/a%",
    "/a%zz",
    "/a%ff",
    "/a?x=%ff",
    "/a?x=1&x=2",
    "/a#b",
    "/" + "a/" * 40 + "a",
    "/?" + "&".join(f"p{number}=1" for number in range(100)),
]


@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
async def test_what_could_be_read_in_two_ways_is_refused(data: bytes) -> None:
    seen: list[bytes] = []

    async def handler(request: Request) -> Response:
        seen.append(await request.body.read())
        return Response(200, b"executed", content_type="text/plain")

    async with serving(handler) as running, running.caller() as caller:
        await caller.send(data + b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        found = await caller.rest()
        assert b"executed" not in found
        assert found.split(b" ")[1] in (b"400", b"501"), found
        assert b"application/problem+json" in found
        assert b"X-Always: yes" in found
        assert not seen, "the handler got no body"


@pytest.mark.parametrize("target", TARGETS)
async def test_targets_that_could_be_read_in_two_ways_are_refused(target: str) -> None:
    async with serving() as running, running.caller() as caller:
        await caller.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        found = await caller.rest()
        assert found.startswith(b"HTTP/1.1 400"), found


async def test_a_large_head_is_refused() -> None:
    async with serving(http_max_header_bytes=4096) as running:
        for data in (
            b"GET /" + b"a" * 8192,
            b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 8192,
            b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 2000 + b"\r\n",
        ):
            async with running.caller() as caller:
                await caller.send(data)
                found = await caller.rest()
                assert found.startswith(b"HTTP/1.1 431"), found
                assert b"http_max_header_bytes" in found


async def test_a_large_body_is_refused_as_soon_as_it_is_known_to_be_large() -> None:
    async with serving(http_max_body_bytes=1000) as running:
        async with running.caller() as caller:
            await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\n")
            found = await caller.until(b"http_max_body_bytes")
            assert found.startswith(b"HTTP/1.1 413")
        async with running.caller() as caller:
            await caller.send(
                b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n%b\r\n" % bytes(1000) * 2
            )
            assert b"HTTP/1.1 413" in await caller.until(b"http_max_body_bytes")
        async with running.caller() as caller:
            await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n")
            assert (await caller.rest()).startswith(b"HTTP/1.1 413"), "the body was never asked for"


async def test_a_head_that_trickles_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(patience_s=1000) as running, running.near() as caller:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def trickle() -> None:
                for byte in b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 100:
                    await caller.send(bytes([byte]))
                    await trio.sleep(1)

            nursery.start_soon(trickle)
            found = await caller.until(b"headers_timeout_s")
            assert found.startswith(b"HTTP/1.1 408")
            assert 9 < trio.current_time() - began < 12
            nursery.cancel_scope.cancel()


async def test_a_body_that_trickles_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(patience_s=1000, http_request_timeout_s=30) as running, running.near() as caller:
        began = trio.current_time()
        await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
        found = await caller.until(b"http_request_timeout_s")
        assert found.startswith(b"HTTP/1.1 408")
        assert 29 < trio.current_time() - began < 32


async def test_a_silent_connection_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with serving(patience_s=1000, http_idle_timeout_s=60) as running, running.near() as caller:
        assert (await caller.ask("GET", "/")).status == 200
        began = trio.current_time()
        assert await caller.rest() == b""
        assert 59 < trio.current_time() - began < 62


async def test_a_handler_that_takes_too_long_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    async def handler(request: Request) -> Response:
        if request.target.segments == ("long",):
            request.extend(100)
            await trio.sleep(99)
            return Response(200, b"at last", content_type="text/plain")
        await trio.sleep_forever()
        raise AssertionError

    async with serving(handler, patience_s=1000) as running:
        async with running.near() as caller:
            late = await caller.ask("GET", "/")
            assert late.status == 504
            assert json.loads(late.body)["code"] == "deadline-exceeded"
        async with running.near() as caller:
            assert (await caller.ask("GET", "/long")).body == b"at last"


async def test_a_caller_that_does_not_read_is_disconnected(autojump_clock: trio.testing.MockClock) -> None:
    gone = trio.Event()

    async def flood(sink) -> None:
        try:
            while True:
                await sink.send(bytes(1 << 20))
        finally:
            gone.set()

    async def handler(_request: Request) -> Response:
        return Response(200, flood, content_type="application/octet-stream")

    async with serving(handler, patience_s=1000) as running, running.near(lockstep=True) as caller:
        await caller.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await caller.until(b"\r\n\r\n")
        await gone.wait()
        assert trio.current_time() < 30
        assert running.server.sent_bytes < 64 << 20


async def test_connections_without_a_request_make_room() -> None:
    async with (
        serving(http_max_connections=3) as running,
        running.caller() as one,
        running.caller() as two,
        running.caller() as three,
    ):
        await one.send(b"GET / HTTP/1.1\r\nHo")
        for caller in (two, three):
            assert (await caller.ask("GET", "/")).status == 200
        assert (await running.ask("GET", "/")).status == 200, "the slow one had to go"
        assert await one.rest() == b""


async def test_too_many_connections_with_a_request_are_refused() -> None:
    go = trio.Event()
    coming = 0
    arrived = trio.Event()

    async def handler(request: Request) -> Response:
        nonlocal coming
        coming += 1
        if coming == 2:
            arrived.set()
        await go.wait()
        return await echo(request)

    async with (
        serving(handler, http_max_connections=2) as running,
        running.caller() as one,
        running.caller() as two,
    ):
        for caller in (one, two):
            await caller.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await arrived.wait()
        async with running.caller() as three:
            assert await three.rest() == b""
        go.set()
        assert b"200" in await one.until(b"GET []")
