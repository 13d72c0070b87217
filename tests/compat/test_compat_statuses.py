"""What the upstream contract says of lookups, producers, and what is not here, asked by stubs of grpcio.

The tables of the contract are followed row by row; where this broker answers otherwise, since clients fare better with
it, the test says so.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from brokers import BrokerProcess
from upstream_stubs import MALFORMED, TIMEOUT_S, Stubs, Upstream, fails

from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.proto import danube_schema_pb2 as schema_pb
from danube.model import Rate

# --- Discovery ---


def test_lookup_of_a_topic_says_connect(upstream: Upstream, topic: str, sending: int) -> None:
    answer = upstream.lookup(topic)
    url = f"http://127.0.0.1:{upstream.broker.port}"
    assert (answer.request_id, answer.response_type) == (7, pb.TopicLookupResponse.Connect)
    assert (answer.connect_url, answer.broker_url, answer.proxy) == (url, url, False)


def test_lookup_of_a_partition_says_connect(upstream: Upstream, topic: str) -> None:
    upstream.native(lambda client: client.admin.create_topic(topic, partitions=2))
    assert upstream.lookup(f"{topic}-part-1").response_type == pb.TopicLookupResponse.Connect
    fails("NOT_FOUND", lambda: upstream.lookup(f"{topic}-part-2"))


def test_lookup_of_an_unknown_topic_is_not_found(upstream: Upstream, topic: str) -> None:
    fails("NOT_FOUND", lambda: upstream.lookup(topic), topic)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_names_are_invalid_everywhere(upstream: Upstream, name: str) -> None:
    fails("INVALID_ARGUMENT", lambda: upstream.lookup(name))
    fails("INVALID_ARGUMENT", lambda: upstream.partitions(name))
    fails("INVALID_ARGUMENT", lambda: upstream.create(name))


def test_partitions(upstream: Upstream, topic: str) -> None:
    """Upstream lists every topic whose name begins with the one asked for; here a name means itself."""
    upstream.native(lambda client: client.admin.create_topic(topic, partitions=11))
    upstream.create(f"{topic}bar")
    assert upstream.partitions(topic) == [f"{topic}-part-{index}" for index in range(11)]
    assert upstream.partitions(f"{topic}-part-10") == [f"{topic}-part-10"]
    assert upstream.partitions(f"{topic}bar") == [f"{topic}bar"]
    assert upstream.partitions(f"{topic}-part-11") == []
    assert upstream.partitions(f"{topic}b") == []


# --- CreateProducer ---


def test_creating_echoes_and_is_idempotent(upstream: Upstream, topic: str) -> None:
    first = upstream.create(topic, "a", request_id=41)
    assert (first.request_id, first.producer_name) == (41, "a")
    assert upstream.create(topic, "a", request_id=42).producer_id == first.producer_id != 0
    assert upstream.create(topic, "b").producer_id != first.producer_id
    exclusive = upstream.create(topic, "a", producer_access_mode=pb.ProducerAccessMode.Exclusive)
    assert exclusive.producer_id == first.producer_id


@pytest.mark.parametrize(("first", "second"), [(pb.Reliable, pb.NonReliable), (pb.NonReliable, pb.Reliable)])
def test_another_dispatch_strategy_fails(upstream: Upstream, topic: str, first: int, second: int) -> None:
    upstream.create(topic, "a", first)
    fails("FAILED_PRECONDITION", lambda: upstream.create(topic, "b", second), topic, "eliable")


@pytest.mark.parametrize("version", [{}, {"use_latest": True}, {"pinned_version": 1}, {"min_version": 2}])
def test_a_schema_that_is_not_registered_fails(upstream: Upstream, topic: str, version: dict[str, Any]) -> None:
    reference = pb.SchemaReference(subject="orders-value", **version)
    fails("FAILED_PRECONDITION", lambda: upstream.create(topic, schema_ref=reference), "orders-value", "schema")
    fails("NOT_FOUND", lambda: upstream.lookup(topic))


def test_a_namespace_that_is_not_there_is_not_found(upstream: Upstream) -> None:
    """UNAVAILABLE upstream, so that clients try six times for nothing."""
    fails("NOT_FOUND", lambda: upstream.create("/nowhere/topic"), "nowhere")


def test_a_plain_topic_and_partitions_of_one_name_exclude_each_other(upstream: Upstream, topic: str) -> None:
    upstream.create(f"{topic}-part-0")
    fails("ALREADY_EXISTS", lambda: upstream.create(topic), topic)
    upstream.create(f"{topic}x")
    fails("ALREADY_EXISTS", lambda: upstream.create(f"{topic}x-part-0"), topic)


def test_too_many_producers_exhaust_a_resource(upstream: Upstream, topic: str, sending: int) -> None:
    upstream.native(lambda client: client.admin.change_policies(topic, max_producers=1))
    fails("RESOURCE_EXHAUSTED", lambda: upstream.create(topic, "another"), "max_producers")
    assert upstream.create(topic).producer_id == sending


@pytest.mark.parametrize("name", ["", "a b", "x" * 300])
def test_a_bad_producer_name_is_invalid(upstream: Upstream, topic: str, name: str) -> None:
    fails("INVALID_ARGUMENT", lambda: upstream.create(topic, name), "producer")


def test_an_unknown_dispatch_strategy_is_invalid(upstream: Upstream, topic: str) -> None:
    fails("INVALID_ARGUMENT", lambda: upstream.create(topic, strategy=2), "dispatch strategy 2")


def test_without_auto_creation_a_topic_is_not_found(tmp_path: Path, stubs: Stubs, topic: str) -> None:
    options = ("--journal-file-size", "16MiB", "--log-level", "warning", "--no-auto-create")
    with (
        BrokerProcess(tmp_path / "data", *options) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        upstream = Upstream(broker, channel, stubs)
        fails("NOT_FOUND", lambda: upstream.create(topic), topic)
        upstream.native(lambda client: client.admin.create_topic(topic))
        upstream.send(topic, upstream.create(topic).producer_id)


# --- SendMessage ---


@pytest.mark.parametrize("strategy", [pb.Reliable, pb.NonReliable])
def test_sending_echoes(upstream: Upstream, topic: str, strategy: int) -> None:
    producer_id = upstream.create(topic, strategy=strategy).producer_id
    assert upstream.send(topic, producer_id, request_id=2**63).request_id == 2**63
    assert upstream.send(topic, producer_id, b"").request_id == 1


def test_sending_without_a_message_id_is_invalid(upstream: Upstream, topic: str, sending: int) -> None:
    """Upstream's handler panics."""
    fails("INVALID_ARGUMENT", lambda: upstream.send(topic, sending, msg_id=None), "msg_id")


