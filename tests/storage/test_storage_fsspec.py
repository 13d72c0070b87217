"""The base of the object stores' plugins, over a toy asyncio file system with the habits of the real ones."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import uuid
from contextlib import asynccontextmanager
from random import Random

import fsspec.asyn
import pytest
import trio

from danube.model.errors import (
    ConfigurationError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import MIB
from danube.storage import StorageCapabilities, _asyncio_bridge, open_storage
from danube.storage._asyncio_bridge import call_asyncio
from danube.storage._url import public_text
from danube.storage.fsspec import FsspecBackend
from danube.testing.storage import StorageConformance

CAPABILITIES = StorageCapabilities(durable=False, conditional_put=False, shared=True, max_object_bytes=64 * MIB)


class ToyError(Exception):
    """What an HTTP library raises: an exception of its own, with a status."""

    def __init__(self, status, text=""):
        super().__init__(text or f"HTTP {status}")
        self.status = status


class ToyFileSystem(fsspec.asyn.AsyncFileSystem):
    """An object store in a dict. Answers after ``delay_s``; what is behind the end is a ToyError(416), as with many."""

    protocol = "toy"

    def __init__(self, **options):
        super().__init__(**options)
        self.objects = {}
        self.delay_s = 0.0005
        self.fail = None
        self.running = 0
        self.most_running = 0

    async def _answer(self):
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await asyncio.sleep(self.delay_s)
            if self.fail is not None:
                raise self.fail
        finally:
            self.running -= 1

    async def _pipe_file(self, path, value, mode="overwrite", **options):
        await self._answer()
        for _ in range(len(value) // MIB):
            await asyncio.sleep(0.002)
        self.objects[path] = bytes(value)

    async def _cat_file(self, path, start=None, end=None, **options):
        await self._answer()
        data = self._object(path)
        if start is not None and (start >= len(data) or start == end):
            raise ToyError(416)
        return data[start:end]

    async def _info(self, path, **options):
        await self._answer()
        return {"name": path, "size": len(self._object(path)), "type": "file", "LastModified": "2026-01-02T03:04:05Z"}

    async def _find(self, path, detail=True, **options):
        await self._answer()
        return {
            name: {"name": name, "size": len(data), "type": "file", "mtime": 1767323045.5}
            for name, data in self.objects.items()
            if name.startswith(path)
        }

    async def _exists(self, path, **options):
        return path in self.objects

    async def _rm_file(self, path, **options):
        await self._answer()
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)

    def _object(self, path):
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]


class ToyBackend(FsspecBackend):
    def translate(self, error, operation, key):
        kinds = {416: StorageRangeError, 503: StorageThrottledError, 403: StorageDeniedError}
        if isinstance(error, ToyError) and error.status in kinds:
            return self.error(kinds[error.status], operation, key, error)
        return super().translate(error, operation, key)


def toy(kind=ToyBackend):
    fs = ToyFileSystem(skip_instance_cache=True, use_listings_cache=False)
    return kind(fs, "bucket/prefix/", url="toy://bucket/prefix", capabilities=CAPABILITIES)


class TestToy(StorageConformance):
    lacks = frozenset({"durable", "conditional_put"})

    @pytest.fixture(autouse=True)
    def _backend(self):
        self.backend = toy()

    @asynccontextmanager
    async def open_backend(self):
        yield self.backend

    @asynccontextmanager
    async def open_denied(self):
        self.backend.fs.fail = ToyError(403)
        yield self.backend

    @asynccontextmanager
    async def open_unreachable(self):
        self.backend.fs.fail = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        yield self.backend


class TestToyUntranslated(TestToy):
    """A plugin that knows nothing of 416: the size decides what the error meant."""

    open_denied = StorageConformance.open_denied
    test_denied = None

    @pytest.fixture(autouse=True)
    def _backend(self):
        self.backend = toy(FsspecBackend)


async def test_paths_are_below_the_root():
    backend = toy()
    await backend.put("a/b", b"1")
    assert list(backend.fs.objects) == ["bucket/prefix/a/b"]
    backend.fs.objects |= {"bucket/prefix/folder/": b"", "bucket/prefixed": b"", "bucket/prefix/a b": b""}
    assert [item.key for item in (await backend.list()).objects] == ["a/b"]


async def test_times_are_read_whatever_they_are_called():
    backend = toy()
    await backend.put("a", b"1")
    assert (await backend.head("a")).modified_us == 1_767_323_045_000_000
    assert (await backend.list()).objects[0].modified_us == 1_767_323_045_500_000


async def test_ranges_and_deletes_run_side_by_side_but_not_without_bound():
    backend = toy()
    for number in range(30):
        await backend.put(f"k{number}", bytes(1000))
    backend.fs.delay_s = 0.01
    backend.fs.most_running = 0
    await backend.get_ranges("k1", [(number, number + 10) for number in range(30)])
    assert backend.fs.most_running == 8
    backend.fs.most_running = 0
    await backend.delete([f"k{number}" for number in range(30)])
    assert backend.fs.most_running == 8
    assert backend.fs.objects == {}


async def test_the_first_error_of_many_ends_them_and_comes_without_a_group():
    backend = toy()
    await backend.put("a", bytes(10))
    with pytest.raises(StorageRangeError):
        await backend.get_ranges("a", [(0, 1), (5, 11), *[(0, 10)] * 20])
    assert backend.fs.running == 0


async def test_a_short_answer_is_told_from_a_short_object():
    class Short(ToyFileSystem):
        async def _cat_file(self, path, start=None, end=None, **options):
            return (await super()._cat_file(path, start, end))[: self.cut]

    backend = toy()
    backend.fs = Short(skip_instance_cache=True)
    await backend.put("a", bytes(10))
    backend.fs.cut = 3
    with pytest.raises(StorageUnavailableError, match="received only 3 bytes"):
        await backend.get("a", 2, 8)
    with pytest.raises(StorageRangeError):
        await backend.get("a", 7, 11)


async def test_the_whole_object_for_a_range_is_not_passed_on():
    class Ignorant(ToyFileSystem):
        async def _cat_file(self, path, start=None, end=None, **options):
            return self._object(path)

    backend = toy()
    backend.fs = Ignorant(skip_instance_cache=True)
    await backend.put("a", bytes(10))
    with pytest.raises(StorageError, match="received 10 bytes for") as caught:
        await backend.get("a", 2, 8)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (FileNotFoundError("x"), StorageNotFoundError),
        (PermissionError("x"), StorageDeniedError),
        (FileExistsError("x"), StorageExistsError),
        (TimeoutError("x"), StorageTimeoutError),
        (ConnectionResetError("x"), StorageUnavailableError),
        (OSError(errno.ENOSPC, "full"), StorageUnavailableError),
        (OSError(errno.EBUSY, "busy"), StorageThrottledError),
        (ToyError(503), StorageThrottledError),
        (ValueError("x"), StorageError),
        (ToyError(418), StorageError),
    ],
)
async def test_errors_are_translated(raised, expected):
    backend = toy()
    backend.fs.fail = raised
    with pytest.raises(StorageError, match="toy://bucket/prefix: put some/key: ") as caught:
        await backend.put("some/key", b"")
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised


async def test_foreign_messages_lose_their_secrets():
    backend = toy()
    backend.fs.fail = ToyError(
        500, "GET https://me:geheim@host/b?sig=geheim&X-Amz-Signature=geheim&region=eu\n failed " + "x" * 1000
    )
    with pytest.raises(StorageError) as caught:
        await backend.head("a")
    assert "geheim" not in caught.value.message
    assert "GET https://host/b?sig=...&X-Amz-Signature=...&region=eu failed xxx" in caught.value.message
    assert len(caught.value.message) < 500
    assert public_text("AccountKey=geheim; retries=3") == "AccountKey=...; retries=3"


# The bridge


async def call_and_cancel(begun, function):
    """Call a coroutine function of asyncio, and cancel the call when ``begun`` is set."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_asyncio, fsspec.asyn.get_loop(), function)
        assert await trio.to_thread.run_sync(begun.wait, 10)
        nursery.cancel_scope.cancel()


