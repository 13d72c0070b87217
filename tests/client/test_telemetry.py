"""Traces and metrics of the client, collected by OpenTelemetry's SDK, against running brokers."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from telemetry_helpers import Collected, connected, linked, told, traceparent

import danube
from danube.client import Client, Message
from danube.client._instruments import NOT_TRACED
from danube.model.batch import Record
from danube.model.errors import ConfigurationError, InvalidArgumentError, RequestFailedError

pytestmark = pytest.mark.virtual

ORDERS = "/default/orders"
LETTERS = "/default/orders-billing-dlq"


def traced(running: RunningBroker, collected: Collected) -> AbstractAsyncContextManager[Client]:
    """Return a client of a simulated broker."""
    return danube.connect(running.url, environment=running.environment, telemetry=collected.telemetry)


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.close()


async def test_a_message_carries_the_context_of_its_span(tmp_path: Path, collected: Collected) -> None:
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(ORDERS) as producer:
            with collected.tracer.start_as_current_span("checkout") as checkout:
                await producer.send(b"one", attributes={"kind": "order"})
            await producer.send_many([b"two", b"three"])
            await producer.send_nowait(b"four")
        async with client.consumer(ORDERS, subscription="billing", start="earliest") as consumer:
            messages = [await consumer.receive() for _ in range(4)]
        one, many, nowait = collected.spans("send ")
        assert one.name == "send /default/orders"
        assert one.kind == SpanKind.PRODUCER
        assert one.parent is not None
        assert one.parent.span_id == checkout.get_span_context().span_id
        assert messages[0].attributes == {"kind": "order", "traceparent": traceparent(one)}
        assert [message.attributes for message in messages[1:3]] == [{"traceparent": traceparent(many)}] * 2
        assert messages[3].attributes == {"traceparent": traceparent(nowait)}
        assert told(one) == {
            "system": "danube",
            "operation.type": "send",
            "operation.name": "send",
            "destination.name": ORDERS,
            "message.id": "0:0",
        }
        assert told(many)["batch.message_count"] == 2
        assert told(nowait)["operation.name"] == "send_nowait"


async def test_what_is_received_is_linked_and_counted(tmp_path: Path, collected: Collected) -> None:
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(ORDERS) as producer:
            await producer.send_many([b"a", b"b"])
            await producer.send_many([b"c"])
        async with client.consumer(ORDERS, subscription="billing", start="earliest") as consumer:
            async for batch in consumer.batches(until_caught_up=True):
                with consumer.processing(batch):
                    await batch.ack()
        sent = [span.context.span_id for span in collected.spans("send ")]
        received, processed = collected.spans("receive "), collected.spans("process ")
        assert [span.kind for span in (received[0], processed[0])] == [SpanKind.CLIENT, SpanKind.CONSUMER]
        assert [span_id for span in received for span_id in linked(span)] == sent
        assert [span_id for span in processed for span_id in linked(span)] == sent
        assert all(span.parent is None for span in processed), "a batch has several origins: links, no parent"
        assert sum(told(span)["batch.message_count"] for span in received) == 3
        settled = collected.spans("settle ")
        assert [span.parent.span_id for span in settled if span.parent] == [s.context.span_id for s in processed]
        assert told(settled[0])["operation.name"] == "ack"
        ((labels, point),) = collected.points("messaging.client.sent.messages")
        assert point.value == 3
        assert labels["messaging.destination.name"] == ORDERS
        ((labels, point),) = collected.points("messaging.client.consumed.messages")
        assert point.value == 3
        assert labels["messaging.destination.subscription.name"] == "billing"
        ((_, point),) = collected.points("messaging.process.duration")
        assert point.count == len(processed)
        kinds = {
            labels["messaging.operation.type"] for labels, _ in collected.points("messaging.client.operation.duration")
        }
        assert kinds == {"send", "receive", "settle"}


async def test_a_message_goes_on_with_its_trace_unless_there_is_another_span(
    tmp_path: Path, collected: Collected
) -> None:
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(ORDERS) as producer, client.producer("/default/bills") as bills:
            token = context.attach(baggage.set_baggage("tenant", "a b"))
            await producer.send(b"one")
            context.detach(token)
            await producer.send(b"two")
            async with client.consumer(ORDERS, subscription="billing", start="earliest") as consumer:
                with consumer.processing(await consumer.receive()):
                    assert baggage.get_baggage("tenant") == "a b"
                    await bills.send(b"bill")
                with (
                    collected.tracer.start_as_current_span("loop") as loop,
                    consumer.processing(await consumer.receive()),
                ):
                    pass
        assert baggage.get_baggage("tenant") is None
        one, two = collected.spans("send /default/orders")
        first, second = collected.spans("process ")
        assert first.parent is not None
        assert first.parent.span_id == one.context.span_id
        assert first.parent.is_remote
        bill = collected.span("send /default/bills")
        assert bill.parent is not None
        assert bill.parent.span_id == first.context.span_id
        assert bill.context.trace_id == one.context.trace_id
        assert second.parent is not None
        assert second.parent.span_id == loop.get_span_context().span_id
        assert linked(second) == [two.context.span_id]


async def replay(client: Client) -> None:
    """Send dead letters back with the attributes of their originals, as ``danube dlq replay`` does."""
    from danube.cli._dead_letters import own_attributes

    async with (
        client.producer(ORDERS) as producer,
        client.consumer(LETTERS, subscription="replay", start="earliest") as letters,
    ):
        letter = await letters.receive()
        with letters.processing(letter):
            await producer.send(letter.payload, attributes=own_attributes(letter.attributes))
            await letter.ack()


async def test_a_failure_its_dead_letter_and_its_replay_are_one_linked_trace(
    tmp_path: Path, collected: Collected
) -> None:
    policy = {"max_redelivery_count": 1, "redelivery_delay_s": 0.1, "poison": "dead_letter"}
    outcomes: list[bytes] = []

    async def handle(message: Message) -> None:
        if len(outcomes) < 2:
            outcomes.append(b"refused")
            raise ValueError("no such customer")
        outcomes.append(message.payload)

    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(LETTERS):
            pass
        async with (
            client.producer(ORDERS) as producer,
            client.consumer(ORDERS, subscription="billing", start="earliest", policy=policy) as consumer,
            trio.open_nursery() as nursery,
        ):
            await producer.send(b"order")
            nursery.start_soon(replay, client)
            while len(outcomes) < 3:
                message = await consumer.receive()
                with consumer.processing(message) as processing:
                    try:
                        await handle(message)
                    except ValueError as error:
                        processing.failed(error)
                        await message.nack(reason=str(error))
                    else:
                        await message.ack()
        assert outcomes == [b"refused", b"refused", b"order"]
        assert connected(collected.spans())
        sent, again = collected.spans("send ")
        refused, retried, accepted = [span for span in collected.spans("process ") if span.name == f"process {ORDERS}"]
        for span in (refused, retried, accepted):
            assert span.context.trace_id == sent.context.trace_id, "all handling of an order is one trace"
        assert told(retried)["danube.delivery_attempt"] == 2
        assert [span.status.status_code for span in (refused, retried, accepted)] == [
            StatusCode.ERROR,
            StatusCode.ERROR,
            StatusCode.UNSET,
        ]
        assert (refused.attributes or {})["error.type"] == "ValueError"
        letter = collected.span(f"process {LETTERS}")
        assert letter.parent is None
        assert linked(letter) == [sent.context.span_id]
        assert linked(again) == [sent.context.span_id], "the replay keeps the context of the original"


async def test_a_responder_goes_on_with_the_trace_of_the_requester(tmp_path: Path, collected: Collected) -> None:
    async def answer(request: Message) -> bytes:
        with collected.tracer.start_as_current_span("look up"):
            if request.payload == b"?":
                raise KeyError("nothing")
            return b"42"

    async with (
        running_broker(tmp_path) as running,
        traced(running, collected) as client,
        client.responder("/default/rpc", answer),
        client.requester("/default/rpc") as rpc,
    ):
        with collected.tracer.start_as_current_span("question") as question:
            assert (await rpc.request(b"x")).payload == b"42"
        with pytest.raises(RequestFailedError):
            await rpc.request(b"?")
    trace_id = question.get_span_context().trace_id
    names = [span.name for span in collected.spans() if span.context.trace_id == trace_id]
    assert collected.spans("receive /default/rpc-replies") == [], "replies are mostly those of others"
    assert names == [
        "send /default/rpc",
        "look up",
        "send /default/rpc-replies",
        "settle /default/rpc",
        "process /default/rpc",
        "question",
    ]
    assert [span.status.status_code for span in collected.spans("process ")] == [StatusCode.UNSET, StatusCode.ERROR]


async def test_a_reader_is_traced_without_settling_and_a_requester_has_no_spans_of_others(
    tmp_path: Path, collected: Collected
) -> None:
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(ORDERS) as producer:
            await producer.send(b"one")
            await producer.send_many([b"two", b"three"])
        async with client.reader(ORDERS, start="earliest") as reader, client.producer("/default/bills") as bills:
            first = await reader.receive()
            with reader.processing(first):
                await bills.send(b"bill")
            async for batch in reader.batches(until_caught_up=True):
                with reader.processing(batch):
                    pass
            await client.admin.delete_topic(ORDERS)
            with pytest.raises(danube.model.errors.DanubeError):
                await reader.receive()
    one, many = collected.spans(f"send {ORDERS}")
    received, processed = collected.spans("receive "), collected.spans("process ")
    assert [span_id for span in received for span_id in linked(span)] == [one.context.span_id, many.context.span_id]
    assert [told(span).get("batch.message_count") for span in received] == [1, 2, None]
    assert (received[-1].attributes or {})["error.type"] == "TopicNotFoundError"
    assert "destination.subscription.name" not in told(received[0])
    assert processed[0].parent is not None
    assert processed[0].parent.span_id == one.context.span_id
    assert linked(processed[1]) == [many.context.span_id]
    assert collected.span("send /default/bills").context.trace_id == one.context.trace_id
    assert collected.spans("settle ") == []
    ((_, point),) = collected.points("messaging.client.consumed.messages")
    assert point.value == 3


async def test_stages_and_their_commit_are_linked_whoever_makes_them(tmp_path: Path, collected: Collected) -> None:
    """The stages come back as from another process; messages with a context of their own keep it."""
    parts = [f"{ORDERS}-part-{number}" for number in range(2)]
    own = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        await client.admin.create_topic(ORDERS, partitions=2)
        staged = []
        with collected.tracer.start_as_current_span("task") as task:
            async with (
                client.stages.open(parts[0], producer="job", batch_id=0) as first,
                client.stages.open(parts[1], producer="job", batch_id=0) as second,
            ):
                await first.add([b"a", b"b"])
                await second.add([Record(b"c", b"k", {"x": "y"}), Record(b"d", None, own)])
                with pytest.raises(InvalidArgumentError, match="either bytes or Records"):
                    await second.add([b"e", Record(b"f")])  # type: ignore[list-item]
                staged = [await first.finish(), await second.finish()]
        again = [pickle.loads(pickle.dumps(each)) for each in staged]
        outcome = await client.stages.commit("job", 0, again)
        repeated = await client.stages.commit("job", 0, again)
        assert (outcome.committed, repeated.committed) == (True, False)
        async with client.reader(ORDERS, start="earliest") as reader:
            messages = {message.payload: message for message in [await reader.receive() for _ in range(4)]}
            with reader.processing(messages[b"a"]):
                pass
        with pytest.raises(InvalidArgumentError):
            await client.stages.commit("job", 1, "no list")  # type: ignore[arg-type]
    one, two = sorted(collected.spans("create "), key=lambda span: span.name)
    assert (one.name, one.kind, told(one)["batch.message_count"]) == (f"create {parts[0]}", SpanKind.PRODUCER, 2)
    assert told(one)["operation.name"] == "stage"
    assert [span.parent.span_id for span in (one, two) if span.parent] == [task.get_span_context().span_id] * 2
    assert messages[b"a"].attributes == {"traceparent": traceparent(one)}
    assert messages[b"c"].attributes == {"traceparent": traceparent(two), "x": "y"}
    assert messages[b"c"].key == "k"
    assert messages[b"d"].attributes == own
    process = collected.span("process ")
    assert process.parent is not None
    assert process.parent.span_id == one.context.span_id
    sent = collected.spans("send ")
    assert [span.name for span in sent] == [f"send {ORDERS}"] * 2 + ["send job"]
    assert set(linked(sent[0])) == {one.context.span_id, two.context.span_id}
    assert (told(sent[0])["operation.name"], told(sent[0])["batch.message_count"]) == ("commit", 4)
    assert sent[2].status.status_code == StatusCode.ERROR
    points = collected.points("messaging.client.sent.messages")
    assert sum(point.value for _, point in points) == 4, "the repetition has sent nothing"


async def test_a_stage_that_is_left_by_an_error_has_failed_and_off_it_stages_bare_payloads(tmp_path: Path) -> None:
    off, on = Collected(ALWAYS_OFF), Collected()
    async with running_broker(tmp_path) as running:
        await create(running, ORDERS)
        async with traced(running, on) as client:
            with pytest.raises(KeyError):
                async with client.stages.open(ORDERS, producer="job", batch_id=0) as stage:
                    raise KeyError("no such customer")
        assert (on.span("create ").attributes or {})["error.type"] == "KeyError"
        async with traced(running, off) as client:
            async with client.stages.open(ORDERS, producer="job", batch_id=1) as stage:
                await stage.add([b"a", b"b"])
                staged = await stage.finish()
            assert staged.traceparent == ""
            assert (await client.stages.commit("job", 1, [staged])).committed
            async with client.reader(ORDERS, start="earliest") as reader:
                assert (await reader.receive_batch())._records is None, "the fast format of bare payloads"
    assert off.spans() == []
    for each in (off, on):
        each.close()


async def create(running: RunningBroker, topic: str) -> None:
    async with running.client() as client:
        await client.admin.create_topic(topic)


async def test_spans_that_do_not_record_leave_messages_as_they_are(tmp_path: Path) -> None:
    collected = Collected(ALWAYS_OFF)
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(ORDERS) as producer:
            await producer.send(b"one")
            await producer.send_many([b"two"])
        async with client.consumer(ORDERS, subscription="billing", start="earliest") as consumer:
            batch = await consumer.receive_batch()
            assert batch._records is None, "the fast format of bare payloads"
            with consumer.processing(batch):
                await batch.ack()
    assert collected.spans() == []
    assert sum(point.value for _, point in collected.points("messaging.client.sent.messages")) == 2
    collected.close()


@pytest.mark.parametrize(
    "given",
    [{"traceparent": "00-garbage"}, {"traceparent": "", "tracestate": "=,"}, {"baggage": "%%%=x", "tracestate": "a=b"}],
)
async def test_malformed_contexts_of_others_are_ignored(
    tmp_path: Path, collected: Collected, given: Mapping[str, str]
) -> None:
    async with running_broker(tmp_path) as running:
        async with running.client() as other, other.producer(ORDERS) as producer:
            await producer.send(b"one", attributes=dict(given))
        async with (
            traced(running, collected) as client,
            client.consumer(ORDERS, subscription="billing", start="earliest") as consumer,
        ):
            message = await consumer.receive()
            with consumer.processing(message):
                await message.ack()
    process = collected.span("process ")
    assert (process.parent, linked(process)) == (None, [])


async def test_failures_are_recorded(tmp_path: Path, collected: Collected) -> None:
    async with running_broker(tmp_path) as running, traced(running, collected) as client:
        async with client.producer(ORDERS) as producer:
            with pytest.raises(InvalidArgumentError):
                await producer.send("text")
            with pytest.raises(InvalidArgumentError):
                await producer.send(b"", attributes=["no dict"])
        async with client.consumer(ORDERS, subscription="billing") as consumer:
            with trio.move_on_after(1):
                await consumer.receive()
            await client.admin.delete_topic(ORDERS)
            with pytest.raises(danube.model.errors.DanubeError):
                await consumer.receive()
    first, second = collected.spans("send ")
    assert [(span.attributes or {})["error.type"] for span in (first, second)] == ["InvalidArgumentError"] * 2
    assert first.status.status_code == StatusCode.ERROR
    assert collected.span("receive ").status.status_code == StatusCode.ERROR, "a cancelled wait is no operation"
    assert trace.get_current_span().get_span_context().is_valid is False


async def test_without_telemetry_there_is_no_other_code(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer(ORDERS) as producer:
            await producer.send(b"one")
            assert type(producer).__name__ == "Producer"
        async with client.consumer(ORDERS, subscription="billing", start="earliest") as consumer:
            message = await consumer.receive()
            with consumer.processing(message) as processing:
                processing.failed("nothing happens")
                await message.ack()
            assert message.attributes is None
            assert message._batch._records is None, "the fast format of bare payloads"
        async with client.reader(ORDERS, start="earliest") as reader:
            assert type(reader).__name__ == "Reader"
            with reader.processing(await reader.receive()) as processing:
                assert processing is NOT_TRACED, "no object is made"
        assert type(client.stages).__name__ == "Stages"
        async with client.stages.open(ORDERS, producer="job", batch_id=0) as stage:
            assert type(stage).__name__ == "Stage"
    with pytest.raises(ConfigurationError, match="telemetry is a Telemetry, not str"):
        async with danube.connect(telemetry="on"):  # type: ignore[arg-type]
            pass


@pytest.mark.real("a process of its own")
def test_nothing_of_it_is_imported_unless_it_is_used() -> None:
    program = (
        "import sys, danube.client, danube.client.sync\n"
        "assert not [name for name in sys.modules if 'telemetry' in name]\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n    danube.Telemetry\n"
        "except danube.model.errors.ConfigurationError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'danube-broker[otel]'" in done.stdout
