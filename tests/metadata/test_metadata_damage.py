"""One flipped byte anywhere in the store's files: an error of ours, an earlier revision, or nothing is different."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from danube.metadata import Put
from danube.metadata._machine import StoreMachine
from danube.metadata._sqlite import SqliteTable
from danube.model import Limits
from danube.model.errors import DataDirectoryError, DataLossError

PAGE = 4096


class Picture(NamedTuple):
    """Everything that a store says."""

    revision: int
    items: Any
    history: Any
    leases: Any
    next_lease: int


def take_picture(directory: Path) -> Picture:
    """Open a store, read all of it, and close it."""
    table = SqliteTable(directory)
    table.open()
    try:
        with table.transaction():
            items, history = table.scan("/"), table.replay(table.compacted, 10_000, 1 << 30)
            held = [table.keys_of(lease) for lease, _ in table.leases()]
        return Picture(table.revision, items, history, (table.leases(), held), table.next_lease)
    finally:
        table.close()


def build(directory: Path, *, crash: bool) -> dict[str, bytes]:
    """Return the files of a store that was closed, or was not."""
    table = SqliteTable(directory)
    table.open()
    machine = StoreMachine(table, Limits(metadata_history_revisions=30))
    chance = random.Random(1)
    for number in range(60):
        with table.transaction():
            lease = machine.grant(60.0) if not number % 20 else None
            operations = [
                Put(f"/{chance.choice('abc')}/{number:03}", chance.randbytes(chance.choice((8, 60, 900))), lease)
            ]
            machine.transact((), operations)
    if not crash:
        table.close()
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    table.close()
    return files


def flips(content: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Yield places and masks: in the head of the file, in the heads of pages, and anywhere."""
    chance = random.Random(2)
    for number in range(count):
        position = chance.choice(
            (
                chance.randrange(128),
                chance.randrange(len(content) // PAGE) * PAGE + chance.randrange(32),
                chance.randrange(len(content)),
            )
        )
        yield position, (1 << number % 8, 255)[number % 5 == 0]


def sweep(directory: Path, files: dict[str, bytes], victim: str, count: int) -> dict[str, int]:
    """Flip bytes of one file; return how often what came of it."""
    directory = directory / "store"
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    truth = take_picture(directory)
    outcomes = {"error": 0, "earlier": 0, "same": 0}
    for position, mask in flips(files[victim], count):
        for path in directory.iterdir():
            if path.name not in files:
                path.unlink()
        content = bytearray(files[victim])
        content[position] ^= mask
        (directory / victim).write_bytes(content)
        try:
            found = take_picture(directory)
        except (DataLossError, DataDirectoryError) as error:
            assert str(directory) in str(error)  # noqa: PT017 - one of three outcomes
            outcomes["error"] += 1
            continue
        finally:
            assert (directory / victim).read_bytes() == content, "a look at it has changed it"
        if found == truth:
            outcomes["same"] += 1  # where nothing is, or nothing that counts
        else:
            assert found.revision < truth.revision, f"{victim}: byte {position} ^ {mask:#x} was not noticed"
            outcomes["earlier"] += 1
    return outcomes


@pytest.mark.parametrize("count", [150, pytest.param(6_000, marks=pytest.mark.extended)])
def test_a_flipped_byte_of_the_file_is_noticed_or_harmless(tmp_path: Path, count: int) -> None:
    files = build(tmp_path / "written", crash=False)
    assert set(files) == {"metadata.db"}
    outcomes = sweep(tmp_path, files, "metadata.db", count)
    assert outcomes["error"] > count // 3
    assert not outcomes["earlier"]


@pytest.mark.parametrize("count", [60, pytest.param(2_000, marks=pytest.mark.extended)])
def test_a_flipped_byte_of_the_log_is_noticed_or_takes_the_store_back(tmp_path: Path, count: int) -> None:
    """To an earlier revision, which those notice who have seen a later one; never to other content."""
    files = build(tmp_path / "written", crash=True)
    assert {name for name in files if not name.endswith("-shm")} == {"metadata.db", "metadata.db-wal"}
    files = {name: content for name, content in files.items() if not name.endswith("-shm")}
    outcomes = sweep(tmp_path, files, "metadata.db-wal", count)
    assert outcomes["earlier"] > count // 3


@pytest.mark.parametrize("name", ["metadata.db", "metadata.db-wal"])
def test_a_cut_file_is_noticed_or_takes_the_store_back(tmp_path: Path, name: str) -> None:
    files = build(tmp_path / "written", crash=True)
    files = {each: content for each, content in files.items() if not each.endswith("-shm")}
    directory = tmp_path / "store"
    directory.mkdir()
    truth: Picture | None = None
    earlier = 0
    for size in (len(files[name]), 0, 1, 31, 100, 512, PAGE - 1, PAGE, len(files[name]) // 2, len(files[name]) - 1):
        for path in directory.iterdir():
            path.unlink()
        for each, content in files.items():
            (directory / each).write_bytes(content if each != name else content[:size])
        try:
            found = take_picture(directory)
        except (DataLossError, DataDirectoryError) as error:
            assert str(directory) in str(error)  # noqa: PT017 - one of three outcomes
            continue
        truth = truth or found
        assert found == truth or found.revision < truth.revision
        earlier += found != truth
    assert truth is not None
    assert earlier or name == "metadata.db"
