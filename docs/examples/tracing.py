"""One trace across a topic: the order, its handling, and the bill that follows from it.

::

    pip install 'danube-broker[otel]' opentelemetry-sdk
    danube serve &
    python docs/examples/tracing.py

On a new broker it prints::

    checkout
      send /default/traced-orders
        process /default/traced-orders
          send /default/traced-bills
          settle /default/traced-orders

Here the SDK of OpenTelemetry collects the spans in memory. An application gives them to its exporter instead, and opens
its client with ``telemetry=danube.Telemetry()``, which takes the global provider.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import danube

ORDERS, BILLS = "/default/traced-orders", "/default/traced-bills"


async def main(url: str, provider: TracerProvider) -> None:
    tracer = provider.get_tracer("shop")
    async with (
        danube.connect(url, telemetry=danube.Telemetry(provider)) as client,
        client.producer(ORDERS) as orders,
        client.producer(BILLS) as bills,
        client.consumer(ORDERS, subscription="billing", start="earliest") as consumer,
    ):
        with tracer.start_as_current_span("checkout"):
            await orders.send(b"3 books")
        message = await consumer.receive()
        with consumer.processing(message):  # goes on with the trace in which the message was sent
            await bills.send(b"36.00 for " + message.payload)
            await message.ack()


def show(spans: Sequence[ReadableSpan], parent: int | None = None, indent: str = "") -> None:
    """Print spans as a tree, in the order in which they began."""
    for span in sorted(spans, key=lambda span: span.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent:
            print(f"{indent}{span.name}")
            show(spans, span.context.span_id if span.context else None, f"{indent}  ")


if __name__ == "__main__":
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "danube://127.0.0.1:6650", provider)
    show([span for span in exporter.get_finished_spans() if not span.name.startswith("receive ")])