async def test_a_cancelled_coroutine_has_ended_when_the_call_returns():
    loop = fsspec.asyn.get_loop()
    begun = threading.Event()
    steps = []

    async def upload():
        steps.append("begun")
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)
            steps.append("cleaned up")
            raise

    await call_and_cancel(begun, upload)
    assert steps == ["begun", "cleaned up"]
    with trio.CancelScope() as scope:
        scope.cancel()
        await call_asyncio(loop, upload)
    assert steps == ["begun", "cleaned up"]


async def test_a_coroutine_that_does_not_let_itself_be_cancelled_is_left(monkeypatch):
    monkeypatch.setattr(_asyncio_bridge, "_CANCEL_GRACE_S", 0.05)
    begun, finished = threading.Event(), threading.Event()
    go_on = asyncio.Event()

    async def stubborn():
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await go_on.wait()
        finished.set()

    with trio.fail_after(10):
        await call_and_cancel(begun, stubborn)
    assert not finished.is_set()
    fsspec.asyn.get_loop().call_soon_threadsafe(go_on.set)
    assert await trio.to_thread.run_sync(finished.wait, 10)


async def test_results_errors_and_foreign_cancellation_come_through_the_bridge():
    loop = fsspec.asyn.get_loop()

    async def work(value, *, error=None):
        if error is not None:
            raise error
        return value

    async def give_up():
        raise asyncio.CancelledError

    assert await call_asyncio(loop, work, 5) == 5
    with pytest.raises(ToyError):
        await call_asyncio(loop, work, 5, error=ToyError(500))
    with pytest.raises(TypeError):
        await call_asyncio(loop, work)
    with pytest.raises(ConnectionError, match="cancelled by the client library"):
        await call_asyncio(loop, give_up)
    closed = asyncio.new_event_loop()
    closed.close()
    with pytest.raises(ConnectionError, match="event loop is closed"):
        await call_asyncio(closed, work, 5)


