"""Brokers inside the test's event loop, and raw peers that may send invalid requests.

A broker has real sockets, files and clocks, unless its test is marked ``virtual``: then it runs on a simulated machine,
in virtual time (see :class:`VirtualMachine`), which takes no longer than its work does.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import trio

import danube
from danube.broker import Broker, BrokerConfig, FaceMaker, Seams, load_config
from danube.broker.topic.topic import Topic
from danube.client import Environment
from danube.model import ProducerAccess, SubscriptionType, api
from danube.model.batch import encode_part
from danube.model.limits import KIB, MIB
from danube.testing.clock import simulated_clock
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import BrokerNode, Life
from danube.testing.simulation.trace import Trace
from danube.wire import connect_channel
from danube.wire.client import Channel, ClientStream

SMALL = {"max_message_bytes": 512 * KIB, "max_batch_bytes": 1 * MIB}
"""Limits that allow for small journal files, so that a broker starts in milliseconds."""

PATIENCE_S = 20.0

_encode = msgspec.msgpack.encode
_PUBLISH_REPLY = msgspec.msgpack.Decoder(api.PublishReply)
_CONSUME_REPLY = msgspec.msgpack.Decoder(api.ConsumeReply)


def small_config(directory: Path, **settings: Any) -> BrokerConfig:
    """A configuration with small files, a free port and no admin port. ``limits`` is merged with :data:`SMALL`."""
    limits = {**SMALL, **settings.pop("limits", {})}
    given = {
        "listen": ["127.0.0.1:0"],
        "admin_listen": [],
        "data_directory": str(directory),
        "journal_file_size": 2 * MIB,
        **settings,
    }
    return load_config(None, {**given, "limits": limits})


class VirtualMachine:
    """A simulated machine with a broker: its disk, metadata, storages and network outlive the broker's lives.

    Attributes:
        network: the broker listens there on :attr:`HOST`, and clients connect from ``test``.
        node: the machine, with all that can go wrong on it.
    """

    HOST = "127.0.0.1"
    PORT = 6650

    def __init__(self, config: BrokerConfig) -> None:
        trace = Trace(keep=100)
        self.network = Network(random.Random(1), trace)
        self.error: BaseException | None = None
        self.node = BrokerNode(
            self.HOST,
            config,
            network=self.network,
            buckets={},
            random=random.Random(2),
            wall_clock_us=self.wall_clock_us,
            pauses=SimpleNamespace(resume=lambda name: None),
            trace=trace,
            started=lambda node: None,
            failed=self._failed,
        )

    def wall_clock_us(self) -> int:
        return 1_800_000_000_000_000 + round(self.network.clock.now * 1e6)

    def _failed(self, node: BrokerNode, life: Life, error: BaseException) -> None:
        self.error = error

    async def run(self) -> None:
        """Run one life of the broker; raise what ended it."""
        await self.node.live()
        error, self.error = self.error, None
        if error is not None:
            raise error

    async def connect(self, host: str, port: int) -> Any:
        return await self.network.connect("test", host, port)


class RunningBroker:
    """A broker that runs in a nursery of the test; it can be drained, crashed, and started again on its port."""

    def __init__(self, config: BrokerConfig, nursery: trio.Nursery, faces: Sequence[FaceMaker] = ()) -> None:
        self.config = config
        self.faces = faces
        self.port = 0
        self.broker: Broker
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._ended.set()
        self.machine: VirtualMachine | None = None
        """The simulated machine, in tests that are marked ``virtual``."""
        if simulated_clock() is not None:
            self.port = VirtualMachine.PORT
            self.config = msgspec.structs.replace(config, listen=(f"{VirtualMachine.HOST}:{self.port}",))
            self.machine = VirtualMachine(self.config)

    def topic(self, name: str) -> Topic:
        """Return a topic or partition that it serves."""
        return self.broker.directory.find(name)

    @property
    def url(self) -> str:
        return f"danube://127.0.0.1:{self.port}"

    async def start(self) -> RunningBroker:
        assert self._ended.is_set()
        if self.machine is not None:
            return await self._start_virtual(self.machine)
        if self.port:
            self.config = msgspec.structs.replace(self.config, listen=(f"127.0.0.1:{self.port}",))
        clock = lambda: time.time_ns() // 1000  # noqa: E731
        self.broker = Broker(self.config, Seams(wall_clock_us=clock, random=random.Random()), self.faces)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        (address,) = await self._nursery.start(self._run)
        self.port = int(address.rpartition(":")[2])
        return self

    async def _start_virtual(self, machine: VirtualMachine) -> RunningBroker:
        machine.node.config = self.config
        if self.faces:
            machine.node.faces = self.faces
        self._ended = trio.Event()

        async def live() -> None:
            try:
                await machine.run()
            finally:
                self._ended.set()

        self._nursery.start_soon(live)
        await trio.lowlevel.checkpoint()
        life = None
        while life is None:
            life = machine.node.life
            await trio.lowlevel.checkpoint()
        self.broker = life.broker
        await machine.node.ready.wait()
        return self

    async def _run(self, *, task_status: trio.TaskStatus[list[str]]) -> None:
        try:
            with self._scope:
                await self.broker.run(task_status=task_status)
        finally:
            self._ended.set()

    async def drain(self) -> None:
        """End as SIGTERM does."""
        self.broker.drain()
        await self._ended.wait()

    async def crash(self) -> None:
        """End without a checkpoint and without settling anything."""
        if self.machine is not None:
            self.machine.node.crash(power_loss=False)
        self._scope.cancel()
        await self._ended.wait()

    async def restart(self, *, crash: bool = False) -> None:
        await (self.crash() if crash else self.drain())
        await self.start()

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncGenerator[danube.Client, None]:
        if self.machine is not None:
            options.setdefault("environment", self.environment)
        async with danube.connect(self.url, reconnect_initial_s=0.02, reconnect_max_s=0.1, **options) as client:
            yield client

    @property
    def environment(self) -> Environment:
        """What clients of a simulated machine take for the world."""
        assert self.machine is not None
        return Environment(connect=self.machine.connect, clock_us=self.machine.wall_clock_us, random=random.Random(3))

    @asynccontextmanager
    async def channel(self) -> AsyncGenerator[Channel, None]:
        connect = None if self.machine is None else partial(self.machine.connect, "127.0.0.1", self.port)
        async with connect_channel("127.0.0.1", self.port, connect=connect) as channel:
            yield channel


@asynccontextmanager
async def running_broker(
    directory: Path, *, patience_s: float = PATIENCE_S, faces: Sequence[FaceMaker] = (), **settings: Any
) -> AsyncGenerator[RunningBroker, None]:
    """Run a broker around the body, which has ``patience_s`` seconds."""
    failure: BaseException | None = None
    try:
        with trio.fail_after(patience_s):
            async with trio.open_nursery() as nursery:
                running = await RunningBroker(small_config(directory, **settings), nursery, faces).start()
                try:
                    yield running
                    await running.drain()
                finally:
                    nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        failure = group
        while isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
    if failure is not None:
        raise failure  # the assertion that failed, without the nursery around it


class RawProducer:
    """A Publish stream by hand."""

    def __init__(self, stream: ClientStream) -> None:
        self.stream = stream
        self.opened: api.PublishOpened

    def part(self, sequence: int, payloads: list[bytes], **changed: Any) -> bytes:
        """Encode a batch as this session has to."""
        fields = {
            "producer_id": self.opened.producer_id,
            "producer_epoch": self.opened.epoch,
            "base_sequence": sequence,
            "publish_time_us": 1,
        }
        return encode_part(payloads, **(fields | changed))

    def send(self, sequence: int, *payloads: bytes, **changed: Any) -> None:
        self.send_part(self.part(sequence, list(payloads), **changed))

    def send_part(self, part: bytes) -> None:
        self.stream.send_nowait(_encode(api.PublishBatch(part)))

    async def reply(self) -> api.PublishReply:
        message = await self.stream.receive()
        assert message is not None, "the broker ended the call"
        message.release()
        return _PUBLISH_REPLY.decode(message.data)

    async def acked(self, count: int = 1) -> list[tuple[int, int, int]]:
        """Return the next ``count`` acknowledged batches as (sequence, offset, messages)."""
        found: list[tuple[int, int, int]] = []
        while len(found) < count:
            reply = await self.reply()
            assert isinstance(reply, api.PublishAcks), reply
            found += [(ack.base_sequence, ack.base_offset, ack.record_count) for ack in reply.acks]
        return found

    async def refused(self) -> api.PublishRefused:
        reply = await self.reply()
        assert isinstance(reply, api.PublishRefused), reply
        return reply


@asynccontextmanager
async def raw_producer(
    channel: Channel, topic: str, name: str = "raw", *, epoch: int = 0, exclusive: bool = False, **fields: Any
) -> AsyncGenerator[RawProducer, None]:
    access = ProducerAccess.EXCLUSIVE if exclusive else ProducerAccess.SHARED
    async with channel.open_stream(api.Method.PUBLISH) as stream:
        stream.send_nowait(_encode(api.PublishOpen(topic, name, access=access, resume_epoch=epoch, **fields)))
        producer = RawProducer(stream)
        opened = await producer.reply()
        assert isinstance(opened, api.PublishOpened)
        producer.opened = opened
        yield producer


class RawConsumer:
    """A Consume stream by hand: it gives credit, and acknowledges, only when it is told to."""

    def __init__(self, stream: ClientStream) -> None:
        self.stream = stream
        self.opened: api.ConsumeOpened

    def send(self, request: Any) -> None:
        """Send a request. On topics whose generations do not begin with 0 it is said of the one at the opening."""
        if getattr(request, "generation", None) == 0 and self.opened.generation >> 32:
            request = msgspec.structs.replace(request, generation=self.opened.generation)
        self.stream.send_nowait(_encode(request))

    def credit(self, messages: int, size_bytes: int = 1 << 24) -> None:
        self.send(api.Credit(messages, size_bytes))

    async def reply(self) -> Any:
        message = await self.stream.receive()
        assert message is not None, "the broker ended the call"
        message.release()
        return _CONSUME_REPLY.decode(message.data)

    async def reply_of(self, kind: type) -> Any:
        """Return the next reply of a kind; others are passed over."""
        while not isinstance(reply := await self.reply(), kind):
            pass
        return reply

    async def flush(self, token: int = 1) -> None:
        self.send(api.FlushAcks(token))
        while (await self.reply_of(api.AcksFlushed)).token != token:
            pass


@asynccontextmanager
async def raw_consumer(
    channel: Channel,
    topic: str,
    subscription: str = "s",
    name: str = "raw",
    kind: str = "exclusive",
    start: str | int = "earliest",
    **fields: Any,
) -> AsyncGenerator[RawConsumer, None]:
    async with channel.open_stream(api.Method.CONSUME) as stream:
        consumer = RawConsumer(stream)
        opened = api.ConsumeOpen(
            topic=topic,
            subscription=subscription,
            consumer_name=name,
            type=SubscriptionType(kind),
            start=start,
            **fields,
        )
        consumer.send(opened)
        consumer.opened = await consumer.reply()
        assert isinstance(consumer.opened, api.ConsumeOpened)
        yield consumer


async def take(consumer: danube.Consumer, count: int) -> list[danube.Message]:
    """Receive ``count`` messages without acknowledging them."""
    return [await consumer.receive() for _ in range(count)]


async def read_all(client: danube.Client, topic: str, subscription: str = "audit") -> list[bytes]:
    """Return every payload of a topic, through a subscription that is deleted again."""
    async with client.consumer(topic, subscription=subscription, start="earliest") as consumer:
        found: list[bytes] = []
        async for batch in consumer.batches(until_caught_up=True):
            found += batch.payloads()
    await client.admin.delete_subscription(topic, subscription)
    return found


async def wait_until(condition: Any, timeout_s: float = 15.0) -> None:
    """Look every few milliseconds whether ``condition()`` (which may be asynchronous) holds."""
    with trio.fail_after(timeout_s):
        while True:
            result = condition()
            if hasattr(result, "__await__"):
                result = await result
            if result:
                return
            await trio.sleep(0.01)
