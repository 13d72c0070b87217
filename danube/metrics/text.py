"""Writes series as text: the Prometheus text format 0.0.4, or OpenMetrics 1.0. Pure.

Both formats want all series of a family together, but a broker collects them topic by topic. So an
:class:`Exposition` keeps a list of lines for each family, and :meth:`Exposition.pieces` joins them, family by family.

The formats differ in little: OpenMetrics names a counter without its suffix ``_total`` in the lines about its family,
writes bounds of buckets as floats, and ends with ``# EOF``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from danube.metrics.families import FAMILIES, Family, Kind
from danube.metrics.histogram import Histogram

__all__ = ["OPENMETRICS_TYPE", "TEXT_TYPE", "Exposition", "wants_openmetrics"]

TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of the Prometheus text format."""
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Media type of OpenMetrics."""

_PIECE_LINES: Final = 500
"""Lines of one piece of the text."""
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def wants_openmetrics(accept: str) -> bool:
    """Whether the value of an ``Accept`` header prefers OpenMetrics to plain text; an empty one does not."""
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        kind, *parameters = (each.strip() for each in part.split(";"))
        if kind not in best:
            continue
        quality = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    quality = float(value)
                except ValueError:
                    quality = 0.0
        best[kind] = max(best[kind], quality)
    return best["application/openmetrics-text"] > 0 and best["application/openmetrics-text"] >= best["text/plain"]


class Exposition:
    """Collects series, and returns them as text.

    Args:
        openmetrics: whether the text is OpenMetrics.

    Attributes:
        series: how many there are; a histogram counts as one for each bucket, and two.
    """

    def __init__(self, *, openmetrics: bool = False) -> None:
        self._openmetrics = openmetrics
        self._lines: dict[Family, list[str]] = {}
        self.series = 0

    def add(self, family: Family, value: float, *labels: str) -> None:
        """Add a series.

        Args:
            family: it belongs to; not one of histograms.
            value: of the series.
            labels: values of the labels of the family, in their order.
        """
        self._lines_of(family).append(f"{family.name}{_labelled(family, labels)} {_number(value)}\n")
        self.series += 1

    def add_each(self, family: Family, values: Mapping[str, float]) -> None:
        """Add a series for each value of the only label of a family."""
        for label, value in values.items():
            self.add(family, value, label)

    def add_histogram(self, family: Family, histogram: Histogram, *labels: str) -> None:
        """Add the series of a histogram: its buckets, their sum and their number."""
        name = family.name
        inner = ",".join(_pairs(family, labels))
        before = f"{inner}," if inner else ""
        lines = self._lines_of(family)
        count = 0
        for bound, count in zip((*histogram.bounds, math.inf), histogram.cumulative(), strict=True):
            lines.append(f'{name}_bucket{{{before}le="{self._bound(bound)}"}} {count}\n')
        outer = f"{{{inner}}}" if inner else ""
        lines += (f"{name}_sum{outer} {_number(histogram.total)}\n", f"{name}_count{outer} {count}\n")
        self.series += len(histogram.counts) + 2

    def pieces(self) -> Iterator[bytes]:
        """Yield the text in pieces, each of some hundred lines, in the order of the table of families."""
        for family in FAMILIES:
            lines = self._lines.get(family)
            if not lines:
                continue
            yield self._head(family).encode()
            for first in range(0, len(lines), _PIECE_LINES):
                yield "".join(lines[first : first + _PIECE_LINES]).encode()
        if self._openmetrics:
            yield b"# EOF\n"

    def _lines_of(self, family: Family) -> list[str]:
        lines = self._lines.get(family)
        if lines is None:
            lines = self._lines[family] = []
        return lines

    def _head(self, family: Family) -> str:
        name, text = family.name, family.help.replace("\\", "\\\\").replace("\n", "\\n")
        if self._openmetrics:
            text = text.replace('"', '\\"')
            if family.kind is Kind.COUNTER:
                name = name.removesuffix("_total")
        return f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n"

    def _bound(self, bound: float) -> str:
        if bound == math.inf:
            return "+Inf"
        return repr(float(bound)) if self._openmetrics else f"{bound:g}"


def _pairs(family: Family, labels: Sequence[str]) -> list[str]:
    return [f'{name}="{_escaped(value)}"' for name, value in zip(family.labels, labels, strict=True)]


def _labelled(family: Family, labels: Sequence[str]) -> str:
    return f"{{{','.join(_pairs(family, labels))}}}" if family.labels or labels else ""


def _escaped(value: str) -> str:
    """Return the value of a label as it is written between quotes; surrogates, which UTF-8 has not, are replaced."""
    if value.isascii() and value.isprintable() and '"' not in value and "\\" not in value:
        return value
    return value.encode("utf-8", "replace").decode().translate(_ESCAPES)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if value == math.inf:
        return "+Inf"
    if value == -math.inf:
        return "-Inf"
    return "NaN" if value != value else repr(value)
