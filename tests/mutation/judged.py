"""Survivors that were looked at and change nothing that could be seen: ``equivalent.toml``, with the reason of each."""

from __future__ import annotations

import tomllib
from pathlib import Path

from .sources import Mutant, Source

__all__ = ["Judged"]

_LIST = Path(__file__).with_name("equivalent.toml")


class Judged:
    """The list. An entry names module, function, the lines that go and those that come, without their margins."""

    def __init__(self, path: Path = _LIST) -> None:
        entries = tomllib.loads(path.read_text()).get("equivalent", [])
        self._reasons: dict[tuple[str, str, str, str], str] = {
            (entry["module"], entry["function"], entry["gone"], entry["come"]): entry["reason"] for entry in entries
        }

    def __len__(self) -> int:
        return len(self._reasons)

    def reason(self, source: Source, mutant: Mutant) -> str | None:
        """The reason why a mutant is equivalent, if known."""
        return self._reasons.get(source.identity(mutant))

    def stale(self, sources: dict[str, Source]) -> list[tuple[str, str, str, str]]:
        """Entries whose module or lines are no longer there: they can go."""
        gone = []
        for identity in self._reasons:
            source = sources.get(identity[0])
            text = " ".join(line.strip() for line in source.text.splitlines()) if source else ""
            if identity[2] not in text:
                gone.append(identity)
        return gone
