"""Traces and metrics of a client, by OpenTelemetry. Imported only when an application makes a :class:`Telemetry`.

Those of staged publishing are in :mod:`danube.client._stage_spans`.

Only OpenTelemetry's API is needed here; without an SDK, which the application chooses, its spans record nothing. The
context goes into a message only if its span records, because a batch with attributes is larger and slower than one of
bare payloads.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from danube.client._consumer import Consumer
from danube.client._delivered import BareMessage
from danube.client._encoding import EncodingProducer
from danube.client._instruments import Processing
from danube.client._producer import Producer
from danube.client._reader import Reader
from danube.client._spans import (
    BUCKETS_S,
    TRACEPARENT,
    Destination,
    carried,
    carriers,
    continues,
    message_id,
    operation,
)
from danube.model.errors import ConfigurationError
from danube.model.version import __version__

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.baggage.propagation import W3CBaggagePropagator
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ConfigurationError(
        "telemetry needs the API of OpenTelemetry, which is not installed; run: pip install 'danube-broker[otel]'"
    ) from error

if TYPE_CHECKING:
    from datetime import datetime

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from danube.client._delivered import DeliveredBatch, Source
    from danube.client._message import Batch
    from danube.client._payloads import BytesLike
    from danube.client._pool import Pool
    from danube.client._receipt import Pending
    from danube.client._receipts import RangeReceipt, Receipt
    from danube.client._stages import Stages

__all__ = ["Operation", "Telemetry", "carrier_of", "links_of"]

_TRACE = TraceContextTextMapPropagator()
_BAGGAGE = W3CBaggagePropagator()


class Telemetry:
    """Traces and measures a client: ``danube.connect(url, telemetry=danube.Telemetry())``.

    Safe to use for several clients, and from all threads.

    Args:
        tracer_provider: gets the spans; None: the global one, that of ``opentelemetry.trace.set_tracer_provider``.
        meter_provider: gets the metrics; None: the global one.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer("danube", __version__, tracer_provider)
        meter = metrics.get_meter("danube", __version__, meter_provider)
        self._operations = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sending, receiving and settling.",
            explicit_bucket_boundaries_advisory=BUCKETS_S,
        )
        self._processes = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of handling messages.",
            explicit_bucket_boundaries_advisory=BUCKETS_S,
        )
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages that were sent.")
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that the application has taken."
        )

    def producer(self, *args: Any) -> Producer:
        """Return a producer that is traced and measured."""
        return _TracedProducer(self, *args)

    def encoding_producer(self, *args: Any) -> EncodingProducer[Any]:
        """Return a producer that encodes values, and is traced and measured."""
        return _TracedEncodingProducer(self, *args)

    def consumer(self, *args: Any) -> Consumer:
        """Return a consumer that is traced and measured."""
        return _TracedConsumer(self, *args)

    def reader(self, *args: Any) -> Reader:
        """Return a reader that is traced and measured."""
        return _TracedReader(self, *args)

    def stages(self, pool: Pool) -> Stages:
        """Return stages that are traced and measured."""
        from danube.client._stage_spans import TracedStages

        return TracedStages(self, pool)


