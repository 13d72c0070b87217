"""The promises and capabilities that the documents print are proved by tests that exist, under those names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_capabilities import CELLS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]

_NAMED = re.compile(r"`(?=tests/|::)(tests/[\w/]+\.py)?(?:::(\w+)(?:\[[^]`]*\])?)?`")


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return the (file, test) that a text names; ``::test`` alone is of the file named before, "" is the whole file."""
    found: list[tuple[str, str]] = []
    file = ""
    for match in _NAMED.finditer(text):
        file, test = match[1] or file, match[2] or ""
        found.append((file, test))
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_test_that_a_document_names_exists(document: str) -> None:
    for file, test in named_tests((ROOT / document).read_text()):
        path = ROOT / file
        assert path.is_file(), f"{document} names {file}"
        source = path.read_text()
        assert re.search(rf"^ *(async )?def {test}\(", source, re.MULTILINE) or not test, f"{file} has no {test}"
        assert "def test_" in source or "TestCase" in source, f"{file} has no tests"


def test_each_promise_names_its_proof() -> None:
    rows = re.findall(r"^\| P(\d+) \|.*\|(.*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 13))
    for number, proof in rows:
        assert named_tests(proof), f"P{number} names no test"


def test_the_matrix_names_each_cell_once() -> None:
    text = (ROOT / "docs" / "delivery.md").read_text()
    ids = re.findall(r"`\[((?:non-)?reliable-[\w-]+)\]`", text)
    assert sorted(ids) == sorted("-".join(cell) for cell in CELLS)


def test_names_without_a_file_belong_to_the_file_before() -> None:
    text = "`tests/a/test_b.py` (all), `tests/c/test_d.py::test_e`, `::test_f[x-y]`; `code`"
    assert named_tests(text) == [
        ("tests/a/test_b.py", ""),
        ("tests/c/test_d.py", "test_e"),
        ("tests/c/test_d.py", "test_f"),
    ]
