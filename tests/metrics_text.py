"""Reads metrics as text, for tests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

__all__ = ["Series", "parse"]

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Series(Mapping[tuple[str, frozenset[tuple[str, str]]], float]):
    """The series of one scrape."""

    def __init__(self, values: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> None:
        self._values = values

    def __getitem__(self, key: tuple[str, frozenset[tuple[str, str]]]) -> float:
        return self._values[key]

    def __iter__(self) -> Iterator[tuple[str, frozenset[tuple[str, str]]]]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def all(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return the series of a name that have these labels, among others."""
        wanted = set(labels.items())
        return {of: value for (each, of), value in self._values.items() if each == name and wanted <= of}

    def one(self, name: str, **labels: str) -> float:
        """Return the only series of a name that has these labels, among others."""
        found = self.all(name, **labels)
        assert len(found) == 1, f"{name} {labels}: {found}"
        return next(iter(found.values()))

    def sum(self, name: str, **labels: str) -> float:
        return sum(self.all(name, **labels).values())

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label."""
        return {value for each, of in self._values if each == name for key, value in of if key == label}


def parse(text: str) -> Series:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        name, labels, value = match.groups()
        key = name, frozenset(_LABEL.findall(labels or ""))
        assert key not in found, f"twice: {line}"
        found[key] = float(value)
    return Series(found)