class Operation:
    """A span, its duration, and the number of its messages: a ``with`` block."""

    __slots__ = ("_began", "_count", "_counter", "_duration", "_labels", "_token", "span")

    def __init__(
        self,
        telemetry: Telemetry,
        kind: SpanKind,
        attributes: dict[str, str | int],
        *,
        context: Context | None = None,
        links: Sequence[Link] = (),
        count: int = 0,
        began: tuple[int, float] | None = None,
        current: bool = True,
    ) -> None:
        """Begin an operation.

        Args:
            telemetry: of the client.
            kind: of the span.
            attributes: of the span.
            context: of its parent; None: the current one.
            links: of the span.
            count: messages that are counted as sent or consumed.
            began: when it began, by ``time.time_ns`` and ``time.perf_counter``; None: now.
            current: whether its span is the current one within the block; not for one that another task may end.
        """
        type_, topic = attributes["messaging.operation.type"], attributes["messaging.destination.name"]
        self._labels: dict[str, str | int] = {
            name: value
            for name, value in attributes.items()
            if name.startswith("messaging.") and name not in ("messaging.batch.message_count", "messaging.message.id")
        }
        self._count = count
        self._counter = {"send": telemetry._sent, "receive": telemetry._consumed}.get(str(type_))
        self._duration = telemetry._processes if type_ == "process" else telemetry._operations
        started_ns, self._began = (None, time.perf_counter()) if began is None else began
        base = contexts.get_current() if context is None else context
        self.span = telemetry._tracer.start_span(
            f"{type_} {topic}", base, kind, attributes, links, started_ns, record_exception=False
        )
        self._token = contexts.attach(trace.set_span_in_context(self.span, base)) if current else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if error is not None:
            self.failed(error)
        self._duration.record(time.perf_counter() - self._began, self._labels)
        if self._counter is not None and self._count:
            self._counter.add(self._count, self._labels)
        self.span.end()

    def sent(self, count: int) -> None:
        """Count so many messages as sent, once it has ended."""
        self._count = count

    def failed(self, error: BaseException | str) -> None:
        """Note that it has failed."""
        name = error if isinstance(error, str) else type(error).__name__
        self._labels["error.type"] = name
        self.span.set_attribute("error.type", name)
        self.span.set_status(Status(StatusCode.ERROR, None if isinstance(error, str) else str(error)))
        if isinstance(error, Exception):
            self.span.record_exception(error)


class _TracedProducing(Operation):
    """A ``send``."""

    __slots__ = ("attributes",)

    def __init__(
        self, telemetry: Telemetry, destination: Destination, name: str, count: int, attributes: dict[str, str] | None
    ) -> None:
        given = attributes if isinstance(attributes, dict) else None  # anything else is refused by the producer
        super().__init__(
            telemetry,
            SpanKind.PRODUCER,
            operation("send", name, destination, count=None if name == "send" else count),
            links=links_of([carried(given)]),
            count=count,
        )
        self.attributes = attributes if given is None and attributes is not None else _injected(self.span, given)

    def stored(self, receipt: Receipt, *, partitioned: bool) -> None:
        """Note where the message is stored."""
        if self.span.is_recording():
            self.span.set_attribute("messaging.message.id", message_id(receipt.partition, receipt.offset))
            if partitioned:
                self.span.set_attribute("messaging.destination.partition.id", str(receipt.partition))


