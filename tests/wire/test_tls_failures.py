"""TLS with certificates that cannot be read, files that change at the wrong moment, and ends in unusual places."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
from certificates import Files, make_files
from cryptography import x509
from cryptography.x509.oid import ExtensionOID
from tls_harness import tls_server

from danube.model.errors import ConfigurationError, ConnectionLostError
from danube.wire import Method, UnaryCall, connect_channel
from danube.wire import tls as module
from danube.wire.tls import ClientFiles, ServerTls, client_context

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


class Number(msgspec.Struct):
    value: int


def add(request: Number, call: UnaryCall) -> None:
    call.reply(Number(request.value + 1))


METHODS = {"/t/add": Method(path="/t/add", kind="unary", start=add, request_type=Number)}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


async def add_one(port: int, context: ssl.SSLContext) -> int:
    async with connect_channel("127.0.0.1", port, tls=context) as channel:
        return (await channel.unary("/t/add", Number(41), Number)).value


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(5):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


async def test_a_client_certificate_with_a_name_that_is_no_text(
    files: Files, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "danube.wire")
    name = b"\xff\xfe.example"
    extension = bytes([0x30, len(name) + 2, 0x82, len(name)]) + name
    with monkeypatch.context() as patched:
        patched.setattr(
            x509,
            "SubjectAlternativeName",
            lambda _: x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, extension),
        )
        cert, key = files.pair("odd")
    config = files.server(client_ca=files.ca, client_auth="optional")
    async with tls_server(config, METHODS) as (_, _, port):
        with pytest.raises(ConnectionLostError):
            await add_one(port, client_context(files.ca, cert, key))
        assert await add_one(port, client_context(files.ca)) == 42
    assert "is refused: the certificate of the client cannot be read" in caplog.text


async def test_a_bug_in_the_entrance_costs_one_connection(
    files: Files, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tls_server(files.server(), METHODS) as (_, tls, port):
        with monkeypatch.context() as patched:
            patched.setattr(tls, "peer_certificate", lambda _: 1 / 0)
            with pytest.raises(ConnectionLostError):
                await add_one(port, client_context(files.ca))
        assert await add_one(port, client_context(files.ca)) == 42
    assert "failed before it was admitted" in caplog.text


def going_away(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Let a file go away after it was found readable, as when another program replaces it."""
    real = module._check_readable

    def check(path: str, what: str) -> None:
        real(path, what)
        if part in what:
            os.rename(path, path + ".old")

    monkeypatch.setattr(module, "_check_readable", check)


@pytest.mark.parametrize("part", ["certificate", "key", "client_ca"])
async def test_a_file_that_goes_away_while_it_is_read(
    files: Files, part: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.01)
    config = files.server(client_ca=files.ca, client_auth="optional")
    tls = ServerTls(config, time.time)
    client = ClientFiles(config.client_ca, config.cert, config.key)
    former = tls.context, client.context()
    going_away(monkeypatch, "file of ca" if part == "client_ca" else part)
    os.utime(config.cert, ns=(1, 1))
    assert client.context() is former[1]
    monkeypatch.undo()
    monkeypatch.setattr(module, "LOOK_INTERVAL_S", 0.01)
    for path in files.directory.glob("*.old"):
        path.rename(path.with_suffix(""))
    going_away(monkeypatch, part)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tls.watch)
        await until(lambda: "the certificate in use stays" in caplog.text)
        nursery.cancel_scope.cancel()
    assert tls.context is former[0]
    assert "the certificates in use stay" in caplog.text


async def test_files_that_could_not_be_used_are_read_again(
    files: Files, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = files.server()
    tls, client = ServerTls(config, time.time), ClientFiles(files.ca, config.cert, config.key)
    former = client.context()

    def deny(path: str, what: str) -> None:
        raise ConfigurationError("permission denied")

    files.pair("server")
    with monkeypatch.context() as patched:
        patched.setattr(module, "_check_readable", deny)
        for _ in range(3):
            assert not tls.reload(time.time())
            assert client.context() is former
    assert len(caplog.records) == 2  # each says it once
    assert tls.reload(time.time())
    assert not tls.reload(time.time())
    fresh = client.context()
    assert fresh is not former
    assert client.context() is fresh
    os.chmod(config.key, 0o640)
    assert tls.reload(time.time())


@pytest.mark.parametrize("with_handshake", [True, False])
async def test_a_peer_that_ends_tls_and_not_the_connection(files: Files, *, with_handshake: bool) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = client_context(files.ca).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")

    async def negotiate(stream: trio.SocketStream) -> None:
        while True:
            try:
                return peer.do_handshake()
            except ssl.SSLWantReadError:
                await stream.send_all(outgoing.read())
                incoming.write(await stream.receive_some())

    async with (
        tls_server(files.server(), METHODS) as (server, _, port),
        await trio.open_tcp_stream("127.0.0.1", port) as stream,
    ):
        await negotiate(stream)
        peer.write(PREFACE + SETTINGS)
        if not with_handshake:
            await stream.send_all(outgoing.read())
            await until(lambda: server.connections == 1)
            peer.write(SETTINGS)
        with pytest.raises(ssl.SSLWantReadError):  # the answer is still to come
            peer.unwrap()
        await stream.send_all(outgoing.read())
        with trio.fail_after(3):
            while await stream.receive_some():
                pass
            await until(lambda: server.connections == 0)
