"""Stubs of grpcio for the upstream services, and what tests do with them.

They are compiled from our own .proto files, so a peer speaks that is not ours: the channels, the framing and the
generated code that all official clients have.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
import trio
from brokers import BrokerProcess

import danube
import danube.compat.proto
from danube.compat.proto import danube_api_pb2 as pb

PROTO = Path(danube.compat.proto.__file__).parent
TIMEOUT_S = 20.0

MALFORMED = [
    "",
    "plain",
    "/default",
    "/default/",
    "/default/a/b",
    "default/a",
    "//a",
    "/default/a b",
    "/default/" + "x" * 300,
]
"""Names that no topic can have."""

T = TypeVar("T")

Stubs = tuple[Any, Any]


def compile_stubs(directory: Path) -> Stubs:
    """Return the modules with the stubs of ``danube_api.proto`` and ``danube_schema.proto``."""
    outputs = [f"--python_out={directory}", f"--grpc_python_out={directory}"]
    sources = ["danube_api.proto", "danube_schema.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *sources], check=True)
    sys.path.insert(0, str(directory))
    try:
        return importlib.import_module("danube_api_pb2_grpc"), importlib.import_module("danube_schema_pb2_grpc")
    finally:
        sys.path.remove(str(directory))


def fails(status: str, call: Callable[[], Any], *words: str) -> str:
    """Check that a call ends with a status, and a sentence with these words; return the sentence."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    details = raised.value.details()
    assert raised.value.code().name == status, details
    assert all(word in details for word in words), details
    assert len(details) > 20
    return str(details)


class Upstream:
    """The stubs of one channel, and a broker."""

    def __init__(self, broker: BrokerProcess, channel: Any, stubs: Stubs) -> None:
        api, schema = stubs
        self.broker = broker
        self.channel = channel
        self.producers = api.ProducerServiceStub(channel)
        self.consumers = api.ConsumerServiceStub(channel)
        self.discovery = api.DiscoveryStub(channel)
        self.health = api.HealthCheckStub(channel)
        self.storage = api.StorageServiceStub(channel)
        self.schemas = schema.SchemaRegistryStub(channel)

    def create(
        self, topic: str, name: str = "p", strategy: int = pb.Reliable, request_id: int = 1, **fields: Any
    ) -> pb.ProducerResponse:
        request = pb.ProducerRequest(
            request_id=request_id, topic_name=topic, producer_name=name, dispatch_strategy=strategy, **fields
        )
        return self.producers.CreateProducer(request, timeout=TIMEOUT_S)

    def send(
        self, topic: str, producer_id: int, payload: bytes = b"x", request_id: int = 1, **fields: Any
    ) -> pb.MessageResponse:
        fields = {"msg_id": pb.MsgID(producer_id=producer_id, topic_name=topic, broker_addr="http://b/")} | fields
        request = pb.StreamMessage(request_id=request_id, payload=payload, publish_time=1_700_000_000_000, **fields)
        return self.producers.SendMessage(request, timeout=TIMEOUT_S)

    def lookup(self, topic: str) -> pb.TopicLookupResponse:
        return self.discovery.TopicLookup(pb.TopicLookupRequest(request_id=7, topic=topic), timeout=TIMEOUT_S)

    def partitions(self, topic: str) -> list[str]:
        request = pb.TopicLookupRequest(request_id=8, topic=topic)
        answer = self.discovery.TopicPartitions(request, timeout=TIMEOUT_S)
        assert answer.request_id == 8
        return list(answer.partitions)

    def subscribe(
        self, topic: str, name: str = "c", kind: str = "Exclusive", subscription: str = "s", request_id: int = 1
    ) -> pb.ConsumerResponse:
        request = pb.ConsumerRequest(
            request_id=request_id,
            topic_name=topic,
            consumer_name=name,
            subscription=subscription,
            subscription_type=pb.ConsumerRequest.SubscriptionType.Value(kind),
        )
        return self.consumers.Subscribe(request, timeout=TIMEOUT_S)

    @contextmanager
    def receiving(self, consumer_id: int) -> Iterator[Any]:
        """Open the stream of a consumer around the body."""
        stream = self.consumers.ReceiveMessages(pb.ReceiveRequest(consumer_id=consumer_id), timeout=TIMEOUT_S)
        try:
            yield stream
        finally:
            stream.cancel()

    def ack(self, message: pb.StreamMessage, subscription: str = "s", request_id: int = 1) -> pb.AckResponse:
        request = pb.AckRequest(request_id=request_id, msg_id=message.msg_id, subscription_name=subscription)
        return self.consumers.Ack(request, timeout=TIMEOUT_S)

    def nack(
        self, message: pb.StreamMessage, subscription: str = "s", request_id: int = 1, **fields: Any
    ) -> pb.NackResponse:
        request = pb.NackRequest(request_id=request_id, msg_id=message.msg_id, subscription_name=subscription, **fields)
        return self.consumers.Nack(request, timeout=TIMEOUT_S)

    def status(self, client: int, client_id: int) -> int:
        request = pb.HealthCheckRequest(request_id=1, client=client, id=client_id)
        return self.health.HealthCheck(request, timeout=TIMEOUT_S).status

    def native(self, action: Callable[[danube.Client], Awaitable[T]]) -> T:
        """Do something by the native API."""

        async def run() -> T:
            with trio.fail_after(TIMEOUT_S):
                async with danube.connect(self.broker.url) as client:
                    return await action(client)

        return trio.run(run)

    def stored(self, topic: str) -> int:
        """Number of messages in a topic."""
        return self.native(lambda client: client.admin.describe_topic(topic)).end_offset

    def until(self, condition: Callable[[], bool]) -> None:
        """Ask until it is so."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, "it never was"
            time.sleep(0.02)

    def eventually_connected(self, topic: str) -> None:
        """Wait until a consumer of the subscription is connected: a stream is opened without waiting for anything."""

        def connected() -> bool:
            (info,) = self.native(lambda client: client.admin.describe_subscription(topic, "s"))
            return bool(info.consumers)

        self.until(connected)

    def eventually(self, call: Callable[[], T]) -> T:
        """Call again until it is not denied any more."""
        answers: list[T] = []

        def attempt() -> bool:
            try:
                answers.append(call())
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                    raise
            return bool(answers)

        self.until(attempt)
        return answers[0]
