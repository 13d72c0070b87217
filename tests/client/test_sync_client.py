"""The blocking client where it does more than call in another thread: handlers, and access from its loop only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Literal

import pytest
from brokers import BrokerProcess

from danube.client.sync import Message, connect
from danube.model.errors import ClosedError, InvalidArgumentError, RequestFailedError
from danube.model.policies import Durability


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate({ord(one): "-" for one in "[]_"})
    return f"/default/{name.strip('-')}"


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_blocking_responders(broker: BrokerProcess, topic: str, backend: Literal["asyncio", "trio"]) -> None:
    threads = set()
    nested = f"{topic}-nested"

    def answer(request: Message) -> bytes:
        threads.add(threading.get_ident())
        if request.payload == b"bad":
            raise ValueError("not that one")
        if request.payload == b"early":  # what is acknowledged by hand is acknowledged once
            request.ack()
        producer.send(request.payload)  # a handler may use the client that calls it
        return request.payload.upper() + (request.key or "").encode()

    with connect(broker.url, backend=backend) as client, client.producer(nested) as producer:
        with client.responder(topic, answer) as responder, client.requester(topic, timeout_s=20) as rpc:
            assert rpc.request(b"abc", key="k").payload == b"ABCk"
            assert rpc.request(b"early").payload == b"EARLY"
            with pytest.raises(RequestFailedError, match="ValueError: not that one"):
                rpc.request(b"bad")
            deadline = time.monotonic() + 10
            while responder.answered < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert (responder.answered, responder.failed, responder.topic) == (3, 1, topic)
        assert threading.get_ident() not in threads
        assert client.admin.describe_topic(nested).end_offset == 2
        with pytest.raises(InvalidArgumentError, match="handler is a function, not int"):
            client.responder(topic, 1)  # type: ignore[arg-type]


def test_a_blocking_handler_ends_before_its_responder_is_left(broker: BrokerProcess, topic: str) -> None:
    began, may_end = threading.Event(), threading.Event()
    done: list[bytes] = []

    def slow(request: Message) -> bytes:
        began.set()
        assert may_end.wait(20)
        done.append(request.payload)
        return b""

    with connect(broker.url) as client, client.producer(topic) as producer:
        with client.responder(topic, slow):
            producer.send(b"x")
            assert began.wait(20)
            threading.Timer(0.1, may_end.set).start()
        assert done == [b"x"]


def test_the_blocking_client_has_the_remaining_methods_of_the_asynchronous_one(
    broker: BrokerProcess, topic: str
) -> None:
    with connect(broker.url) as client:
        with (
            client.producer(topic, durability="os") as producer,
            client.consumer(topic, subscription="s", type="failover", name="a", start="earliest") as consumer,
            client.consumer(topic, subscription="s", type="failover", name="b") as other,
        ):
            assert (producer.durability, producer.buffered_bytes, producer.partition_for("k")) == (Durability.OS, 0, 0)
            producer.send_many([b"%d" % number for number in range(10)])
            consumer.wait_active()
            assert (consumer.active, other.active, consumer.gaps) == (True, False, [])
            taking = threading.Thread(target=lambda: [None for _ in consumer.batches(until_caught_up=True)])
            taking.start()
            consumer.wait_caught_up()
            taking.join(20)
            assert consumer.caught_up
            consumer.ack_range(0, 9)
            consumer.flush_acks()
            (info,) = client.admin.describe_subscription(topic, "s")
            assert info.backlog_messages == 1
        with client.stages.open(topic, producer="job", batch_id=0) as stage:
            stage.add([b"x"])
            staged = stage.finish()
            assert (stage.topic, stage.records, stage.committed) == (topic, 1, False)
        (row,) = client.stages.describe("job").stages
        assert (row.stage_id, client.stages.last_batch("job")) == (staged.stage_id, None)
        client.stages.abort("job", 0)


def test_a_closed_client_says_so(broker: BrokerProcess) -> None:
    with connect(broker.url) as client:
        assert client.admin.info().connections
    with pytest.raises(ClosedError, match="the client is closed"):
        client.admin.info()
