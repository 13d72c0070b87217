"""TLS of the wire: data in all sizes, peers that read slowly, wrong peers, wrong certificates, new certificates."""

from __future__ import annotations

import logging
import os
import random
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import pytest
import trio
import trio.testing
from certificates import Files, make_files
from cryptography.hazmat.primitives import serialization
from tls_harness import tls_server

from danube.model.errors import ConfigurationError, ConnectionLostError
from danube.model.limits import Limits
from danube.model.tls import TlsConfig, check_tls
from danube.wire import Context, Method, Server, ServerStream, UnaryCall, connect_channel, serve
from danube.wire._tls_transport import TlsTransport, secured, tls_over
from danube.wire._transport import SocketTransport
from danube.wire.tls import ServerTls, client_context, tls_problem

MIB = 1024 * 1024
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Number(msgspec.Struct):
    value: int


CONTEXTS: list[Context] = []


def add(request: Number, call: UnaryCall) -> None:
    CONTEXTS.append(call.context)
    call.reply(Number(request.value + 1))


async def echo(stream: ServerStream, context: Context) -> None:
    CONTEXTS.append(context)
    while (message := await stream.receive()) is not None:
        await stream.send(message.data)
        message.release()


METHODS = {
    "/t/add": Method(path="/t/add", kind="unary", start=add, request_type=Number),
    "/t/echo": Method(path="/t/echo", kind="bidi", handler=echo, max_request_bytes=16 * MIB),
}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    CONTEXTS.clear()
    return make_files(tmp_path)


def der_of(path: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text())


async def add_one(port: int, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> int:
    async with connect_channel(host, port, tls=context) as channel:
        return (await channel.unary("/t/add", Number(41), Number, timeout_s=5.0)).value


async def test_calls_and_a_stream(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (_, tls, port):
        async with connect_channel("127.0.0.1", port, tls=client_context(files.ca)) as channel:
            for number in range(100):
                assert (await channel.unary("/t/add", Number(number), Number)).value == number + 1
        assert CONTEXTS[0].secure
        assert CONTEXTS[0].peer_certificate is None
        assert 29 < (tls.expires_at_s - time.time()) / 86400 < 31


async def exchange(port: int, context: ssl.SSLContext, sizes: list[int]) -> None:
    """Send messages of these sizes, and compare what comes back."""
    content = random.Random(1).randbytes(max(sizes) + 1)
    async with (
        connect_channel("127.0.0.1", port, tls=context) as channel,
        channel.open_stream("/t/echo", max_message_bytes=16 * MIB) as stream,
        anyio.create_task_group() as tasks,
    ):

        async def send() -> None:
            for size in sizes:
                await stream.send(content[:size])
            stream.end()

        tasks.start_soon(send)
        for size in sizes:
            message = await stream.receive()
            assert message is not None
            assert message.data == content[:size]
            message.release()
        assert await stream.receive() is None


SIZES = [0, 1, 100, 16_383, 16_384, 16_385, 65_535, 65_536, 70_000, 262_144, 300_001, 3 * MIB, 5, 1 * MIB, 0, 9]


async def test_messages_of_all_sizes(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (_, _, port):
        await exchange(port, client_context(files.ca), SIZES * 2)


def test_a_client_under_asyncio(files: Files) -> None:
    async def server(started: socket.socket) -> None:
        async with tls_server(files.server(), METHODS) as (_, _, port):
            started.sendall(port.to_bytes(2, "big"))
            await trio.to_thread.run_sync(lambda: started.recv(1))

    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lambda: trio.run(server, theirs))
    thread.start()
    try:
        port = int.from_bytes(ours.recv(2), "big")
        anyio.run(exchange, port, client_context(files.ca), SIZES, backend="asyncio")
        with pytest.raises(ConnectionLostError, match="pass the file of its authority"):
            anyio.run(add_one, port, client_context(), backend="asyncio")
    finally:
        ours.sendall(b"x")
        thread.join(20)
        ours.close()
        theirs.close()


class Fragments(trio.abc.Stream):
    """A stream in memory that passes on bytes in random pieces, and accepts few without waiting."""

    def __init__(self, stream: trio.abc.Stream, seed: int) -> None:
        self._stream = stream
        self._random = random.Random(seed)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(self._random.choice([1, 2, 5, 17, 1_000, 20_000])))

    async def send_all(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            size = self._random.choice([1, 4, 6, 100, 16_400, 65_000])
            await self._stream.send_all(data[position : position + size])
            position += size

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("seed", range(4))
async def test_records_in_random_fragments(files: Files, seed: int) -> None:
    async with tls_server(files.server(), METHODS) as (server, _, _):
        theirs, ours = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve_stream, Fragments(theirs, seed))

            async def connect() -> trio.abc.Stream:
                return Fragments(ours, seed + 100)

            context = client_context(files.ca)
            async with (
                connect_channel("127.0.0.1", 1, connect=connect, tls=context) as channel,  # type: ignore[arg-type]
                channel.open_stream("/t/echo") as stream,
            ):
                for size in (0, 1, 16_384, 16_390, 100_000, 400_000):
                    content = random.Random(size).randbytes(size)
                    stream.send_nowait(content)
                    message = await stream.receive()
                    assert message is not None
                    assert message.data == content
                    message.release()


async def test_a_peer_that_reads_slowly_through_a_small_buffer(files: Files) -> None:
    """Pieces that the socket does not accept are kept and sent unchanged, while data arrives from the peer."""
    context = ServerTls(files.server(), time.time).context
    left, right = socket.socketpair()
    for each in (left, right):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    content = random.Random(3).randbytes(3 * MIB)
    rest = random.Random(5)

    async def pump(transport: TlsTransport) -> None:
        view = memoryview(content)
        while view:
            piece = view[: rest.choice([1, 900, 16_384, 70_000, 500_000])]
            sent = transport.send_now(piece)
            if sent < len(piece):
                await transport.send(piece[sent:])
            view = view[len(piece) :]

    async def take(transport: TlsTransport) -> None:
        received = bytearray()
        while len(received) < len(content):
            if rest.random() < 0.3:
                await trio.lowlevel.checkpoint()
            received += await transport.receive(1_000)
        assert received == content

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            server = tls_over(SocketTransport(left), context)
            nursery.start_soon(server.handshake)
            client = await secured(SocketTransport(right), client_context(files.ca), "127.0.0.1")
        async with trio.open_nursery() as nursery:
            for each in (server, client):
                nursery.start_soon(pump, each)
                nursery.start_soon(take, each)
        await client.close()
        assert await server.receive(1) == b""
        await server.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.005)


