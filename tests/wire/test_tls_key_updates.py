"""Floods of TLS records that carry no data, by a client made of OpenSSL."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import msgspec
import pytest
import trio
from certificates import Files, make_files
from openssl_client import OpensslClient
from tls_harness import tls_server

from danube.model.limits import Limits
from danube.wire import Method, UnaryCall, connect_channel
from danube.wire.tls import client_context

LIMIT = Limits().max_tls_idle_records_per_minute
NAMED = f"such as updates of keys: more than max_tls_idle_records_per_minute = {LIMIT}"


class Number(msgspec.Struct):
    value: int


def add(request: Number, call: UnaryCall) -> None:
    call.reply(Number(request.value + 1))


METHODS = {"/t/add": Method(path="/t/add", kind="unary", start=add, request_type=Number)}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


class Peer:
    """A connection of an :class:`OpensslClient` that speaks HTTP/2."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.tls = OpensslClient()
        self.http = h2.connection.H2Connection(h2.config.H2Configuration())
        self.pings = 0

    async def send(self) -> None:
        """Send all that is queued."""
        await self.stream.send_all(self.tls.sealed())

    async def greet(self, *, behind: Callable[[OpensslClient], None] = lambda tls: None) -> None:
        """Negotiate, and send the preface; ``behind`` queues records that are sent with the end of the handshake."""
        while not self.tls.handshake():
            await self.send()
            self.tls.feed(await self.stream.receive_some())
        behind(self.tls)
        self.http.initiate_connection()
        self.tls.write(self.http.data_to_send())
        await self.send()

    async def ping(self) -> None:
        """Send a PING, and wait for its answer; it needs data of both directions."""
        self.pings += 1
        self.http.ping(self.pings.to_bytes(8, "big"))
        self.tls.write(self.http.data_to_send())
        await self.send()
        while True:
            for event in await self.events():
                if isinstance(event, h2.events.PingAckReceived):
                    return

    async def events(self) -> list[h2.events.Event]:
        sealed = await self.stream.receive_some()
        assert sealed, "the server has ended the connection"
        self.tls.feed(sealed)
        return list(self.http.receive_data(self.tls.read()))

    async def until_ended(self) -> str:
        """Return the reason of the server's GOAWAY, once the connection has ended."""
        reason = ""
        while True:
            try:
                sealed = await self.stream.receive_some()
            except trio.BrokenResourceError:
                return reason  # the server did not read all that was sent, so the kernel resets the connection
            if not sealed:
                return reason
            self.tls.feed(sealed)
            for event in self.http.receive_data(self.tls.read()):
                if isinstance(event, h2.events.ConnectionTerminated):
                    assert event.error_code == 0xB, "ENHANCE_YOUR_CALM"
                    reason = (event.additional_data or b"").decode()


@asynccontextmanager
async def connected(port: int) -> AsyncGenerator[Peer, None]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        peer = Peer(stream)
        try:
            yield peer
        finally:
            peer.tls.free()


async def test_updates_within_the_limit_are_taken(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (_, _, port), connected(port) as peer:
        await peer.greet()
        for number in range(LIMIT):
            peer.tls.key_update(requested=number % 2 == 0)
            await peer.ping()
        assert peer.pings == LIMIT


@pytest.mark.parametrize("requested", [False, True])
async def test_a_flood_of_updates_ends_its_connection(
    files: Files, caplog: pytest.LogCaptureFixture, *, requested: bool
) -> None:
    caplog.set_level(logging.INFO, "danube.wire")
    async with (
        tls_server(files.server(), METHODS) as (server, _, port),
        connect_channel("127.0.0.1", port, tls=client_context(files.ca)) as other,
        connected(port) as peer,
    ):
        await other.unary("/t/add", Number(1), Number)
        await peer.greet()
        await peer.ping()
        for _ in range(2 * LIMIT):
            peer.tls.key_update(requested=requested)
        await peer.send()
        assert NAMED in await peer.until_ended()
        assert NAMED in caplog.text
        assert (await other.unary("/t/add", Number(1), Number)).value == 2
        with trio.fail_after(10):
            while len(server._connections) > 1:  # noqa: ASYNC110
                await trio.sleep(0.01)


async def test_a_large_read_is_not_decrypted_beyond_the_limit(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a quarter of a megabyte would occupy the loop for that long."""
    from danube.wire import _tls_transport

    opened: list[int] = []
    cut = _tls_transport.Records.cut

    def counting(self: _tls_transport.Records, data: bytes, begin: int, most: int) -> tuple[int, int]:
        found = cut(self, data, begin, most)
        opened.append(found[1])
        return found

    monkeypatch.setattr(_tls_transport.Records, "cut", counting)
    async with tls_server(files.server(), METHODS) as (_, _, port), connected(port) as peer:
        await peer.greet()
        await peer.ping()
        for _ in range(10_000):
            peer.tls.key_update()
        opened.clear()
        with suppress(trio.BrokenResourceError):
            await peer.send()
        await peer.until_ended()
    assert LIMIT < sum(opened) <= LIMIT + 2 * _tls_transport.RECORDS_AT_ONCE


async def test_data_between_the_updates_is_no_excuse(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "danube.wire")
    async with tls_server(files.server(), METHODS) as (_, _, port), connected(port) as peer:
        await peer.greet()
        with suppress(AssertionError, trio.BrokenResourceError):
            for _ in range(4 * LIMIT):
                peer.tls.key_update()
                await peer.ping()
        assert LIMIT < peer.pings < 4 * LIMIT, "about one each second is taken beside those at once"
        assert NAMED in caplog.text


async def test_updates_behind_the_handshake(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    """Those that arrive with its last bytes count; a few are taken."""
    caplog.set_level(logging.INFO, "danube.wire")

    def updates(count: int) -> Callable[[OpensslClient], None]:
        def queue(tls: OpensslClient) -> None:
            for _ in range(count):
                tls.key_update()

        return queue

    async with tls_server(files.server(), METHODS) as (_, _, port):
        async with connected(port) as peer:
            await peer.greet(behind=updates(LIMIT))
            await peer.ping()
        async with connected(port) as peer:
            await peer.greet(behind=updates(2 * LIMIT + 10))
            await peer.until_ended()
    assert NAMED in caplog.text
