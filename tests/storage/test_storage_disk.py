"""The directory of a disk backend before, during and after each operation, and the order of its syncs."""

from __future__ import annotations

import errno
import os
import threading
from random import Random

import pytest
import trio

from danube.model.errors import (
    ConfigurationError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageUnavailableError,
)
from danube.model.limits import MIB
from danube.storage import disk, open_storage
from danube.storage.disk import open_disk


def files(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


async def until_there_are_no_files(directory):
    with trio.fail_after(10):
        while files(directory):  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.002)


def folders(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_dir())


async def test_the_path_is_the_key(tmp_path):
    async with open_disk(tmp_path / "new" / "place") as backend:
        await backend.put("segments/7f3a/0000.seg", b"12345")
        assert (tmp_path / "new/place/segments/7f3a/0000.seg").read_bytes() == b"12345"
        assert files(tmp_path) == ["new/place/segments/7f3a/0000.seg"]


@pytest.mark.parametrize("if_absent", [False, True])
async def test_everything_is_synced_before_and_after_it_gets_its_name(tmp_path, monkeypatch, if_absent):
    trace = []
    names = {}

    def watch(function, label):
        original = getattr(os, function)

        def call(*arguments, **options):
            result = original(*arguments, **options)
            trace.append(label(result, *arguments))
            return result

        monkeypatch.setattr(disk.os, function, call)

    def opened(file, path, *rest):
        names[file] = os.path.relpath(path, tmp_path).split("~")[0][:8]
        return f"open {names[file]}"

    async with open_disk(tmp_path) as backend:
        await backend.put("a/first", b"")
        watch("open", opened)
        watch("write", lambda size, file, data: f"write {names[file]}")
        watch("fdatasync", lambda _, file: f"fdatasync {names[file]}")
        watch("fsync", lambda _, file: f"fsync {names[file]}")
        watch("link", lambda _, source, path: f"name {os.path.relpath(path, tmp_path)}")
        watch("replace", lambda _, source, path: f"name {os.path.relpath(path, tmp_path)}")
        watch("mkdir", lambda _, path: f"mkdir {os.path.relpath(path, tmp_path)}")
        await backend.put("a/b/c/k", bytes(3 * MIB // 2), if_absent=if_absent)
        monkeypatch.undo()
    assert [step for step in trace if not step.startswith("open")] == [
        "write .uploads",
        "write .uploads",
        "fdatasync .uploads",
        "mkdir a/b",
        "fsync a",
        "mkdir a/b/c",
        "fsync a/b",
        "name a/b/c/k",
        "fsync a/b/c",
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
async def test_a_full_or_failing_disk(tmp_path, monkeypatch, code):
    def fail(file, data):
        raise OSError(code, os.strerror(code))

    async with open_disk(tmp_path) as backend:
        monkeypatch.setattr(disk.os, "write", fail)
        with pytest.raises(StorageUnavailableError, match=os.strerror(code)):
            await backend.put("a", b"1")
        monkeypatch.undo()
        assert files(tmp_path) == []
        await backend.put("a", b"1")


async def test_a_failed_sync_stores_nothing(tmp_path, monkeypatch):
    def fail(file):
        raise OSError(errno.EIO, "Input/output error")

    async with open_disk(tmp_path) as backend:
        monkeypatch.setattr(disk.os, "fdatasync", fail)
        with pytest.raises(StorageUnavailableError):
            await backend.put("a", b"1", if_absent=True)
        monkeypatch.undo()
        assert files(tmp_path) == []


def refuse_one_sync(monkeypatch):
    """Have the next sync of a folder fail; return the list of those that succeed."""
    original, refused, synced = disk._sync, [], []

    def sync(folder):
        if not refused:
            refused.append(folder)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        original(folder)
        synced.append(os.path.basename(folder))

    monkeypatch.setattr(disk, "_sync", sync)
    return synced


async def test_a_name_whose_sync_has_failed_is_synced_when_it_is_found_to_exist(tmp_path, monkeypatch):
    async with open_storage(f"disk://{tmp_path}", random=Random(1)) as storage:
        await storage.put("a/0", b"")
        synced = refuse_one_sync(monkeypatch)
        await storage.put("a/1", b"1", if_absent=True)
        assert synced == ["a"], "the second attempt"


async def test_a_deletion_whose_sync_has_failed_is_synced_when_nothing_is_left_to_delete(tmp_path, monkeypatch):
    async with open_disk(tmp_path) as backend:
        await backend.put("a/0", b"")
        await backend.put("a/1", b"")
        synced = refuse_one_sync(monkeypatch)
        with pytest.raises(StorageError):
            await backend.delete(["a/1"])
        assert files(tmp_path) == ["a/0"]
        await backend.delete(["a/1", "b/1"])
        assert "a" in synced


async def test_cancelled_between_two_pieces(tmp_path, monkeypatch):
    written = []
    first = trio.Event()
    token = trio.lowlevel.current_trio_token()
    cancelled = threading.Event()
    original = os.write

    def write(file, data):
        written.append(len(data))
        if len(written) == 3:
            token.run_sync_soon(first.set)
            assert cancelled.wait(10)
        return original(file, data)

    async with open_disk(tmp_path) as backend:
        monkeypatch.setattr(disk.os, "write", write)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.put, "a", bytes(64 * MIB))
            await first.wait()
            nursery.cancel_scope.cancel()
            cancelled.set()
        assert len(written) <= 4
        assert files(tmp_path) == []


async def test_large_objects_go_at_once_and_their_space_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_SHRINK_PIECE", 1000)
    monkeypatch.setattr(disk, "_SHRINK_PAUSE_S", 0.001)
    steps = []
    original = os.truncate

    def truncate(path, size):
        steps.append(size)
        original(path, size)

    monkeypatch.setattr(disk.os, "truncate", truncate)
    async with open_disk(tmp_path) as backend:
        await backend.put("a/large", bytes(5500))
        await backend.put("a/small", bytes(1000))
        await backend.delete(["a/large", "a/small"])
        assert (await backend.list()).objects == []
        await until_there_are_no_files(tmp_path)
    assert steps == [4500, 3500, 2500, 1500, 500]


async def test_remains_of_deleted_objects_are_freed_after_opening(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_SHRINK_PAUSE_S", 0.001)
    async with open_disk(tmp_path) as backend:
        await backend.put("a", bytes(9 * MIB))
        async with trio.open_nursery() as nursery:  # closed at once: no time for the background
            nursery.start_soon(backend.delete, ["a"])
    (tmp_path / ".deleted" / "from-before").write_bytes(bytes(100))
    async with open_disk(tmp_path):
        await until_there_are_no_files(tmp_path)


async def test_a_reader_of_an_object_that_shrinks_is_told(tmp_path, monkeypatch):
    async with open_disk(tmp_path) as backend:
        await backend.put("a", bytes(9 * MIB))
        original = os.pread

        def pread(file, size, start):
            os.truncate(tmp_path / "a", 8 * MIB)
            return original(file, size, start)

        monkeypatch.setattr(disk.os, "pread", pread)
        with pytest.raises(StorageNotFoundError, match="deleted while it was read"):
            await backend.get("a")


async def test_empty_folders_go(tmp_path):
    async with open_disk(tmp_path) as backend:
        for key in ("a/b/c/1", "a/b/c/2", "a/x"):
            await backend.put(key, b"")
        await backend.delete(["a/b/c/1"])
        assert "a/b/c" in folders(tmp_path)
        await backend.delete(["a/b/c/2"])
        assert folders(tmp_path) == [".deleted", ".uploads", "a"]
        await backend.delete(["a/x"])
        assert folders(tmp_path) == [".deleted", ".uploads"]
        await backend.put("a/b/c/1", b"again")
        assert await backend.get("a/b/c/1") == b"again"


async def test_folders_come_and_go_under_concurrent_puts(tmp_path):
    async with open_disk(tmp_path) as backend:

        async def work(number):
            for turn in range(25):
                key = f"a/b/{turn % 2}/{number}"
                await backend.put(key, b"x", if_absent=turn % 3 == 0)
                await backend.delete([key])

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(work, number)
        assert folders(tmp_path) == [".deleted", ".uploads"]
        assert files(tmp_path) == []


async def test_a_folder_that_another_process_removed(tmp_path):
    async with open_disk(tmp_path) as backend:
        await backend.put("a/b/1", b"")
        (tmp_path / "a/b/1").unlink()
        (tmp_path / "a/b").rmdir()
        await backend.put("a/b/2", b"x", if_absent=True)
        assert files(tmp_path) == ["a/b/2"]


async def test_a_key_that_is_a_folder_of_another(tmp_path):
    async with open_disk(tmp_path) as backend:
        await backend.put("a/b", b"")
        for if_absent in (False, True):
            for key in ("a", "a/b/c"):
                with pytest.raises(StorageError) as caught:
                    await backend.put(key, b"", if_absent=if_absent)
                assert not caught.value.retryable
                assert not isinstance(caught.value, StorageExistsError)
        assert files(tmp_path) == ["a/b"]


async def test_foreign_files_are_not_listed(tmp_path):
    async with open_disk(tmp_path) as backend:
        await backend.put("a/b", b"")
        for name in ("lost+found~", ".hidden", "a/x y", "a/#backup#", "a/.b.swp"):
            (tmp_path / name).write_bytes(b"x")
        assert [item.key for item in (await backend.list()).objects] == ["a/b"]


async def test_a_listing_reads_only_the_folders_it_needs(tmp_path, monkeypatch):
    async with open_disk(tmp_path) as backend:
        for first in "abcde":
            for second in "abcde":
                await backend.put(f"{first}/{second}/k", b"")
        visited = []
        original = os.scandir

        def scandir(path):
            visited.append(os.path.relpath(path, tmp_path))
            return original(path)

        monkeypatch.setattr(disk.os, "scandir", scandir)
        page = await backend.list("c/", start_after="c/c/k", limit=10)
        assert [item.key for item in page.objects] == ["c/d/k", "c/e/k"]
        assert visited == [".", "c", "c/c", "c/d", "c/e"]
        visited.clear()
        page = await backend.list(start_after="d/e/k", limit=1)
        assert page.more
        assert visited == [".", "d", "d/e", "e", "e/a", "e/b"]


async def test_age_of_uploads_is_told_by_the_wall_clock(tmp_path):
    hour_us = 3_600_000_000
    now_us = [0]
    async with open_disk(tmp_path, wall_clock_us=lambda: now_us[0]) as backend:
        upload = tmp_path / ".uploads" / "0123~a"
        upload.write_bytes(b"x")
        now_us[0] = upload.stat().st_mtime_ns // 1000 + hour_us
        assert await backend.abandon_uploads("", 3601) == 0
        assert await backend.abandon_uploads("", 3600) == 1


async def test_two_that_open_one_directory_race(tmp_path):
    async with open_disk(tmp_path) as first, open_disk(tmp_path) as second:
        for turn in range(10):
            won = []

            async def compete(backend, data, key=f"race/{turn}", won=won):
                try:
                    await backend.put(key, data, if_absent=True)
                except StorageExistsError:
                    return
                won.append(data)

            async with trio.open_nursery() as nursery:
                for writer in range(8):
                    nursery.start_soon(compete, (first, second)[writer % 2], b"%d" % writer)
            assert len(won) == 1
            assert await first.get(f"race/{turn}") == won[0]


async def test_directories_by_url(tmp_path):
    async with open_storage("disk://", random=Random(1), data_directory=tmp_path / "data") as storage:
        await storage.put("a", b"1")
        assert storage.url == "disk://"
        assert storage.capabilities.durable
    assert (tmp_path / "data/storage/a").exists()
    async with open_storage(f"disk://{tmp_path}/with%20space", random=Random(1)) as storage:
        await storage.put("a", b"1")
    assert (tmp_path / "with space/a").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("disk://", "needs a data directory"),
        ("disk://relative/dir", "three slashes"),
        ("disk:///dev/null/x", "cannot be used"),
        ("disk:///tmp?sync=no", "has no option 'sync'; it has: shared"),
    ],
)
async def test_wrong_directories(url, message):
    with pytest.raises(ConfigurationError, match=message):
        async with open_storage(url, random=Random(1)):
            pass


async def test_permissions_are_a_denial(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(errno.EACCES, "Permission denied")

    async with open_disk(tmp_path) as backend:
        monkeypatch.setattr(disk.os, "open", refuse)
        with pytest.raises(StorageDeniedError, match="get a: Permission denied"):
            await backend.get("a")
        with pytest.raises(StorageDeniedError):
            await backend.put("a", b"")


async def test_an_error_of_the_caller_stays_as_it_is(tmp_path):
    with pytest.raises(KeyError):
        async with open_storage(f"disk://{tmp_path}", random=Random(1)):
            raise KeyError("mine")


async def test_a_directory_is_shared_if_its_url_says_so(tmp_path):
    for url, shared in ((f"disk://{tmp_path}", False), (f"disk://{tmp_path}?shared=true", True)):
        async with open_storage(url, random=Random(1)) as storage:
            assert storage.capabilities.shared is shared
            assert storage.capabilities.conditional_put
    for url, shared in (("memory://", False), ("memory://declared?shared=true", True)):
        async with open_storage(url, random=Random(1)) as storage:
            assert storage.capabilities.shared is shared
