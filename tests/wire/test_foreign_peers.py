"""Peers that were not written here: curl over HTTP/2 and HTTP/1, h2load (both are Debian packages), and grpcio."""

from __future__ import annotations

import shutil
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from danube.model.errors import TopicNotFoundError
from danube.model.limits import Limits
from danube.wire import MSGPACK, Context, Method, Server, UnaryCall, serve

pytestmark = pytest.mark.extended


class Number(msgspec.Struct):
    value: int


async def add(request: Number, context: Context) -> Number:
    return Number(request.value + 1)


def add_now(request: Number, call: UnaryCall) -> None:
    call.reply(Number(request.value + 1))


ADD = Method(path="/t/add", kind="unary", handler=add, request_type=Number)
ADD_NOW = Method(path="/t/add", kind="unary", start=add_now, request_type=Number)


class BytesCodec:
    """What grpcio says by default, with messages as they are."""

    subtype = "proto"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, kind: type, data: bytes) -> Any:
        return data


@asynccontextmanager
async def adding_server(
    *methods: Method, codec: Any = MSGPACK, limits: Limits | None = None
) -> AsyncGenerator[str, None]:
    service = {method.path: method for method in methods or (ADD,)}
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        start = partial(serve, codecs={codec.subtype: codec})
        server: Server = await nursery.start(start, listeners, [service], limits)
        with trio.fail_after(30):
            yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        await server.drain(1.0)


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


async def run(*command: str) -> bytes:
    completed = await trio.run_process(list(command), capture_stdout=True, capture_stderr=True)
    return bytes(completed.stdout)


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    body = MSGPACK.encode(Number(41))
    path = tmp_path / "request"
    path.write_bytes(struct.pack(">BI", 0, len(body)) + body)
    return path


async def test_curl_makes_a_call(request_file: Path) -> None:
    curl = tool("curl")
    async with adding_server() as url:
        answer = await run(
            *(curl, "--silent", "--include", "--http2-prior-knowledge", "--data-binary", f"@{request_file}"),
            *("--header", "content-type: application/grpc+msgpack", "--header", "te: trailers", f"{url}/t/add"),
        )
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/2 200")
    assert rest[0] == 0
    size = int.from_bytes(rest[1:5], "big")
    assert MSGPACK.decode(Number, rest[5 : 5 + size]) == Number(42)
    assert b"grpc-status: 0" in rest[5 + size :]


async def test_curl_uploads_more_than_a_window(tmp_path: Path) -> None:
    curl = tool("curl")
    large = tmp_path / "large"
    large.write_bytes(struct.pack(">BI", 0, 900_000) + bytes(900_000))
    async with adding_server() as url:
        answer = await run(
            *(curl, "--silent", "--include", "--http2-prior-knowledge", "--data-binary", f"@{large}"),
            *("--header", "content-type: application/grpc+msgpack", "--header", "Expect:", f"{url}/t/add"),
        )
    assert b"grpc-status: 3" in answer
    assert b"not a Number" in answer


async def test_curl_without_grpc_gets_a_sentence() -> None:
    curl = tool("curl")
    async with adding_server() as url:
        assert b"gRPC calls use POST" in await run(curl, "--silent", "--http2-prior-knowledge", f"{url}/t/add")
        assert b"prior knowledge" in await run(curl, "--silent", "--http1.1", f"{url}/t/add")


@pytest.mark.parametrize("method", [ADD, ADD_NOW], ids=["handler", "start"])
async def test_h2load_makes_many_calls(request_file: Path, method: Method) -> None:
    h2load = tool("h2load")
    async with adding_server(method) as url:
        output = await run(
            *(h2load, "--requests=2000", "--clients=10", "--max-concurrent-streams=20", f"--data={request_file}"),
            *("--header=content-type: application/grpc+msgpack", f"{url}/t/add"),
        )
    assert b"2000 succeeded, 0 failed, 0 errored" in output
    # Each answer is a frame of 5 and a message of a few bytes: one that failed has trailers only.
    answer = 5 + len(MSGPACK.encode(Number(42)))
    assert b"(%d) data" % (2000 * answer) in output


class Kept:
    """Answers with the request reversed, or fails; keeps calls that ask for it."""

    def __init__(self) -> None:
        self.calls: list[UnaryCall] = []

    def start(self, request: bytes, call: UnaryCall) -> None:
        if request == b"fail":
            raise TopicNotFoundError("there is no topic ü")
        if request == b"keep":
            self.calls.append(call)
        else:
            call.reply(request[::-1])

    @property
    def method(self) -> Method:
        return Method(path="/t/Reverse", kind="unary", start=self.start, max_request_bytes=2_000_000)


async def test_grpcio_calls_a_plain_function() -> None:
    grpc = pytest.importorskip("grpc")
    kept = Kept()
    keep = Limits(max_streams_per_connection=10)

    def client(target: str) -> None:
        with grpc.insecure_channel(target) as channel:
            call = channel.unary_unary("/t/Reverse")
            for number in range(50):
                assert call(b"x%d" % number)[::-1] == b"x%d" % number
            large = bytes(range(256)) * 4096
            assert call(large) == large[::-1]
            waiting = [call.future(b"y%d" % number) for number in range(200)]
            assert [one.result(10)[::-1] for one in waiting] == [b"y%d" % number for number in range(200)]
            for _ in range(3):
                with pytest.raises(grpc.RpcError) as failed:
                    call(b"fail")
                assert failed.value.code() is grpc.StatusCode.NOT_FOUND
                assert failed.value.details() == "there is no topic ü"
                with pytest.raises(grpc.RpcError) as failed:
                    call(b"keep", timeout=0.5)
                assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert call(b"still there") == b"ereht llits"

    async with adding_server(kept.method, codec=BytesCodec(), limits=keep) as url:
        await trio.to_thread.run_sync(client, url.removeprefix("http://"))
        assert len(kept.calls) == 3
        for one in kept.calls:
            one.reply(b"too late")
