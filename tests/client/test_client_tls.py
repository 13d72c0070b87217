"""The client with TLS and credentials, at brokers in this process, under both event loops and blocking."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
from brokers import BrokerProcess
from certificates import Files, make_files

import danube
import danube.client.sync
from danube.client._credentials import Credentials
from danube.client._options import ClientOptions
from danube.client._pool import Pool
from danube.client._url import has_tls, parse_url
from danube.model.errors import (
    CallRefusedError,
    ConfigurationError,
    ConnectionLostError,
    CredentialsExpiredError,
    UnauthenticatedError,
)
from danube.wire import Context, Method, ServerStream, UnaryCall, connect_channel, serve


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(files: Files) -> Iterator[BrokerProcess]:
    cert, key = files.pair("broker")
    options = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", files.ca, "--tls-client-auth", "required"]
    with BrokerProcess(files.directory / "data", *options) as process:
        yield process


@pytest.fixture
def options(files: Files) -> dict[str, Any]:
    cert, key = files.pair("client", "danube://danube/service/orders")
    return {"ca": files.ca, "cert": cert, "key": key}


async def exchange(url: str, topic: str, options: dict[str, Any]) -> None:
    async with danube.connect(url, **options) as client:
        async with client.producer(topic) as producer:
            for number in range(10):
                await producer.send(b"x" * number * 10_000)
        async with client.consumer(topic, subscription="s", start="earliest") as consumer:
            for number in range(10):
                message = await consumer.receive()
                assert len(message.payload) == number * 10_000
                await message.ack()


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_messages(broker: BrokerProcess, options: dict[str, Any], backend: str) -> None:
    url = f"danube+tls://127.0.0.1:{broker.port}"
    anyio.run(exchange, url, f"/default/{backend}", options, backend=backend)


def test_messages_of_the_blocking_client(broker: BrokerProcess, options: dict[str, Any]) -> None:
    url = f"danube+tls://127.0.0.1:{broker.port}"
    with danube.client.sync.connect(url, **options) as client, client.producer("/default/blocking") as producer:
        assert producer.send(b"hello").offset == 0


async def refused(url: str, **options: Any) -> str:
    with pytest.raises(ConnectionLostError) as caught:
        async with danube.connect(url, **options):
            pass
    return caught.value.message


async def test_what_is_wrong_is_said(broker: BrokerProcess, files: Files) -> None:
    port = broker.port
    assert "this port speaks TLS: danube+tls://" in await refused(f"danube://127.0.0.1:{port}")
    assert "pass the file of its authority (ca)" in await refused(f"danube+tls://127.0.0.1:{port}")
    assert "pass one with cert and key" in await refused(f"danube+tls://127.0.0.1:{port}", ca=files.ca)


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("danube://127.0.0.1", {"ca": "x"}, "ca has no effect without TLS"),
        ("danube+tls://127.0.0.1", {"ca": "/nowhere"}, "the file of ca /nowhere cannot be read"),
        ("danube+tls://127.0.0.1", {"key": "/nowhere"}, "give cert, too"),
        ("danube://127.0.0.1,b:6650", {"token": "t"}, "b:6650 is another machine"),
        ("danube://127.0.0.1", {"token": "t", "api_key": "k"}, "give one of token, api_key"),
        ("danube://127.0.0.1", {"token": "two words"}, "one word"),
        ("danube://127.0.0.1", {"token": ""}, "one word"),
        ("danube://127.0.0.1", {"api_key": "line\n"}, "one word"),
        ("danube://127.0.0.1", {"token_file": "/nowhere"}, "cannot be read"),
        ("danube://127.0.0.1", {"token_file": ""}, "must be the name of a file"),
        ("danube://127.0.0.1", {"token_file": "a\0b"}, "must be the name of a file"),
        ("danube://127.0.0.1", {"token_supplier": 5}, "is a function"),
        ("danubes://127.0.0.1", {}, "must begin with danube://"),
        ("danube+tls://u@h", {}, "write danube[+]tls://host:port"),
    ],
)
async def test_wrong_options(url: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        async with danube.connect(url, **options):
            pass


def test_urls() -> None:
    assert [str(each) for each in parse_url("danube+tls://a,b:1")] == ["a:6650", "b:1"]
    assert has_tls("danube+tls://a")
    assert not has_tls("danube://a")


# --- Credentials -----------------------------------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def credentials(clock: Callable[[], float] = time.monotonic, **given: Any) -> Credentials:
    nothing = {"token": None, "token_file": None, "token_supplier": None, "api_key": None}
    return Credentials(**(nothing | given), clock_s=clock)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("first\n")
    found = credentials(clock, token_file=str(path))
    assert found.authorization() == "Bearer first"
    path.write_text("second")
    assert found.authorization() == "Bearer first"
    clock.now_s = 1.0
    assert found.authorization() == "Bearer second"
    for text in ("", "no token"):
        path.write_text(text)
        clock.now_s += 1.0
        assert found.authorization() == "Bearer second"
    os.unlink(path)
    clock.now_s += 1.0
    assert found.authorization() == "Bearer second"
    assert caplog.text.count("the token in use stays") == 3
    assert "no token" not in caplog.text.replace("token_file", "")


def test_a_supplier_is_asked_each_time_and_its_errors_are_those_of_calls() -> None:
    answers: list[Any] = ["one", "two", None, "two words"]
    found = credentials(token_supplier=lambda: answers.pop(0))
    assert [found.authorization() for _ in range(2)] == ["Bearer one", "Bearer two"]
    for reason in ("one word", "one word", "token_supplier has raised IndexError"):
        with pytest.raises(CallRefusedError, match=reason):
            found.authorization()


def test_secrets_are_not_shown() -> None:
    found = credentials(api_key="dnb_1_marker")
    assert "marker" not in repr(found) + repr(ClientOptions(credentials=found))
    assert found
    assert not credentials()


async def test_each_call_and_stream_carries_the_header() -> None:
    seen: list[str] = []

    def add(request: int, call: UnaryCall) -> None:
        seen.append(call.context.metadata["authorization"])
        call.reply(request)

    async def echo(stream: ServerStream, context: Context) -> None:
        seen.append(context.metadata["authorization"])

    methods = {
        "/t/add": Method(path="/t/add", kind="unary", start=add, request_type=int),
        "/t/echo": Method(path="/t/echo", kind="bidi", handler=echo),
    }
    tokens = iter("abcd")
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(serve, listeners, [methods])
        port = listeners[0].socket.getsockname()[1]
        async with connect_channel("127.0.0.1", port, authorize=lambda: f"Bearer {next(tokens)}") as channel:
            for number in range(3):
                assert await channel.unary("/t/add", number, int) == number
            async with channel.open_stream("/t/echo") as stream:
                assert await stream.receive() is None
        nursery.cancel_scope.cancel()
    assert seen == [f"Bearer {letter}" for letter in "abcd"]


async def test_credentials_are_not_sent_to_other_machines_without_tls() -> None:
    async with trio.open_nursery() as nursery:
        pool = Pool(parse_url("danube://127.0.0.1"), ClientOptions(credentials=credentials(token="t")))
        pool._tasks = nursery  # type: ignore[assignment]
        with pytest.raises(ConnectionLostError, match=r"192\.0\.2\.1:6650 is another machine"):
            await pool._dial(parse_url("danube://192.0.2.1")[0])


def test_expired_credentials_are_worth_another_attempt() -> None:
    assert CredentialsExpiredError("x").retryable
    assert not UnauthenticatedError("x").retryable
