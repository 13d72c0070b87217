"""The embedded store of a lone broker and its directory: crashes, damage, full disks, failed syncs, other processes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from danube.log import RealDisk
from danube.metadata import Put, begin_incarnation, open_store
from danube.metadata._machine import StoreMachine
from danube.metadata._sqlite import SqliteTable
from danube.metadata.raft import node as raft_node
from danube.metadata.raft.inspection import inspect
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    exit_code,
)
from danube.model.limits import Limits

WRITER = """
    import sys, trio
    from danube.metadata import Put, open_store

    async def main():
        async with open_store(f"embedded://{sys.argv[1]}") as store, trio.open_nursery() as nursery:
            async def write(name):
                for number in range(1_000_000):
                    value = b"%d" % number
                    result = await store.transact([], [Put(f"/{name}/a", value), Put(f"/{name}/b", value)])
                    sys.stdout.write(f"{name} {number} {result.revision}\\n")
                    sys.stdout.flush()
            for name in "xyz":
                nursery.start_soon(write, name)

    trio.run(main)
"""


def embedded(directory, **options):
    return open_store("embedded://", data_directory=directory, **options)


def acknowledged(directory, lines):
    """Start a writer, kill it after so many acknowledgements, and return all that it has told."""
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as writer:
        told = [writer.stdout.readline() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        told += writer.stdout.read().splitlines()
    return [line.split() for line in told if line.count(" ") == 2]


async def test_acknowledged_changes_survive_kill(tmp_path):
    revision = 0
    for round_number in range(2):
        told = await trio.to_thread.run_sync(acknowledged, tmp_path, 100 + 37 * round_number)
        floor = {}
        for name, number, changed in told:
            floor[name] = int(number)
            revision = max(revision, int(changed))
        async with open_store(f"embedded://{tmp_path}") as store:
            items, present = await store.list("/")
            found = {item.key: int(item.value) for item in items}
            assert present >= revision
            for name, number in floor.items():
                assert found[f"/{name}/a"] == found[f"/{name}/b"]
                assert found[f"/{name}/a"] in (number, number + 1)  # the one under way may have happened
            async with store.watch("/", 1) as watch:  # the history has no gap either
                for expected in range(1, present + 1):
                    assert (await watch.__anext__()).revision == expected


async def written(directory: Path) -> None:
    """Write some changes into a directory, and leave it as ``kill -9`` does."""
    running = directory.with_name("running")
    async with embedded(running) as store:
        for number in range(40):
            await store.put(f"/k/{number}", b"value %d" % number * 10)
        # A block proves that the one before it was synced; nothing proves it for the very last one.
        await store.put("/last", b"")
        await trio.sleep(0.1)  # spare files of the log are renamed
        while True:
            try:
                shutil.copytree(running, directory)
                break
            except shutil.Error:  # a file was renamed meanwhile
                shutil.rmtree(directory)
                await trio.sleep(0.05)
    shutil.rmtree(running)


async def picture(directory: Path):
    """Open a store, and return all of it."""
    with trio.fail_after(20):
        async with embedded(directory) as store:
            items, revision = await store.list("/")
            return revision, [(item.key, item.value, item.mod_revision) for item in items]


@pytest.mark.parametrize(
    "count", [4, pytest.param(120, marks=pytest.mark.extended), pytest.param(400, marks=pytest.mark.long)]
)
async def test_damage_at_any_byte_is_refused_or_costs_nothing(tmp_path, count):
    """Damage of the table's own log is made up for by the Raft log; only its last block may pass for a torn write."""
    await written(tmp_path / "original")
    truth = await picture(shutil.copytree(tmp_path / "original", tmp_path / "look"))
    assert truth[0] == 41
    chance = random.Random(count)
    outcomes = {"refused": 0, "same": 0, "torn": 0}
    for path in sorted(path for path in (tmp_path / "original").rglob("*") if path.stat().st_size):
        if path.is_dir() or path.name in ("lock", "metadata.db-shm"):
            continue
        used = max(1, len(path.read_bytes().rstrip(b"\0")))
        for _ in range(count):
            directory = shutil.copytree(tmp_path / "original", tmp_path / "tampered")
            victim = directory / path.relative_to(tmp_path / "original")
            content = bytearray(victim.read_bytes())
            content[chance.randrange(used)] ^= 1 << chance.randrange(8)
            victim.write_bytes(content)
            try:
                found = await picture(directory)
            except (DataLossError, DataDirectoryError):
                outcomes["refused"] += 1
            else:
                if found != truth:
                    assert "journal" in path.name
                    assert found[0] >= 40, "a change that another one follows is not torn"
                    outcomes["torn"] += 1
                else:
                    outcomes["same"] += 1
            shutil.rmtree(directory)
    assert outcomes["refused"]
    assert outcomes["same"]


@pytest.mark.parametrize("lost", ["metadata.db", "log", "everything"])
async def test_lost_files(tmp_path, lost):
    """The log makes up for a table that it holds from the first entry on, and nothing for the log."""
    await written(tmp_path / "data")
    truth = await picture(shutil.copytree(tmp_path / "data", tmp_path / "look"))
    metadata = tmp_path / "data" / "metadata"
    if lost == "metadata.db":
        for path in metadata.glob("metadata.db*"):
            path.unlink()
        assert await picture(tmp_path / "data") == truth
    elif lost == "log":
        shutil.rmtree(metadata / "log")
        with pytest.raises(DataLossError, match="does not fit to the log") as caught:
            await picture(tmp_path / "data")
        assert exit_code(caught.value) == 74
    else:
        shutil.rmtree(metadata)
        assert (await picture(tmp_path / "data"))[0] == 0


