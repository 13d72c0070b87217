"""``danube metrics``: prints the metrics of a broker, as Prometheus reads them."""

from __future__ import annotations

from typing import Annotated

import typer

from danube.cli._client import run_with_client
from danube.cli._context import ContextOption, UrlOption

__all__ = ["metrics"]


def metrics(
    detailed: Annotated[
        bool, typer.Option("--detailed", help="Only topics, subscriptions and consumers, each partition by itself.")
    ] = False,
    topic: Annotated[
        str,
        typer.Option("--topic", metavar="GLOB", help="With --detailed: only topics whose names match; * matches all."),
    ] = "",
    openmetrics: Annotated[bool, typer.Option("--openmetrics", help="Print OpenMetrics instead.")] = False,
    url: UrlOption = None,
    context: ContextOption = None,
) -> None:
    """Print the metrics of the broker, in the text format of Prometheus.

    Without --detailed: all series of the broker, and those of its busiest topics (limit metrics_topics); the others are
    summed as _other. With it: at most metrics_series series.
    """
    if topic and not detailed:
        raise typer.BadParameter("it is for --detailed; give both", param_hint="--topic")
    found = run_with_client(
        lambda client: client.admin.metrics(detailed=detailed, topic=topic or "*", openmetrics=openmetrics),
        url,
        context,
    )
    print(found, end="")