def test_sending_under_an_unknown_id_is_unavailable(upstream: Upstream, topic: str, sending: int) -> None:
    """NOT_FOUND upstream, which ends every client; this way it creates its producer again."""
    fails("UNAVAILABLE", lambda: upstream.send(topic, sending + 1), str(sending + 1), topic)
    fails("UNAVAILABLE", lambda: upstream.send(topic, 0), topic)


def test_sending_to_an_unknown_topic_is_unavailable(upstream: Upstream, topic: str, sending: int) -> None:
    fails("UNAVAILABLE", lambda: upstream.send(f"{topic}-gone", sending), f"{topic}-gone")


def test_an_id_counts_for_its_own_topic_only(upstream: Upstream, topic: str, sending: int) -> None:
    other = upstream.create(f"{topic}-other").producer_id
    fails("UNAVAILABLE", lambda: upstream.send(topic, other), str(other))
    assert upstream.stored(topic) == upstream.stored(f"{topic}-other") == 0


def test_sending_to_a_deleted_topic_is_unavailable(upstream: Upstream, topic: str, sending: int) -> None:
    upstream.native(lambda client: client.admin.delete_topic(topic))
    fails("UNAVAILABLE", lambda: upstream.send(topic, sending))
    # The same name again is another topic, and the old id does not belong to it.
    again = upstream.create(topic).producer_id
    assert again != sending
    fails("UNAVAILABLE", lambda: upstream.send(topic, sending))
    upstream.send(topic, again)


def test_an_unloaded_topic_takes_the_next_message(upstream: Upstream, topic: str, sending: int) -> None:
    upstream.native(lambda client: client.admin.unload_topic(topic))
    upstream.send(topic, sending)
    assert upstream.stored(topic) == 1


def test_a_payload_above_the_policy_is_invalid(upstream: Upstream, topic: str, sending: int) -> None:
    upstream.native(lambda client: client.admin.change_policies(topic, max_message_bytes=1000))
    upstream.send(topic, sending, bytes(900))
    fails("INVALID_ARGUMENT", lambda: upstream.send(topic, sending, bytes(1001)), "bytes", "max_message_bytes")
    fails("INVALID_ARGUMENT", lambda: upstream.send(topic, sending, attributes={"a": "b" * 1000}), "bytes")
    assert upstream.stored(topic) == 1


def test_a_payload_above_four_mebibytes_is_invalid(upstream: Upstream, topic: str, sending: int) -> None:
    """No stock client could receive it."""
    fails("INVALID_ARGUMENT", lambda: upstream.send(topic, sending, bytes(4 * 1024 * 1024)), "bytes")
    upstream.send(topic, sending, bytes(3_900_000))


