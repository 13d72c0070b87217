"""An HTTP server within a test, and callers that may send anything."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import h11
import trio
import trio.testing

from danube.http import Request, Response
from danube.http.server import HttpServer
from danube.model.limits import Limits

HOST = "127.0.0.1"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Caller:
    """A connection that sends raw bytes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def rest(self, most: int = 1 << 20) -> bytes:
        """Return everything up to the end of the connection."""
        found = b""
        while len(found) < most:
            data = await self.stream.receive_some(65536)
            if not data:
                break
            found += data
        return found

    async def until(self, end: bytes) -> bytes:
        found = b""
        while end not in found:
            data = await self.stream.receive_some(65536)
            assert data, found
            found += data
        return found

    async def ask(self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        """Send a request by the rules, and return the answer."""
        given = {"Host": HOST, **({"Content-Length": str(len(body))} if body else {}), **(headers or {})}
        lines = [(name, value.encode("latin-1")) for name, value in given.items()]
        data = self.http.send(h11.Request(method=method, target=target, headers=lines))
        if body:
            data += self.http.send(h11.Data(data=body))
        await self.send(data + self.http.send(h11.EndOfMessage()))
        return await self.answer()

    async def answer(self) -> Answer:
        status, headers, found = 0, {}, b""
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                self.http.receive_data(await self.stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                found += event.data
            elif isinstance(event, h11.EndOfMessage):
                if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
                    self.http.start_next_cycle()
                return Answer(status, headers, found)
            else:
                assert isinstance(event, h11.InformationalResponse), event


class Running(NamedTuple):
    server: HttpServer
    port: int
    nursery: trio.Nursery

    @asynccontextmanager
    async def near(self, *, lockstep: bool = False) -> AsyncGenerator[Caller, None]:
        """Connect in memory, for tests in virtual time; with ``lockstep`` nothing is buffered between the two."""
        pair = trio.testing.lockstep_stream_pair if lockstep else trio.testing.memory_stream_pair
        ours, theirs = pair()
        self.nursery.start_soon(self.server.serve_stream, theirs)
        async with ours:
            yield Caller(ours)

    @asynccontextmanager
    async def caller(self) -> AsyncGenerator[Caller, None]:
        async with await trio.open_tcp_stream(HOST, self.port) as stream:
            yield Caller(stream)

    async def ask(self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        async with self.caller() as caller:
            return await caller.ask(method, target, headers, body)


async def echo(request: Request) -> Response:
    """Answer with what was asked."""
    body = await request.body.read()
    text = f"{request.method} {list(request.target.segments)} {dict(request.query)} ".encode() + body
    return Response(200, text, content_type="text/plain; charset=utf-8")


@asynccontextmanager
async def serving(handler=echo, *, patience_s: float | None = None, **limits) -> AsyncGenerator[Running, None]:
    listeners = await trio.open_tcp_listeners(0, host=HOST)
    server = HttpServer(handler, Limits(**limits), headers=[("X-Always", "yes")], wall_s=lambda: 1_795_690_000.0)
    with trio.fail_after(20 if patience_s is None else patience_s):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run, listeners)
            yield Running(server, listeners[0].socket.getsockname()[1], nursery)
            nursery.cancel_scope.cancel()
