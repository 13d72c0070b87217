"""Small transactions of a member's table: in the event loop, unless they may wait for the disk."""

from __future__ import annotations

from random import Random

import pytest

from danube.log import RealDisk
from danube.metadata.raft import NodeOptions, RaftStore, SqliteStateTable, in_thread, sqlite_table
from danube.raft import Conf, NodeId

ME = NodeId(1)
ROWS = 90


class CountingWorker:
    """A worker that counts what it was given."""

    def __init__(self):
        self.count = 0
        self._work = in_thread()

    async def __call__(self, function):
        self.count += 1
        return await self._work(function)


def open_store(disk, table, worker, **options):
    return RaftStore(
        disk, table, member=ME, first_conf=Conf((ME,)), random=Random(1), work=worker, options=NodeOptions(**options)
    )


async def test_small_changes_and_reads_need_no_thread(tmp_path):
    worker, table = CountingWorker(), SqliteStateTable(tmp_path)
    async with RealDisk(tmp_path / "log") as disk, open_store(disk, table, worker) as store:
        await store.put("/a", b"1")  # opens the file for writing
        before = worker.count
        for number in range(20):
            await store.put("/a", b"%d" % number)
            assert (await store.get("/a")).value == b"%d" % number
        async with store.watch("/a", 2) as watch:
            assert (await watch.__anext__()).revision == 2
        assert worker.count - before <= 1  # the watch may lack more than it takes in microseconds
        before = worker.count
        await store.list("/")
        await store.put("/large", bytes(20_000))
        assert worker.count == before + 2


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr(sqlite_table, "_CHECKPOINT_ROWS", ROWS)


@pytest.mark.usefixtures("few_rows")
async def test_a_checkpoint_that_is_due_is_made_on_a_thread(tmp_path):
    worker, table = CountingWorker(), SqliteStateTable(tmp_path)
    async with RealDisk(tmp_path / "log") as disk, open_store(disk, table, worker) as store:
        await store.put("/a", b"1")
        assert not table.may_wait
        for _ in range(ROWS):
            await store.put("/a", b"2")
            if table.may_wait:
                break
        assert table.may_wait
        before, size = worker.count, (tmp_path / "metadata.db").stat().st_size
        await store.put("/b", b"3")
        assert worker.count == before + 1
        assert not table.may_wait
        assert (tmp_path / "metadata.db").stat().st_size > size


@pytest.mark.usefixtures("few_rows")
async def test_the_log_of_sqlite_is_bounded_by_checkpoints(tmp_path):
    table = SqliteStateTable(tmp_path)
    largest = 0
    async with RealDisk(tmp_path / "log") as disk, open_store(disk, table, None, cut_entries=10**9) as store:
        for number in range(4 * ROWS):
            await store.put(f"/a/{number % 10}", b"x" * 50)
            largest = max(largest, (tmp_path / "metadata.db-wal").stat().st_size)
    assert 0 < largest < ROWS * 3 * 4096


@pytest.mark.parametrize("limit", ["brief_bytes", "brief_reads"])
async def test_without_allowance_everything_goes_to_the_thread(tmp_path, limit):
    worker, table = CountingWorker(), SqliteStateTable(tmp_path)
    async with RealDisk(tmp_path / "log") as disk, open_store(disk, table, worker, **{limit: 0}) as store:
        await store.put("/a", b"1")
        before = worker.count
        await store.put("/a", b"2")
        await store.get("/a")
        assert worker.count == before + 1
