"""The native API of the metrics: one call, whose answer is their text.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the end with a default.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["GetMetrics", "MetricsMethod", "MetricsText"]


class MetricsMethod:
    """Paths of the calls."""

    METRICS: Final = "/danube.native.v1.Broker/Metrics"


class GetMetrics(msgspec.Struct, array_like=True, gc=False):
    """Asks for the metrics of the broker. Answered with MetricsText."""

    detailed: bool = False
    """Only the series of topics, subscriptions and consumers, each partition by itself."""
    topic: str = "*"
    """For ``detailed``: a pattern of names of topics; ``*`` matches any characters, slashes included."""
    openmetrics: bool = False
    """OpenMetrics 1.0; else the Prometheus text format 0.0.4."""


class MetricsText(msgspec.Struct, array_like=True, gc=False):
    """The metrics of one broker."""

    text: bytes
    """UTF-8."""
