"""Handlers of what monitoring systems ask for: health and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from danube.http import Response
from danube.model.metrics_api import GetMetrics, MetricsMethod
from danube.web.caller import ApiCall

if TYPE_CHECKING:
    from danube.broker.faces import ServedProbe
    from danube.web.administration import Handler

__all__ = ["HANDLERS"]


async def livez(call: ApiCall) -> Response:
    """Tell whether the broker lives."""
    await trio.lowlevel.checkpoint()
    return _probed(call.broker.health().live)


async def readyz(call: ApiCall) -> Response:
    """Tell whether clients should come."""
    await trio.lowlevel.checkpoint()
    return _probed(call.broker.health().ready)


async def startupz(call: ApiCall) -> Response:
    """Tell whether the start is over."""
    await trio.lowlevel.checkpoint()
    return _probed(call.broker.health().started)


def _probed(probe: ServedProbe) -> Response:
    return Response(200 if probe.ok else 503, probe.text.encode(), content_type="text/plain; charset=utf-8")


async def show_metrics(call: ApiCall) -> Response:
    """Return totals, and the series of the busiest topics."""
    return await _metrics(call, GetMetrics())


async def show_detailed_metrics(call: ApiCall) -> Response:
    """Return the series of topics, one for each partition, subscription and consumer."""
    return await _metrics(call, GetMetrics(detailed=True, topic=call.values["topic"]))


async def _metrics(call: ApiCall, request: GetMetrics) -> Response:
    from danube.metrics.text import OPENMETRICS_TYPE, TEXT_TYPE, wants_openmetrics  # not every broker is scraped

    request.openmetrics = wants_openmetrics(call.request.headers.get("accept", ""))
    answer = await call.native(MetricsMethod.METRICS, request)
    return Response(200, answer.text, content_type=OPENMETRICS_TYPE if request.openmetrics else TEXT_TYPE)


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (livez, readyz, startupz, show_metrics, show_detailed_metrics)
}
