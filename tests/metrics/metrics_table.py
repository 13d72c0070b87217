"""Writes the table of series in ``docs/metrics.md``: ``python -m tests.metrics.metrics_table``."""

from __future__ import annotations

from pathlib import Path

from danube.metrics.families import FAMILIES, Area

FILE = Path(__file__).parents[2] / "docs" / "metrics.md"
BEGIN, END = "<!-- series: begin -->\n", "<!-- series: end -->\n"


def table() -> str:
    """Return the series of the table of families, a table for each area."""
    lines: list[str] = []
    for area in Area:
        lines += [f"### {area.value}", "", "| series | kind | labels | meaning |", "|---|---|---|---|"]
        for family in FAMILIES:
            if family.area is area:
                labels = ", ".join(f"`{label}`" for label in family.labels)
                lines.append(f"| `{family.name}` | {family.kind.value} | {labels} | {family.help} |")
        lines.append("")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """Return a page with the present table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    text = FILE.read_text(encoding="utf-8")
    FILE.write_text(with_table(text), encoding="utf-8")
