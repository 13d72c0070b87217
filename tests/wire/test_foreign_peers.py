"""Peers that were not written here: curl over HTTP/2 and HTTP/1, and h2load. Both are Debian packages."""

from __future__ import annotations

import shutil
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from danube.wire import MSGPACK, Context, Method, Server, serve

pytestmark = pytest.mark.extended


class Number(msgspec.Struct):
    value: int


async def add(request: Number, context: Context) -> Number:
    return Number(request.value + 1)


@asynccontextmanager
async def adding_server() -> AsyncGenerator[str, None]:
    method = Method(path="/t/add", kind="unary", handler=add, request_type=Number)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server: Server = await nursery.start(serve, listeners, [{method.path: method}])
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


async def test_h2load_makes_many_calls(request_file: Path) -> None:
    h2load = tool("h2load")
    async with adding_server() as url:
        output = await run(
            *(h2load, "--requests=2000", "--clients=10", "--max-concurrent-streams=20", f"--data={request_file}"),
            *("--header=content-type: application/grpc+msgpack", f"{url}/t/add"),
        )
    assert b"2000 succeeded, 0 failed, 0 errored" in output
