"""The order in which several processes are given the files of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from long_files import LONGEST, LONGEST_EXTENDED, long_first

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("names", [LONGEST, LONGEST_EXTENDED])
def test_the_files_are_there(names: tuple[str, ...]) -> None:
    assert len(set(names)) == len(names)
    for name in names:
        assert (ROOT / name).is_file(), f"{name} is no longer there"


def test_the_files_of_the_extended_line_have_extended_tests() -> None:
    for name in LONGEST_EXTENDED:
        in_extended = name.startswith("tests/extended/")
        assert in_extended or "pytest.mark.extended" in (ROOT / name).read_text(), f"{name} has no extended test"


@pytest.mark.parametrize("extended", [False, True])
def test_long_files_come_first_and_then_those_with_many_tests(*, extended: bool) -> None:
    first, second, *_ = LONGEST_EXTENDED if extended else LONGEST
    files = ["a", "b", "b", second, "c", "c", "c", first, second]
    assert [files[at] for at in long_first(files, extended=extended)] == [first, second, second, *"cccbba"]
    assert long_first(files, extended=extended) == [7, 3, 8, 4, 5, 6, 1, 2, 0]
    assert long_first(["b", "a", "b", "a"], extended=extended) == [0, 2, 1, 3], "the tests of a file are together"
    assert long_first([], extended=extended) == []
