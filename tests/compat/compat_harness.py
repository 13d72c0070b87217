"""A broker with the upstream face, and a caller that speaks its protocol by our own wire client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.broker_harness import RunningBroker, running_broker

import danube.compat
from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2 as pb
from danube.wire import connect_channel
from danube.wire.client import Channel

DISK, NONE = pb.Reliable, pb.NonReliable


class Caller:
    """Calls of one connection."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def unary(self, path: str, request: Any, response_type: Any, timeout_s: float = 10) -> Any:
        return await self.channel.unary(path, request, response_type, timeout_s=timeout_s)

    async def create(
        self, topic: str, name: str = "p", strategy: int = DISK, request_id: int = 1, **fields: Any
    ) -> pb.ProducerResponse:
        request = pb.ProducerRequest(
            request_id=request_id, topic_name=topic, producer_name=name, dispatch_strategy=strategy, **fields
        )
        return await self.unary("/danube.ProducerService/CreateProducer", request, pb.ProducerResponse)

    async def send(
        self, topic: str, producer_id: int, payload: bytes = b"x", request_id: int = 1, **fields: Any
    ) -> pb.MessageResponse:
        request = pb.StreamMessage(
            request_id=request_id,
            msg_id=pb.MsgID(producer_id=producer_id, topic_name=topic, broker_addr="http://somewhere:1"),
            payload=payload,
            **{"publish_time": 1_700_000_000_123, "producer_name": "as the client says", **fields},
        )
        return await self.unary("/danube.ProducerService/SendMessage", request, pb.MessageResponse)

    async def lookup(self, topic: str) -> pb.TopicLookupResponse:
        request = pb.TopicLookupRequest(request_id=7, topic=topic)
        return await self.unary("/danube.Discovery/TopicLookup", request, pb.TopicLookupResponse)

    async def partitions(self, topic: str) -> list[str]:
        request = pb.TopicLookupRequest(request_id=8, topic=topic)
        answer = await self.unary("/danube.Discovery/TopicPartitions", request, pb.TopicPartitionsResponse)
        assert answer.request_id == 8
        return list(answer.partitions)


@asynccontextmanager
async def calling(running: RunningBroker, port: int = 0) -> AsyncGenerator[Caller, None]:
    """Connect to the client port, or to another one."""
    async with connect_channel("127.0.0.1", port or running.port, codec=PROTO) as channel:
        yield Caller(channel)


def admin_port(running: RunningBroker) -> int:
    (address,) = running.broker.admin_addresses
    return int(address.rpartition(":")[2])


@asynccontextmanager
async def compat_broker(directory: Path, **settings: Any) -> AsyncGenerator[RunningBroker, None]:
    """Run a broker with the face around the body."""
    async with running_broker(directory, faces=(danube.compat.face,), **settings) as running:
        yield running
