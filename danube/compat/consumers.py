"""``danube.ConsumerService``: subscribes consumers, streams messages to them, and handles acknowledgements.

A client subscribes by topic, subscription and its own name, and gets an id, always the same one
(:mod:`danube.compat.consumer_ids`). With the id it opens its stream, and opens it again after each loss; a new stream
replaces the previous one of the id. Acknowledgements arrive one at a time, in unary calls, and name the message, not
the
consumer; they are answered when they are durable, many with each commit.

If a topic, subscription or id does not exist, its stream ends with UNAVAILABLE: the client then looks its topic up and
subscribes again or, if that fails, reports an error to its application.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from danube.broker.faces import may_consume
from danube.compat.consumer_ids import ConsumerIds
from danube.compat.consumer_index import ConsumerRecord, KnownConsumer
from danube.compat.discovery import broker_url
from danube.compat.errors import for_clients, for_receivers
from danube.compat.messages import generation_of
from danube.compat.methods import unary
from danube.compat.policies import SUBSCRIPTION_TYPES
from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.receiving import CompatConsumer
from danube.model import SubscriptionType, api, validate_name, validate_topic
from danube.model.errors import (
    ConsumerDisplacedError,
    DanubeError,
    InternalError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    SubscriptionBusyError,
    UnavailableError,
)
from danube.model.keys import check_key_filters
from danube.model.log_events import log_event
from danube.wire import Context, Method, ServerStream, Service, UnaryCall

if TYPE_CHECKING:
    from danube.broker.faces import Served, ServedSubscription, ServedTopic

__all__ = ["Consumers"]

_log = logging.getLogger("danube.compat")

_SERVICE: Final = "/danube.ConsumerService/"
_TYPES: Final = {number: kind for kind, number in SUBSCRIPTION_TYPES.items()}
_EXPECTED_S: Final = 5.0
"""How long the place of a consumer is reserved between subscribing and opening its stream."""
_PAUSE_S: Final = 0.25
"""Delay before a stream is refused: the Python client retries without a pause."""
_MIN_STREAM_S: Final = 1.0
"""A stream displaced sooner than this indicates two clients with one name that displace each other."""
_SWEEP_S: Final = 60.0
"""Interval of the sweeps for ids whose subscription was deleted."""


class Consumers:
    """Handlers of the service.

    Attributes:
        ids: of all consumers, from :meth:`run` on.
    """

    ids: ConsumerIds

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._limits = broker.runtime.limits

    def service(self) -> Service:
        """Return the methods, by path."""
        receive, ack, nack = (f"{_SERVICE}{name}" for name in ("ReceiveMessages", "Ack", "Nack"))
        return dict(
            [
                unary(f"{_SERVICE}Subscribe", self.subscribe, pb.ConsumerRequest),
                (
                    receive,
                    Method(
                        path=receive, kind="server_stream", handler=self.receive_messages, opening=pb.ReceiveRequest
                    ),
                ),
                (ack, Method(path=ack, kind="unary", start=self.ack, request_type=pb.AckRequest)),
                (nack, Method(path=nack, kind="unary", start=self.nack, request_type=pb.NackRequest)),
            ]
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the ids, and remove those whose subscription was deleted, repeatedly until cancelled."""
        broker = self._broker
        self.ids = ConsumerIds(
            broker.metadata, broker.directory.broker, self._limits, broker.runtime.new_id, self._exists
        )
        await self.ids.load()
        await self._sweep()
        task_status.started()
        while True:
            await trio.sleep(_SWEEP_S)
            await self._sweep()

    async def _sweep(self) -> None:
        try:
            await self.ids.sweep()
        except DanubeError as error:
            _log.warning(
                "removing the ids of deleted subscriptions failed and is retried: %s",
                error,
                extra=log_event("compat.ids_left"),
            )

    def is_known(self, consumer_id: int) -> bool:
        """Whether an id is known, its consumer is active (:attr:`KnownConsumer.active`), and the caller may use it."""
        consumer = self.ids.look(consumer_id)
        if consumer is None or not may_consume(consumer.record.topic, consumer.record.subscription):
            return False
        consumer.used = trio.current_time()
        return consumer.active

    def _exists(self, consumer: KnownConsumer) -> bool:
        """Whether the subscription of a consumer exists, or will exist."""
        record = consumer.record
        try:
            topic = self._broker.directory.find(record.topic)
        except (NotFoundError, InvalidArgumentError):
            return False
        except DanubeError:
            return True  # its storage does not answer yet, or fails: it may exist
        if topic.topic_id != record.topic_id or topic.deleted is not None:
            return False
        found = topic.subscriptions.get(record.subscription)
        if found is None:
            return topic.lossy and not consumer.subscription_id
        return consumer.subscription_id in (found.subscription_id, 0)

    # --- Subscribing ---

    async def subscribe(self, request: pb.ConsumerRequest, _context: Context) -> pb.ConsumerResponse:
        """Return the id of a consumer; create its subscription, starting with the next message, if it does not exist.

        A connected consumer of the same name is disconnected, and its messages are redelivered.

        Raises:
            InvalidArgumentError: a name, the type or a key filter is invalid.
            TopicNotFoundError: the topic does not exist; consumers do not create topics.
            UnavailableError: the topic cannot be reached now.
            SubscriptionTypeMismatchError: the subscription has another type.
            PermissionDeniedError: too many subscriptions, or consumers of this one; or it is exclusive and taken.
            LimitExceededError: too many consumers of the topic, or of the broker.
        """
        name, of = request.consumer_name, request.subscription
        validate_name("consumer", name)
        validate_name("subscription", of)
        validate_topic(request.topic_name)
        kind = _TYPES.get(request.subscription_type)
        if kind is None:
            raise InvalidArgumentError(
                f"subscription {of!r}: subscription type {request.subscription_type} is unknown; known are 0"
                " (Exclusive), 1 (Shared), 2 (Failover) and 3 (KeyShared)"
            )
        filters: tuple[str, ...] = ()
        if kind.traits.wants_keys:
            filters = check_key_filters(request.key_filters, self._limits)
        topic = self._broker.directory.find(request.topic_name)
        topic.check_alive()
        if of not in topic.subscriptions:
            try:
                topic.check_subscription()
            except LimitExceededError as error:
                raise PermissionDeniedError(error.message) from error
        subscription = await topic.subscribe(_open(topic.name, of, name, kind))
        self._check_room(topic, subscription, name)
        kept_id = 0 if topic.lossy else subscription.subscription_id
        consumer = await self.ids.register(
            ConsumerRecord(topic.topic_id, topic.name, of, kept_id, name, kind, filters), subscription.subscription_id
        )
        self._check_room(topic, subscription, name)  # another consumer may have subscribed while this one was stored
        consumer.active = True
        consumer.expected_until = trio.current_time() + _EXPECTED_S
        former = consumer.stream
        if former is not None:
            consumer.stream = None  # the end of the old stream must not affect the consumer
            former.end(
                ConsumerDisplacedError(
                    f"consumer {name!r} of subscription {of!r} has subscribed again; give each consumer a name of its"
                    " own"
                )
            )
            subscription.leave(former)
        return pb.ConsumerResponse(request_id=request.request_id, consumer_id=consumer.consumer_id, consumer_name=name)

    def _check_room(self, topic: ServedTopic, subscription: ServedSubscription, name: str) -> None:
        expected = {(each.record.subscription, each.record.name) for each in self.ids.of(topic.topic_id)}
        others = {consumer.name for consumer in subscription.consumers.values()} - {name}
        others |= {each for of, each in expected if of == subscription.name} - {name}
        if subscription.kind.traits.single_consumer and others:
            raise PermissionDeniedError(
                f"the exclusive subscription {subscription.name!r} of topic {topic.name!r} has a consumer already,"
                f" {min(others)!r}; close that one, join under its name to take over, or use another subscription or"
                " type"
            )
        try:
            topic.check_subscription_consumers(subscription.name, name, expected)
        except LimitExceededError as error:
            raise PermissionDeniedError(error.message) from error
        topic.check_topic_consumers(subscription.name, name, expected)

    # --- Receiving ---

    async def receive_messages(self, stream: ServerStream, context: Context) -> None:
        """Send messages to a consumer until it leaves, is displaced, or its topic or subscription is deleted.

        Raises:
            UnavailableError: the id is unknown or forgotten; or another consumer has the subscription.
            LimitExceededError: too many connections use the namespace.
        """
        message = await stream.receive()
        if message is None:
            raise InvalidArgumentError("ReceiveMessages requires one request message, but got none")
        request = stream.decode(pb.ReceiveRequest, message.data)
        message.release()
        try:
            consumer, subscription = await self._reach(request.consumer_id)
            connections = self._broker.runtime.namespace_connections
            with connections.using(consumer.record.topic, context.connection_id):
                await self._serve(stream, consumer, subscription, broker_url(self._broker, context))
        except SubscriptionBusyError as error:
            await trio.sleep(_PAUSE_S)
            raise UnavailableError(error.message) from error
        except LimitExceededError:
            await trio.sleep(_PAUSE_S)
            raise
        except DanubeError as error:
            raise for_receivers(error) from error

    async def _reach(self, consumer_id: int) -> tuple[KnownConsumer, ServedSubscription]:
        consumer = self.ids.find(consumer_id)
        if consumer is None:
            await trio.sleep(_PAUSE_S)
            raise UnavailableError(
                f"consumer id {consumer_id} is unknown, or its subscription was deleted; subscribe again"
            )
        if consumer.stream is not None and consumer.stream.began > trio.current_time() - _MIN_STREAM_S:
            await trio.sleep(_PAUSE_S)
        record = consumer.record
        topic = self._broker.directory.find(record.topic)
        topic.check_alive()
        if record.subscription_id and record.subscription not in topic.subscriptions:
            raise UnavailableError(
                f"subscription {record.subscription!r} of topic {topic.name!r} was deleted; subscribe again"
            )
        # On a topic that stores no messages it is created again after each start of the broker.
        subscription = await topic.subscribe(_open(topic.name, record.subscription, record.name, record.type))
        consumer.subscription_id = subscription.subscription_id
        topic.check_consumer(subscription.name, record.name)
        return consumer, subscription

    async def _serve(
        self, stream: ServerStream, known: KnownConsumer, subscription: ServedSubscription, url: str
    ) -> None:
        record = known.record
        consumer = CompatConsumer(
            subscription,
            self._broker.runtime.next_consumer_id(),
            record.name,
            record.key_filters,
            stream,
            broker_url(self._broker, stream.context),
            self._limits,
            lambda number, subject: self._broker.registry.book.from_number(number, subject),
        )
        subscription.join(consumer)
        known.stream, known.active = consumer, True
        try:
            await consumer.run()
        finally:
            subscription.leave(consumer)
            known.used = trio.current_time()
            if known.stream is consumer:  # no newer stream has replaced it
                known.stream, known.active = None, False
                known.expected_until = 0.0

    # --- Acknowledging ---

    def ack(self, request: pb.AckRequest, call: UnaryCall) -> None:
        """Acknowledge a message, and reply when that is durable; also for unknown or already acknowledged messages.

        An early acknowledgement of a key-shared subscription (an earlier message of its key is not settled) is answered
        at once: it takes effect, and is stored, with that message, and is dropped if that is delivered again.

        Raises:
            InvalidArgumentError: it has no ``msg_id``.
            InternalError: the topic or the subscription does not exist.
            UnavailableError: the topic cannot be reached now.
        """
        subscription = self._subscription_of(request)
        offset = request.msg_id.topic_offset
        topic = subscription.topic
        if topic.lossy or offset >= topic.end_offset:
            call.reply(pb.AckResponse(request_id=request.request_id))
            return
        generation = generation_of(request.msg_id)
        consumer = self._heard(subscription, offset, generation)
        subscription.ack_for(_Pending(call, request.request_id), offset, consumer, generation)

    def nack(self, request: pb.NackRequest, call: UnaryCall) -> None:
        """Redeliver a message after the requested pause, or that of the policy if longer.

        Raises:
            InvalidArgumentError, InternalError, UnavailableError: as :meth:`ack`.
        """
        subscription = self._subscription_of(request)
        offset = request.msg_id.topic_offset
        topic = subscription.topic
        if not topic.lossy and offset < topic.end_offset:
            generation = generation_of(request.msg_id)
            self._heard(subscription, offset, generation)
            delay_s = request.delay_ms / 1000 if request.HasField("delay_ms") else None
            subscription.nack_for(offset, delay_s, request.reason[: self._limits.max_nack_reason_chars], generation)
        call.reply(pb.NackResponse(request_id=request.request_id))

    def _subscription_of(self, request: pb.AckRequest | pb.NackRequest) -> ServedSubscription:
        if not request.HasField("msg_id"):
            raise InvalidArgumentError("the acknowledgement has no msg_id; send the msg_id of the message")
        name = request.msg_id.topic_name
        try:
            topic = self._broker.directory.find(name)
        except NotFoundError as error:
            raise InternalError(error.message) from error
        found = topic.subscriptions.get(request.subscription_name)
        if found is None:
            raise InternalError(f"topic {name!r} has no subscription {request.subscription_name!r}")
        return found

    @staticmethod
    def _heard(subscription: ServedSubscription, offset: int, generation: int) -> CompatConsumer | None:
        if generation != subscription.generation:
            return None  # delivered before a seek, so void
        for consumer in subscription.consumers.values():
            if isinstance(consumer, CompatConsumer) and consumer.heard(offset):
                return consumer
        return None


class _Pending:
    """A call that waits until its acknowledgement is durable; a :class:`danube.broker.faces.AckWaiter`."""

    __slots__ = ("_call", "_request_id")

    def __init__(self, call: UnaryCall, request_id: int) -> None:
        self._call = call
        self._request_id = request_id

    def send(self, _reply: api.ConsumeReply) -> None:
        """Reply that the acknowledgement is durable."""
        self._call.reply(pb.AckResponse(request_id=self._request_id))

    def end(self, error: DanubeError) -> None:
        """Fail the call: the acknowledgement will not become durable."""
        self._call.fail(for_clients(error))


def _open(topic: str, subscription: str, name: str, kind: SubscriptionType) -> api.ConsumeOpen:
    return api.ConsumeOpen(topic=topic, subscription=subscription, consumer_name=name, type=kind)
