"""The blocking facade, for scripts, notebooks and Spark executors: the same names without ``await``.

::

    from danube.client.sync import connect

    with connect("danube://127.0.0.1:6650") as client:
        with client.producer("/default/orders") as producer:
            producer.send(b"hello")
        with client.consumer("/default/orders", subscription="billing", start="earliest") as consumer:
            for message in consumer:
                message.ack()

The asynchronous client runs in an event loop in a thread of its own; every call hands over to it and waits, so the
rules about order, errors and reconnects are those of :mod:`danube.client`. All objects may be used from several
threads. Acknowledgements do not wait: they are gathered here and handed over together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, TypeVar, cast, overload

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from danube.client import _client, _consumer, _producer
from danube.client import _receipt as receipts
from danube.client._acks import AckLedger
from danube.client._feed import Feed
from danube.client._message import BareMessage, DeliveredBatch
from danube.client._options import Environment
from danube.client._payloads import BytesLike
from danube.model import api, history_api
from danube.model.errors import DeadlineExceededError
from danube.model.limits import MIB, Limits
from danube.model.policies import LATEST, Durability, ProducerAccess, Retention, SubscriptionType

__all__ = ["Batch", "Client", "Consumer", "Message", "Pending", "Producer", "connect"]

T = TypeVar("T")


class _Loop:
    """The event loop in its thread."""

    def __init__(self, portal: BlockingPortal) -> None:
        self.portal = portal

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: object, **options: object) -> T:
        """Run an asynchronous call in the loop; if the waiting thread is interrupted, the call is cancelled."""

        async def call() -> T:
            return await function(*args, **options)

        future = self.portal.start_task_soon(call)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Run a plain function in the loop."""

        async def call() -> T:
            return function(*args)

        return self.portal.start_task_soon(call).result()


@contextmanager
def connect(
    url: str = "danube://127.0.0.1:6650",
    *,
    connect_timeout_s: float = 5.0,
    request_timeout_s: float = 30.0,
    reconnect_initial_s: float = 0.1,
    reconnect_max_s: float = 5.0,
    reconnect_timeout_s: float | None = 60.0,
    close_timeout_s: float = 10.0,
    limits: Limits | None = None,
    environment: Environment | None = None,
    backend: Literal["asyncio", "trio"] = "asyncio",
) -> Iterator[Client]:
    """Connect to a broker; arguments and errors as in :func:`danube.connect`.

    ``backend`` chooses the event loop of the background thread.
    """
    connecting = _client.connect(
        url,
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        reconnect_initial_s=reconnect_initial_s,
        reconnect_max_s=reconnect_max_s,
        reconnect_timeout_s=reconnect_timeout_s,
        close_timeout_s=close_timeout_s,
        limits=limits,
        environment=environment,
    )
    with start_blocking_portal(backend) as portal, portal.wrap_async_context_manager(connecting) as client:
        yield Client(client, _Loop(portal))


