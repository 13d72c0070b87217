"""A broker small enough to trust: topics in lists, exclusive-style delivery, and levers to make it misbehave."""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.abc
import msgspec
import trio
import trio.testing

import danube
from danube.client import Client, Environment
from danube.model import api, query_api, stage_api
from danube.model.batch import BatchHeader, check_part, open_raw, slice_part
from danube.model.errors import (
    DanubeError,
    ProducerFencedError,
    SequenceGapError,
    SubscriptionBusyError,
    TopicNotFoundError,
    to_wire,
)
from danube.model.limits import Limits
from danube.model.names import partition_name
from danube.model.policies import Durability, SubscriptionType
from danube.model.ranges import RangeSet
from danube.wire import Context, Method, Server, ServerStream

_encode = msgspec.msgpack.Encoder().encode
_publish = msgspec.msgpack.Decoder(api.PublishRequest).decode
_consume = msgspec.msgpack.Decoder(api.ConsumeRequest).decode

_stage = msgspec.msgpack.Decoder(stage_api.StageRequest).decode

M = api.Method
S = stage_api.StageMethod


async def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Poll every few milliseconds for an event without a notification."""
    with anyio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.005)


class Stored:
    def __init__(self, base_offset: int, part: bytes, header: BatchHeader, producer: str) -> None:
        self.base_offset = base_offset
        self.part = part
        self.header = header
        self.producer = producer
        self.end = base_offset + header.record_count


class ProducerState:
    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.next_sequence = 0
        self.offsets: dict[int, int] = {}


class FakeTopic:
    def __init__(self, name: str, durability: Durability = Durability.DISK) -> None:
        self.name = name
        self.durability = durability
        self.batches: list[Stored] = []
        self.producers: dict[str, ProducerState] = {}
        self.subscriptions: dict[str, FakeSubscription] = {}
        self.grown = trio.Event()

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def append(self, part: bytes, header: BatchHeader, producer: str) -> int:
        base = self.end_offset
        self.batches.append(Stored(base, part, header, producer))
        self.notify()
        return base

    def notify(self) -> None:
        self.grown.set()
        self.grown = trio.Event()

    def payloads(self) -> list[bytes]:
        return [
            msgspec.msgpack.decode(raw) if batch.header.flags & 1 else msgspec.msgpack.decode(raw)[0]
            for batch in self.batches
            for raw in open_raw(batch.part, batch.header, 2**30)
        ]


class FakeSubscription:
    def __init__(self, start: int) -> None:
        self.acked = RangeSet()
        if start:
            self.acked.add(0, start)
        self.consumer: FakeConsumer | None = None
        self.nacks: list[tuple[list[int], int]] = []
        self.reasons: list[str] = []
        self.leases: list[tuple[float, list[int], int]] = []
        """(time, ranges, milliseconds) of each ExtendLease."""
        self.given_back: list[list[int]] = []
        self.acks: list[list[int]] = []
        self.attempts: dict[int, int] = {}


class FakeConsumer:
    def __init__(self, name: str, stream: ServerStream) -> None:
        self.name = name
        self.stream = stream
        self.messages = 0
        self.size_bytes = 0
        self.position = 0
        self.credits: list[tuple[int, int]] = []
        self.wants_again: int | None = None
        """What it gave back comes again, from here on, when it grants credit."""


class FakeBroker:
    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.partitioned: dict[str, int] = {}
        self.received: list[tuple[int, bytes]] = []
        """(base sequence, part) of every batch that arrived."""
        self.before_store: Callable[[BatchHeader], DanubeError | None] = lambda header: None
        """May refuse a batch."""
        self.lose_answer: Callable[[BatchHeader], bool] = lambda header: False
        """True: store the batch, then cut all connections instead of acknowledging it."""
        self.hold_acks: trio.Event | None = None
        self.corrupt: Callable[[Stored], bool] = lambda stored: False
        self.slices = False
        self.ack_timeout_s = 0.0
        self.owner_epoch = 1
        self.forgets_acks = False
        self.not_mine: Callable[[str], DanubeError | None] = lambda topic: None
        """Why it does not serve a topic: another broker owns it."""
        self.owners: Callable[[list[str]], list[api.TopicOwner]] = lambda topics: []
        self.others: list[str] = []
        """Addresses of the brokers of its cluster."""
        self.staged: list[str] = []
        self.not_home: Callable[[], DanubeError | None] = lambda: None
        self.is_home: Callable[[], bool] = lambda: False
        self.commits: list[stage_api.CommitStages] = []
        self.aborts: list[stage_api.AbortStages] = []
        self.polls: list[tuple[list[str], int]] = []
        """Names and wait of each question about the states of logs."""
        self.streams: list[tuple[str, ServerStream]] = []
        self.open_errors: list[DanubeError] = []
        self.opens: list[api.PublishOpen | api.ConsumeOpen] = []
        self.connections: list[trio.abc.Stream] = []
        self.port = 0
        self.accepting = True
        self.token: trio.lowlevel.TrioToken | None = None
        self.server: Server

    # --- Network -----------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"danube://127.0.0.1:{self.port}"

    async def cut(self) -> None:
        """Break all connections."""
        connections, self.connections = self.connections, []
        for stream in connections:
            await trio.aclose_forcefully(stream)

    def topic(self, name: str) -> FakeTopic:
        return self.topics.setdefault(name, FakeTopic(name))

    def deliver_again(self, topic: str, subscription: str, ranges: list[int]) -> None:
        """Deliver ranges once more, as after a timeout."""
        sub = self.topics[topic].subscriptions[subscription]
        for offset in range(ranges[0], ranges[-1]):
            sub.attempts[offset] = sub.attempts.get(offset, 1) + 1
        assert sub.consumer is not None
        sub.consumer.position = min(sub.consumer.position, ranges[0])
        self.topics[topic].notify()

    # --- Unary -------------------------------------------------------------------------------------------------------

    async def lookup(self, request: api.LookupTopic, context: Context) -> api.TopicPartitions:
        if (count := self.partitioned.get(request.topic)) is not None:
            names = [partition_name(request.topic, index) for index in range(count)]
            return api.TopicPartitions(request.topic, count, names, Durability.DISK, self.owners(names), self.others)
        if request.topic not in self.topics:
            raise TopicNotFoundError(f"no topic {request.topic}")
        names = [request.topic]
        durability = self.topics[request.topic].durability
        return api.TopicPartitions(request.topic, 0, names, durability, self.owners(names), self.others)

    async def describe(self, request: api.DescribeTopic, context: Context) -> api.TopicInfo:
        self._check_owner(request.topic)
        return _info(self.topics[request.topic])

    async def info(self, request: api.Empty, context: Context) -> api.BrokerInfo:
        return api.BrokerInfo(
            version="", pid=1, data_directory="", uptime_s=0, default_durability=Durability.DISK, connections=1,
            topics=0, journal_used_bytes=0, journal_limit_bytes=0, journal_files=0, commits=0, syncs=0,
            max_message_bytes=1, max_batch_bytes=1, brokers=self.others,
        )  # fmt: skip

    async def stage(self, stream: ServerStream, context: Context) -> None:
        first = await stream.receive()
        assert first is not None
        request = _stage(first.data)
        assert isinstance(request, stage_api.StageOpen)
        refusal = self.not_home()
        if refusal is not None:
            raise refusal
        if not self.is_home():
            self._check_owner(request.topic)
        self.staged.append(request.topic)
        stage = stage_api.StagedBatch(len(self.staged), request.topic, 0, 0, "")
        stream.send_nowait(_encode(stage_api.StageOpened(stage.stage_id, False, "", 2**20, 2**20)))
        if await stream.receive() is not None:
            stream.send_nowait(_encode(stage_api.Staged(stage)))

    async def commit(self, request: stage_api.CommitStages, context: Context) -> stage_api.StageCommit:
        refusal = self.not_home()
        if refusal is not None:
            raise refusal
        self.commits.append(request)
        return stage_api.StageCommit(True, {})

    async def abort(self, request: stage_api.AbortStages, context: Context) -> stage_api.AbortedStages:
        self.aborts.append(request)
        return stage_api.AbortedStages(0, bool(self.commits))

    async def last_batch(self, request: stage_api.LastBatch, context: Context) -> stage_api.LastBatchIs:
        return stage_api.LastBatchIs(max((commit.batch_id for commit in self.commits), default=None))

    async def list_stages(self, request: stage_api.ListStages, context: Context) -> stage_api.StageList:
        return stage_api.StageList([], len(self.staged), 10, 100)

    async def names(self, request: query_api.GetTopicNames, context: Context) -> query_api.TopicNames:
        return query_api.TopicNames(1 + len(self.topics), sorted(self.topics))

    async def states(self, request: query_api.GetLogStates, context: Context) -> query_api.LogStates:
        self.polls.append((request.topics, request.wait_ms))
        known = request.beyond or {}
        with trio.move_on_after(request.wait_ms / 1000):
            while request.version in (0, 1 + len(self.topics)):
                for name in request.topics:
                    self._check_owner(name)
                if any(self.topics[name].end_offset > known.get(name, -1) for name in request.topics):
                    break
                await trio.sleep(0.01)
        states = [
            query_api.LogState(
                topic=name, partition=0, name=name, topic_id=1, durability=Durability.DISK, start_offset=0,
                sealed_offset=0, end_offset=self.topics[name].end_offset, storage="", storage_url="",
            )
            for name in request.topics
        ]  # fmt: skip
        return query_api.LogStates(states, 1 + len(self.topics))

    def _check_owner(self, topic: str) -> None:
        error = self.not_mine(topic)
        if error is not None:
            raise error

    def evict(self, topic: str, error: DanubeError) -> None:
        """End all streams of a topic."""
        for name, stream in self.streams:
            if name == topic:
                stream.abandon(error)

    async def list_topics(self, request: api.ListTopics, context: Context) -> api.TopicList:
        return api.TopicList([_info(topic) for topic in self.topics.values()])

    # --- Publish -----------------------------------------------------------------------------------------------------

    async def publish(self, stream: ServerStream, context: Context) -> None:
        first = await stream.receive()
        assert first is not None
        request = _publish(first.data)
        assert isinstance(request, api.PublishOpen)
        self.opens.append(request)
        if self.open_errors:
            raise self.open_errors.pop(0)
        self._check_owner(request.topic)
        self.streams.append((request.topic, stream))
        topic = self.topic(request.topic)
        state = topic.producers.setdefault(request.producer_name, ProducerState(len(topic.producers) + 1))
        if request.resume_epoch and state.epoch > request.resume_epoch:
            raise ProducerFencedError("a newer session has taken over")
        if not request.resume_epoch or not state.epoch:
            state.epoch += 1
        epoch = state.epoch
        limits = Limits()
        stream.send_nowait(
            _encode(
                api.PublishOpened(
                    1, state.producer_id, epoch, state.next_sequence, topic.durability,
                    limits.max_batch_bytes, limits.max_message_bytes,
                )
            )
        )  # fmt: skip
        while (message := await stream.receive()) is not None:
            request = _publish(message.data)
            assert isinstance(request, api.PublishBatch)
            message.release()
            header = check_part(request.part)
            self.received.append((header.base_sequence, request.part))
            if self.hold_acks is not None:
                await self.hold_acks.wait()
            error: DanubeError | None = None
            if header.producer_epoch != state.epoch or header.producer_id != state.producer_id:
                error = ProducerFencedError("a newer session has taken over")
            elif header.base_sequence in state.offsets:
                base = state.offsets[header.base_sequence]
            elif header.base_sequence != state.next_sequence:
                error = SequenceGapError(f"got {header.base_sequence}, expected {state.next_sequence}")
            else:
                error = self.before_store(header)
                if error is None:
                    base = topic.append(request.part, header, request_name(topic, state))
                    state.offsets[header.base_sequence] = base
                    state.next_sequence += header.record_count
                    if self.lose_answer(header):
                        await self.cut()
                        return
            if error is not None:
                refused = api.PublishRefused(header.base_sequence, *to_wire(error))
                stream.send_nowait(_encode(refused))
            else:
                ack = api.AckedSequence(header.base_sequence, base, header.record_count)
                stream.send_nowait(_encode(api.PublishAcks([ack])))

    # --- Consume -----------------------------------------------------------------------------------------------------

    async def consume(self, stream: ServerStream, context: Context) -> None:
        first = await stream.receive()
        assert first is not None
        request = _consume(first.data)
        assert isinstance(request, api.ConsumeOpen)
        self.opens.append(request)
        if self.open_errors:
            raise self.open_errors.pop(0)
        self._check_owner(request.topic)
        self.streams.append((request.topic, stream))
        topic = self.topic(request.topic)
        start = topic.end_offset if request.start == "latest" else 0 if request.start == "earliest" else request.start
        assert isinstance(start, int)
        start = min(start, topic.end_offset)
        sub = FakeSubscription(start)
        if not request.reader:
            sub = topic.subscriptions.setdefault(request.subscription, sub)
        other = sub.consumer is not None and sub.consumer.name != request.consumer_name
        if other and request.type is SubscriptionType.EXCLUSIVE:
            raise SubscriptionBusyError("an exclusive consumer is connected")
        me = sub.consumer = FakeConsumer(request.consumer_name, stream)
        floor = sub.acked.first()[1] if sub.acked and sub.acked.first()[0] == 0 else 0
        me.position = floor
        end = topic.end_offset
        opened = api.ConsumeOpened(
            topic_id=1,
            consumer_id=1,
            durability=topic.durability,
            active=True,
            floor=floor,
            end_offset=end,
            ack_timeout_s=self.ack_timeout_s,
            start_offset=start,
        )
        opened.owner_epoch = self.owner_epoch
        stream.send_nowait(_encode(opened))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._deliver, topic, sub, me, end)
                while (message := await stream.receive()) is not None:
                    message.release()
                    self._consumer_says(topic, sub, me, _consume(message.data))
                nursery.cancel_scope.cancel()
        finally:
            if sub.consumer is me:
                sub.consumer = None

    def _consumer_says(
        self, topic: FakeTopic, sub: FakeSubscription, me: FakeConsumer, request: api.ConsumeRequest
    ) -> None:
        if isinstance(request, api.Credit):
            me.credits.append((request.messages, request.size_bytes))
            if me.wants_again is not None:
                me.position, me.wants_again = min(me.position, me.wants_again), None
            me.messages += request.messages
            me.size_bytes += request.size_bytes
        elif isinstance(request, api.Ack):
            sub.acks.append(request.ranges)
            if self.forgets_acks:
                self.forgets_acks = False
                return
            for start, end in zip(request.ranges[::2], request.ranges[1::2], strict=True):
                sub.acked.add(start, end)
        elif isinstance(request, api.AckCumulative):
            sub.acked.add(0, request.offset + 1)
        elif isinstance(request, api.Nack):
            sub.nacks.append((request.ranges, request.delay_ms))
            sub.reasons.append(request.reason)
            for offset in range(request.ranges[0], request.ranges[-1]):
                sub.attempts[offset] = sub.attempts.get(offset, 1) + 1
            me.position = min(me.position, request.ranges[0])
        elif isinstance(request, api.GiveBack):
            sub.given_back.append(request.ranges)
            me.wants_again = request.ranges[0]
        elif isinstance(request, api.ExtendLease):
            sub.leases.append((trio.current_time(), request.ranges, request.lease_ms))
        elif isinstance(request, api.FlushAcks):
            me.stream.send_nowait(_encode(api.AcksFlushed(request.token)))
        topic.notify()

    async def _deliver(self, topic: FakeTopic, sub: FakeSubscription, me: FakeConsumer, end: int) -> None:
        told = False
        while True:
            grown = topic.grown
            for batch in topic.batches:
                if batch.end <= me.position:
                    continue
                if me.messages <= 0 or me.size_bytes <= 0:
                    break
                start = max(me.position, batch.base_offset)
                live = list(sub.acked.gaps(start, batch.end))
                me.position = batch.end
                if not live:
                    continue
                self._send(batch, live, sub, me)
            if not told and me.position >= end:
                told = True
                me.stream.send_nowait(_encode(api.CaughtUp(end)))
            await grown.wait()

    def _send(self, batch: Stored, live: list[tuple[int, int]], sub: FakeSubscription, me: FakeConsumer) -> None:
        ranges = [number for pair in live for number in pair]
        count = sum(end - start for start, end in live)
        part = batch.part
        if self.slices:
            raws = open_raw(part, batch.header, 2**30)
            part = slice_part(
                batch.header, [raws[o - batch.base_offset] for start, end in live for o in range(start, end)]
            )
        elif count == batch.header.record_count:
            ranges = []
        if self.corrupt(batch):
            part = part[:-10] + bytes([part[-10] ^ 1]) + part[-9:]
        me.messages -= count
        me.size_bytes -= len(part)
        attempt = sub.attempts.get(live[0][0], 1)
        delivery = api.ConsumeBatch(batch.base_offset, 1_000_000, attempt, ranges, batch.producer, len(part), part)
        me.stream.send_nowait(_encode(delivery))

    # --- Life --------------------------------------------------------------------------------------------------------

    def methods(self) -> dict[str, Method]:
        bidi, unary = "bidi", "unary"
        rows = [
            Method(path=M.PUBLISH, kind=bidi, handler=self.publish, max_request_bytes=16 * 2**20),
            Method(path=M.CONSUME, kind=bidi, handler=self.consume),
            Method(path=M.LOOKUP_TOPIC, kind=unary, handler=self.lookup,
                   request_type=api.LookupTopic, response_type=api.TopicPartitions),
            Method(path=M.LIST_TOPICS, kind=unary, handler=self.list_topics,
                   request_type=api.ListTopics, response_type=api.TopicList),
            Method(path=query_api.QueryMethod.NAMES, kind=unary, handler=self.names,
                   request_type=query_api.GetTopicNames, response_type=query_api.TopicNames),
            Method(path=query_api.QueryMethod.STATE, kind=unary, handler=self.states,
                   request_type=query_api.GetLogStates, response_type=query_api.LogStates),
            Method(path=M.INFO, kind=unary, handler=self.info,
                   request_type=api.Empty, response_type=api.BrokerInfo),
            Method(path=S.STAGE, kind=bidi, handler=self.stage),
            Method(path=S.COMMIT, kind=unary, handler=self.commit,
                   request_type=stage_api.CommitStages, response_type=stage_api.StageCommit),
            Method(path=S.ABORT, kind=unary, handler=self.abort,
                   request_type=stage_api.AbortStages, response_type=stage_api.AbortedStages),
            Method(path=S.LAST_BATCH, kind=unary, handler=self.last_batch,
                   request_type=stage_api.LastBatch, response_type=stage_api.LastBatchIs),
            Method(path=S.LIST, kind=unary, handler=self.list_stages,
                   request_type=stage_api.ListStages, response_type=stage_api.StageList),
            Method(path=M.DESCRIBE_TOPIC, kind=unary, handler=self.describe,
                   request_type=api.DescribeTopic, response_type=api.TopicInfo),
        ]  # fmt: skip
        return {row.path: row for row in rows}


def _info(topic: FakeTopic) -> api.TopicInfo:
    return api.TopicInfo(
        topic=topic.name,
        topic_id=1,
        partitions=0,
        durability=topic.durability,
        start_offset=0,
        end_offset=topic.end_offset,
        stored_bytes=0,
        producers=[],
        subscriptions=[],
        created_us=0,
    )


def request_name(topic: FakeTopic, state: ProducerState) -> str:
    return next(name for name, one in topic.producers.items() if one is state)


@contextmanager
def broker_in_a_thread(broker: FakeBroker | None = None) -> Iterator[FakeBroker]:
    """Serve a fake broker from another thread, for clients that run under asyncio or block."""
    ready: queue.SimpleQueue[tuple[FakeBroker, trio.CancelScope]] = queue.SimpleQueue()

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with running_broker(broker) as running:
                running.token = trio.lowlevel.current_trio_token()
                ready.put((running, scope))
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    running, scope = ready.get(timeout=10)
    try:
        yield running
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=running.token)
        thread.join(10)


@asynccontextmanager
async def running_broker(broker: FakeBroker | None = None) -> AsyncIterator[FakeBroker]:
    """Serve a fake broker on a loopback port. (Trio only; asyncio clients reach it from another thread.)"""
    broker = broker or FakeBroker()
    async with trio.open_nursery() as nursery:
        server = broker.server = Server([broker.methods()], Limits(max_resets_per_minute=10**9))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        broker.port = listeners[0].socket.getsockname()[1]
        await nursery.start(server.run, [_Listener(listeners[0], broker)])
        try:
            yield broker
        finally:
            nursery.cancel_scope.cancel()


class _Stream(trio.abc.Stream):
    """A stream that stays in the test's hands: the server takes plain sockets away from their streams."""

    def __init__(self, inner: trio.SocketStream) -> None:
        self._inner = inner

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._inner.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Listener(trio.abc.Listener[trio.abc.Stream]):
    """Remembers the connections, so that a test can cut them; drops them while the broker is "down"."""

    def __init__(self, inner: trio.SocketListener, broker: FakeBroker) -> None:
        self._inner = inner
        self._broker = broker

    async def accept(self) -> trio.abc.Stream:
        while True:
            stream = _Stream(await self._inner.accept())
            if self._broker.accepting:
                self._broker.connections.append(stream)
                return stream
            await trio.aclose_forcefully(stream)

    async def aclose(self) -> None:
        await self._inner.aclose()


