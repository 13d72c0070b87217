"""The client: connections to the brokers of a cluster, and the producers, consumers and calls that use them.

:class:`Client` opens producers, consumers, readers, requesters and responders; everything else that a broker does is
grouped in its attributes ``admin``, ``security``, ``storages``, ``logs``, ``jobs``, ``stages`` and ``schemas``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from danube.client._admin import Admin
from danube.client._checks import as_durability, check_count, choice, start_position
from danube.client._consume_options import (
    READ_AHEAD,
    Start,
    check_credit,
    checked_filters,
    default_credit,
    policy_fields,
    start_positions,
)
from danube.client._consumer import Consumer
from danube.client._consuming import open_consumer, open_reader
from danube.client._credentials import Credentials, FileName, file_name
from danube.client._generics import P, SchemaOf, V
from danube.client._instruments import Instruments
from danube.client._jobs import Jobs
from danube.client._logs import Logs
from danube.client._options import ClientOptions, Environment
from danube.client._pool import Pool
from danube.client._producer import Producer
from danube.client._producing import Batching, open_producer
from danube.client._reader import Reader
from danube.client._requests import Handler, Requester, Responder, open_requester, open_responder
from danube.client._schemas import Schemas
from danube.client._security import Security
from danube.client._stages import Stages
from danube.client._storages import Storages
from danube.client._tasks import background_tasks
from danube.client._url import has_tls, parse_url
from danube.model import api
from danube.model.errors import ConfigurationError, NotFoundError
from danube.model.limits import MIB, Limits
from danube.model.names import partition_name, validate_name, validate_topic
from danube.model.policies import LATEST, Durability, ProducerAccess, SubscriptionPolicy, SubscriptionType
from danube.wire.client import ClientTls

if TYPE_CHECKING:
    from danube.client._values import Reading

__all__ = ["Client", "connect"]

_LONG_WAIT_S: Final = 1.0


@asynccontextmanager
async def connect(
    url: str = "danube://127.0.0.1:6650",
    *,
    connect_timeout_s: float = 5.0,
    request_timeout_s: float = 30.0,
    reconnect_initial_s: float = 0.1,
    reconnect_max_s: float = 5.0,
    reconnect_timeout_s: float | None = 60.0,
    close_timeout_s: float = 10.0,
    ca: FileName | None = None,
    cert: FileName | None = None,
    key: FileName | None = None,
    token: str | None = None,
    token_file: FileName | None = None,
    token_supplier: Callable[[], str] | None = None,
    api_key: str | None = None,
    limits: Limits | None = None,
    telemetry: Instruments | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Client]:
    """Connect to a broker or a cluster: ``async with danube.connect("danube://127.0.0.1:6650") as client``.

    Works under Trio and asyncio. When a connection breaks it is restored in the background; producers and consumers
    resume by themselves, and calls wait. In a cluster each producer and consumer is connected to the owner of its
    topic or partition, and follows it when it changes; other calls go to any broker. The client learns the other
    brokers from the first one, and does without that one if it dies.

    Args:
        url: ``danube://host[:port]``, default port 6650; of a cluster, any of its brokers. Several addresses, separated
            by commas, are tried in turn: name more than one, for when a broker is down as the client starts. With
            ``danube+tls://`` all connections use TLS, and the certificate of each broker must name its host.
        connect_timeout_s: for the connection and handshake with one address.
        request_timeout_s: for one call with all its attempts, and for opening a producer or consumer.
        reconnect_initial_s: delay before the second attempt to reconnect; it doubles, with jitter ...
        reconnect_max_s: ... up to this.
        reconnect_timeout_s: how long a lost connection, or the owner of a topic, may be away before producers and
            consumers fail with the last error, such as ConnectionLostError or OwnerAwayError; None means forever.
        close_timeout_s: how long leaving a producer waits for its messages, or a consumer for its acknowledgements.
        ca: file (PEM) of the authorities that sign the brokers' certificates, instead of the system's. This file and
            the next two are read again for new connections when they change.
        cert: file (PEM) of the client's own certificate and its chain, for brokers that ask for one.
        key: file (PEM) of its key, if that is in another file.
        token: proof of who the client is, sent with every call and stream; over ``danube://`` to this machine only.
        token_file: file with nothing but the token; read again when it changes.
        token_supplier: function that returns the token, for each call and stream; it must not block.
        api_key: an API key, instead of a token.
        limits: sizes and keep-alive times of this side.
        telemetry: :class:`danube.client.telemetry.Telemetry`, for traces and metrics by OpenTelemetry; None: there are
            none, and they cost nothing.
        environment: clock, randomness and network, for tests and simulations.

    Raises:
        ConfigurationError: the URL or an option is invalid.
        ConnectionLostError: no address answers now; the first connection is not retried.
    """
    seeds = parse_url(url)
    options = ClientOptions(
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        reconnect_initial_s=reconnect_initial_s,
        reconnect_max_s=reconnect_max_s,
        reconnect_timeout_s=reconnect_timeout_s,
        close_timeout_s=close_timeout_s,
        limits=limits or Limits(),
        telemetry=telemetry,
        environment=environment or Environment(),
        tls=_tls(url, ca=ca, cert=cert, key=key),
        credentials=Credentials(
            token=token, token_file=token_file, token_supplier=token_supplier, api_key=api_key, clock_s=time.monotonic
        ),
    )
    for seed in seeds:
        if not options.may_prove(seed.host):
            raise ConfigurationError(
                f"{seed} is another machine, and credentials are not sent there without TLS; use danube+tls://"
            )
    pool = Pool(seeds, options)
    async with background_tasks() as group:
        await group.start(pool.run)
        yield Client(pool)


def _tls(url: str, **files: FileName | None) -> ClientTls | None:
    names = {option: file_name(option, value) for option, value in files.items() if value is not None}
    if not has_tls(url):
        for option in names:
            raise ConfigurationError(f"{option} has no effect without TLS; use a URL with danube+tls://")
        return None
    from danube.wire.tls import ClientFiles

    return ClientFiles(**names)


class Client:
    """Connections to a broker or a cluster; made by :func:`connect`. Use it in the event loop in which it was made."""

    admin: Admin
    """Topics, namespaces, subscriptions and policies."""
    security: Security
    """Access control: roles, bindings, principals, API keys and tokens."""
    storages: Storages
    """Storages of sealed history: their state, checks and repairs, and restoring topics from one."""
    logs: Logs
    """Ranges of topics, for query engines: ends of logs, sealed parts, offsets by time, stored batches."""
    jobs: Jobs
    """Programs that read or write topics for long, as far as they report that they run."""
    stages: Stages
    """Staged publishing: messages of many tasks that become visible together."""
    schemas: Schemas
    """The schema registry: subjects, their versions, and schemas."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.admin = Admin(pool)
        self.security = Security(pool)
        self.storages = Storages(pool)
        self.logs = Logs(pool)
        self.jobs = Jobs(pool)
        telemetry = pool.options.telemetry
        self.stages = Stages(pool) if telemetry is None else telemetry.stages(pool)
        self.schemas = Schemas(pool)

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return self._pool.connected

    @property
    def redirects(self) -> dict[int, int]:
        """How many redirects it took until a broker served a call or a stream: number of times, by redirects.

        In a cluster, a broker that does not own a topic names the owner. ``{0: 950, 1: 50}`` says that 50 calls and
        streams were redirected once. More than 16 count as 16.
        """
        return dict(sorted(self._pool.brokers.redirects.items()))

    @property
    def waiting(self) -> str | None:
        """What calls, producers or consumers have been waiting for, for more than a second; None: for nothing.

        A sentence: the error after which they try again, or which broker has not answered yet.
        """
        return self._pool.waits.longest(anyio.current_time(), _LONG_WAIT_S)

    @asynccontextmanager
    async def producer(
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
        schema: SchemaOf[P] | None = None,
        register: bool = True,
        strategy: str = "topic",
    ) -> AsyncIterator[Producer[P]]:
        """Open a producer: ``async with client.producer("/default/orders") as producer``.

        Leaving the block waits until all messages are settled, at most ``close_timeout_s``, and raises the first
        failure that was not reported before. Leaving it by an exception abandons unsettled messages.

        Args:
            topic: ``/namespace/topic``; created if it does not exist and the broker allows that.
            name: identity for idempotence across runs, with one live session at a time; None generates one.
            durability: required of the topic (``"none"``, ``"os"``, ``"disk"``, ``"remote"``); None accepts any.
            access: ``"shared"`` or ``"exclusive"`` (the only producer of the topic).
            compression: of batches.
            batch_max_bytes: target size of a batch; a larger message is sent alone.
            batch_max_messages: maximum number of messages in a batch.
            max_in_flight_batches: maximum number of unanswered batches of each partition.
            max_buffered_bytes: limit of accepted and unsettled bytes; beyond it ``send`` waits and ``send_nowait``
                raises LimitExceededError.
            partitions: number of partitions if opening creates the topic; 0 makes a plain topic.
            send_timeout_s: timeout of one ``send`` or ``send_many``; None waits as long as the connection is kept.
            schema: of the messages, which are then values: a type (a Struct, dataclass, TypedDict, model of pydantic,
                protobuf class, ``str``, ``int`` ...), :class:`danube.Avro`, :class:`danube.Json`,
                :class:`danube.Protobuf` or a :class:`danube.Subject`. None: messages are bytes.
            register: register the schema as the next version of its subject, unless it has this version already;
                False: look it up there, and fail if it is missing.
            strategy: rule for the name of the subject: ``"topic"`` (``/default/orders-value``), ``"record"``
                (``shop.Order``) or ``"topic_record"`` (``/default/orders-shop.Order``). A Subject has a name.

        Raises:
            InvalidSchemaError: the type has no schema, or a library for it is missing.
            IncompatibleSchemaError: the subject has versions with which the schema is not compatible.
            NotFoundError: the schema, version or subject that is looked up does not exist.
            DurabilityMismatchError, TopicNotFoundError, InvalidNameError, ProducerFencedError, DanubeError: the
                broker does not open the producer.
        """
        validate_topic(topic)
        if name is not None:
            validate_name("producer", name)
        batching = Batching(
            compression=compression,
            batch_max_bytes=batch_max_bytes,
            batch_max_messages=batch_max_messages,
            max_in_flight_batches=max_in_flight_batches,
            max_buffered_bytes=max_buffered_bytes,
            send_timeout_s=send_timeout_s,
        )
        check_count("partitions", partitions)
        request = api.PublishOpen(
            topic,
            name or self._pool.options.environment.random_name("producer"),
            anonymous=name is None,
            access=choice(ProducerAccess, "access", access),
            durability=as_durability(durability),
            partitions=partitions,
        )
        writing = None
        if schema is not None:
            from danube.client._values import open_writing

            writing = await open_writing(self.schemas, topic, schema, register=register, strategy=strategy)
        topics = await self._topics(topic, partitions)
        async with open_producer(self._pool, request, topics, batching, writing) as producer:
            yield producer

    @asynccontextmanager
    async def consumer(
        self,
        topic: str,
        *,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,  # noqa: A002 - the word of the API
        start: str | int | datetime = LATEST,
        name: str | None = None,
        credit_messages: int | None = None,
        credit_bytes: int = 16 * MIB,
        renew_leases: bool = False,
        key_filters: Sequence[str] = (),
        policy: SubscriptionPolicy | Mapping[str, Any] | None = None,
        schema: SchemaOf[V] | None = None,
        register: bool = False,
        strategy: str = "topic",
    ) -> AsyncIterator[Consumer[V]]:
        """Open a consumer: ``async with client.consumer("/default/orders", subscription="billing") as consumer``.

        Leaving the block sends the acknowledgements and waits until they are durable, at most ``close_timeout_s`` (one
        second if it is left by an exception).

        Args:
            topic: ``/namespace/topic``; of a partitioned topic, all partitions are consumed.
            subscription: its name; the broker stores its position in the topic.
            type: ``"exclusive"``, ``"failover"``, ``"shared"`` or ``"key_shared"``.
            start: where a new subscription starts: ``"earliest"``, ``"latest"``, an offset, or a date with time zone.
            name: of this consumer; a consumer that reconnects under its name takes over at once. None generates one.
            credit_messages: read-ahead of each partition in messages; None means 200,000 for exclusive and failover,
                2,000 for shared and key_shared.
            credit_bytes: read-ahead of each partition in bytes.
            renew_leases: keep messages from timing out for as long as they are neither acknowledged nor refused.
                Otherwise a message times out unless it is acknowledged within the subscription's ``ack_timeout_s``
                (and up to a third more) after its hand-out, or :meth:`Message.extend_lease` asks for more time.
            key_filters: of a key_shared subscription: receive only keys that match one of these (``*`` is any run of
                characters, ``?`` is one); an empty list matches all.
            policy: initial policy of a subscription created by this call; a mapping changes some fields of the broker's
                default. An existing subscription keeps its policy.
            schema: with which values are read (:attr:`Message.value`), as for :meth:`producer`; None: there are only
                payloads.
            register: register the schema, as a producer does, before there is a producer of it.
            strategy: rule for the name of the subject in which it is registered.

        Raises:
            InvalidSchemaError, IncompatibleSchemaError, NotFoundError: as :meth:`producer`.
            SubscriptionBusyError: an exclusive subscription has a consumer already.
            SubscriptionTypeMismatchError, TopicNotFoundError, InvalidNameError, DanubeError: refused by the broker.
        """
        options = self._pool.options
        validate_topic(topic)
        validate_name("subscription", subscription)
        kind = choice(SubscriptionType, "type", type)
        position, time_us = start_position(start)
        messages = default_credit(kind) if credit_messages is None else credit_messages
        check_credit(messages, credit_bytes)
        if name is not None:
            validate_name("consumer", name)
        filters = checked_filters(key_filters, kind, options.limits)
        fields = policy_fields(policy)
        name = name or options.environment.random_name("consumer")
        request = api.ConsumeOpen(
            topic=topic,
            subscription=subscription,
            consumer_name=name,
            type=kind,
            start=position,
            start_time_us=time_us,
            key_filters=filters,
            policy=fields,
        )
        reading = await self._reading(topic, schema, register, strategy)
        topics = await self._topics(topic, 0)
        async with open_consumer(
            self._pool,
            request,
            topics,
            renew_leases=renew_leases,
            credit_messages=messages,
            credit_bytes=credit_bytes,
            reading=reading,
        ) as consumer:
            yield consumer

    @asynccontextmanager
    async def reader(
        self,
        topic: str,
        *,
        start: Start = LATEST,
        name: str | None = None,
        credit_messages: int = READ_AHEAD,
        credit_bytes: int = 16 * MIB,
        schema: SchemaOf[V] | None = None,
        register: bool = False,
        strategy: str = "topic",
    ) -> AsyncIterator[Reader[V]]:
        """Read a topic without a subscription: ``async with client.reader("/default/orders", start="earliest")``.

        Nothing is acknowledged or stored at the broker; any number of readers may read the same topic.

        Args:
            topic: ``/namespace/topic``; of a partitioned topic, all partitions are read.
            start: ``"earliest"``, ``"latest"``, an offset, a date with time zone, or a mapping from partitions to
                these, such as an earlier :attr:`Reader.position`.
            name: shown to people; it need not be unique.
            credit_messages: read-ahead of each partition in messages.
            credit_bytes: read-ahead of each partition in bytes.
            schema, register, strategy: as for :meth:`consumer`.

        Raises:
            InvalidSchemaError, IncompatibleSchemaError, NotFoundError: as :meth:`producer`.
            TopicNotFoundError, InvalidArgumentError, InvalidNameError, DanubeError: refused by the broker.
        """
        validate_topic(topic)
        check_credit(credit_messages, credit_bytes)
        if name is not None:
            validate_name("consumer", name)
        start_positions(start if not isinstance(start, Mapping) else {}, 1)  # reports invalid values without a broker
        reading = await self._reading(topic, schema, register, strategy)
        topics = await self._topics(topic, 0)
        async with open_reader(
            self._pool,
            topic,
            name or "",
            topics,
            start_positions(start, len(topics)),
            credit_messages=credit_messages,
            credit_bytes=credit_bytes,
            reading=reading,
        ) as reader:
            yield reader

    @asynccontextmanager
    async def requester(
        self, topic: str, *, timeout_s: float = 30.0, max_outstanding: int = 1_000
    ) -> AsyncIterator[Requester]:
        """Send requests to the responders of a topic: ``async with client.requester("/default/rpc") as rpc``.

        The topic is created if it does not exist, and so is ``{topic}-replies`` (durability ``none``), which all
        requesters of a service share.

        Args:
            topic: ``/namespace/topic``.
            timeout_s: default timeout of a request.
            max_outstanding: maximum number of unanswered requests; further ones wait.

        Raises:
            InvalidArgumentError, DanubeError: as :meth:`producer` and :meth:`reader`.
        """
        async with open_requester(self, topic, timeout_s=timeout_s, max_outstanding=max_outstanding) as requester:
            yield requester

    @asynccontextmanager
    async def responder(
        self, topic: str, handler: Handler, *, subscription: str = "rpc", concurrency: int = 16
    ) -> AsyncIterator[Responder]:
        """Answer the requests of a topic: ``async with client.responder("/default/rpc", handler)``.

        While the block lasts, requests are passed to ``handler``, an asynchronous function that gets the message and
        returns the payload of the reply. Its exceptions are raised in the requester as RequestFailedError (type and
        text). Responders with the same subscription share the requests; requests from before the subscription was
        created are not answered. A handler may run without a time limit; when the block is left, unfinished requests
        are given back and delivered again.

        Args:
            topic: ``/namespace/topic``; created if it does not exist, as its replies' topic is.
            handler: produces the replies.
            subscription: name of the shared subscription.
            concurrency: maximum number of handlers that run at a time.

        Raises:
            InvalidArgumentError, DanubeError: as :meth:`consumer` and :meth:`producer`; later on into the block if
                the subscription ends.
        """
        async with open_responder(
            self, topic, handler, subscription=subscription, concurrency=concurrency
        ) as responder:
            yield responder

    async def _reading(self, topic: str, schema: Any, register: bool, strategy: str) -> Reading | None:
        if schema is None:
            return None
        from danube.client._values import open_reading

        return await open_reading(self.schemas, topic, schema, register=register, strategy=strategy)

    async def _topics(self, topic: str, partitions: int) -> list[str]:
        """Return the topics of a name; for a topic that does not exist yet, those that opening will create."""
        try:
            found = await self.admin.lookup_topic(topic)
        except NotFoundError:
            return [partition_name(topic, index) for index in range(partitions)] or [topic]
        return found.topics
