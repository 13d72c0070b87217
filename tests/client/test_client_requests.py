"""Requests and replies over a real broker, under Trio and asyncio."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.to_thread
import pytest
from brokers import BrokerProcess

import danube
from danube.client import Client, Message
from danube.client.sync import connect
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
        info = await client.admin.describe_topic(f"{topic}-replies")
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
        async with client.requester(topic, max_outstanding=2, timeout_s=2.0) as rpc:
            with pytest.raises(DeadlineExceededError, match=r"no reply within 0\.05 s"):
                await rpc.request(b"no responder", timeout_s=0.05)
            with anyio.move_on_after(0.05) as scope:
                await rpc.request(b"no responder")
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
                await until(lambda: rpc.outstanding == 2)
                await anyio.sleep(2.1)
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
                await client.admin.lookup_topic(f"{topic}-elsewhere")
            assert (await rpc.request(b"x")).payload == b"fine"

    run(backend, broker, main)


@BACKENDS
def test_a_request_that_cannot_be_answered_ends_no_responder(backend: str, broker: BrokerProcess, topic: str) -> None:
    """An answer that fills a batch, or an error text that is not UTF-8, crashed one responder after the other."""

    async def fails(request: Message) -> bytes:
        if request.payload == b"half":
            raise ValueError("half of \ud800")
        return b"fine" if request.payload == b"x" else bytes(1000)

    async def main(client: Client) -> None:
        async with client.responder(topic, fails) as responder, client.requester(topic) as rpc:
            async with client.producer(topic) as producer:
                large = {
                    "x-reply-to": f"{topic}-replies",
                    "x-correlation-id": "1" * 2**23,
                    "x-reply-key": "k" * (2**21 - 160),
                }
                await producer.send(b"large", attributes=large)
            with pytest.raises(RequestFailedError, match="half of"):
                await rpc.request(b"half")
            await until(lambda: responder.answered == 2)
            assert (await rpc.request(b"x")).payload == b"fine"

    run(backend, broker, main)


@BACKENDS
def test_the_end_of_the_subscription_ends_the_responder(backend: str, broker: BrokerProcess, topic: str) -> None:
    async def main(client: Client) -> None:
        async def respond() -> None:
            async with client.responder(topic, upper):
                await client.admin.delete_topic(topic)
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


def test_the_blocking_facade_has_all_of_it(broker: BrokerProcess, topic: str) -> None:
    policy = {"redelivery_delay_s": 0.05, "ack_timeout_s": 0.6}
    with connect(broker.url) as client:
        with (
            client.producer(topic) as producer,
            client.consumer(
                topic,
                subscription="s",
                type="key_shared",
                start="earliest",
                key_filters=["a*"],
                policy=policy,
                renew_leases=True,
            ) as consumer,
        ):
            producer.send(b"later", key="a", deliver_after_s=1.5)
            producer.send_many([b"0"], key="a1")
            producer.send_nowait(b"not for us", key="b").receipt()
            first = consumer.receive(timeout_s=10)
            assert (first.payload, first.attempt) == (b"0", 1)
            first.nack(reason="again, please")
            again = consumer.receive(timeout_s=10)
            assert (again.payload, again.attempt) == (b"0", 2)
            again.extend_lease(5)
            time.sleep(1.0)
            again.ack()
            producer.send_many([b"1", b"2"], key="a1")
            rest = set()
            while len(rest) < 3:  # perhaps some for the second time: what waited was given back meanwhile
                message = consumer.receive(timeout_s=10)
                rest.add(message.payload)
                message.ack()
            assert rest == {b"1", b"2", b"later"}
            consumer.flush_acks()
            (info,) = client.admin.describe_subscription(topic, "s")
            assert (info.policy.ack_timeout_s, info.consumers[0].key_filters) == (0.6, ["a*"])
            (info,) = client.admin.change_subscription_policy(topic, "s", ack_timeout_s=2.0)
            assert info.policy.ack_timeout_s == 2.0
        assert client.admin.change_policies(topic, max_producers=3).own.max_producers == 3
        assert client.admin.policies(topic).effective.max_producers == 3
        with client.reader(topic, start="earliest") as reader:
            assert [reader.receive(timeout_s=10).payload for _ in range(2)] == [b"later", b"0"]
            assert reader.position == {0: 2}
            with pytest.raises(FailedPreconditionError):
                reader.receive(timeout_s=10).ack()
            reader.seek(1)
            assert [payload for batch in reader.batches(until_caught_up=True) for payload in batch.payloads()] == [
                b"0", b"not for us", b"1", b"2",
            ]  # fmt: skip
            assert (reader.caught_up, reader.position) == (True, {0: 5})


def test_blocking_requests(broker: BrokerProcess, topic: str) -> None:
    async def respond(started: threading.Event, asked: threading.Event) -> None:
        async with danube.connect(broker.url) as client, client.responder(topic, upper):
            started.set()
            await anyio.to_thread.run_sync(asked.wait)

    started, asked = threading.Event(), threading.Event()
    thread = threading.Thread(target=anyio.run, args=(respond, started, asked))
    thread.start()
    try:
        assert started.wait(20)
        with connect(broker.url) as client, client.requester(topic, timeout_s=10) as rpc:
            reply = rpc.request(b"abc", key="k", attributes={"suffix": "!"})
            assert (reply.payload, rpc.outstanding, rpc.topic) == (b"ABC!k", 0, topic)
            with pytest.raises(FailedPreconditionError):
                reply.ack()
            with pytest.raises(RequestFailedError, match="not that one"):
                rpc.request(b"bad")
            with pytest.raises(DeadlineExceededError):
                rpc.request(b"slow", timeout_s=0.05)
    finally:
        asked.set()
        thread.join(20)