def waiting(server: Server) -> int:
    assert server._door is not None
    return server._door.waiting


async def raw(port: int) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port)


async def read_all(stream: trio.abc.ReceiveStream) -> bytes:
    found = b""
    with trio.move_on_after(5):
        while data := await stream.receive_some(65536):
            found += data
    return found


async def test_peers_without_tls_are_told(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "danube.wire")
    async with tls_server(files.server(), METHODS) as (server, _, port):
        async with await raw(port) as stream:
            await stream.send_all(PREFACE + bytes(9))
            answer = await stream.receive_some(1000)
            assert answer[:9] == b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
            assert answer[9 + 9 + 4 :] == b"\x00\x00\x00\x0cthis port speaks TLS: danube+tls://"
        async with await raw(port) as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await stream.receive_some(1000)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert answer.endswith(b"danube+tls://.\n")
        with pytest.raises(ConnectionLostError, match=r"this port speaks TLS: danube\+tls://"):
            await add_one(port, None)
        await until(lambda: not waiting(server))
    assert "it does not speak TLS" in caplog.text


async def test_plain_text_is_served_too_if_configured(files: Files) -> None:
    async with tls_server(files.server(plaintext=True), METHODS) as (_, _, port):
        assert await add_one(port, None) == 42
        assert await add_one(port, client_context(files.ca)) == 42
        assert [context.secure for context in CONTEXTS] == [False, True]


async def test_a_plain_port_refuses_tls_clearly(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "danube.wire")
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, listeners, [METHODS])
        with pytest.raises(ConnectionLostError, match="refuses TLS here; if its port is a plain one, use danube://"):
            await add_one(port, client_context(files.ca))
        nursery.cancel_scope.cancel()
    assert "the peer speaks TLS, and this port does not" in caplog.text


