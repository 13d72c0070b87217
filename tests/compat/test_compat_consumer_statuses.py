"""What the upstream contract says of consumers, acknowledgements and health, asked by stubs of grpcio.

The tables of the contract are followed row by row; where this broker answers otherwise, since clients fare better with
it, the test says so.
"""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from upstream_stubs import MALFORMED, TIMEOUT_S, Upstream, fails

from danube.compat.proto import danube_api_pb2 as pb

# --- Subscribe ---

KINDS = ["Exclusive", "Shared", "Failover", "KeyShared"]


@pytest.mark.parametrize("kind", KINDS)
def test_subscribing_echoes_and_is_idempotent(upstream: Upstream, topic: str, sending: int, kind: str) -> None:
    first = upstream.subscribe(topic, "a", kind, request_id=41)
    assert (first.request_id, first.consumer_name) == (41, "a")
    assert upstream.subscribe(topic, "a", kind, request_id=42).consumer_id == first.consumer_id != 0


@pytest.mark.parametrize("name", MALFORMED)
def test_subscribing_to_a_malformed_name_is_invalid(upstream: Upstream, name: str) -> None:
    fails("INVALID_ARGUMENT", lambda: upstream.subscribe(name))


@pytest.mark.parametrize("fields", [{"consumer_name": ""}, {"subscription": ""}, {"subscription_type": 9}])
def test_subscribing_with_a_bad_field_is_invalid(
    upstream: Upstream, topic: str, sending: int, fields: dict[str, Any]
) -> None:
    given = {"topic_name": topic, "consumer_name": "c", "subscription": "s"} | fields
    fails("INVALID_ARGUMENT", lambda: upstream.consumers.Subscribe(pb.ConsumerRequest(**given), timeout=TIMEOUT_S))


def test_subscribing_to_an_unknown_topic_is_not_found(upstream: Upstream, topic: str) -> None:
    fails("NOT_FOUND", lambda: upstream.subscribe(topic), topic)
    fails("NOT_FOUND", lambda: upstream.lookup(topic))


def test_an_exclusive_subscription_denies_a_second_name(upstream: Upstream, topic: str, sending: int) -> None:
    """Upstream refuses it permanently; here, until the first consumer is gone."""
    first = upstream.subscribe(topic, "a")
    with upstream.receiving(first.consumer_id) as stream:
        upstream.send(topic, sending)
        next(stream)
        fails("PERMISSION_DENIED", lambda: upstream.subscribe(topic, "b"))
    second = upstream.eventually(lambda: upstream.subscribe(topic, "b"))
    assert second.consumer_id != first.consumer_id


def test_too_many_subscriptions_are_denied(upstream: Upstream, topic: str, sending: int) -> None:
    """Joining one that is there is not (upstream denies that, too)."""
    upstream.native(lambda client: client.admin.change_policies(topic, max_subscriptions=1))
    upstream.subscribe(topic, "a", "Shared")
    fails("PERMISSION_DENIED", lambda: upstream.subscribe(topic, "a", "Shared", "other"), "max_subscriptions")
    upstream.subscribe(topic, "b", "Shared")


def test_too_many_consumers_of_a_subscription_are_denied(upstream: Upstream, topic: str, sending: int) -> None:
    upstream.native(lambda client: client.admin.change_policies(topic, max_consumers_per_subscription=1))
    with upstream.receiving(upstream.subscribe(topic, "a", "Shared").consumer_id):
        fails("PERMISSION_DENIED", lambda: upstream.subscribe(topic, "b", "Shared"), "max_consumers_per_subscription")


def test_too_many_consumers_of_a_topic_exhaust_a_resource(upstream: Upstream, topic: str, sending: int) -> None:
    upstream.native(lambda client: client.admin.change_policies(topic, max_consumers=1))
    with upstream.receiving(upstream.subscribe(topic, "a", "Shared").consumer_id):
        fails("RESOURCE_EXHAUSTED", lambda: upstream.subscribe(topic, "b", "Shared", "other"), "max_consumers")


# --- ReceiveMessages ---


