"""Applications of a simulated world that use the upstream protocol, as its official clients do.

A producer sends one message in each call, and several of them at a time become composite batches. It has no sequence,
so nothing is repeated, and the result of a failed call is unknown: the producer continues under another name, as
another producer, because a message in flight may be stored behind later ones.

A consumer subscribes, receives on a stream of its own, and acknowledges each message in a call, whose answer confirms
that it is durable. It does not learn how often a message was delivered before, so the history treats each as a repeat,
and checks the order of first attempts only for other consumers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2 as pb
from danube.model.errors import DanubeError
from danube.model.policies import Durability, SubscriptionType
from danube.testing.simulation.node import PORT, shown_error
from danube.wire.client import Channel, ClientStream, connect_channel

if TYPE_CHECKING:
    from danube.testing.history import History, Session, Spot
    from danube.testing.simulation.workload import Applications, ConsumerPlan, TopicPlan

__all__ = ["UPSTREAM_TYPES", "UpstreamPlan", "consume_upstream", "produce_upstream"]

UPSTREAM_TYPES: Final = {
    SubscriptionType.EXCLUSIVE: pb.ConsumerRequest.Exclusive,
    SubscriptionType.SHARED: pb.ConsumerRequest.Shared,
    SubscriptionType.FAILOVER: pb.ConsumerRequest.Failover,
    SubscriptionType.KEY_SHARED: pb.ConsumerRequest.KeyShared,
}
"""The types as upstream's clients send them, independent of the broker's table."""
_CALL_S: Final = 10.0
_KEYS: Final = (None, "k0", "k1", "k2", "")
"""An empty key means no key in languages without missing strings."""


class UpstreamPlan(NamedTuple):
    """An application with several producers that each send one message after the other."""

    name: str
    topic: TopicPlan
    producers: int
    """How many of them: about so many messages become one batch."""
    pause_s: float
    """Mean time between two messages of one of them; 0: none."""
    crash_after_s: float
    """Mean time until the application crashes and restarts."""


@asynccontextmanager
async def _channel(applications: Applications, host: str, random: Random, home: str) -> AsyncIterator[Channel]:
    """Connect to one of the machines that may serve a home."""
    target = random.choice(applications.routes[home])
    async with connect_channel(
        target,
        PORT,
        applications.limits,
        connect=lambda: applications.network.connect(host, target, PORT),
        codec=PROTO,
        connect_timeout_s=2.0,
    ) as channel:
        yield channel


# --- Producers


async def produce_upstream(applications: Applications, plan: UpstreamPlan, random: Random) -> None:
    """Publish until all is calm."""
    names = count()

    async def work(channel: Channel, random: Random) -> bool:
        async with trio.open_nursery() as nursery:
            for _ in range(plan.producers):
                topic = random.choice(plan.topic.parts)
                nursery.start_soon(_produce, applications, plan, channel, topic, f"{plan.name}-{next(names)}", random)
        return applications.calm.is_set()

    connect = partial(_channel, applications)
    await applications.again_and_again(plan.name, random, work, plan.crash_after_s, plan.topic, connect)


async def _produce(
    applications: Applications, plan: UpstreamPlan, channel: Channel, topic: str, name: str, random: Random
) -> None:
    """Send one message after the other, until a call fails or all is calm."""
    history = applications.history
    reliable = plan.topic.durability is not Durability.NONE
    request = pb.ProducerRequest(
        request_id=1,
        topic_name=topic,
        producer_name=name,
        dispatch_strategy=pb.Reliable if reliable else pb.NonReliable,
    )
    number = 0
    try:
        answer = await channel.unary(
            "/danube.ProducerService/CreateProducer", request, pb.ProducerResponse, timeout_s=_CALL_S
        )
        while not applications.calm.is_set():
            number += 1
            payload = b"%s|%d|" % (name.encode(), number) + random.randbytes(random.randrange(200))
            key = random.choice(_KEYS)
            history.publish(name, 1, number, topic, payload, key)
            await channel.unary(
                "/danube.ProducerService/SendMessage",
                pb.StreamMessage(
                    request_id=number,
                    msg_id=pb.MsgID(producer_id=answer.producer_id, topic_name=topic, broker_addr="http://elsewhere:1"),
                    payload=payload,
                    publish_time=1_700_000_000_000,
                    producer_name=name,
                    routing_key=key,
                ),
                pb.MessageResponse,
                timeout_s=_CALL_S,
            )
            history.acknowledge(payload, topic, -1)
            applications.trace("acked-one", name, number)
            with trio.move_on_after(random.expovariate(1 / plan.pause_s) if plan.pause_s else 0.0):
                await applications.calm.wait()
    except DanubeError as error:
        applications.trace("send-failed", name, number, shown_error(error))
        channel.close()  # the others start again, too


# --- Consumers


async def consume_upstream(applications: Applications, plan: ConsumerPlan, random: Random) -> None:
    """Take messages of all partitions until all is finished; once it is calm, acknowledge everything."""

    async def work(channel: Channel, random: Random) -> bool:
        async with trio.open_nursery() as nursery:
            for topic in plan.topic.parts:
                taker = _Taker(applications, plan, channel, topic, random)
                nursery.start_soon(taker.run)
        return applications.finished.is_set()

    connect = partial(_channel, applications)
    await applications.again_and_again(plan.name, random, work, plan.leave_after_s, plan.topic, connect)


class _Taker:
    """A consumer of one topic (partition), on one connection."""

    def __init__(
        self, applications: Applications, plan: ConsumerPlan, channel: Channel, topic: str, random: Random
    ) -> None:
        self._applications = applications
        self._history: History = applications.history
        self._plan = plan
        self._channel = channel
        self._topic = topic
        self._random = random
        self._later: deque[tuple[Any, Spot, tuple[int, int]]] = deque()

    async def run(self) -> None:
        """Take what comes until all is finished, or a call fails."""
        plan = self._plan
        request = pb.ConsumerRequest(
            request_id=1,
            topic_name=self._topic,
            consumer_name=plan.name,
            subscription=plan.subscription,
            subscription_type=UPSTREAM_TYPES[plan.kind],
            key_filters=plan.filters,
        )
        try:
            consumer = await self._call("Subscribe", request, pb.ConsumerResponse)
            session = self._history.session(plan.subscription, plan.kind, [self._topic], filters=plan.filters)
            async with self._channel.open_stream("/danube.ConsumerService/ReceiveMessages") as stream:
                opening = pb.ReceiveRequest(request_id=1, consumer_id=consumer.consumer_id)
                stream.send_nowait(opening.SerializeToString())
                stream.end()
                self._applications.trace("consumer", plan.name, self._topic, consumer.consumer_id)
                while not self._applications.finished.is_set():
                    await self._turn(stream, session)
        except DanubeError as error:
            self._applications.trace("app-error", plan.name, self._topic, shown_error(error))
            self._channel.close()  # the other partitions start again, too

    async def _call(self, method: str, request: Any, response_type: Any) -> Any:
        return await self._channel.unary(f"/danube.ConsumerService/{method}", request, response_type, timeout_s=_CALL_S)

    async def _turn(self, stream: ClientStream, session: Session) -> None:
        """Take one message and say something about it, or wait a little."""
        applications, plan, random, history = self._applications, self._plan, self._random, self._history
        data: bytes | None = None
        with trio.move_on_after(0.2 + random.random()):
            received = await stream.receive()
            if received is None:
                self._channel.close()
                return
            data = bytes(received.data)
            received.release()
        calm = applications.calm.is_set()
        if data is not None:
            message = pb.StreamMessage.FromString(data)
            topic, offset = message.msg_id.topic_name, message.msg_id.topic_offset
            key = message.routing_key if message.HasField("routing_key") else None
            applications.trace("taken-one", plan.name, topic, offset)
            history.deliver(session, 1, topic, offset, message.payload, key, attempt=2)
            if plan.topic.durability is Durability.NONE:
                return
            spot, moment = history.spot(offset, message.payload), history.moment(session, topic)
            if calm or random.random() < plan.diligence:
                await self._ack(session, message, spot, moment)
            elif random.random() < 0.5:
                nack = pb.NackRequest(
                    request_id=message.request_id,
                    msg_id=message.msg_id,
                    subscription_name=plan.subscription,
                    reason=random.choice(("", "no")),
                )
                await self._call("Nack", nack, pb.NackResponse)
            else:
                self._later.append((message, spot, moment))
        if self._later and (calm or random.random() < 0.1):
            await self._ack(session, *self._later.popleft())

    async def _ack(self, session: Session, message: Any, spot: Spot, moment: tuple[int, int]) -> None:
        plan, history, topic = self._plan, self._history, message.msg_id.topic_name
        history.given(session, topic, message.msg_id.topic_offset, message.payload, moment)
        request = pb.AckRequest(
            request_id=message.request_id, msg_id=message.msg_id, subscription_name=plan.subscription
        )
        await self._call("Ack", request, pb.AckResponse)
        # In a key-shared subscription it may have been answered before its turn has come, and after a seek it may be
        # void, if the message had been on its way: then it promises nothing.
        if plan.kind is not SubscriptionType.KEY_SHARED and not moment[1]:
            history.confirmed(session, topic, [spot], 1, moment)
            self._applications.trace("confirmed-one", plan.name, topic, spot[0])
