"""Applications of a simulated world: they use the real client, and record their actions and observations.

Each runs on a host of its own and has the problems of real ones: connections that fail,
brokers that disappear, and its own crashes. It continues after any error of a call; violations are found by the
history.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import trio

import danube
from danube.client import Batch, Client, Consumer, Environment, Message, Pending, Producer, Receipt
from danube.model.errors import DanubeError, TopicNotFoundError
from danube.model.limits import Limits
from danube.model.policies import Durability, PoisonPolicy, Retention, SubscriptionType
from danube.testing.history import Audited, DeadLetter, History, Session, Spot, SubscriptionRules
from danube.testing.schema_history import SchemaHistory
from danube.testing.simulation._scheduler import MACHINE
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import PORT, shown_error
from danube.testing.simulation.trace import Trace

if TYPE_CHECKING:
    from danube.client._delivered import DeliveredBatch, Source

__all__ = ["ACK_TIMEOUT_S", "Applications", "ConsumerPlan", "ProducerPlan", "TopicPlan", "read_letters", "read_topic"]


_KEYS: Final = tuple(f"k{index}" for index in range(6))

ACK_TIMEOUT_S: Final = 3.0
"""Ack timeout of subscriptions that do not set another one."""

_C = TypeVar("_C")
_Message = tuple[bytes, str | None]

Moment = tuple[int, int]
"""What :meth:`History.moment` returns."""


class TopicPlan(NamedTuple):
    """A topic of the world."""

    name: str
    durability: Durability
    partitions: int
    retention: Retention
    home: str = "broker"
    """The machine that serves it, or the first one that does."""
    message_ttl_s: float = 0.0
    delays: bool = False
    """Whether some messages are scheduled for later."""

    @property
    def parts(self) -> list[str]:
        """The topics that messages name: the partitions, or the topic."""
        return [f"{self.name}-part-{index}" for index in range(self.partitions)] or [self.name]


class ProducerPlan(NamedTuple):
    """A producer name, and its behaviour."""

    name: str
    topic: TopicPlan
    operations_per_s: float
    batch: int
    """Most messages of one operation."""
    payload_bytes: int
    """Most bytes of one message."""
    compression: Literal["lz4", "zstd"] | None
    crash_after_s: float
    """Mean time until the application crashes and restarts."""


class ConsumerPlan(NamedTuple):
    """A consumer of a subscription, and its behaviour."""

    name: str
    subscription: str
    kind: SubscriptionType
    topic: TopicPlan
    diligence: float
    """Share of messages that it acknowledges; it rejects or forgets the others."""
    leave_after_s: float
    """Mean time until it leaves or crashes, and returns."""
    policy: Mapping[str, Any] = {}
    """What the subscription begins with; the same for all its consumers."""
    poisons: frozenset[PoisonPolicy] = frozenset()
    """The poison policies that the subscription may have; empty if nothing ever is poison."""
    filters: tuple[str, ...] = ()
    """Keys that it takes."""
    handling_s: float = 0.0
    """Most time that it takes over a batch."""
    renews: bool = False
    """Whether it renews the leases of what it handles."""
    cumulative: bool = False
    """Whether it acknowledges everything up to a message, now and then."""
    upstream: bool = False
    """Whether it speaks the upstream protocol."""

    @property
    def rules(self) -> SubscriptionRules:
        """Rules for the messages of its subscription."""
        return SubscriptionRules(
            self.kind,
            self.poisons,
            self.policy.get("max_redelivery_count", -1),
            self.topic.message_ttl_s,
            self.policy.get("ack_timeout_s", ACK_TIMEOUT_S),
            in_order=not self.topic.delays,
        )


class Applications:
    """State shared by all applications of a world.

    Args:
        network, history, trace: the world's.
        routes: by topic's home, the machines that may serve it, in the order in which clients try them.
        wall_clock_us: the world's clock.
        limits: of the clients.
        is_cluster: whether all machines of a route serve topics at the same time.
    """

    def __init__(
        self,
        network: Network,
        routes: Mapping[str, Sequence[str]],
        history: History,
        trace: Trace,
        wall_clock_us: Callable[[], int],
        limits: Limits,
        *,
        is_cluster: bool = False,
    ) -> None:
        self.network = network
        self.is_cluster = is_cluster
        self.routes = routes
        self.history = history
        self.trace = trace
        self.moves = not is_cluster and any(len(machines) > 1 for machines in routes.values())
        """Whether topics move from machine to machine."""
        self.calm = trio.Event()
        """Set when the faults are over: producers finish, consumers take and acknowledge everything."""
        self.abandoned: set[str] = set()
        """Topics whose applications are turned off when it is calm: one of their partitions stays away."""
        self.finished = trio.Event()
        """Set when consumers must leave."""
        self.limits = limits
        self.schemas = SchemaHistory()
        """Of the schema registry of the home whose applications use it."""
        self._wall_clock_us = wall_clock_us

    @asynccontextmanager
    async def client(self, host: str, random: Random, home: str, machine: str = "") -> AsyncIterator[Client]:
        """Connect from a host to the broker of a home; ``machine``: to this one of its machines first."""
        environment = Environment(
            connect=lambda target, port: self.network.connect(host, target, port),
            clock_us=self._wall_clock_us,
            random=random,
        )
        seeds = list(self.routes[home])
        if machine:
            seeds = [machine]
        elif self.is_cluster:
            random.shuffle(seeds)
        async with danube.connect(
            "danube://" + ",".join(f"{name}:{PORT}" for name in seeds),
            connect_timeout_s=2.0,
            request_timeout_s=10.0,
            reconnect_max_s=1.0,
            close_timeout_s=600.0,
            limits=self.limits,
            environment=environment,
        ) as client:
            yield client

    async def again_and_again(
        self,
        host: str,
        random: Random,
        work: Callable[[_C, Random], Awaitable[bool]],
        life_s: float,
        topic: TopicPlan,
        connect: Callable[[str, Random, str], AbstractAsyncContextManager[_C]],
    ) -> None:
        """Run ``work`` with what ``connect`` opens until it returns True; start again after errors and crashes.

        A crash takes the host's connections away before anything is cancelled.
        """
        MACHINE.set(host)
        done = False
        while not done:
            dies_in_s = random.expovariate(1 / life_s) if not self.calm.is_set() else math.inf
            scope = trio.CancelScope()
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._kill, host, topic, dies_in_s, scope, random)
                    with scope:
                        async with connect(host, random, topic.home) as client:
                            done = await work(client, random)
                    nursery.cancel_scope.cancel()
            except* DanubeError as errors:
                self.trace("app-error", host, shown_error(errors))
                done = done or (self.calm.is_set() and self._has_stopped(topic))
            done = done or (self.calm.is_set() and topic.name in self.abandoned)
            if not done:
                self.network.power_on(host)
                await trio.sleep(random.random())

    def _has_stopped(self, topic: TopicPlan) -> bool:
        """Whether a topic may have stopped for good, because its data was damaged."""
        return topic.durability is not Durability.NONE and self.history.is_damaged(topic.parts)

    async def _kill(self, host: str, topic: TopicPlan, after_s: float, scope: trio.CancelScope, random: Random) -> None:
        with trio.move_on_after(after_s):
            await self.calm.wait()
            if topic.name in self.abandoned:
                self.trace("turned-off", host)
                self.network.crash(host, silently=False)
                scope.cancel()
            return
        self.trace.fault("app-crash", host)
        self.network.crash(host, silently=random.random() < 0.3)
        scope.cancel()

    # --- Producers

    async def produce(self, plan: ProducerPlan, random: Random) -> None:
        """Publish until all is calm; return when everything that was accepted is settled."""
        run = number = 0

        async def work(client: Client, random: Random) -> bool:
            nonlocal run, number
            if self.calm.is_set():
                return True
            losses = [self.history.power_losses(part) for part in plan.topic.parts]
            async with client.producer(
                plan.topic.name,
                name=plan.name,
                compression=plan.compression,
                batch_max_bytes=16 * 1024,
                max_in_flight_batches=random.choice((1, 4, 8)),
            ) as producer:
                run += 1
                if len(producer.stored_before) != len(plan.topic.parts):
                    self.history.violation(f"P2: {plan.topic.name} has {len(producer.stored_before)} partitions")
                    return True
                for part, stored, before in zip(plan.topic.parts, producer.stored_before, losses, strict=True):
                    self.history.producer_run(plan.name, run, part, stored, losses=before)
                    self.trace("producer", plan.name, run, part, stored)
                async with trio.open_nursery() as nursery:
                    while not self.calm.is_set():
                        one_key = random.choice((None, *_KEYS)) if random.random() < 0.3 else ""
                        messages: list[_Message] = []
                        delay_s = due_s = None
                        if plan.topic.delays and random.random() < 0.2:
                            delay_s = random.choice((0.001, 0.5, 3.0, 8.0))
                            due_s = trio.current_time() + delay_s
                        for _ in range(random.randint(1, plan.batch)):
                            number += 1
                            filler = random.randbytes(random.randrange(plan.payload_bytes))
                            key = random.choice((None, *_KEYS)) if one_key == "" else one_key
                            payload = b"%s|%d|" % (plan.name.encode(), number) + filler
                            self.history.publish(
                                plan.name, run, number, plan.topic.name, payload, key, due_s=due_s or 0.0
                            )
                            messages.append((payload, key))
                        if one_key != "" and (one_key is not None or not plan.topic.partitions):
                            await self._send_many(producer, messages, one_key, delay_s)
                        elif random.random() < 0.2:
                            for message in messages:
                                sending = producer.send(message[0], key=message[1], deliver_after_s=delay_s)
                                await self._settle(sending, message[0])
                        else:
                            pending = [
                                (producer.send_nowait(payload, key=key, deliver_after_s=delay_s), payload)
                                for payload, key in messages
                            ]
                            nursery.start_soon(self._settle_all, pending)
                        with trio.move_on_after(random.expovariate(plan.operations_per_s)):
                            await self.calm.wait()
            return True

        await self.again_and_again(plan.name, random, work, plan.crash_after_s, plan.topic, self.client)

    async def _send_many(
        self, producer: Producer, messages: list[_Message], key: str | None, delay_s: float | None
    ) -> None:
        try:
            receipt = await producer.send_many([payload for payload, _ in messages], key=key, deliver_after_s=delay_s)
        except DanubeError as error:
            self.trace("send-failed", messages[0][0][:12], shown_error(error))
            return
        places = [
            (part.topic, part.start + index if part.start >= 0 else part.start)
            for part in receipt.ranges
            for index in range(part.count)
        ]
        for (payload, _), (topic, offset) in zip(messages, places, strict=True):
            self._acked(payload, topic, offset)

    async def _settle_all(self, pending: list[tuple[Pending, bytes]]) -> None:
        for each, payload in pending:
            await self._settle(each, payload)

    async def _settle(self, sending: Awaitable[Receipt], payload: bytes) -> None:
        try:
            receipt = await sending
        except DanubeError as error:
            self.trace("send-failed", payload[:12], shown_error(error))
            return
        self._acked(payload, receipt.topic, receipt.offset)

    def _acked(self, payload: bytes, topic: str, offset: int) -> None:
        self.history.acknowledge(payload, topic, offset)
        self.trace("acked", topic, offset)

    # --- Consumers

    async def consume(self, plan: ConsumerPlan, random: Random) -> None:
        """Take messages until all is finished; once it is calm, acknowledge everything."""

        async def work(client: Client, random: Random) -> bool:
            began = self.history.opening()
            async with client.consumer(
                plan.topic.name,
                subscription=plan.subscription,
                type=plan.kind,
                start="earliest",
                name=plan.name,
                credit_messages=random.choice((5, 50, 1000)),
                key_filters=plan.filters,
                renew_leases=plan.renews,
                policy=plan.policy,
            ) as consumer:
                taker = _Taker(self, plan, consumer, random, began)
                self.trace("consumer", plan.name)
                while not self.finished.is_set():
                    batch: Batch | None = None
                    with trio.move_on_after(0.2 + random.random()):
                        batch = await consumer.receive_batch()
                    if batch is None:
                        await taker.flush()
                        continue
                    moment = taker.see(batch)
                    if plan.handling_s:
                        with trio.move_on_after(random.random() * plan.handling_s):
                            await self.calm.wait()
                    await taker.answer(batch, moment)
                await taker.flush()
            return True

        await self.again_and_again(plan.name, random, work, plan.leave_after_s, plan.topic, self.client)


class _Taker:
    """The hands of a consumer: sees, acknowledges, rejects or forgets, and remembers what it may expect of that."""

    def __init__(
        self, applications: Applications, plan: ConsumerPlan, consumer: Consumer, random: Random, began: int
    ) -> None:
        self._applications = applications
        self._history = history = applications.history
        self._plan = plan
        self._consumer = consumer
        self._random = random
        self._session: Session = history.session(
            plan.subscription, plan.kind, plan.topic.parts, filters=plan.filters, began=began
        )
        self._feeds: dict[str, Source] = {}
        self._acked: dict[str, list[tuple[Spot, DeliveredBatch, Moment]]] = {}
        """Of each topic: what was acknowledged, in which batch it came, and when."""
        self._later: list[tuple[Message, Moment]] = []

    def see(self, batch: Batch) -> Moment:
        """Record a batch in the history; return the moment."""
        self._applications.trace("taken", self._plan.name, batch.topic, batch.ranges, batch.attempt)
        for message in batch:
            self._history.deliver(
                self._session,
                batch.generation,
                batch.topic,
                message.offset,
                message.payload,
                message.key,
                attempt=batch.attempt,
            )
        return self._history.moment(self._session, batch.topic)

    async def answer(self, batch: Batch, moment: Moment) -> None:
        """Acknowledge, reject or ignore each message."""
        random, calm = self._random, self._applications.calm.is_set()
        rejected: list[int] = []
        if self._plan.cumulative and random.random() < (1.0 if calm else 0.5):
            messages = list(batch)
            count = len(messages) if calm else random.randint(1, len(messages))
            await self._ack_up_to(messages[count - 1], moment)
            self._later += [(message, moment) for message in messages[count:]]
            return
        for message in batch:
            if calm or random.random() < self._plan.diligence:
                self._ack(message, moment)
                continue
            fate = random.random()
            if fate < 0.5:
                rejected += message.offset, message.offset + 1
            elif fate < 0.7 or self._plan.renews:
                self._later.append((message, moment))  # a consumer that keeps renewing leases must settle it later
        if rejected:
            batch.feed.nack(rejected, random.choice((None, 0.0, 0.1, 1.0)), random.choice(("", "no")), batch.moves)

    def _ack(self, message: Message, moment: Moment) -> None:
        topic = message.topic
        spot = self._history.given(self._session, topic, message.offset, message.payload, moment)
        message.ack_nowait()
        self._acked.setdefault(topic, []).append((spot, message._batch, moment))
        self._feeds[topic] = message._batch.feed

    async def _ack_up_to(self, message: Message, moment: Moment) -> None:
        """Acknowledge a message and everything before it, including messages of other consumers."""
        topic = message.topic
        self._history.given_up_to(self._session, topic, message.offset, moment)
        spot = self._history.spot(message.offset, message.payload)
        await self._consumer.ack_cumulative(message)
        self._applications.trace("acked-up-to", self._plan.name, topic, message.offset)
        self._acked.setdefault(topic, []).append((spot, message._batch, moment))
        self._feeds[topic] = message._batch.feed

    async def flush(self) -> None:
        """Have the acknowledgements confirmed."""
        if self._later and (self._applications.calm.is_set() or self._random.random() < 0.2):
            for message, moment in self._later:
                self._ack(message, moment)  # late: it may have timed out, or be with another consumer
            self._later.clear()
        acked, self._acked = self._acked, {}
        if not acked:
            return
        await self._consumer.flush_acks()
        if self._plan.kind is SubscriptionType.KEY_SHARED:
            # They take effect in the order of their key. One that is behind a message which was rejected, timed out or
            # went to another consumer is forgotten, and promises nothing: the world's end looks whether all came.
            return
        if self._plan.topic.durability is Durability.NONE:
            return
        takes_back = self._plan.topic.durability is Durability.OS
        for topic, given in acked.items():
            feed = self._feeds[topic]
            stream = feed.generation
            moments: dict[Moment, list[Spot]] = {}
            for spot, batch, moment in given:
                # What came on an earlier stream may be gone since, and its offset given to another message; what came
                # before a seek counts for nothing.
                if batch.moves == feed.moves and (batch.generation == stream or not takes_back):
                    moments.setdefault(moment, []).append(spot)
            for moment, spots in moments.items():
                self._history.confirmed(self._session, topic, spots, stream, moment)
                self._applications.trace("confirmed", self._plan.name, topic, len(spots))


async def read_topic(client: Client, topic: TopicPlan) -> dict[str, tuple[list[Audited], int]]:
    """Read a topic from its first offset to its present end; return that, and where each part begins afterwards."""
    found: dict[str, list[Audited]] = {part: [] for part in topic.parts}
    async with client.reader(topic.name, start="earliest") as reader:
        async for batch in reader.batches(until_caught_up=True):
            found[batch.topic] += [Audited(message.offset, message.payload, message.key) for message in batch]
    starts = dict.fromkeys(found, 0)
    if topic.retention:
        for part in found:
            starts[part] = (await client.admin.describe_topic(part)).start_offset
    return {part: (messages, starts[part]) for part, messages in found.items()}


async def read_letters(client: Client, topic: str) -> list[DeadLetter]:
    """Read a dead-letter topic from its first offset to its present end; empty if the topic was never needed."""
    found: list[DeadLetter] = []
    try:
        async with client.reader(topic, start="earliest") as reader:
            async for batch in reader.batches(until_caught_up=True):
                found += [DeadLetter(each.payload, each.key, each.attributes or {}) for each in batch]
    except TopicNotFoundError:
        pass
    return found