def test_messages_come_as_they_were_sent(upstream: Upstream, topic: str, sending: int) -> None:
    consumer_id = upstream.subscribe(topic).consumer_id
    message = pb.StreamMessage(
        request_id=77,
        msg_id=pb.MsgID(producer_id=sending, topic_name=topic, broker_addr="http://b/"),
        payload=b"\x00\xff",
        publish_time=1_700_000_000_123,
        producer_name="p",
        attributes={"a": "1", "b": ""},
        schema_id=3,
        schema_version=4,
        routing_key="k",
    )
    upstream.producers.SendMessage(message, timeout=TIMEOUT_S)
    upstream.send(topic, sending, b"plain")
    with upstream.receiving(consumer_id) as stream:
        first, second = next(stream), next(stream)
    assert first.msg_id.broker_addr
    first.msg_id.broker_addr = message.msg_id.broker_addr
    assert first == message
    assert (second.payload, second.msg_id.topic_offset, second.subscription_name) == (b"plain", 1, "")
    assert not any(map(second.HasField, ("routing_key", "schema_id", "schema_version")))


def test_receiving_under_an_unknown_id_is_unavailable(upstream: Upstream, topic: str, sending: int) -> None:
    """NOT_FOUND upstream, which ends every client; this way most of them subscribe again."""
    consumer_id = upstream.subscribe(topic).consumer_id
    with upstream.receiving(consumer_id + 1) as stream:
        fails("UNAVAILABLE", lambda: next(stream), str(consumer_id + 1))


def test_another_stream_replaces_the_first(upstream: Upstream, topic: str, sending: int) -> None:
    """What the first had not acknowledged comes at once."""
    consumer_id = upstream.subscribe(topic).consumer_id
    upstream.send(topic, sending, b"1")
    with upstream.receiving(consumer_id) as first:
        assert next(first).payload == b"1"
        with upstream.receiving(consumer_id) as second:
            assert next(second).payload == b"1"
            with pytest.raises((grpc.RpcError, StopIteration)):
                next(first)
            upstream.send(topic, sending, b"2")
            assert next(second).payload == b"2"


def test_streams_end_with_unavailable_when_a_topic_is_unloaded(upstream: Upstream, topic: str, sending: int) -> None:
    """So that idle consumers notice; the id lives on."""
    consumer_id = upstream.subscribe(topic).consumer_id
    with upstream.receiving(consumer_id) as stream:
        upstream.eventually_connected(topic)
        upstream.native(lambda client: client.admin.unload_topic(topic))
        fails("UNAVAILABLE", lambda: next(stream), topic)
    with upstream.receiving(consumer_id) as stream:
        upstream.send(topic, sending, b"next")
        assert next(stream).payload == b"next"


@pytest.mark.parametrize("what", ["topic", "subscription"])
def test_streams_end_with_unavailable_when_a_thing_is_deleted(
    upstream: Upstream, topic: str, sending: int, what: str
) -> None:
    consumer_id = upstream.subscribe(topic).consumer_id
    with upstream.receiving(consumer_id) as stream:
        upstream.eventually_connected(topic)
        if what == "topic":
            upstream.native(lambda client: client.admin.delete_topic(topic))
        else:
            upstream.native(lambda client: client.admin.delete_subscription(topic, "s"))
        fails("UNAVAILABLE", lambda: next(stream))
    with upstream.receiving(consumer_id) as stream:
        fails("UNAVAILABLE", lambda: next(stream))


# --- Ack, Nack ---


def test_acks_echo_and_count_once(upstream: Upstream, topic: str, sending: int) -> None:
    """Late, repeated and unknown ones are OK."""
    consumer_id = upstream.subscribe(topic).consumer_id
    for number in range(3):
        upstream.send(topic, sending, b"%d" % number)
    with upstream.receiving(consumer_id) as stream:
        messages = [next(stream) for _ in range(3)]
        assert upstream.ack(messages[0], request_id=5).request_id == 5
        upstream.ack(messages[0])
        upstream.ack(messages[2])
    unknown = pb.StreamMessage(msg_id=pb.MsgID(topic_name=topic, topic_offset=1_000_000))
    upstream.ack(unknown)
    upstream.nack(unknown)
    upstream.ack(messages[1])  # no consumer has it any more
    with upstream.receiving(consumer_id) as stream:
        upstream.send(topic, sending, b"next")
        payloads = [next(stream).payload]
        if payloads == [b"1"]:  # the message was not in flight when the ack came, so it may be ignored
            payloads.append(next(stream).payload)
        assert payloads[-1] == b"next"