# --- In memory, for tests under a virtual clock


@asynccontextmanager
async def memory_client(broker: FakeBroker) -> AsyncIterator[Client]:
    """Serve a fake broker and connect to it without a socket, so that a test's clock may jump."""
    arriving: trio.MemorySendChannel[trio.abc.Stream]
    accepting: trio.MemoryReceiveChannel[trio.abc.Stream]
    arriving, accepting = trio.open_memory_channel(100)

    async def connect(host: str, port: int) -> anyio.abc.ByteStream:
        here, there = trio.testing.memory_stream_pair()
        broker.connections.append(there)
        await arriving.send(there)
        return _MemoryStream(here)

    async with trio.open_nursery() as nursery:
        server = Server([broker.methods()], Limits(max_resets_per_minute=10**9))
        await nursery.start(server.run, [_MemoryListener(accepting)])
        async with danube.connect("danube://memory", environment=Environment(connect=connect)) as client:
            yield client
        nursery.cancel_scope.cancel()


class _MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    def __init__(self, arriving: trio.MemoryReceiveChannel[trio.abc.Stream]) -> None:
        self._arriving = arriving

    async def accept(self) -> trio.abc.Stream:
        return await self._arriving.receive()

    async def aclose(self) -> None:
        await self._arriving.aclose()


class _MemoryStream(anyio.abc.ByteStream):
    def __init__(self, inner: trio.StapledStream) -> None:  # type: ignore[type-arg]
        self._inner = inner

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            data = await self._inner.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return bytes(data)

    async def send(self, item: bytes) -> None:
        try:
            await self._inner.send_all(item)
        except trio.BrokenResourceError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()
