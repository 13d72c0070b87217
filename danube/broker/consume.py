"""The Consume call: one long-lived stream for each consumer of a topic or partition.

The handler reads what the consumer says (credit, acknowledgements); deliveries are sent by the subscription's pump,
from wherever something changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from danube.broker.consumer import Consumer
from danube.broker.subscription import Subscription
from danube.model import api, validate_name
from danube.model.errors import DanubeError, InvalidArgumentError
from danube.model.ranges import check_flat
from danube.wire import Context, Message, ServerStream

if TYPE_CHECKING:
    from danube.broker.broker import Broker

__all__ = ["consume"]

_REQUEST = msgspec.msgpack.Decoder(api.ConsumeRequest)


async def consume(broker: Broker, stream: ServerStream, context: Context) -> None:
    """Handle one Consume call until the consumer closes it, is displaced, or the broker drains."""
    first = await stream.receive()
    request = _decode(first)
    if not isinstance(request, api.ConsumeOpen):
        raise InvalidArgumentError("a Consume stream begins with ConsumeOpen")
    assert first is not None
    first.release()
    validate_name("subscription", request.subscription)
    validate_name("consumer", request.consumer_name)
    topic = broker.topic(request.topic)
    subscription = await topic.subscribe(request)
    failure: DanubeError | None = None
    async with trio.open_nursery() as nursery:
        consumer = Consumer(broker.next_consumer_id(), request.consumer_name, stream, nursery, topic.end_offset)
        try:
            await _converse(stream, subscription, consumer)
        except DanubeError as error:  # out of the nursery as itself, not in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _converse(stream: ServerStream, subscription: Subscription, consumer: Consumer) -> None:
    topic = subscription.topic
    subscription.join(consumer)
    try:
        consumer.send(
            api.ConsumeOpened(
                topic.topic_id,
                consumer.consumer_id,
                topic.durability,
                subscription.is_active(consumer),
                subscription.cursor.floor,
                topic.end_offset,
            )
        )
        subscription.pump()
        while (message := await stream.receive()) is not None:
            message.release()
            _obey(subscription, consumer, _decode(message))
    finally:
        subscription.leave(consumer)


def _obey(subscription: Subscription, consumer: Consumer, request: api.ConsumeRequest) -> None:
    match request:
        case api.Ack(ranges):
            check_flat(ranges, "Ack")
            subscription.ack(consumer, ranges)
        case api.Credit(messages, size_bytes):
            subscription.credit(consumer, messages, size_bytes)
        case api.AckCumulative(offset):
            if offset < 0:
                raise InvalidArgumentError(f"AckCumulative: the offset {offset} is negative")
            subscription.ack_cumulative(consumer, offset)
        case api.Nack(ranges, delay_ms):
            check_flat(ranges, "Nack")
            if delay_ms < -1:
                raise InvalidArgumentError(f"Nack: the delay of {delay_ms} ms is negative")
            subscription.nack(consumer, ranges, None if delay_ms < 0 else delay_ms / 1000)
        case api.ExtendLease(ranges):
            check_flat(ranges, "ExtendLease")
        case api.FlushAcks(token):
            subscription.flush_acks(consumer, token)
        case api.ConsumeOpen():
            raise InvalidArgumentError("ConsumeOpen is only the first message of a Consume stream")


def _decode(message: Message | None) -> api.ConsumeRequest:
    if message is None:
        raise InvalidArgumentError("the Consume stream ended before its first message")
    try:
        request: api.ConsumeRequest = _REQUEST.decode(message.data)
        return request
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError(f"Consume: the message does not decode: {error}") from error