class _TracedProducer(Producer):
    """A producer with a span for each call, whose context the messages carry."""

    def __init__(self, telemetry: Telemetry, *args: Any) -> None:
        super().__init__(*args)
        self._telemetry = telemetry

    async def send(
        self,
        payload: BytesLike,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Receipt:
        with self._sending("send", 1, attributes) as sending:
            receipt = await super().send(
                payload,
                key=key,
                attributes=sending.attributes,
                deliver_at=deliver_at,
                deliver_after_s=deliver_after_s,
            )
            sending.stored(receipt, partitioned=bool(self.partitions))
            return receipt

    def send_nowait(
        self,
        payload: BytesLike,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> Pending:
        with self._sending("send_nowait", 1, attributes) as sending:
            return self._accept(
                payload,
                key=key,
                attributes=sending.attributes,
                deliver_at=deliver_at,
                deliver_after_s=deliver_after_s,
            )

    async def send_many(
        self,
        payloads: Sequence[BytesLike],
        *,
        key: str | bytes | None = None,
        keys: Sequence[str | bytes | None] | None = None,
        attributes: dict[str, str] | None = None,
        deliver_at: datetime | None = None,
        deliver_after_s: float | None = None,
    ) -> RangeReceipt:
        with self._sending("send_many", len(payloads), attributes) as sending:
            return await super().send_many(
                payloads,
                key=key,
                keys=keys,
                attributes=sending.attributes,
                deliver_at=deliver_at,
                deliver_after_s=deliver_after_s,
            )

    def _sending(self, name: str, count: int, attributes: dict[str, str] | None) -> _TracedProducing:
        return _TracedProducing(self._telemetry, Destination(self.topic), name, count, attributes)


class _TracedEncodingProducer(EncodingProducer[Any], _TracedProducer):
    """The same of values, which are encoded first."""


class _TracedConsumer(Consumer):
    """A consumer with spans for receiving, processing and settling."""

    def __init__(self, telemetry: Telemetry, *args: Any) -> None:
        super().__init__(*args)
        self._telemetry = telemetry

    def processing(self, message: BareMessage[Any] | DeliveredBatch) -> Processing:
        return _TracedProcessing(self._telemetry, self._destination(), message)

    async def ack_cumulative(self, message: BareMessage[Any]) -> None:
        with _settling(self._telemetry, "ack_cumulative", self._destination(), message.partition, message.offset, None):
            await super().ack_cumulative(message)

    async def _next_batch(self, *, until_caught_up: bool, or_message: bool = False) -> Batch | None:
        batch = await _received(
            self._telemetry,
            self._destination,
            partial(super()._next_batch, until_caught_up=until_caught_up, or_message=or_message),
        )
        if batch is not None:
            batch.feed = self._observed(batch.feed)
        return batch

    def _observed(self, source: Source) -> Source:
        return _TracedSource(source, self._telemetry, self._destination())

    def _destination(self) -> Destination:
        return Destination(self.topic, self.subscription, len(self._feeds) > 1)


class _TracedReader(Reader):
    """A reader with spans for receiving and processing."""

    def __init__(self, telemetry: Telemetry, *args: Any) -> None:
        super().__init__(*args)
        self._telemetry = telemetry

    def processing(self, message: BareMessage | DeliveredBatch) -> Processing:
        return _TracedProcessing(self._telemetry, self._destination(), message)

    async def _next_batch(self, *, until_caught_up: bool, or_message: bool = False) -> Batch | None:
        take = partial(super()._next_batch, until_caught_up=until_caught_up, or_message=or_message)
        return await _received(self._telemetry, self._destination, take)

    def _destination(self) -> Destination:
        return Destination(self.topic, "", len(self._feeds) > 1)


async def _received(
    telemetry: Telemetry, destination: Callable[[], Destination], take: Callable[[], Awaitable[Batch | None]]
) -> Batch | None:
    """Take a delivery; a wait that is cancelled, or ends without one, has no span."""
    began = time.time_ns(), time.perf_counter()
    try:
        batch = await take()
    except Exception as error:
        attributes = operation("receive", "receive", destination())
        with Operation(telemetry, SpanKind.CLIENT, attributes, began=began) as receiving:
            receiving.failed(error)
        raise
    if batch is not None:
        attributes = operation("receive", "receive", destination(), batch.partition, len(batch))
        links = links_of(carriers(_attributes_of(batch)))
        with Operation(telemetry, SpanKind.CLIENT, attributes, links=links, count=len(batch), began=began):
            pass  # it was the wait
    return batch


class _TracedProcessing(Processing):
    """A ``process`` span.

    It is a child of the span that sent the message, unless it has a parent where it is: then, and of a batch or a dead
    letter in any case, the two are linked.
    """

    __slots__ = ("_destination", "_message", "_operation", "_telemetry")

    def __init__(
        self, telemetry: Telemetry, destination: Destination, message: BareMessage[Any] | DeliveredBatch
    ) -> None:
        self._telemetry = telemetry
        self._destination = destination
        self._message = message
        self._operation: Operation | None = None

    def __enter__(self) -> Self:
        message = self._message
        context = contexts.get_current()
        if isinstance(message, BareMessage):
            attributes = operation("process", "process", self._destination, message.partition)
            attributes["messaging.message.id"] = message_id(message.partition, message.offset)
            carrier = carried(message.attributes)
            links = links_of([carrier])
            context = _BAGGAGE.extract(carrier, context)
            if links and continues(message.attributes) and not trace.get_current_span().get_span_context().is_valid:
                links, context = [], _TRACE.extract(carrier, context)
        else:
            attributes = operation("process", "process", self._destination, message.partition, len(message))
            links = links_of(carriers(_attributes_of(message)))
        if message.attempt > 1:
            attributes["danube.delivery_attempt"] = message.attempt
        self._operation = Operation(self._telemetry, SpanKind.CONSUMER, attributes, context=context, links=links)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._operation is not None:
            self._operation.__exit__(*error)

    def failed(self, error: BaseException | str) -> None:
        if self._operation is not None:
            self._operation.failed(error)


class _TracedSource:
    """The source of a batch; acknowledging and refusing within a span that records has a span of its own."""

    __slots__ = ("_destination", "_source", "_telemetry", "partition", "topic")

    def __init__(self, source: Source, telemetry: Telemetry, destination: Destination) -> None:
        self._source = source
        self._telemetry = telemetry
        self._destination = destination
        self.topic = source.topic
        self.partition = source.partition

    @property
    def generation(self) -> int:
        return self._source.generation

    @property
    def moves(self) -> int:
        return self._source.moves

    def ack(self, start: int, end: int, moves: int) -> None:
        with self._settling("ack", [start, end]):
            self._source.ack(start, end, moves)

    def nack(self, ranges: list[int], delay_s: float | None, reason: str, moves: int) -> None:
        with self._settling("nack", ranges):
            self._source.nack(ranges, delay_s, reason, moves)

    def extend(self, ranges: list[int], lease_s: float | None, moves: int) -> None:
        self._source.extend(ranges, lease_s, moves)

    def _settling(self, name: str, ranges: list[int]) -> Operation | Processing:
        count = sum(ranges[1::2]) - sum(ranges[::2])
        return _settling(self._telemetry, name, self._destination, self.partition, ranges[0], count)


def _settling(
    telemetry: Telemetry, name: str, destination: Destination, partition: int, offset: int, count: int | None
) -> Operation | Processing:
    """Return the span of an acknowledgement or refusal.

    Outside of a span that records there is none: of millions of acknowledgements each would be a trace of its own.
    """
    if not trace.get_current_span().is_recording():
        return Processing()
    attributes = operation("settle", name, destination, partition, None if count == 1 else count)
    attributes["messaging.message.id"] = message_id(partition, offset)
    return Operation(telemetry, SpanKind.CLIENT, attributes)


def _injected(span: Span, attributes: dict[str, str] | None) -> dict[str, str] | None:
    """Return the attributes of a message with the context of the span that sends it, if that records.

    What the caller gives wins: a copy of a message keeps the context of the original.
    """
    if not span.is_recording() or (attributes is not None and TRACEPARENT in attributes):
        return attributes
    return {**carrier_of(span), **(attributes or {})}


def carrier_of(span: Span) -> dict[str, str]:
    """Return the attributes by which a message carries the context of a span; none if that does not record."""
    carrier: dict[str, str] = {}
    if span.is_recording():
        context = trace.set_span_in_context(span)
        _TRACE.inject(carrier, context)
        _BAGGAGE.inject(carrier, context)
    return carrier


def links_of(found: Sequence[dict[str, str]]) -> list[Link]:
    """Return links with the spans whose contexts messages carry; what is malformed is left out."""
    spans = [trace.get_current_span(_TRACE.extract(carrier, contexts.Context())) for carrier in found if carrier]
    return [Link(span.get_span_context()) for span in spans if span.get_span_context().is_valid]


def _attributes_of(batch: DeliveredBatch) -> list[dict[str, str] | None]:
    """Return the attributes of a batch's messages, without creating messages; empty if none has any."""
    return [record.attributes for record in batch._records or ()]