async def test_many_calls_through_the_bridge_at_once():
    loop = fsspec.asyn.get_loop()
    results = []

    async def work(value):
        await asyncio.sleep(0.001 * (value % 7))
        return value

    async def call(value):
        with trio.move_on_after(0.003 if value % 3 == 0 else 60):
            results.append(await call_asyncio(loop, work, value))

    async with trio.open_nursery() as nursery:
        for value in range(200):
            nursery.start_soon(call, value)
    assert {value for value in range(200) if value % 3} <= set(results)
    assert len(results) == len(set(results))


# The generic backend by URL


async def test_an_upload_in_pieces_that_is_cancelled_leaves_nothing(tmp_path, monkeypatch):
    async with open_storage(f"fsspec+file://{tmp_path}", random=Random(1)) as storage:
        with trio.CancelScope() as scope:
            original = trio.from_thread.check_cancelled
            looks = []

            def check():
                looks.append(None)
                if len(looks) == 3:
                    trio.from_thread.run_sync(scope.cancel)
                original()

            monkeypatch.setattr(trio.from_thread, "check_cancelled", check)
            await storage.put("a/b", bytes(8 * MIB))
        assert scope.cancelled_caught
        assert len(looks) == 3
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        monkeypatch.undo()
        await storage.put("a/b", b"1")
        assert (tmp_path / "a/b").read_bytes() == b"1"


async def test_capabilities_of_the_generic_backend():
    place = uuid.uuid4().hex
    async with open_storage(f"fsspec+memory://{place}?durable=true&max_object_bytes=1000", random=Random(1)) as storage:
        assert storage.capabilities == StorageCapabilities(
            durable=True, conditional_put=False, shared=False, max_object_bytes=1000, mounted=True
        )
        assert storage.url == f"fsspec+memory://{place}?durable=true&max_object_bytes=1000"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("fsspec://x", r"write fsspec\+PROTOCOL://"),
        ("fsspec+://x", r"write fsspec\+PROTOCOL://|not valid"),
        ("fsspec+nonsense://x", "fsspec does not support protocol 'nonsense'"),
        ("fsspec+file:///x?filesystem_options=geheim", "must be a table, or a JSON object"),
        ("fsspec+file:///x?filesystem_options=[1]", "must be a table, or a JSON object"),
    ],
)
async def test_wrong_generic_urls(url, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        async with open_storage(url, random=Random(1)):
            pass
    assert "geheim" not in str(caught.value)


async def test_options_of_the_file_system(tmp_path):
    options = {"filesystem_options": {"auto_mkdir": True}}
    async with open_storage(f"fsspec+local://{tmp_path}", random=Random(1), options=options) as storage:
        assert storage._backend.fs.auto_mkdir
    url = f"fsspec+file://{tmp_path}?filesystem_options=%7B%22auto_mkdir%22:true%7D"
    async with open_storage(url, random=Random(1)) as storage:
        assert storage._backend.fs.auto_mkdir
        assert "auto_mkdir" not in storage.url


async def test_old_uploads_are_found_by_their_age(tmp_path):
    async with open_storage(f"fsspec+file://{tmp_path}", random=Random(1)) as storage:
        assert await storage.abandon_uploads("", 0) == 0
        uploads = tmp_path / ".uploads"
        uploads.mkdir()
        for name in ("01~a~b", "02~c"):
            (uploads / name).write_bytes(b"x")
        os.utime(uploads / "01~a~b", (1000, 1000))
        assert await storage.abandon_uploads("", 3600) == 1
        assert [path.name for path in uploads.iterdir()] == ["02~c"]