class Client:
    """A connection to a broker; made by :func:`connect`."""

    def __init__(self, client: _client.Client, loop: _Loop) -> None:
        self._client = client
        self._loop = loop

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return self._client.connected

    @contextmanager
    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        durability: Durability | str | None = None,
        access: ProducerAccess | str = ProducerAccess.SHARED,
        compression: Literal["lz4", "zstd"] | None = None,
        batch_max_bytes: int = 1 * MIB,
        batch_max_messages: int = 50_000,
        max_in_flight_batches: int = 8,
        max_buffered_bytes: int = 64 * MIB,
        partitions: int = 0,
        send_timeout_s: float | None = None,
    ) -> Iterator[Producer]:
        """Open a producer; arguments and errors as in :meth:`danube.client.Client.producer`."""
        opening = self._client.producer(
            topic,
            name=name,
            durability=durability,
            access=access,
            compression=compression,
            batch_max_bytes=batch_max_bytes,
            batch_max_messages=batch_max_messages,
            max_in_flight_batches=max_in_flight_batches,
            max_buffered_bytes=max_buffered_bytes,
            partitions=partitions,
            send_timeout_s=send_timeout_s,
        )
        with self._loop.portal.wrap_async_context_manager(opening) as producer:
            yield Producer(producer, self._loop)

    @contextmanager
    def consumer(
        self,
        topic: str,
        *,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,  # noqa: A002 - the word of the API
        start: str | int | datetime = LATEST,
        name: str | None = None,
        credit_messages: int | None = None,
        credit_bytes: int = 16 * MIB,
    ) -> Iterator[Consumer]:
        """Open a consumer; arguments and errors as in :meth:`danube.client.Client.consumer`."""
        opening = self._client.consumer(
            topic,
            subscription=subscription,
            type=type,
            start=start,
            name=name,
            credit_messages=credit_messages,
            credit_bytes=credit_bytes,
        )
        with self._loop.portal.wrap_async_context_manager(opening) as inner:
            consumer = Consumer(inner, self._loop)
            try:
                yield consumer
            finally:
                self._loop.call(consumer._hand_over)

    def info(self) -> api.BrokerInfo:
        """Return what the broker says about itself."""
        return self._loop.run(self._client.info)

    def lookup_topic(self, topic: str) -> api.TopicPartitions:
        """Return where the messages of a topic are."""
        return self._loop.run(self._client.lookup_topic, topic)

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        durability: Durability | str | None = None,
        storage: str = "",
        retention: Retention | None = None,
    ) -> api.TopicInfo:
        """Create a topic."""
        return self._loop.run(
            self._client.create_topic,
            topic,
            partitions=partitions,
            durability=durability,
            storage=storage,
            retention=retention,
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages and subscriptions."""
        self._loop.run(self._client.delete_topic, topic)

    def list_topics(self, namespace: str | None = None) -> list[api.TopicInfo]:
        """Return the topics of a namespace, or of all."""
        return self._loop.run(self._client.list_topics, namespace)

    def describe_topic(self, topic: str) -> api.TopicInfo:
        """Return one topic."""
        return self._loop.run(self._client.describe_topic, topic)

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace."""
        self._loop.run(self._client.create_namespace, namespace)

    def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace."""
        self._loop.run(self._client.delete_namespace, namespace)

    def list_namespaces(self) -> list[str]:
        """Return the names of all namespaces."""
        return self._loop.run(self._client.list_namespaces)

    def list_subscriptions(self, topic: str) -> list[api.SubscriptionInfo]:
        """Return the subscriptions of a topic."""
        return self._loop.run(self._client.list_subscriptions, topic)

    def describe_subscription(self, topic: str, subscription: str) -> list[api.SubscriptionInfo]:
        """Return a subscription as it stands, one row for each partition."""
        return self._loop.run(self._client.describe_subscription, topic, subscription)

    def explain_subscription(self, topic: str, subscription: str) -> api.Explanation:
        """Return, in a sentence, why a subscription moves or does not."""
        return self._loop.run(self._client.explain_subscription, topic, subscription)

    def seek_subscription(self, topic: str, subscription: str, position: str | int | datetime) -> None:
        """Move a subscription."""
        self._loop.run(self._client.seek_subscription, topic, subscription, position)

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription and its cursor."""
        self._loop.run(self._client.delete_subscription, topic, subscription)

    def seal_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Seal everything that a topic has."""
        return self._loop.run(self._client.seal_topic, topic, timeout_s=timeout_s)

    def unload_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Disconnect everybody from a topic, and seal all of it."""
        return self._loop.run(self._client.unload_topic, topic, timeout_s=timeout_s)

    def change_retention(
        self,
        topic: str,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        now: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RetentionPlans:
        """Give a topic other retention rules, apply them, or ask what they would do."""
        return self._loop.run(
            self._client.change_retention, topic, retention, dry_run=dry_run, now=now, timeout_s=timeout_s
        )

    def storages_status(self) -> history_api.StoragesStatus:
        """Return the storages of the broker."""
        return self._loop.run(self._client.storages_status)

    def check_storage(
        self, storage: str = "default", *, deep: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Compare a storage with the broker's catalogue."""
        return self._loop.run(self._client.check_storage, storage, deep=deep, timeout_s=timeout_s)

    def repair_storage(
        self, storage: str = "default", *, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Check a storage, and remove what nothing refers to."""
        return self._loop.run(self._client.repair_storage, storage, timeout_s=timeout_s)

    def restore_topics(
        self,
        url: str,
        *,
        storage: str = "",
        topics: Sequence[str] = (),
        give_up_others: bool = False,
        deep: bool = False,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RestoreReport:
        """Bring back the topics whose history is in a bucket."""
        return self._loop.run(
            self._client.restore_topics,
            url,
            storage=storage,
            topics=topics,
            give_up_others=give_up_others,
            deep=deep,
            dry_run=dry_run,
            timeout_s=timeout_s,
        )


class Pending:
    """A message that was given to :meth:`Producer.send_nowait`."""

    __slots__ = ("_loop", "_pending")

    def __init__(self, pending: receipts.Pending, loop: _Loop) -> None:
        self._pending = pending
        self._loop = loop

    @property
    def done(self) -> bool:
        """Whether the message is stored or has failed."""
        return self._pending.done

    def result(self) -> receipts.Receipt:
        """Wait for the receipt, or raise what the message failed with."""
        return self._loop.run(self._pending.receipt)


class Producer:
    """Sends messages to one topic; made by :meth:`Client.producer`. See :class:`danube.client.Producer`."""

    def __init__(self, producer: _producer.Producer, loop: _Loop) -> None:
        self._producer = producer
        self._loop = loop
        self.topic = producer.topic
        """The topic as it was asked for."""
        self.name = producer.name
        """Identity towards the broker."""

    @property
    def partitions(self) -> int:
        """Number of partitions; 0 for a plain topic."""
        return self._producer.partitions

    @property
    def stored_before(self) -> list[int]:
        """For each partition: how many messages of this name the broker had when it was opened."""
        return self._producer.stored_before

    def send(
        self, payload: BytesLike, *, key: str | None = None, attributes: dict[str, str] | None = None
    ) -> receipts.Receipt:
        """Send one message and wait until it is durable."""
        return self._loop.run(self._producer.send, payload, key=key, attributes=attributes)

    def send_many(
        self,
        payloads: Sequence[bytes],
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        attributes: dict[str, str] | None = None,
    ) -> receipts.RangeReceipt:
        """Send many messages and wait until all are durable. The fastest way to publish."""
        return self._loop.run(self._producer.send_many, payloads, key=key, keys=keys, attributes=attributes)

    def send_nowait(
        self, payload: BytesLike, *, key: str | None = None, attributes: dict[str, str] | None = None
    ) -> Pending:
        """Accept one message and return without waiting for the broker."""

        def accept() -> receipts.Pending:
            return self._producer.send_nowait(payload, key=key, attributes=attributes)

        return Pending(self._loop.call(accept), self._loop)

    def flush(self) -> None:
        """Wait until every message accepted so far is settled; raise the first failure that nobody has seen."""
        self._loop.run(self._producer.flush)


class _SafeFeed:
    """What messages and batches see of their feed: acknowledging from any thread."""

    __slots__ = ("_consumer", "feed", "ledger", "partition", "topic")

    def __init__(self, feed: Feed, consumer: Consumer) -> None:
        self.feed = feed
        self.topic = feed.topic
        self.partition = feed.partition
        self.ledger = AckLedger()
        self._consumer = consumer

    def ack(self, start: int, end: int) -> None:
        """Acknowledge ``[start, end)`` soon."""
        self._consumer._tell(self, start, end)

    def nack(self, ranges: list[int], delay_s: float | None, reason: str = "") -> None:
        """Say that ranges have failed."""
        self._consumer._loop.call(self.feed.nack, ranges, delay_s, reason)


class Message(BareMessage, gc=False, eq=False):
    """One message; see :class:`danube.client.Message`."""

    def ack(self) -> None:
        """Acknowledge the message; returns at once, :meth:`Consumer.flush_acks` waits until it is durable."""
        self.ack_nowait()

    def nack(self, delay_s: float = 0.0) -> None:
        """Ask for the message to be delivered again, after ``delay_s`` seconds."""
        self._batch.feed.nack([self.offset, self.offset + 1], delay_s)


class Batch(DeliveredBatch, Sequence[Message]):
    """Messages that were delivered together; see :class:`danube.client.Batch`."""

    __slots__ = ()

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self.pick(Message, index)

    def __iter__(self) -> Iterator[Message]:
        return self.build(Message)

    def ack(self) -> None:
        """Acknowledge all messages of the batch; as :meth:`Message.ack`."""
        self.ack_nowait()

    def nack(self, delay_s: float = 0.0) -> None:
        """Ask for all messages of the batch to be delivered again, after ``delay_s`` seconds."""
        self.feed.nack(self.ranges, delay_s)


class Consumer:
    """Receives the messages of one subscription; made by :meth:`Client.consumer`. Iterate over it for messages."""

    def __init__(self, consumer: _consumer.Consumer, loop: _Loop) -> None:
        self._consumer = consumer
        self._loop = loop
        self._lock = threading.Lock()
        self._safe = {feed.partition: _SafeFeed(feed, self) for feed in consumer._feeds}
        self._told = False
        self._messages: Iterator[Message] = iter(())
        self._messages_lock = threading.Lock()
        self.topic = consumer.topic
        """The topic as it was asked for."""
        self.subscription = consumer.subscription
        self.name = consumer.name
        """Name of this consumer within the subscription."""

    @property
    def active(self) -> bool:
        """False for a failover consumer that stands by."""
        return self._consumer.active

    @property
    def caught_up(self) -> bool:
        """Whether everything that was in the topic has been taken from this consumer."""
        return self._consumer.caught_up

    @property
    def dropped_messages(self) -> int:
        """Messages of a ``none`` topic that the broker dropped because this consumer was too slow."""
        return self._consumer.dropped_messages

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        return self.receive()

    def receive(self, timeout_s: float | None = None) -> Message:
        """Return the next message; wait for one if need be.

        Raises:
            DeadlineExceededError: none came within ``timeout_s`` seconds.
            DataLossError, DanubeError: as :meth:`danube.client.Consumer.receive`.
        """
        with self._messages_lock:
            while True:
                message = next(self._messages, None)
                if message is not None:
                    return message
                self._messages = iter(self.receive_batch(timeout_s))

    def receive_batch(self, timeout_s: float | None = None) -> Batch:
        """Return the next batch; as :meth:`receive`."""
        batch = self._next(until_caught_up=False, timeout_s=timeout_s)
        assert batch is not None
        return batch

    def batches(self, *, until_caught_up: bool = False) -> Iterator[Batch]:
        """Iterate over batches; with ``until_caught_up``, end when everything that was there has been taken."""
        while (batch := self._next(until_caught_up=until_caught_up, timeout_s=None)) is not None:
            yield batch

    def _next(self, *, until_caught_up: bool, timeout_s: float | None) -> Batch | None:
        async def take() -> DeliveredBatch | None:
            if timeout_s is None:
                return await self._consumer._next_batch(until_caught_up=until_caught_up)
            with anyio.move_on_after(timeout_s):
                return await self._consumer._next_batch(until_caught_up=until_caught_up)
            raise DeadlineExceededError(f"{self.topic}: no message within {timeout_s:g} s")

        taken = self._loop.run(take)
        return None if taken is None else Batch.adopt(taken, cast("Feed", self._safe[taken.partition]))

    def ack_cumulative(self, message: Message) -> None:
        """Acknowledge everything in the message's topic (partition) up to and including it."""
        self._loop.call(self._safe[message.partition].feed.ack_cumulative, message.offset)

    def flush_acks(self) -> None:
        """Wait until every acknowledgement given so far is durable at the broker."""

        async def flush() -> None:
            self._hand_over()
            await self._consumer.flush_acks()

        self._loop.run(flush)

    def _tell(self, safe: _SafeFeed, start: int, end: int) -> None:
        with self._lock:
            safe.ledger.add(start, end)
            first, self._told = not self._told, True
        if first:
            # While the loop's thread gets round to it, further acknowledgements gather.
            self._loop.portal.start_task_soon(self._hand_over)

    def _hand_over(self) -> None:
        with self._lock:
            self._told = False
            taken = []
            for safe in self._safe.values():
                taken.append((safe.feed, safe.ledger.take()[0]))
                safe.ledger.confirmed(safe.ledger.token())
        for feed, ranges in taken:
            for start, end in zip(ranges[::2], ranges[1::2], strict=True):
                feed.ack(start, end)
