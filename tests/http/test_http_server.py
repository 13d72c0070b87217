"""The HTTP server on real sockets: what it serves, and how it ends."""

from __future__ import annotations

import gzip
import json

import pytest
import trio
import trio.testing
from http_callers import echo, serving

from danube.http import Request, Response, event_text
from danube.model.errors import TopicNotFoundError


async def test_it_answers_several_requests_on_one_connection() -> None:
    async with serving() as running, running.caller() as caller:
        first = await caller.ask("GET", "/a%2Fb/c?x=1&y=a+b%20c")
        assert (first.status, first.body) == (200, b"GET ['a/b', 'c'] {'x': '1', 'y': 'a b c'} ")
        second = await caller.ask("POST", "/", body=b"hello")
        assert second.body == b"POST [] {} hello"
        assert second.headers["x-always"] == "yes"
        assert second.headers["date"] == "Thu, 26 Nov 2026 10:46:40 GMT"
        assert running.server.connections == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as running, running.caller() as caller:
        await caller.send(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        found = await caller.rest()
        assert found.index(b"['1']") < found.index(b"['2']")


@pytest.mark.parametrize(("status", "line"), [(200, b"200 OK"), (404, b"404 Not Found"), (599, b"599 ")])
async def test_a_status_has_its_reason_phrase(status: int, line: bytes) -> None:
    async def handler(_request: Request) -> Response:
        return Response(status, b"x", content_type="text/plain")

    async with serving(handler) as running, running.caller() as caller:
        await caller.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await caller.rest()).startswith(b"HTTP/1.1 " + line + b"\r\n")


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with serving() as running, running.caller() as caller:
        got = await caller.ask("GET", "/x")
        head = await caller.ask("HEAD", "/x")
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.body))
        assert head.headers["etag"] == got.headers["etag"]
        assert (await caller.ask("GET", "/y")).status == 200, "the connection goes on"


async def test_a_caller_that_knows_the_answer_gets_304() -> None:
    async with serving() as running, running.caller() as caller:
        tag = (await caller.ask("GET", "/x")).headers["etag"]
        same = await caller.ask("GET", "/x", {"If-None-Match": f'"other", {tag}'})
        assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
        assert (await caller.ask("GET", "/other", {"If-None-Match": tag})).status == 200


