"""A broker with the HTTP API, and a caller that speaks JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio
from broker.broker_harness import RunningBroker, running_broker
from http_callers import Caller

import danube.web

API = "/api/v1"
TOPIC = "/default/orders"
ORDERS = f"{API}/topics/default/orders"


class Said(NamedTuple):
    """An answer."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Web:
    """The HTTP port of a broker. Each request has a connection of its own."""

    def __init__(self, running: RunningBroker) -> None:
        self.running = running
        self.headers: dict[str, str] = {}

    @property
    def port(self) -> int:
        return int(self.running.broker.http_addresses[0].rpartition(":")[2])

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Caller, None]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Caller(stream)

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *, kind: str = ""
    ) -> Said:
        """Send a request; a body that is no bytes is sent as JSON."""
        given = {**self.headers, **(headers or {})}
        data = b""
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            given["Content-Type"] = kind or (
                "application/octet-stream" if isinstance(body, bytes) else "application/json"
            )
        async with self.connection() as caller:
            return Said(*await caller.ask(method, path, given, data))

    async def get(self, path: str, status: int = 200, **headers: str) -> Any:
        said = await self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        assert said.status == status, said
        return said.json

    async def post(self, path: str, body: Any = None, status: int = 200, headers: dict[str, str] | None = None) -> Any:
        said = await self.ask("POST", path, body, headers)
        assert said.status == status, said
        return said.json if said.data else None

    async def publish(self, *payloads: str, topic: str = ORDERS) -> list[dict[str, Any]]:
        body = {"messages": [{"payload": each} for each in payloads]}
        found: list[dict[str, Any]] = (await self.post(f"{topic}/messages", body, 201))["receipts"]
        return found

    async def match(self, topic: str = ORDERS) -> dict[str, str]:
        """Return the header that names a topic as it is now."""
        return {"If-Match": f'"{(await self.get(topic))["topic_id"]}"'}

    @asynccontextmanager
    async def events(self, path: str, body: Any = None, **headers: str) -> AsyncGenerator[Events, None]:
        """Open a stream of events: by GET, or with a body by POST."""
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = b"" if body is None else json.dumps(body).encode()
        if body is not None:
            given |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        method = "GET" if body is None else "POST"
        async with self.connection() as caller:
            await caller.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode() + data)
            head = await caller.until(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            assert b"text/event-stream" in head
            yield Events(caller, head.partition(b"\r\n\r\n")[2])


class Event(NamedTuple):
    name: str
    event_id: str
    data: Any


class Events:
    """The events of one stream; HTTP's chunks are taken off."""

    def __init__(self, caller: Caller, received: bytes) -> None:
        self.caller = caller
        self._raw = received
        self._text = b""

    async def next(self) -> Event:
        while b"\n\n" not in self._text:
            self._unpack()
            if b"\n\n" in self._text:
                break
            data = await self.caller.stream.receive_some(65536)
            assert data, "the stream has ended"
            self._raw += data
        text, _, self._text = self._text.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if not line.startswith(":"))
        return Event(fields.get("event", ""), fields.get("id", ""), json.loads(fields.get("data", "null")))

    def _unpack(self) -> None:
        while True:
            size, end, rest = self._raw.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                return
            self._text += rest[: int(size, 16)]
            self._raw = rest[int(size, 16) + 2 :]

    async def take(self, count: int, name: str = "message") -> list[Event]:
        found: list[Event] = []
        while len(found) < count:
            event = await self.next()
            if event.name == name:
                found.append(event)
        return found


@asynccontextmanager
async def web_broker(directory: Path, **settings: Any) -> AsyncGenerator[Web, None]:
    """Run a broker with the HTTP API; ``topics`` are created."""
    topics = settings.pop("topics", [TOPIC])
    settings.setdefault("http_listen", ["127.0.0.1:0"])
    async with running_broker(directory, faces=(danube.web.face,), **settings) as running:
        web = Web(running)
        for topic in topics:
            await web.post(f"{API}/topics", {"topic": topic} if isinstance(topic, str) else topic, 201)
        yield web
