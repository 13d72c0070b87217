"""The Consume call: one long-lived stream for each consumer of a topic or partition, and for each reader.

The handler reads the consumer's requests (credit, acknowledgements); the subscription's pump sends deliveries whenever
something changed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from danube.broker.calls.consumer import Consumer
from danube.broker.delivery.pump import Pump
from danube.model import Limits, api, validate_name
from danube.model.decoding import UNDECODABLE
from danube.model.errors import FailedPreconditionError, InvalidArgumentError
from danube.model.ids import Offset
from danube.model.keys import check_key_filters
from danube.model.ranges import check_flat
from danube.wire import Context, Message, ServerStream

if TYPE_CHECKING:
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.delivery.topic_reader import TopicReader
    from danube.broker.directory.directory import Directory
    from danube.broker.topic.topic import Topic

__all__ = ["consume"]

P = TypeVar("P", bound=Pump)

_REQUEST = msgspec.msgpack.Decoder(api.ConsumeRequest)


async def consume(directory: Directory, stream: ServerStream, context: Context) -> None:
    """Handle one Consume call until the consumer closes it, is displaced, or the broker drains."""
    first = await stream.receive()
    request = _decode(first)
    if not isinstance(request, api.ConsumeOpen):
        raise InvalidArgumentError("a Consume stream begins with ConsumeOpen")
    assert first is not None
    first.release()
    consumer_id = directory.runtime.next_consumer_id()
    name = request.consumer_name
    if request.reader and not name:
        name = f"reader-{consumer_id}"
    validate_name("consumer", name)
    if not request.reader:
        validate_name("subscription", request.subscription)
    key_filters = _key_filters(request, directory.runtime.limits)
    topic = await directory.search(request.topic, request.topic_id)
    with directory.runtime.namespace_connections.using(topic.name, context.connection_id):
        if request.reader:
            reader = await topic.open_reader(request)
            consumer = Consumer(consumer_id, name, stream, topic.end_offset, key_filters)
            reader.join(consumer)
            await _converse(stream, reader, consumer, _reader_opened(topic, reader, consumer), _obey_reader)
        else:
            subscription = await topic.subscribe(request)
            consumer = Consumer(consumer_id, name, stream, topic.end_offset, key_filters)
            topic.check_consumer(subscription.name, consumer.name)
            subscription.join(consumer)
            obey = partial(_obey, limits=directory.runtime.limits)
            await _converse(stream, subscription, consumer, _opened(topic, subscription, consumer), obey)


def _key_filters(request: api.ConsumeOpen, limits: Limits) -> tuple[str, ...]:
    filters = request.key_filters
    if not filters:
        return ()
    if request.reader or not request.type.traits.wants_keys:
        raise InvalidArgumentError("key filters are for consumers of key-shared subscriptions; leave them out")
    return check_key_filters(filters, limits)


def _reader_opened(topic: Topic, reader: TopicReader, consumer: Consumer) -> api.ConsumeOpened:
    return api.ConsumeOpened(
        topic_id=topic.topic_id,
        consumer_id=consumer.consumer_id,
        durability=topic.durability,
        active=True,
        floor=reader.start_offset,
        end_offset=topic.end_offset,
        start_offset=reader.start_offset,
        owner_epoch=topic.owner_epoch,
        is_framed=topic.intake.is_framed,
    )


def _opened(topic: Topic, subscription: Subscription, consumer: Consumer) -> api.ConsumeOpened:
    return api.ConsumeOpened(
        topic_id=topic.topic_id,
        consumer_id=consumer.consumer_id,
        durability=topic.durability,
        active=subscription.is_active(consumer),
        floor=Offset(subscription.cursor.floor),
        end_offset=topic.end_offset,
        ack_timeout_s=subscription.policy.ack_timeout_s,
        subscription_id=subscription.subscription_id,
        generation=subscription.generation,
        owner_epoch=topic.owner_epoch,
        is_framed=topic.intake.is_framed,
    )


async def _converse(
    stream: ServerStream,
    pump: P,
    consumer: Consumer,
    answer: api.ConsumeOpened,
    obey: Callable[[P, Consumer, api.ConsumeRequest], None],
) -> None:
    """Answer a consumer that has joined, and pass its requests to ``obey`` until it leaves."""
    try:
        consumer.send(answer)
        pump.pump()
        while (message := await stream.receive()) is not None:
            message.release()
            obey(pump, consumer, _decode(message))
    finally:
        pump.leave(consumer)


def _obey(subscription: Subscription, consumer: Consumer, request: api.ConsumeRequest, limits: Limits) -> None:
    match request:
        case api.Ack(ranges, generation):
            check_flat(ranges, "Ack")
            subscription.ack(consumer, ranges, generation)
        case api.Credit(messages, size_bytes):
            subscription.credit(consumer, messages, size_bytes)
        case api.AckCumulative(offset, generation):
            if offset < 0:
                raise InvalidArgumentError(f"AckCumulative: the offset {offset} is negative")
            subscription.ack_cumulative(consumer, offset, generation)
        case api.Nack(ranges, delay_ms, reason, generation):
            check_flat(ranges, "Nack")
            delay_s = None if delay_ms == -1 else _seconds(delay_ms, "Nack: the delay", "max_delivery_delay_s", limits)
            subscription.nack(consumer, ranges, delay_s, reason[: limits.max_nack_reason_chars], generation)
        case api.ExtendLease(ranges, lease_ms, generation):
            check_flat(ranges, "ExtendLease")
            lease_s = _seconds(lease_ms, "ExtendLease: the lease", "max_lease_s", limits)
            subscription.extend(consumer, ranges, lease_s or None, generation)
        case api.GiveBack(ranges, generation):
            check_flat(ranges, "GiveBack")
            subscription.give_back(consumer, ranges, generation)
        case api.FlushAcks(token):
            subscription.flush_acks(consumer, token)
        case api.ConsumeOpen():
            raise InvalidArgumentError("ConsumeOpen is only the first message of a Consume stream")


def _seconds(milliseconds: int, what: str, limit: str, limits: Limits) -> float:
    if milliseconds < 0:
        raise InvalidArgumentError(f"{what} of {milliseconds} ms is negative")
    most: float = getattr(limits, limit)
    if milliseconds > most * 1000:
        raise InvalidArgumentError(f"{what} of {milliseconds / 1000:g} s is longer than {limit} = {most:g}")
    return milliseconds / 1000


def _obey_reader(reader: TopicReader, consumer: Consumer, request: api.ConsumeRequest) -> None:
    match request:
        case api.Credit(messages, size_bytes):
            reader.credit(consumer, messages, size_bytes)
        case api.FlushAcks(token):
            reader.flush_acks(consumer, token)
        case api.ConsumeOpen():
            raise InvalidArgumentError("ConsumeOpen is only the first message of a Consume stream")
        case _:
            raise FailedPreconditionError(
                f"a reader cannot send {type(request).__name__}: it has no subscription, so nothing is acknowledged;"
                " open a consumer instead"
            )


def _decode(message: Message | None) -> api.ConsumeRequest:
    if message is None:
        raise InvalidArgumentError("the Consume stream ended before its first message")
    try:
        request: api.ConsumeRequest = _REQUEST.decode(message.data)
        return request
    except UNDECODABLE as error:
        raise InvalidArgumentError(f"Consume: the message does not decode: {error}") from error
