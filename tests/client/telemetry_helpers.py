"""Collects the spans and metrics of a client with OpenTelemetry's SDK."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

import danube


class Collected:
    """A telemetry, and the spans and metrics that it has collected."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.tracer = provider.get_tracer("application")
        self._meters = MeterProvider([self._reader])
        self.telemetry = danube.Telemetry(provider, self._meters)

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]

    def span(self, name: str) -> ReadableSpan:
        (found,) = self.spans(name)
        return found

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            (dict(point.attributes or {}), point)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def close(self) -> None:
        self._meters.shutdown()


def traceparent(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def told(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def connected(spans: list[ReadableSpan]) -> bool:
    """Whether spans hang together by parents and links."""
    near: dict[int, set[int]] = {span.context.span_id: set() for span in spans}
    for span in spans:
        others = linked(span) + ([span.parent.span_id] if span.parent else [])
        for other in others:
            near[span.context.span_id].add(other)
            near[other].add(span.context.span_id)
    seen: set[int] = set()
    left = [spans[0].context.span_id]
    while left:
        if (one := left.pop()) not in seen:
            seen.add(one)
            left += near[one]
    return len(seen) == len(spans)
