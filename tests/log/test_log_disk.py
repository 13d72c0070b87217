"""The real disk: locking, order between its two lanes, many buffers, refusal of what it cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from log_lives import make_part

from danube.log import BatchCache, Entry, EntryType, Journal, RealDisk, TopicLog
from danube.log.disk import write_all
from danube.model import DanubeError, Durability, Limits
from danube.model.batch import check_part
from danube.model.errors import DataDirectoryError, JournalFullError


async def test_what_is_written_is_read(tmp_path: Path) -> None:
    async with RealDisk(tmp_path / "new" / "data") as disk:
        await disk.create("a", 100_000)
        await disk.sync_directory()
        assert await disk.list() == {"a": 100_000}
        assert await disk.read("a", 99_990, 100) == bytes(10)
        await disk.write("a", 10, [b"hello", b" ", b"world"], sync=True)
        await disk.rename("a", "b")
        await disk.write("b", 15, [b"-"], sync=False)
        assert await disk.read("b", 8, 15) == b"\0\0hello-world\0\0"
        assert await disk.free_bytes() > 0
        await disk.remove("b")
        assert await disk.list() == {}


async def test_thousands_of_buffers_go_out_in_one_write(tmp_path: Path) -> None:
    pieces = [b"%06d" % number for number in range(5000)]
    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 40_000)
        await disk.write("a", 1, pieces, sync=True)
        assert await disk.read("a", 1, 30_000) == b"".join(pieces)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def short(fd: int, buffers: list[bytes], position: int) -> int:
        return real(fd, [b"".join(buffers)[:7]], position)

    monkeypatch.setattr(os, "pwritev", short)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        write_all(fd, 3, [b"0123456789", b"", b"abc", b"x" * 20])
        assert os.pread(fd, 100, 3) == b"0123456789abc" + b"x" * 20
    finally:
        os.close(fd)


async def test_a_slow_sync_does_not_delay_a_write_and_order_is_kept(tmp_path: Path) -> None:
    async with RealDisk(tmp_path, sync_delay_s=0.2) as disk:
        await disk.create("a", 4096)
        events: list[str] = []

        async def synced() -> None:
            await disk.write("a", 0, [b"sync"], sync=True)
            events.append("synced")

        async def written() -> None:
            await disk.write("a", 2, [b"write"], sync=False)
            events.append("written")
            # The earlier write came first, although its sync is still running.
            assert await disk.read("a", 0, 8) == b"sywrite\0"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(synced)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(written)
        assert events == ["written", "synced"]


async def test_a_failed_write_fails_everything_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 4096)

        def broken(fd: int, buffers: list[bytes], position: int) -> int:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", broken)
            with pytest.raises(OSError, match="Input/output"):
                await disk.write("a", 0, [b"x"], sync=False)
        with pytest.raises(OSError, match="earlier write"):
            await disk.write("a", 0, [b"x"], sync=True)


async def test_a_second_broker_is_refused_and_told_who_has_the_directory(tmp_path: Path) -> None:
    async with RealDisk(tmp_path):
        with pytest.raises(DataDirectoryError, match=f"process {os.getpid()}"):
            async with RealDisk(tmp_path):
                pass
    async with RealDisk(tmp_path):
        pass


async def test_a_killed_broker_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import sys, trio, os\n"
        "from danube.log import RealDisk\n"
        "async def main():\n"
        "    async with RealDisk(sys.argv[1]):\n"
        "        os.kill(os.getpid(), 9)\n"
        "trio.run(main)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = await trio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False)
    )
    assert done.returncode == -9
    async with RealDisk(tmp_path):
        pass


async def test_a_directory_that_cannot_be_written_is_refused_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="--data-dir"):
        async with RealDisk(tmp_path / "file"):
            pass
    real = os.open

    def read_only(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return real(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(DataDirectoryError, match="Read-only file system"):
        async with RealDisk(tmp_path):
            pass


async def test_a_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    async with RealDisk(tmp_path) as disk:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", full)
            with pytest.raises(OSError, match="No space"):
                await disk.create("a", 4096)
        assert await disk.list() == {}
        await disk.create("a", 4096)


@pytest.mark.extended
async def test_a_small_file_system_fills_up_and_recovers(tmp_path: Path) -> None:
    """A real ENOSPC, on a file system of 3 MiB. Needs root, to mount it."""
    await trio.run_process(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", tmp_path])
    try:
        limits = Limits(max_batch_bytes=64 * 1024, journal_max_bytes=64 * 2**20, journal_full_wait_s=0.2)
        log: TopicLog

        def on_commit(entries: Sequence[Entry], error: DanubeError | None) -> None:
            assert error is None
            for entry in entries:
                if entry.type is EntryType.BATCH:
                    log.settled(entry)

        async def checkpoint() -> None:
            await trio.lowlevel.checkpoint()

        part = make_part([bytes(50_000)])
        async with RealDisk(tmp_path) as disk:
            options = {"file_size": 512 * 1024, "on_commit": on_commit, "checkpoint": checkpoint}
            async with Journal.open(disk, limits, **options) as journal:
                log = TopicLog(1, Durability.DISK, journal, BatchCache(0))
                with pytest.raises(JournalFullError, match="disk"):  # noqa: PT012
                    while True:
                        await journal.admit(len(part))
                        log.append(part, check_part(part), 1)
                stored = log.next_offset
                assert stored >= 20
                for _ in range(20):  # acks go on
                    journal.submit(Entry(EntryType.CURSOR, 1, Durability.DISK, (bytes(1000),)))
            assert log.end_offset == stored
        async with RealDisk(tmp_path) as disk, Journal.open(disk, limits, **options) as journal:
            assert journal.recovered is not None
            log = TopicLog(1, Durability.DISK, journal, BatchCache(0), recovered=journal.recovered.topics[1])
            assert log.end_offset == stored
            log.expire(stored - 5)
            await journal.admit(len(part))
            log.append(part, check_part(part), 1)
    finally:
        await trio.run_process(["umount", tmp_path])
