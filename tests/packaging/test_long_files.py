"""The order in which several processes are given the files of the extended tests."""

from __future__ import annotations

from pathlib import Path

from long_files import LONGEST, long_first

ROOT = Path(__file__).parent.parent.parent


def test_the_files_are_there_and_have_extended_tests() -> None:
    assert len(set(LONGEST)) == len(LONGEST)
    for name in LONGEST:
        in_extended = name.startswith("tests/extended/")
        assert (ROOT / name).is_file(), f"{name} is no longer there"
        assert in_extended or "pytest.mark.extended" in (ROOT / name).read_text(), f"{name} has no extended test"


def test_long_files_come_first_and_then_those_with_many_tests() -> None:
    files = ["a", "b", "b", LONGEST[1], "c", "c", "c", LONGEST[0], LONGEST[1]]
    assert [files[at] for at in long_first(files)] == [LONGEST[0], LONGEST[1], LONGEST[1], *"cccbba"]
    assert long_first(files) == [7, 3, 8, 4, 5, 6, 1, 2, 0]
    assert long_first(["b", "a", "b", "a"]) == [0, 2, 1, 3], "the tests of a file are together"
    assert long_first([]) == []