async def test_metadata_of_an_earlier_format_are_refused_unchanged(tmp_path):
    table = SqliteTable(tmp_path)
    table.open()
    with table.transaction():
        StoreMachine(table, Limits()).transact((), [Put("/k", b"v")])
    table.close()
    before = (tmp_path / "metadata.db").read_bytes()
    for url in ("embedded://", f"embedded://{tmp_path}"):
        with pytest.raises(DataDirectoryError, match=r"earlier Danube.*nothing was changed: start the Danube that"):
            async with open_store(url, data_directory=tmp_path):
                pass
        assert (tmp_path / "metadata.db").read_bytes() == before


async def test_a_directory_in_use_is_refused(tmp_path):
    async with embedded(tmp_path):
        with pytest.raises(DataDirectoryError, match="in use by another broker"):
            await picture(tmp_path)
        with pytest.raises(DataDirectoryError, match="in use by another broker"):
            async with inspect(tmp_path, Limits()):
                pass


async def test_a_full_disk_delays_changes_until_there_is_space(tmp_path, monkeypatch):
    """A change that is in the log is applied: nothing is refused, half done or lost."""
    monkeypatch.setattr(raft_node, "_FULL_RETRY_S", 0.02)
    async with embedded(tmp_path) as store:
        await store.put("/first", b"")
        table = store.node._table
        pages = table._pragma("page_count")
        table._execute(f"PRAGMA max_page_count = {pages + 20}")
        done = trio.Event()

        async def fill():
            for number in range(100):
                await store.transact([], [Put(f"/k/{number}", bytes(3000)), Put("/last", b"%d" % number)])
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await trio.sleep(0.3)
            assert not done.is_set()
            table._execute(f"PRAGMA max_page_count = {pages + 1000}")
            with trio.fail_after(10):
                await done.wait()
        assert (await store.list("/"))[1] == 101


async def test_failed_sync_is_final(tmp_path, monkeypatch):
    """After an I/O error nothing more is accepted, and no caller hangs."""
    async with embedded(tmp_path) as store:
        await store.put("/a", b"1")
        errors = []

        async def put(number):
            try:
                await store.put(f"/b/{number}", b"")
            except DanubeError as error:
                errors.append(error)

        def failing(descriptor):
            raise OSError(errno.EIO, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", failing)
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    for number in range(5):
                        nursery.start_soon(put, number)
        assert len(errors) == len({id(error) for error in errors}) == 5
        with pytest.raises(DanubeError, match="injected"):
            await store.put("/c", b"")
        with pytest.raises(DanubeError, match="injected"):
            await store.get("/a")
    revision, items = await picture(tmp_path)
    assert items[0][:2] == ("/a", b"1")
    assert revision in (1, 6)  # none of them was acknowledged; all were written at once


async def test_concurrent_changes_share_a_sync(tmp_path, monkeypatch):
    syncs = []
    write = RealDisk.write

    async def counting(self, name, position, buffers, *, sync):
        syncs.append(sync)
        await write(self, name, position, buffers, sync=sync)

    async with embedded(tmp_path) as store:
        monkeypatch.setattr(RealDisk, "write", counting)
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(store.put, f"/k/{number}", b"")
        assert (await store.list("/"))[1] == 300
    assert sum(syncs) < 20


async def test_an_idle_store_writes_nothing(tmp_path, monkeypatch):
    written_to = []
    write = RealDisk.write

    async def counting(self, name, position, buffers, *, sync):
        written_to.append(name)
        await write(self, name, position, buffers, sync=sync)

    async with embedded(tmp_path) as store:
        await store.put("/k", b"")
        monkeypatch.setattr(RealDisk, "write", counting)
        await trio.sleep(0.5)
        assert len(written_to) <= 1  # the proof that the last block was synced


async def test_inspection_sees_what_is_only_in_the_log_and_changes_nothing(tmp_path):
    data = tmp_path / "data"
    async with inspect(data, Limits()) as found:
        assert found.member is None
        assert (await found.store.list("/"))[1] == 0
    assert not data.exists()
    await written(data)
    for path in (data / "metadata").glob("metadata.db*"):
        path.unlink()

    def contents():
        files = [path for path in data.rglob("*") if path.is_file() and path.name != "lock"]
        return {path: path.read_bytes() for path in files}

    before = contents()
    async with inspect(data, Limits()) as found:
        assert found.is_alone
        items, revision = await found.store.list("/")
        assert revision == 41
        assert len(items) == 41
    assert contents() == before
    async with embedded(data) as store:
        await begin_incarnation(store, 7, "test")
    async with inspect(data, Limits()) as found:
        assert (await found.store.list("/"))[1] == 42


async def test_errors_of_the_body_come_out_as_they_are(tmp_path):
    async def fail():
        async with embedded(tmp_path) as store:
            await store.put("/a", b"")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with trio.move_on_after(0.2) as scope:
        async with embedded(tmp_path):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    async with open_store(f"embedded://{tmp_path}/metadata") as store:
        assert await store.get("/a") is not None


async def test_embedded_needs_a_directory():
    with pytest.raises(ConfigurationError, match="needs a directory"):
        async with open_store("embedded://"):
            pass
    with pytest.raises(ConfigurationError, match="three slashes: embedded:///data/x"):
        async with open_store("embedded://data/x"):
            pass
