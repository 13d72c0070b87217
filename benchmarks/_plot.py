"""The result as a picture: for each scenario a bar for every system, on a logarithmic scale."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from benchmarks._render import number
from benchmarks._results import RunResult

__all__ = ["plot"]

COLOURS = {
    "danube": "#1f6feb",
    "jetstream": "#2da44e",
    "redis": "#cf222e",
    "redis-benchmark": "#8b949e",
    "grpc-aio": "#8250df",
}
COLUMNS = 3


def plot(result: RunResult, path: Path) -> str | None:
    """Write a PNG. Returns the reason if it cannot be drawn."""
    if find_spec("matplotlib") is None:
        return "no plot: pip install matplotlib"
    scenarios = [one for one in result.scenarios if one.measurements]
    if not scenarios:
        return "no plot: nothing was measured"
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    columns = min(COLUMNS, len(scenarios))
    rows = -(-len(scenarios) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 3.4 * rows), squeeze=False)
    for axis in axes.flat[len(scenarios) :]:
        axis.set_axis_off()
    for axis, scenario in zip(axes.flat, scenarios, strict=False):
        # Memory has one system and several metrics; everything else several systems and one leading metric.
        several = len(scenario.measurements) == 1
        metrics = scenario.metrics if several else scenario.metrics[:1]
        bars = [
            (metric if several else one.system, summary, COLOURS.get(one.system, "#57606a"))
            for one in scenario.measurements
            for metric in metrics
            if (summary := one.summary(metric)) is not None
        ]
        if not bars:
            axis.set_axis_off()
            continue
        heights = [max(summary.median, 0.01) for _, summary, _ in bars]
        below = [max(0.0, summary.median - summary.low) for _, summary, _ in bars]
        above = [summary.high - summary.median for _, summary, _ in bars]
        places = range(len(bars))
        drawn = axis.bar(places, heights, yerr=[below, above], color=[colour for _, _, colour in bars], capsize=3)
        axis.bar_label(drawn, [number(height) for height in heights], fontsize=8)
        axis.set_xticks(list(places), [name for name, _, _ in bars], fontsize=8)
        axis.set_yscale("log")
        axis.set_ylim(min(heights) / 5, max(heights) * 3)
        axis.set_title(f"{scenario.name}: {', '.join(metrics) if not several else 'MB'}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return None
