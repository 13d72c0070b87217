"""The final report: a table by package, and each surviving mutant as a diff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from .session import Verdict
from .targets import package_of

__all__ = ["Summary", "survivor_text", "table"]

NOTICED = {"killed", "hung"}


class Summary:
    """Counts of outcomes, of all packages or of one."""

    def __init__(self, outcomes: Iterable[str]) -> None:
        self._counts = Counter(outcomes)

    def __getitem__(self, outcome: str) -> int:
        return self._counts[outcome]

    @property
    def tried(self) -> int:
        """All that could be made and that was not judged to change nothing."""
        return sum(self._counts[outcome] for outcome in ("killed", "hung", "survived", "unreached"))

    @property
    def noticed(self) -> int:
        return self._counts["killed"] + self._counts["hung"]

    @property
    def ratio(self) -> float:
        """The share of what was tried that was noticed; 1 if nothing was tried."""
        return self.noticed / self.tried if self.tried else 1.0


def table(outcomes: Sequence[tuple[str, str]]) -> list[str]:
    """Lines of a table of (module, outcome)."""
    packages: dict[str, list[str]] = {}
    for module, outcome in outcomes:
        packages.setdefault(package_of(module), []).append(outcome)
    names = ("tried", "noticed", "of it hung", "survived", "no test", "equivalent", "ratio")
    lines = [f"{'package':<10}" + "".join(f"{name:>12}" for name in names)]
    for name, some in [*sorted(packages.items()), ("all", [outcome for _, outcome in outcomes])]:
        count = Summary(some)
        lines.append(
            f"{name:<10}{count.tried:>12}{count.noticed:>12}{count['hung']:>12}{count['survived']:>12}"
            f"{count['unreached']:>12}{count['equivalent']:>12}{count.ratio:>12.1%}"
        )
    return lines


def survivor_text(verdict: Verdict) -> list[str]:
    """A survivor: where, what was tried, the diff, and its entry for the list of equivalent ones."""
    source, mutant = verdict.task.source, verdict.task.mutant
    assert source is not None
    assert mutant is not None
    module, function, gone, come = source.identity(mutant)
    tests = f"{len(verdict.task.tests)} tests ran it" if verdict.task.tests else "no test runs it"
    head = f"{source.path.name}:{mutant.start[0]} in {function or module}: {mutant.operator}; {tests}"
    entry = [
        "[[equivalent]]",
        *(
            f"{k} = {v!r}"
            for k, v in zip(("module", "function", "gone", "come"), (module, function, gone, come), strict=True)
        ),
    ]
    return [f"--- {module}: {head}", *source.diff(mutant), *(f"    {line}" for line in entry)]
