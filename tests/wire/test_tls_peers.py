"""TLS with peers that were not written here: openssl and curl (Debian packages), grpcio; and floods of handshakes."""

from __future__ import annotations

import resource
import struct
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import grpc
import msgspec
import pytest
import trio
from certificates import Files, make_files
from test_foreign_peers import BytesCodec, tool
from tls_harness import tls_server

from danube.model.limits import Limits
from danube.wire import MSGPACK, Method, Server, UnaryCall, connect_channel
from danube.wire.tls import client_context

pytestmark = pytest.mark.extended


class Number(msgspec.Struct):
    value: int


def add(request: Number, call: UnaryCall) -> None:
    call.reply(Number(request.value + 1))


METHODS = {"/t/add": Method(path="/t/add", kind="unary", start=add, request_type=Number)}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return make_files(tmp_path)


async def openssl(port: int, files: Files, *options: str) -> str:
    command = [tool("openssl"), "s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", files.ca, *options]
    done = await trio.run_process(command, stdin=b"Q\n", capture_stdout=True, capture_stderr=True, check=False)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


async def test_openssl(files: Files) -> None:
    async with tls_server(files.server(), METHODS) as (_, _, port):
        found = await openssl(port, files, "-alpn", "h2", "-verify_return_error")
        assert "Verify return code: 0 (ok)" in found
        assert "ALPN protocol: h2" in found
        assert "TLSv1.3" in found
        found = await openssl(port, files, "-tls1_2", "-alpn", "h2")
        assert "TLSv1.2" in found
        assert "ECDHE-ECDSA-AES" in found
        assert "Secure Renegotiation IS supported" in found
        for old in ("-tls1", "-tls1_1"):
            found = await openssl(port, files, old, "-cipher", "ALL:@SECLEVEL=0")
            assert "alert protocol version" in found, found
        found = await openssl(port, files, "-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0")
        assert "handshake failure" in found
        found = await openssl(port, files, "-tls1_2", "-no_ticket", "-reconnect")
        assert "error" not in found.lower().replace("errors", "").replace("verify error", "")


async def test_curl(files: Files, tmp_path: Path) -> None:
    request = tmp_path / "request"
    body = MSGPACK.encode(Number(41))
    request.write_bytes(struct.pack(">BI", 0, len(body)) + body)
    headers = ["-H", "content-type: application/grpc+msgpack", "-H", "te: trailers"]
    async with tls_server(files.server(), METHODS) as (_, _, port):
        run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)
        url = f"https://127.0.0.1:{port}/t/add"
        done = await run([tool("curl"), "-sS", "--cacert", files.ca, *headers, "--data-binary", f"@{request}", url])
        assert MSGPACK.decode(Number, done.stdout[5:]).value == 42
        done = await run([tool("curl"), "-sS", "--http1.1", "--cacert", files.ca, url])
        assert b"This port speaks gRPC over HTTP/2" in done.stdout
        done = await run([tool("curl"), "-sS", f"http://127.0.0.1:{port}/"])
        assert b"This port speaks TLS" in done.stdout
        done = await run([tool("curl"), "-sS", "--http2-prior-knowledge", f"http://127.0.0.1:{port}/"])
        assert done.returncode != 0


async def test_grpcio(files: Files) -> None:
    def call(port: int, text: bytes) -> bytes:
        options = [("grpc.default_authority", "localhost")]
        credentials = grpc.ssl_channel_credentials(Path(files.ca).read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
            found: bytes = channel.unary_unary("/t/echo")(text, timeout=20)
            return found

    def echo(request: bytes, call: UnaryCall) -> None:
        call.reply(request)

    methods = {
        "/t/echo": Method(path="/t/echo", kind="unary", start=echo, request_type=bytes, max_request_bytes=8 << 20)
    }
    text = bytes(range(256)) * 8_000
    async with tls_server(files.server(), methods, codecs={"proto": BytesCodec()}) as (_, _, port):
        assert await trio.to_thread.run_sync(call, port, text) == text


async def test_two_thousand_half_open_handshakes(files: Files) -> None:
    """Others go on, memory stays small, and all of them are gone after 15 s."""
    limits = Limits()

    async def calls(port: int, seconds: float) -> float:
        """Return the calls for each second of CPU time: other processes may take a varying share of the machine."""
        count, began = 0, time.process_time()
        async with connect_channel("127.0.0.1", port, tls=client_context(files.ca)) as channel:
            with trio.move_on_after(seconds):
                while True:
                    await channel.unary("/t/add", Number(1), Number)
                    count += 1
        return count / (time.process_time() - began)

    async with tls_server(files.server(), METHODS, limits, timeout_s=60) as (server, _, port):
        before = await calls(port, 3.0)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with AsyncExitStack() as opened:
            streams = []
            for number in range(2_000):
                stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=f"127.0.0.{2 + number % 200}")
                streams.append(await opened.enter_async_context(stream))
                await stream.send_all(b"\x16")
            began = trio.current_time()

            async def drip() -> None:
                for byte in b"\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3:
                    for stream in streams:
                        with suppress(trio.BrokenResourceError):  # it was given up
                            await stream.send_all(bytes([byte]))
                    await trio.sleep(1.0)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(drip)
                await trio.sleep(2.0)
                assert await add_one(port, files) == 2  # a new connection gets through
                during = await calls(port, 3.0)
                await until_none(server)
                assert trio.current_time() - began < 18.0
                nursery.cancel_scope.cancel()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 64 * 1024
        # The peers of this test run in the same process, and take most of what is missing.
        assert during > 0.6 * before, f"{during:,.0f} calls for a second of CPU time instead of {before:,.0f}"


async def add_one(port: int, files: Files) -> int:
    async with connect_channel("127.0.0.1", port, tls=client_context(files.ca), connect_timeout_s=15.0) as channel:
        return (await channel.unary("/t/add", Number(1), Number, timeout_s=5.0)).value


async def until_none(server: Server) -> None:
    assert server._door is not None
    while server._door.waiting:  # noqa: ASYNC110
        await trio.sleep(0.1)


async def test_a_thousand_reconnects(files: Files) -> None:
    """One after the other from ten tasks; sessions are resumed or not, as the client likes."""
    async with tls_server(files.server(), METHODS, timeout_s=60) as (_, _, port):
        context = client_context(files.ca)
        began = trio.current_time()

        async def connect() -> None:
            for _ in range(100):
                async with connect_channel("127.0.0.1", port, tls=context):
                    pass

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(connect)
        took = trio.current_time() - began
        assert took < 15.0, f"{took:.1f} s"  # both sides in one process; see the figures in docs/architecture.md
