"""Each warning and error of the broker has a stable event name, and ``docs/logs.md`` lists all of them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
ELSEWHERE = ("cli", "client", "testing")
"""Packages that do not run in a broker."""
LEVELS = {"warning": "warning", "error": "error", "exception": "error", "critical": "critical"}
NAME = re.compile(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*")
ROW = re.compile(r"^\| `([^`]+)` \| ([a-z, ]+) \| .+\. \|$", re.MULTILINE)


def log_calls() -> Iterator[tuple[str, str, ast.Call]]:
    """Yield place, level and call of all lines of level warning and above."""
    for path in sorted((CHECKOUT / "danube").rglob("*.py")):
        where = path.relative_to(CHECKOUT)
        if where.parts[1] in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            if isinstance(function, ast.Attribute) and ast.unparse(function.value) in ("_log", "log", "logger"):
                if function.attr in LEVELS:
                    yield f"{where}:{node.lineno}", LEVELS[function.attr], node
            elif isinstance(function, ast.Name) and function.id == "Remark":  # the journal's, logged by its keeper
                level, name, _ = node.args
                assert isinstance(level, ast.Constant)
                extra = ast.Call(ast.Name("log_event"), [name], [])
                yield f"{where}:{node.lineno}", level.value, ast.Call(function, [], [ast.keyword("extra", extra)])


def event_name(call: ast.Call) -> str | None:
    """Return the literal name in the ``extra`` of a log call."""
    for keyword in call.keywords:
        made = keyword.value
        if keyword.arg == "extra" and isinstance(made, ast.Call) and ast.unparse(made.func) == "log_event":
            name = made.args[0]
            return name.value if isinstance(name, ast.Constant) else None
    return None


def test_each_warning_and_error_has_a_literal_event_name() -> None:
    calls = list(log_calls())
    assert len(calls) > 100
    unnamed = [place for place, _, call in calls if not NAME.fullmatch(event_name(call) or "")]
    assert not unnamed, 'give them extra=log_event("area.what_happened", ...), see danube/model/log_events.py'


def test_the_table_of_the_document_is_that_of_the_code() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for _, level, call in log_calls():
        found[event_name(call) or ""].add(level)
    rows = ROW.findall((CHECKOUT / "docs" / "logs.md").read_text("utf-8"))
    assert [name for name, _ in rows] == sorted(found)
    assert {name: set(levels.split(", ")) for name, levels in rows} == found