async def test_versions_and_protocols(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (_, _, port), AsyncExitStack() as opened:

        async def negotiate(context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
            plain = await opened.enter_async_context(await raw(port))
            stream = trio.SSLStream(plain, context, server_hostname="127.0.0.1")
            await stream.do_handshake()
            return stream

        context = client_context(files.ca)
        found = await negotiate(context)
        assert (found.version(), found.selected_alpn_protocol()) == ("TLSv1.3", "h2")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        found = await negotiate(context)
        assert (found.version(), found.selected_alpn_protocol()) == ("TLSv1.2", "h2")
        context = client_context(files.ca)
        context.set_alpn_protocols(["http/1.1"])
        found = await negotiate(context)
        assert found.selected_alpn_protocol() == "http/1.1"
        await found.send_all(b"GET / HTTP/1.1\r\n\r\n")
        assert (await found.receive_some(1000)).startswith(b"HTTP/1.1 505 ")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(files.ca)
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(trio.BrokenResourceError) as caught:
            await negotiate(old)
        assert "PROTOCOL_VERSION" in str(caught.value.__cause__)


async def test_client_certificates(files: Files) -> None:
    cert, key = files.pair("client", "danube://orders/service/api", "client.example.org")
    settings = {"client_ca": files.ca, "client_auth": "required"}
    async with tls_server(files.server(**settings), METHODS) as (_, _, port):
        assert await add_one(port, client_context(files.ca, cert, key)) == 42
        certificate = CONTEXTS[-1].peer_certificate
        assert certificate is not None
        assert ("DNS", "client.example.org") in certificate.names
        assert certificate.der == der_of(cert)
        assert certificate.expires_at_s > time.time()
        assert not certificate.of_broker_ca
        with pytest.raises(ConnectionLostError, match="pass one with cert and key"):
            await add_one(port, client_context(files.ca))
        stranger = make_files(files.directory / "..")
        strange = client_context(files.ca, *stranger.pair("stranger", "x.example.org"))
        with pytest.raises(ConnectionLostError, match="does not trust the authority"):
            await add_one(port, strange)
    settings = {"broker_ca": files.ca, "client_auth": "optional"}
    async with tls_server(files.server(**settings), METHODS) as (_, tls, port):
        assert await add_one(port, client_context(files.ca)) == 42
        assert CONTEXTS[-1].peer_certificate is None
        assert await add_one(port, tls.for_links()) == 42
        certificate = CONTEXTS[-1].peer_certificate
        assert certificate is not None
        assert certificate.of_broker_ca


async def test_what_a_client_says_about_a_certificate(files: Files) -> None:
    cert, key = files.pair("other", "other.example.org")
    async with tls_server(TlsConfig(cert=cert, key=key), METHODS) as (_, _, port):
        with pytest.raises(ConnectionLostError, match="issue one with this name"):
            await add_one(port, client_context(files.ca))
    async with tls_server(files.server(), METHODS) as (_, _, port):
        with pytest.raises(ConnectionLostError, match="pass the file of its authority"):
            await add_one(port, client_context())
        assert await add_one(port, client_context(files.ca), "localhost") == 42


async def test_new_certificates_are_used_and_wrong_ones_are_not(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async def shown(port: int) -> bytes | None:
        async with await raw(port) as plain:
            stream = trio.SSLStream(plain, client_context(files.ca), server_hostname="127.0.0.1")
            await stream.do_handshake()
            return stream.getpeercert(binary_form=True)

    config = files.server()
    async with tls_server(config, METHODS) as (_, tls, port):  # noqa: SIM117 - the port is that of the server
        async with connect_channel("127.0.0.1", port, tls=client_context(files.ca)) as channel:
            first = await shown(port)
            assert not tls.reload(time.time())
            files.pair("server", days=40)
            assert await tls.reload_in_thread()
            second = await shown(port)
            assert second != first
            shutil.copy(files.pair("another")[1], config.key)
            assert not tls.reload(time.time())
            files.pair("server", days=-0.5)
            assert not tls.reload(time.time())
            shutil.copy(config.key, config.cert)
            assert not tls.reload(time.time())
            os.unlink(config.cert)
            assert not tls.reload(time.time())
            assert await shown(port) == second
            assert (await channel.unary("/t/add", Number(1), Number)).value == 2
            files.pair("server", days=50)
            assert tls.reload(time.time())
            assert await shown(port) != second
    told = [record.message for record in caplog.records if "the certificate in use stays" in record.message]
    assert len(told) == 4
    assert "is not that of the certificate" in told[0]
    assert "expired" in told[1]
    assert "cannot be read" in told[3]


async def test_a_hundred_reloads_under_load(files: Files) -> None:
    async with tls_server(files.server(), METHODS, timeout_s=30) as (_, tls, port):
        done = trio.Event()
        calls = 0

        async def load(reconnecting: bool) -> None:
            nonlocal calls
            context = client_context(files.ca)
            while not done.is_set():
                async with connect_channel("127.0.0.1", port, tls=context) as channel:
                    while not done.is_set():
                        assert (await channel.unary("/t/add", Number(1), Number)).value == 2
                        calls += 1
                        if reconnecting:
                            break

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, False)
            nursery.start_soon(load, True)
            for _ in range(100):
                assert await tls.reload_in_thread(force=True)
            done.set()
        assert calls > 100


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cert": ""}, "needs cert"),
        ({"cert": "none.pem"}, "the certificate none.pem cannot be read: No such file"),
        ({"key": "other.key"}, "is not that of the certificate"),
        ({"key": "ca.pem"}, "in PEM form"),
        ({"cert": "ca.pem"}, "is not that of the certificate"),
        ({"cert": "old.pem", "key": "old.key"}, "certificate has expired"),
        ({"cert": "new.pem", "key": "new.key"}, "not yet valid"),
        ({"client_auth": "required"}, "needs client_ca"),
        ({"client_ca": "ca.pem"}, "has no effect while client_auth is 'none'"),
        ({"client_ca": "server.key", "client_auth": "required"}, "client_ca server.key contains no certificate"),
        ({"key": "locked.key"}, "needs a password"),
    ],
)
def test_wrong_settings(files: Files, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], reason: str) -> None:
    monkeypatch.chdir(files.directory)
    files.pair("server")
    files.pair("other")
    files.pair("old", days=-0.5)
    files.pair("new", days=3, before_days=-1)
    key = serialization.load_pem_private_key(Path("server.key").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    Path("locked.key").write_bytes(locked)
    with pytest.raises(ConfigurationError, match=reason):
        ServerTls(TlsConfig(**({"cert": "server.pem", "key": "server.key"} | settings)), time.time)  # type: ignore[arg-type]


def test_a_certificate_that_ends_soon_is_reported(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    ServerTls(files.server(), time.time)
    assert not caplog.text
    files.pair("server", days=10)
    ServerTls(TlsConfig(cert=f"{files.directory}/server.pem", key=f"{files.directory}/server.key"), time.time)
    assert "ends soon" in caplog.text
    check_tls(TlsConfig(cert="x"))


async def test_half_open_handshakes_do_not_keep_out_others(files: Files) -> None:
    limits = Limits(max_tls_handshakes=10, max_tls_handshakes_per_address=5, tls_handshake_timeout_s=10.0)
    async with tls_server(files.server(), METHODS, limits) as (server, _, port), AsyncExitStack() as opened:
        context = client_context(files.ca)
        for number in range(60):
            stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=f"127.0.0.{2 + number % 2}")
            await opened.enter_async_context(stream)
            if number < 40:
                await stream.send_all(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a ClientHello
        await until(lambda: waiting(server) >= 40)  # some may be given up already
        began = trio.current_time()
        assert await add_one(port, context) == 42  # one that takes longer than a second is given up for it
        assert trio.current_time() - began < 7.0
        with trio.fail_after(15.0):
            await until(lambda: not waiting(server))


async def test_draining_ends_connections_in_their_handshake(files: Files) -> None:
    async with (
        tls_server(files.server(), METHODS) as (server, _, port),
        await raw(port) as silent,
        await raw(port) as begun,
    ):
        await begun.send_all(b"\x16\x03\x01\x02\x00\x01")
        await until(lambda: waiting(server) == 2)
        with trio.fail_after(10.0):
            await server.drain(30.0)
        assert await read_all(silent) == b""


async def test_data_that_is_not_tls_ends_the_connection(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (server, _, port):
        async with await raw(port) as plain:
            stream = trio.SSLStream(plain, client_context(files.ca), server_hostname="127.0.0.1")
            await stream.do_handshake()
            await plain.send_all(b"nonsense" * 100)
            assert await read_all(plain)  # an alert, after the session's tickets
        await until(lambda: not server.connections)


async def test_a_call_cannot_be_smuggled_before_the_handshake_ends(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (server, _, port):
        async with await raw(port) as stream:
            await stream.send_all(b"\x16\x03\x01\x00\x05hello" + PREFACE)
            assert b"SETTINGS" not in await read_all(stream)
        assert server.connections == 0
        assert not CONTEXTS


def test_errors_have_a_text_for_people() -> None:
    for code in ("WRONG_VERSION_NUMBER", "TLSV13_ALERT_CERTIFICATE_REQUIRED"):
        error = ssl.SSLError(1, "[SSL] x")
        error.reason = code
        assert "use" in tls_problem(error) or "pass" in tls_problem(error)
