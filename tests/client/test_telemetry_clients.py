# ruff: noqa: SIM117 - a nested "with" shows what is inside of what
"""Telemetry under asyncio and in the blocking client, and a replay by the command line: real brokers and sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Literal

import pytest
from brokers import BrokerProcess
from opentelemetry import trace
from telemetry_helpers import Collected, connected, linked
from typer.testing import CliRunner

import danube
from danube.cli.app import app
from danube.client import sync


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), "--log-level", "warning") as running:
        yield running


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.close()


def test_asyncio(broker: BrokerProcess, collected: Collected) -> None:
    topic, bills = "/default/aio", "/default/aio-bills"

    async def main() -> None:
        async with danube.connect(broker.url, telemetry=collected.telemetry) as client:
            async with client.producer(topic) as producer, client.producer(bills) as billing:
                with collected.tracer.start_as_current_span("checkout"):
                    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(3)))
                async with client.consumer(topic, subscription="s", start="earliest") as consumer:
                    for _ in range(3):
                        message = await consumer.receive()
                        with consumer.processing(message):
                            await billing.send(message.payload)
                            await message.ack()

    asyncio.run(main())
    spans = [span for kind in ("checkout", "send", "process", "settle") for span in collected.spans(kind)]
    assert len(spans) == 1 + 3 + 3 + 3 + 3
    assert len({span.context.trace_id for span in spans}) == 1


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_blocking(broker: BrokerProcess, collected: Collected, backend: Literal["asyncio", "trio"]) -> None:
    topic, bills = f"/default/sync-{backend}", f"/default/sync-{backend}-bills"
    with sync.connect(broker.url, backend=backend, telemetry=collected.telemetry) as client:
        with client.producer(topic) as producer, collected.tracer.start_as_current_span("checkout"):
            for number in range(4):
                producer.send(b"%d" % number)
        with client.consumer(topic, subscription="s", start="earliest") as consumer, client.producer(bills) as billing:
            messages = [consumer.receive(timeout_s=30) for _ in range(4)]

            def handle(message: sync.Message) -> None:
                with consumer.processing(message):
                    billing.send(message.payload)
                    message.ack() if message.offset % 2 else message.nack()

            threads = [threading.Thread(target=handle, args=(message,)) for message in messages]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    (checkout,) = collected.spans("checkout")
    sent = {span.context.span_id for span in collected.spans(f"send {topic}") if not span.name.endswith("bills")}
    processed = {span.context.span_id: span for span in collected.spans("process ")}
    assert len(sent) == len(processed) == 4
    assert {span.parent.span_id for span in processed.values() if span.parent} == sent
    for kind in (f"send {bills}", f"settle {topic}"):
        spans = collected.spans(kind)
        assert sorted(span.parent.span_id for span in spans if span.parent) == sorted(processed), kind
        assert {span.context.trace_id for span in spans} == {checkout.context.trace_id}
    names = [(span.attributes or {})["messaging.operation.name"] for span in collected.spans("settle ")]
    assert sorted(map(str, names)) == ["ack", "ack", "nack", "nack"]


def test_blocking_stages_and_readers(broker: BrokerProcess, collected: Collected) -> None:
    topic = "/default/sync-staged"
    with sync.connect(broker.url, telemetry=collected.telemetry) as client:
        client.admin.create_topic(topic)
        with collected.tracer.start_as_current_span("task") as task:
            with client.stages.open(topic, producer="sync-job", batch_id=0) as stage:
                stage.add([b"a", b"b"])
                staged = stage.finish()
            client.stages.commit("sync-job", 0, [staged])
        with client.reader(topic, start="earliest") as reader:
            with reader.processing(reader.receive(timeout_s=30)):
                pass
    (created,), (sent,), (processed,) = (collected.spans(kind) for kind in ("create ", "send ", "process "))
    assert [span.parent.span_id for span in (created, sent) if span.parent] == [task.get_span_context().span_id] * 2
    assert linked(sent) == [created.context.span_id]
    assert processed.parent is not None
    assert processed.parent.span_id == created.context.span_id


def test_a_blocking_responder_goes_on_with_the_trace(broker: BrokerProcess, collected: Collected) -> None:
    within: list[int] = []

    def answer(request: sync.Message) -> bytes:
        within.append(trace.get_current_span().get_span_context().trace_id)
        return b"42"

    with (
        sync.connect(broker.url, telemetry=collected.telemetry) as client,
        client.responder("/default/sync-rpc", answer),
        client.requester("/default/sync-rpc") as rpc,
        collected.tracer.start_as_current_span("question") as question,
    ):
        assert rpc.request(b"x", timeout_s=30).payload == b"42"
    assert within == [question.get_span_context().trace_id]


def test_a_replay_by_the_command_line_stays_in_the_trace(broker: BrokerProcess, collected: Collected) -> None:
    topic = "/default/replayed"
    policy = {"max_redelivery_count": 0, "poison": "dead_letter"}
    with sync.connect(broker.url, telemetry=collected.telemetry) as client, client.producer(topic) as producer:
        with client.consumer(topic, subscription="s", start="earliest", policy=policy) as consumer:
            client.admin.create_topic(f"{topic}-s-dlq")
            producer.send(b"order")
            message = consumer.receive(timeout_s=30)
            with consumer.processing(message) as processing:
                processing.failed("refused")
                message.nack(reason="refused")
            with client.reader(f"{topic}-s-dlq", start="earliest") as letters:
                letter = letters.receive(timeout_s=30)
            assert letter.attributes is not None
            assert message.attributes is not None
            assert letter.attributes["traceparent"] == message.attributes["traceparent"]
            done = CliRunner().invoke(app, ["dlq", "replay", f"{topic}-s-dlq"], env={"DANUBE_URL": broker.url})
            assert done.exit_code == 0, done.output
            again = consumer.receive(timeout_s=30)
            assert again.attributes == message.attributes
            with consumer.processing(again):
                again.ack()
    assert connected(collected.spans())
    (sent,) = collected.spans("send ")
    processed = collected.spans("process ")
    assert [span.parent.span_id for span in processed if span.parent] == [sent.context.span_id] * 2
    received = collected.spans("receive ")
    assert [linked(span) for span in received] == [[sent.context.span_id]] * 3, "the order, its dead letter, and again"
