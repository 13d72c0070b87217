"""Consumers of the upstream protocol by hand."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio
from compat_harness import Caller

from danube.compat.proto import danube_api_pb2 as pb
from danube.wire.client import ClientStream

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = (
    pb.ConsumerRequest.Exclusive,
    pb.ConsumerRequest.Shared,
    pb.ConsumerRequest.Failover,
    pb.ConsumerRequest.KeyShared,
)
SERVICE = "/danube.ConsumerService/"


async def subscribe(
    caller: Caller, topic: str, name: str = "c", subscription: str = "s", kind: int = EXCLUSIVE, **fields: Any
) -> int:
    """Return the id of a consumer."""
    request = pb.ConsumerRequest(
        request_id=3,
        topic_name=topic,
        consumer_name=name,
        subscription=subscription,
        subscription_type=kind,
        **fields,
    )
    answer = await caller.unary(f"{SERVICE}Subscribe", request, pb.ConsumerResponse)
    assert (answer.request_id, answer.consumer_name) == (3, name)
    assert answer.consumer_id
    return int(answer.consumer_id)


class Receiving:
    """A ReceiveMessages stream."""

    def __init__(self, stream: ClientStream) -> None:
        self.stream = stream

    async def next(self) -> pb.StreamMessage:
        message = await self.stream.receive()
        assert message is not None, "the broker ended the call"
        message.release()
        return pb.StreamMessage.FromString(message.data)

    async def payloads(self, count: int) -> list[bytes]:
        return [(await self.next()).payload for _ in range(count)]

    async def silent(self, seconds: float = 0.1) -> bool:
        """Whether nothing comes."""
        with trio.move_on_after(seconds):
            await self.next()
            return False
        return True


@asynccontextmanager
async def receiving(caller: Caller, consumer_id: int) -> AsyncGenerator[Receiving, None]:
    """Open the stream of a consumer."""
    async with caller.channel.open_stream(f"{SERVICE}ReceiveMessages") as stream:
        stream.send_nowait(pb.ReceiveRequest(request_id=4, consumer_id=consumer_id).SerializeToString())
        stream.end()
        yield Receiving(stream)


async def ack(caller: Caller, message: pb.StreamMessage, subscription: str = "s") -> None:
    request = pb.AckRequest(request_id=message.request_id, msg_id=message.msg_id, subscription_name=subscription)
    answer = await caller.unary(f"{SERVICE}Ack", request, pb.AckResponse)
    assert answer.request_id == message.request_id


async def nack(caller: Caller, message: pb.StreamMessage, subscription: str = "s", **fields: Any) -> None:
    request = pb.NackRequest(
        request_id=message.request_id, msg_id=message.msg_id, subscription_name=subscription, **fields
    )
    answer = await caller.unary(f"{SERVICE}Nack", request, pb.NackResponse)
    assert answer.request_id == message.request_id


async def health(caller: Caller, client: int, ident: int) -> int:
    request = pb.HealthCheckRequest(request_id=5, client=client, id=ident)
    answer = await caller.unary("/danube.HealthCheck/HealthCheck", request, pb.HealthCheckResponse)
    return int(answer.status)