@pytest.mark.parametrize("fields", [{"schema_id": 2**32}, {"publish_time": 2**63}])
def test_a_field_that_cannot_be_is_invalid(
    upstream: Upstream, topic: str, sending: int, fields: dict[str, int]
) -> None:
    request = pb.StreamMessage(msg_id=pb.MsgID(producer_id=sending, topic_name=topic), payload=b"x", **fields)
    fails("INVALID_ARGUMENT", lambda: upstream.producers.SendMessage(request, timeout=TIMEOUT_S), *fields)


# --- What is not here, and what does not matter ---


def test_segments_are_not_told(upstream: Upstream, topic: str, sending: int) -> None:
    request = pb.ListSegmentDescriptorsRequest(topic=topic)
    fails("UNIMPLEMENTED", lambda: upstream.storage.ListSegmentDescriptors(request, timeout=TIMEOUT_S), "segments")


SCHEMA_METHODS = list(schema_pb.DESCRIPTOR.services_by_name["SchemaRegistry"].methods)


@pytest.mark.parametrize("method", SCHEMA_METHODS, ids=lambda method: method.name)
def test_empty_requests_to_the_registry_fail_for_good(upstream: Upstream, method: Any) -> None:
    request, call = getattr(schema_pb, method.input_type.name)(), getattr(upstream.schemas, method.name)
    if method.name == "ListSubjects":
        call(request, timeout=TIMEOUT_S)
        return
    with pytest.raises(grpc.RpcError) as raised:
        call(request, timeout=TIMEOUT_S)
    assert raised.value.code().name in ("INVALID_ARGUMENT", "NOT_FOUND"), raised.value.details()


def test_there_are_eleven_methods_of_the_registry() -> None:
    assert len(SCHEMA_METHODS) == 11


def raw(upstream: Upstream, path: str, body: bytes) -> bytes:
    call = upstream.channel.unary_unary(path)
    answer: bytes = call(body, timeout=TIMEOUT_S)
    return answer


@pytest.mark.parametrize("path", ["/danube.ProducerService/Nothing", "/danube.Nothing/SendMessage", "/danube.auth/x"])
def test_unknown_methods_are_unimplemented(upstream: Upstream, path: str) -> None:
    fails("UNIMPLEMENTED", lambda: raw(upstream, path, b""), path)


@pytest.mark.parametrize(
    "path", ["ProducerService/CreateProducer", "ProducerService/SendMessage", "Discovery/TopicLookup"]
)
def test_bytes_that_are_no_message_are_invalid(upstream: Upstream, path: str) -> None:
    fails("INVALID_ARGUMENT", lambda: raw(upstream, f"/danube.{path}", b"\xff\xff\xff"))


def test_native_methods_are_not_called_in_protobuf(upstream: Upstream) -> None:
    fails("UNIMPLEMENTED", lambda: raw(upstream, "/danube.native.v1.Topics/List", b""), "msgpack")


def test_metadata_of_clients_is_taken_and_grants_nothing(upstream: Upstream, topic: str, sending: int) -> None:
    """There is no authentication, so tokens are ignored; and a client cannot claim to be a broker."""
    metadata = [
        ("authorization", "Bearer not.a.token"),
        ("x-danube-broker-url", "http://elsewhere:6650/"),
        ("x-danube-internal-broker", "broker-1"),
    ]
    request = pb.StreamMessage(msg_id=pb.MsgID(producer_id=sending, topic_name=topic), payload=b"x")
    upstream.producers.SendMessage(request, timeout=TIMEOUT_S, metadata=metadata)
    assert upstream.stored(topic) == 1
    request.msg_id.producer_id += 1
    send = lambda: upstream.producers.SendMessage(request, timeout=TIMEOUT_S, metadata=metadata)  # noqa: E731
    fails("UNAVAILABLE", send)


def test_a_deadline_is_kept(upstream: Upstream, topic: str, sending: int) -> None:
    """A rate holds messages back for longer than their calls have time."""
    upstream.native(lambda client: client.admin.change_policies(topic, publish_rate=Rate(messages_per_s=1)))
    request = pb.StreamMessage(msg_id=pb.MsgID(producer_id=sending, topic_name=topic), payload=b"x")
    begun = time.monotonic()
    calls = []
    for _ in range(10):
        calls.append(upstream.producers.SendMessage.future(request, timeout=1.0))
        time.sleep(0.01)
    statuses = {call.code().name for call in calls}  # waits for the end of each
    assert "DEADLINE_EXCEEDED" in statuses <= {"OK", "DEADLINE_EXCEEDED"}
    assert time.monotonic() - begun < 5