async def test_large_texts_are_compressed_for_those_that_accept_it() -> None:
    text = b"who sells seashells " * 50_000

    async def handler(_request: Request) -> Response:
        return Response(200, text, content_type="text/plain")

    async with serving(handler) as running, running.caller() as caller:
        plain = await caller.ask("GET", "/")
        assert plain.body == text
        assert "content-encoding" not in plain.headers
        packed = await caller.ask("GET", "/", {"Accept-Encoding": "br, gzip;q=0.5"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "Accept-Encoding"
        assert len(packed.body) < len(text) // 10
        assert gzip.decompress(packed.body) == text
        refused = await caller.ask("GET", "/", {"Accept-Encoding": "gzip;q=0"})
        assert refused.body == text


async def test_a_caller_that_waits_for_permission_gets_it() -> None:
    async with serving() as running, running.caller() as caller:
        await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert await caller.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await caller.send(b"hello")
        assert b"POST [] {} hello" in await caller.until(b"hello")


async def test_a_body_that_is_not_wanted_is_not_waited_for() -> None:
    async def handler(_request: Request) -> Response:
        return Response(200, b"no need", content_type="text/plain")

    async with serving(handler) as running, running.caller() as caller:
        await caller.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\nExpect: 100-continue\r\n\r\n")
        assert b"no need" in await caller.rest()  # and the connection ends


async def test_errors_are_problems() -> None:
    async def handler(request: Request) -> Response:
        if request.target.segments == ("missing",):
            raise TopicNotFoundError("topic /default/x does not exist; create it with: danube topics create /default/x")
        raise ValueError("a bug, with a secret")

    async with serving(handler) as running, running.caller() as caller:
        missing = await caller.ask("GET", "/missing")
        assert (missing.status, missing.headers["content-type"]) == (404, "application/problem+json")
        assert json.loads(missing.body) == {
            "type": "about:blank",
            "title": "Not found",
            "status": 404,
            "detail": "topic /default/x does not exist",
            "code": "topic-not-found",
            "remedy": "create it with: danube topics create /default/x",
            "details": {},
        }
        bug = await caller.ask("GET", "/bug")
        assert bug.status == 500
        assert b"secret" not in bug.body
        assert b"ValueError" in bug.body


async def test_a_stream_of_events_is_kept_alive_and_ends_with_its_caller(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ended = trio.Event()

    async def events(sink) -> None:
        try:
            await sink.send(event_text(b"1\n2", name="count", event_id="7"))
            await trio.sleep(40)
            await sink.send(event_text(b"last"))
            await trio.sleep_forever()
        finally:
            ended.set()

    async def handler(_request: Request) -> Response:
        return Response(200, events, content_type="text/event-stream", events=True)

    async with serving(handler, patience_s=1000) as running:
        async with running.near() as caller:
            await caller.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            found = await caller.until(b"last")
            assert b"event: count\nid: 7\ndata: 1\ndata: 2\n\n" in found
            assert found.count(b":\n\n") == 2, "a comment for each 15 s of silence"
            assert running.server.event_streams == 1
        await ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert running.server.connections == 0
        assert running.server.event_streams == 0


async def test_there_are_at_most_so_many_streams_of_events() -> None:
    async def events(sink) -> None:
        await sink.send(b"data: x\n\n")
        await trio.sleep_forever()

    async def handler(_request: Request) -> Response:
        return Response(200, events, content_type="text/event-stream", events=True)

    async with serving(handler, http_max_sse=1) as running, running.caller() as first:
        await first.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await first.until(b"data: x")
        refused = await running.ask("GET", "/")
        assert refused.status == 429
        assert b"http_max_sse" in refused.body
        assert refused.headers["retry-after"] == "1"


async def test_a_streamed_answer_arrives_in_pieces() -> None:
    async def pieces(sink) -> None:
        for number in range(3):
            await sink.send(b"%d," % number * 1000)

    async def handler(_request: Request) -> Response:
        return Response(200, pieces, content_type="text/plain")

    async with serving(handler) as running, running.caller() as caller:
        answer = await caller.ask("GET", "/")
        assert answer.headers["transfer-encoding"] == "chunked"
        assert len(answer.body) == 6000
        assert (await caller.ask("HEAD", "/")).body == b""


async def test_a_drain_ends_streams_at_once_and_lets_requests_end() -> None:
    go = trio.Event()

    async def events(sink) -> None:
        await sink.send(b"data: x\n\n")
        await trio.sleep_forever()

    async def handler(request: Request) -> Response:
        if request.target.segments == ("events",):
            return Response(200, events, content_type="text/event-stream", events=True)
        await go.wait()
        return Response(200, b"done", content_type="text/plain")

    async with (
        serving(handler) as running,
        running.caller() as idle,
        running.caller() as stream,
        running.caller() as busy,
    ):
        await stream.send(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.until(b"data: x")
        await busy.send(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
        await trio.sleep(0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.server.drain, 10.0)
            assert (await stream.rest()).endswith(b"0\r\n\r\n"), "the stream ends as HTTP says"
            assert await idle.rest() == b""
            go.set()
            answer = await busy.rest()
            assert answer.endswith(b"done")
            assert b"Connection: close" in answer
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", running.port)


async def test_the_server_works_on_any_stream() -> None:
    async with serving(echo) as running:
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.server.serve_stream, theirs)
            await ours.send_all(b"GET /memory HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            found = b""
            while data := await ours.receive_some(4096):
                found += data
            assert b"['memory']" in found
