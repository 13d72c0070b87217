"""The real disk: locking, order between its two lanes, many buffers, refusal of what it cannot use."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from log_lives import make_part

from danube.log import BatchCache, Entry, EntryType, Journal, RealDisk, TopicLog
from danube.log.disk import _Wakeup, write_all
from danube.model import DanubeError, Durability, Limits
from danube.model.batch import check_part
from danube.model.errors import DataDirectoryError, InternalError, JournalFullError, OutOfDescriptorsError


async def test_written_bytes_are_read_back(tmp_path: Path) -> None:
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

        part = make_part([bytes(50_000)])
        async with RealDisk(tmp_path) as disk:
            options = {"file_size": 512 * 1024, "on_commit": on_commit, "snapshot": lambda topic_id: b""}
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


async def test_files_of_a_former_life_are_opened_once(tmp_path: Path) -> None:
    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 4096)
        await disk.write("a", 0, [b"kept"], sync=True)
    async with RealDisk(tmp_path) as disk:
        assert await disk.read("a", 0, 4) == b"kept"
        opened = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await disk.write("a", 0, [b"more"], sync=False)
            assert await disk.read("a", 0, 4) == b"more"
        assert len(os.listdir("/proc/self/fd")) == opened
        await disk.create("b", 10)
        with pytest.raises(InternalError, match="exists already"):
            await disk.rename("a", "b")
        await disk.remove("a")
        assert len(os.listdir("/proc/self/fd")) == opened, "that of a file that was removed is closed"


async def test_a_write_is_synced_if_it_is_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fdatasync

    def noted(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 4096)
        monkeypatch.setattr(os, "fdatasync", noted)
        await disk.write("a", 0, [b"x"], sync=False)
        assert synced == []
        await disk.write("a", 0, [b"x"], sync=True)
        assert synced == ["a"]
        await disk.write("a", 9, [], sync=True)
        assert synced == ["a", "a"], "what was written before, too"
        await disk.create("b", 4096)
        assert synced[2:] == ["b"], "a file is there, zeros and all, when it is created"


async def test_all_may_read_and_the_owner_alone_may_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with RealDisk(tmp_path) as disk:
            await disk.create("a", 10)
            assert {os.stat(tmp_path / name).st_mode & 0o777 for name in ("lock", "a")} == {0o644}
    finally:
        os.umask(before)


async def test_a_directory_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    async with RealDisk(tmp_path) as disk:
        await disk.sync_directory()
    assert synced == [str(tmp_path)]


async def test_a_creation_that_is_cancelled_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(fd: int, position: int, size: int) -> None:
        begun.set()
        go_on.wait(10)

    monkeypatch.setattr("danube.log.disk._fill", slow)
    async with RealDisk(tmp_path) as disk:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.create, "a", 16 * 2**20)
            await trio.to_thread.run_sync(begun.wait, 10)
            nursery.cancel_scope.cancel()
            go_on.set()
        assert await disk.list() == {}
        monkeypatch.undo()
        await disk.create("a", 10)
        assert await disk.list() == {"a": 10}


async def test_a_read_that_is_cancelled_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def stuck(fd: int, size: int, position: int) -> bytes:
        begun.set()
        go_on.wait(10)
        return b""

    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 10)
        monkeypatch.setattr(os, "pread", stuck)
        try:
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(disk.read, "a", 0, 10)
                    await trio.to_thread.run_sync(begun.wait, 10)
                    nursery.cancel_scope.cancel()
        finally:
            go_on.set()


async def test_short_reads_are_continued_to_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pread
    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 20)
        await disk.write("a", 0, [b"0123456789" * 2], sync=False)
        monkeypatch.setattr(os, "pread", lambda fd, size, position: real(fd, min(size, 7), position))
        assert await disk.read("a", 1, 15) == b"123456789012345"
        assert await disk.read("a", 15, 50) == b"56789"
        assert await disk.read("a", 20, 5) == b""


@pytest.fixture(params=["eventfd", "pipe"])
def _wakeup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the writer threads use what Linux has, and what other systems have."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")


@pytest.mark.usefixtures("_wakeup")
async def test_both_lanes_report_each_of_many_writes(tmp_path: Path) -> None:
    opened = len(os.listdir("/proc/self/fd"))
    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 4096)

        async def fill(start: int, sync: bool) -> None:
            for number in range(start, 200, 2):
                await disk.write("a", number, [bytes((number,))], sync=sync)
                assert await disk.read("a", number, 1) == bytes((number,))

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fill, 0, False)
                nursery.start_soon(fill, 1, True)
        assert await disk.read("a", 0, 200) == bytes(range(200))
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.usefixtures("_wakeup")
async def test_a_write_that_is_cancelled_is_done_and_the_next_one_waits_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    real, done = os.fdatasync, []

    def slow(fd: int) -> None:
        begun.set()
        go_on.wait(10)
        real(fd)
        done.append(fd)

    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 4096)
        monkeypatch.setattr(os, "fdatasync", slow)
        for written in (1, 2):
            begun.clear()
            go_on.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(disk.write, "a", 0, [b"%d" % written], sync=True))
                await trio.to_thread.run_sync(begun.wait, 10)
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                assert len(done) == written - 1
                assert nursery.child_tasks, "the write is not abandoned"
                go_on.set()
            assert len(done) == written
        assert await disk.read("a", 0, 1) == b"2"


@pytest.mark.usefixtures("_wakeup")
async def test_a_descriptor_that_seems_readable_and_is_not_stops_no_other_task(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_readable, waits = trio.lowlevel.wait_readable, []

    async def too_early(fd: int) -> None:
        waits.append(fd)
        if len(waits) > 1:
            await wait_readable(fd)
        else:
            await trio.lowlevel.checkpoint()

    wakeup = _Wakeup()
    rescue = threading.Timer(2.0, wakeup.wake)  # of a loop that is stuck in a read
    monkeypatch.setattr(trio.lowlevel, "wait_readable", too_early)
    rescue.start()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wakeup.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert len(waits) == 2, "it waits again"
            wakeup.wake()
    finally:
        rescue.cancel()
        rescue.join()
        wakeup.close()


async def test_a_write_wakes_no_task_but_its_own(tmp_path: Path) -> None:
    """Each task that takes part would be one more pass of the scheduler, with a system call, for each commit."""
    woken: list[trio.lowlevel.Task] = []

    class Passes(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            woken.append(task)

    async with RealDisk(tmp_path) as disk:
        await disk.create("a", 4096)
        await trio.testing.wait_all_tasks_blocked()
        passes = Passes()
        trio.lowlevel.add_instrument(passes)
        for sync in (True, False):
            await disk.write("a", 0, [b"x"], sync=sync)
        trio.lowlevel.remove_instrument(passes)
    assert woken == 2 * [trio.lowlevel.current_task()]


async def test_nothing_stays_open_if_there_is_no_descriptor_for_a_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = os.eventfd, []

    def scarce(initial: int) -> int:
        calls.append(initial)
        if len(calls) == 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(initial)

    await trio.to_thread.run_sync(lambda: None)
    opened = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "eventfd", scarce)
    with pytest.raises(OutOfDescriptorsError, match="data directory"):
        async with RealDisk(tmp_path):
            pass
    assert len(os.listdir("/proc/self/fd")) == opened
    async with RealDisk(tmp_path):
        pass


async def test_a_wait_that_was_interrupted_does_not_end_the_next_write_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda fd: go_on.wait(10))
    async with RealDisk(tmp_path) as disk:
        go_on.set()
        await disk.create("a", 4096)
        go_on.clear()
        disk._lanes[True].ended.wake()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(disk.write, "a", 0, [b"x"], sync=True))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert nursery.child_tasks
            go_on.set()
