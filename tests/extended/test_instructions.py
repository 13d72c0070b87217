"""Instructions are counted by Valgrind: nearly the same ones for a checkout elsewhere."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import instructions
from benchmarks.counting import callgrind

pytestmark = pytest.mark.extended

TREE = Path(instructions.__file__).resolve().parents[1]


# Objects lie at other addresses then, and sets and dictionaries of objects hash their addresses.
_OTHER_ADDRESSES = 0.02


def test_two_counts_are_nearly_equal(tmp_path: Path) -> None:
    if reason := callgrind.unavailable():
        pytest.skip(f"{reason} (tests/extended/install-debian-packages does)")
    shutil.copytree(TREE / "danube", tmp_path / "danube", ignore=shutil.ignore_patterns("__pycache__"))
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda tree: instructions.count_instructions("s3", tree, 0.1), (TREE, tmp_path))
    assert there.instructions == pytest.approx(here.instructions, rel=_OTHER_ADDRESSES)
    assert here.small.messages * 2 == here.large.messages
    # A message alone, on its way through client, broker and journal, and its acknowledgement on the way back.
    assert 100_000 < here.instructions < 10_000_000


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    if reason := callgrind.unavailable():
        pytest.skip(f"{reason} (tests/extended/install-debian-packages does)")
    (tmp_path / "danube").mkdir()
    (tmp_path / "danube" / "__init__.py").write_text("raise ImportError('this tree is broken')\n")
    with pytest.raises(RuntimeError, match="this tree is broken"):
        instructions.count_instructions("s3", tmp_path, 0.1)
