"""Requests and replies over a real broker, under Trio and asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from brokers import BrokerProcess

import danube
from danube.client import Client, Message
from danube.model.errors import (
    ClosedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    RequestFailedError,
)
from danube.model.policies import Durability

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker; each test uses topics of its own."""
    directory = tmp_path_factory.mktemp("requests") / "data"
    with BrokerProcess(directory, "--journal-file-size", "16MiB", "--log-level", "warning") as process:
        yield process


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate({ord(one): "-" for one in "[]_"})
    return f"/default/{name.strip('-')}"


def run(backend: str, broker: BrokerProcess, main: Callable[[Client], Awaitable[Any]]) -> None:
    async def patiently() -> None:
        with anyio.fail_after(20):
            async with danube.connect(broker.url, reconnect_initial_s=0.02) as client:
                await main(client)

    anyio.run(patiently, backend=backend)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for what a test wants to see
        await anyio.sleep(0.01)


async def upper(request: Message) -> bytes:
    if request.payload == b"bad":
        raise ValueError("not that one")
    if request.payload == b"slow":
        await anyio.sleep(3600)
    suffix = (request.attributes or {}).get("suffix", "")
    return request.payload.upper() + suffix.encode() + (request.key or "").encode()


@BACKENDS
def test_a_request_gets_its_reply(backend: str, broker: BrokerProcess, topic: str) -> None:
    async def main(client: Client) -> None:
        async with client.responder(topic, upper) as responder, client.requester(topic) as rpc:
            reply = await rpc.request(b"abc")
            assert reply.payload == b"ABC"
            assert (await rpc.request(b"x", key="k", attributes={"suffix": "!"})).payload == b"X!k"
            with pytest.raises(FailedPreconditionError):
                await reply.ack()
            with pytest.raises(RequestFailedError, match="the handler failed: ValueError: not that one"):
                await rpc.request(b"bad")
            assert (responder.answered, responder.failed, rpc.outstanding) == (3, 1, 0)
        info = await client.describe_topic(f"{topic}-replies")
        assert (info.durability, info.subscriptions) == (Durability.NONE, [])
        with pytest.raises(ClosedError):
            await rpc.request(b"late")

    run(backend, broker, main)


@BACKENDS
def test_many_requesters_each_get_their_own(backend: str, broker: BrokerProcess, topic: str) -> None:
    async def main(client: Client) -> None:
        async with (
            client.responder(topic, upper, concurrency=4),
            client.responder(topic, upper, concurrency=4),
            client.requester(topic) as first,
            client.requester(topic) as second,
            anyio.create_task_group() as group,
        ):
            replies: dict[bytes, bytes] = {}

            async def ask(index: int) -> None:
                rpc = first if index % 2 else second
                replies[b"r%d" % index] = (await rpc.request(b"r%d" % index)).payload

            for index in range(200):
                group.start_soon(ask, index)
        assert replies == {b"r%d" % index: b"R%d" % index for index in range(200)}

    run(backend, broker, main)


@BACKENDS
def test_deadlines_bounds_and_cancellation(backend: str, broker: BrokerProcess, topic: str) -> None:
    async def main(client: Client) -> None:
        async with client.requester(topic, max_outstanding=2, timeout_s=0.3) as rpc:
            with pytest.raises(DeadlineExceededError, match=r"no reply within 0\.05 s"):
                await rpc.request(b"nobody is there", timeout_s=0.05)
            with anyio.move_on_after(0.05) as scope:
                await rpc.request(b"nobody is there")
            assert scope.cancelled_caught
            assert rpc.outstanding == 0
            async with client.responder(topic, upper), anyio.create_task_group() as group:
                failures: list[DeadlineExceededError] = []

                async def ask() -> None:
                    try:
                        await rpc.request(b"slow")
                    except DeadlineExceededError as error:
                        failures.append(error)

                for _ in range(5):
                    group.start_soon(ask)
                await until(lambda: rpc.outstanding > 0)
                assert rpc.outstanding == 2
                await anyio.sleep(0.35)
                assert len(failures) >= 4, "those that wait for a slot have a deadline, too"
                assert (await rpc.request(b"fast", timeout_s=10)).payload == b"FAST"
            for wrong in ({"timeout_s": 0}, {"attributes": {"x-reply-to": "/default/other"}}):
                with pytest.raises(InvalidArgumentError):
                    await rpc.request(b"x", **wrong)  # type: ignore[arg-type]

    run(backend, broker, main)


@BACKENDS
def test_odd_requests_and_odd_handlers(backend: str, broker: BrokerProcess, topic: str) -> None:
    async def odd(request: Message) -> Any:
        return {b"text": "text", b"large": b"x" * (11 * 2**20)}.get(request.payload, b"fine")

    async def main(client: Client) -> None:
        async with client.responder(topic, odd) as responder, client.requester(topic) as rpc:
            with pytest.raises(RequestFailedError, match="returned str instead of bytes"):
                await rpc.request(b"text")
            with pytest.raises(RequestFailedError, match="MessageTooLargeError"):
                await rpc.request(b"large")
            async with client.producer(topic) as producer:
                await producer.send(b"no reply wanted")
                await producer.send(b"x", attributes={"x-reply-to": f"{topic}-elsewhere", "x-correlation-id": "1"})
            await until(lambda: responder.answered == 4)
            with pytest.raises(NotFoundError):
                await client.lookup_topic(f"{topic}-elsewhere")
            assert (await rpc.request(b"x")).payload == b"fine"

    run(backend, broker, main)


@BACKENDS
def test_the_end_of_the_subscription_ends_the_responder(backend: str, broker: BrokerProcess, topic: str) -> None:
    async def main(client: Client) -> None:
        async def respond() -> None:
            async with client.responder(topic, upper):
                await client.delete_topic(topic)
                await anyio.sleep(10)

        with pytest.raises(NotFoundError):
            await respond()

    run(backend, broker, main)


@BACKENDS
def test_a_request_that_was_not_answered_is_handed_to_the_next_responder(
    backend: str, broker: BrokerProcess, topic: str
) -> None:
    async def main(client: Client) -> None:
        handled: list[int] = []

        async def hang(request: Message) -> bytes:
            handled.append(request.attempt)
            await anyio.sleep(3600)
            return b""

        async def answer(request: Message) -> bytes:
            handled.append(request.attempt)
            return b"done"

        async with client.requester(topic) as rpc, anyio.create_task_group() as group:
            replies: list[bytes] = []

            async def ask() -> None:
                replies.append((await rpc.request(b"x")).payload)

            async with client.responder(topic, hang):
                group.start_soon(ask)
                await until(lambda: len(handled) > 0)
            async with client.responder(topic, answer):
                await until(lambda: len(replies) > 0)
        assert (handled, replies) == ([1, 2], [b"done"])

    run(backend, broker, main)