def test_a_nack_echoes_and_brings_the_message_again(upstream: Upstream, topic: str, sending: int) -> None:
    consumer_id = upstream.subscribe(topic, kind="Shared").consumer_id
    upstream.send(topic, sending, b"1")
    with upstream.receiving(consumer_id) as stream:
        message = next(stream)
        begun = time.monotonic()
        assert upstream.nack(message, request_id=6, delay_ms=300, reason="no").request_id == 6
        assert next(stream) == message
        assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("call", ["ack", "nack"])
def test_settling_without_a_message_id_is_invalid(upstream: Upstream, topic: str, sending: int, call: str) -> None:
    """Upstream's handler panics."""
    upstream.subscribe(topic)
    kind, method = {"ack": (pb.AckRequest, "Ack"), "nack": (pb.NackRequest, "Nack")}[call]
    request = kind(subscription_name="s")
    fails("INVALID_ARGUMENT", lambda: getattr(upstream.consumers, method)(request, timeout=TIMEOUT_S), "msg_id")


@pytest.mark.parametrize("call", ["ack", "nack"])
def test_settling_what_is_not_here_is_internal(upstream: Upstream, topic: str, sending: int, call: str) -> None:
    upstream.subscribe(topic)
    settle = getattr(upstream, call)
    here = pb.StreamMessage(msg_id=pb.MsgID(topic_name=topic))
    elsewhere = pb.StreamMessage(msg_id=pb.MsgID(topic_name=f"{topic}-gone"))
    fails("INTERNAL", lambda: settle(elsewhere), f"{topic}-gone")
    fails("INTERNAL", lambda: settle(here, subscription="other"), "other")


def test_settling_messages_that_are_not_kept_does_nothing(upstream: Upstream, topic: str) -> None:
    producer_id = upstream.create(topic, strategy=pb.NonReliable).producer_id
    with upstream.receiving(upstream.subscribe(topic).consumer_id) as stream:
        upstream.eventually_connected(topic)
        upstream.send(topic, producer_id, b"1")
        message = next(stream)
        upstream.ack(message)
        upstream.nack(message)
        upstream.send(topic, producer_id, b"2")
        second = next(stream)
        assert second.payload == b"2"
        # Upstream's command line takes a message with another offset for one that has to be acknowledged.
        assert (message.msg_id.topic_offset, second.msg_id.topic_offset) == (0, 0)


# --- HealthCheck ---

OK, CLOSE = pb.HealthCheckResponse.OK, pb.HealthCheckResponse.CLOSE


def test_health_of_a_producer(upstream: Upstream, topic: str, sending: int) -> None:
    assert upstream.status(pb.HealthCheckRequest.Producer, sending) == OK
    assert upstream.status(pb.HealthCheckRequest.Producer, sending + 1) == CLOSE
    assert upstream.status(pb.HealthCheckRequest.Consumer, sending) == CLOSE
    upstream.native(lambda client: client.admin.delete_topic(topic))
    assert upstream.status(pb.HealthCheckRequest.Producer, sending) == CLOSE


def test_health_of_a_consumer(upstream: Upstream, topic: str, sending: int) -> None:
    """It is closed when its stream has ended: then it subscribes again."""
    consumer_id = upstream.subscribe(topic).consumer_id
    with upstream.receiving(consumer_id):
        upstream.eventually_connected(topic)
        assert upstream.status(pb.HealthCheckRequest.Consumer, consumer_id) == OK
        assert upstream.status(pb.HealthCheckRequest.Consumer, consumer_id + 1) == CLOSE
    upstream.until(lambda: upstream.status(pb.HealthCheckRequest.Consumer, consumer_id) == CLOSE)
    assert upstream.subscribe(topic).consumer_id == consumer_id
    assert upstream.status(pb.HealthCheckRequest.Consumer, consumer_id) == OK


def test_health_of_something_else_is_invalid(upstream: Upstream, sending: int) -> None:
    fails("INVALID_ARGUMENT", lambda: upstream.status(2, sending))
