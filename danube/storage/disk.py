"""The ``disk://`` backend: objects as files below a directory.

::

    <directory>/segments/7f3a/0000.seg    an object; the path is its key
    <directory>/.uploads/<random>~<key>   an upload in progress, or remains of an interrupted one
    <directory>/.deleted/<random>         a large deleted object whose space is not yet free

* **Atomic puts.** An object is written under a temporary name, synced, and then renamed: by ``rename``, or for
  ``if_absent`` by ``link``, which fails if the name exists. New folders are synced before that, and the object's folder
  after it.
* **Deleting does not stall the disk.** Freeing a large file at once can block the device, and a journal on it, for many
  milliseconds. So a large object is moved to another folder and truncated in small steps in the background. If the
  backend is closed first, the rest is freed after the next opening. Empty folders are removed.
* All file operations run in threads, a bounded number; each call takes one thread, which checks between pieces
  whether it was cancelled. A cancelled put leaves neither an object nor an upload.

Two processes may use one directory, but two machines may not: network file systems are not supported.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar, TypeVar

import msgspec
import trio

from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors
from danube.model.errors import ConfigurationError, DanubeError, StorageError, StorageRangeError
from danube.model.limits import GIB, MIB, Limits
from danube.model.log_events import log_event
from danube.storage._contract import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.storage._directory import storage_directory
from danube.storage._keys import is_key
from danube.storage._os_errors import kind_of
from danube.storage._plugins import StoragePlugin, StorageSurroundings, WallClock, system_wall_clock_us
from danube.storage._uploads import UPLOADS, belongs_to, upload_name

__all__ = ["DiskBackend", "DiskConfig", "DiskStoragePlugin", "open_disk"]

_log = logging.getLogger("danube.storage")

_Result = TypeVar("_Result")

_DELETED = ".deleted"
_WRITE_PIECE = 1 * MIB
_READ_PIECE = 8 * MIB
_SHRINK_PIECE = 4 * MIB
"""Bytes of a deleted object freed at a time; objects up to this size are unlinked at once."""
_SHRINK_PAUSE_S = 0.015
_KNOWN_FOLDERS = 10_000


class DiskBackend(StorageBackend):
    """A backend over a directory. Created by :func:`open_disk`."""

    def __init__(
        self, directory: Path, *, url: str, concurrency: int, wall_clock_us: WallClock, shared: bool = False
    ) -> None:
        self._root = os.fspath(directory)
        self._url = url
        self._wall_clock_us = wall_clock_us
        self._threads = trio.CapacityLimiter(concurrency)
        # Held while folders are created and removed, so that none is removed between its creation and its first object.
        self._structure = threading.Lock()
        self._known: set[str] = set()  # folders whose directory entries are synced
        self._deleted = trio.Event()
        self._capabilities = StorageCapabilities(
            durable=True, conditional_put=True, shared=shared, max_object_bytes=4 * GIB, mounted=True
        )

    @property
    def url(self) -> str:
        """``disk://`` and the directory."""
        return self._url

    @property
    def capabilities(self) -> StorageCapabilities:
        """Durable, with conditional puts; on this machine only, unless it was declared to be shared."""
        return self._capabilities

    # The contract

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object; it is on the disk when the call returns."""
        await self._visit("put", key, lambda: self._put(key, data, if_absent))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of an object."""
        if start == end:
            return b""
        return (await self._visit("get", key, lambda: self._get(key, [(start, end)])))[0]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of an object, in one thread call."""
        if all(start == end for start, end in ranges):
            return [b""] * len(ranges)
        return list(await self._visit("get", key, lambda: self._get(key, ranges)))

    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object."""
        return await self._visit("head", key, lambda: self._info(key))

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return a page of the listing. Reads only folders that may contain matching keys."""
        return await self._visit("list", prefix, lambda: self._list(prefix, start_after, limit))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; they are durably deleted when the call returns, but their space may be freed later."""
        if not keys:
            return
        large = await self._visit("delete", keys[0], lambda: self._delete(keys))
        if large:
            self._deleted.set()

    async def abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove old unfinished uploads."""
        return await self._visit("abandon uploads of", prefix, lambda: self._abandon(prefix, older_than_s))

    async def _visit(self, operation: str, key: str, work: Callable[[], _Result]) -> _Result:
        try:
            return await trio.to_thread.run_sync(work, limiter=self._threads)
        except DanubeError:
            raise
        except OSError as error:
            # Without the name of the file: the key is in the message.
            raise self._error(kind_of(error, operation), operation, key, error.strerror or str(error)) from error

    def _error(self, kind: type[StorageError], operation: str, key: str, text: str) -> StorageError:
        return kind(f"{self._url}: {operation} {key}: {text}")

    # In threads

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _put(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        upload = f"{self._root}/{UPLOADS}/{upload_name(key)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            file = os.open(upload, flags, 0o644)
        except FileNotFoundError:
            self._make_beside(UPLOADS)
            file = os.open(upload, flags, 0o644)
        try:
            try:
                with memoryview(data) as view:
                    written = 0
                    while written < len(view):
                        trio.from_thread.check_cancelled()
                        written += os.write(file, view[written : written + _WRITE_PIECE])
                trio.from_thread.check_cancelled()
                os.fdatasync(file)
            finally:
                os.close(file)
            trio.from_thread.check_cancelled()
            self._place(upload, self._path(key), if_absent)
        except BaseException:
            # Report the error that ended the upload; abandon_uploads removes what could not be removed here.
            with suppress(OSError):
                os.unlink(upload)
            raise

    def _place(self, upload: str, path: str, if_absent: bool) -> None:
        """Rename a synced upload to its final name, durably."""
        folder = os.path.dirname(path)
        with self._structure:
            try:
                self._name(upload, path, folder, if_absent)
            except FileNotFoundError:
                # A cached folder was removed by another process.
                self._known.clear()
                self._name(upload, path, folder, if_absent)
        if if_absent:
            os.unlink(upload)
        _sync(folder)

    def _name(self, upload: str, path: str, folder: str, if_absent: bool) -> None:
        self._make(folder)
        if not if_absent:
            os.replace(upload, path)
            return
        try:
            os.link(upload, path)
        except FileExistsError:
            if os.path.isdir(path):
                raise IsADirectoryError(None, "the key is a folder of other objects") from None
            _sync(folder)  # it may be of an earlier attempt, whose sync has failed
            raise FileExistsError(None, "the object already exists") from None

    def _make(self, folder: str) -> None:
        """Create a folder below the root with its parents, durably."""
        if folder == self._root or folder in self._known:
            return
        above = os.path.dirname(folder)
        self._make(above)
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise NotADirectoryError(None, "a part of the key is an object") from None
        _sync(above)
        if len(self._known) >= _KNOWN_FOLDERS:
            self._known.clear()
        self._known.add(folder)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(None, "the key is a folder")
            yield file, status.st_size
        finally:
            os.close(file)

    def _get(self, key: str, ranges: Sequence[tuple[int, int | None]]) -> Sequence[bytes]:
        with self._opened(key) as (file, size):
            found = []
            for start, end in ranges:
                stop = size if end is None else end
                if start != stop and (start > size or stop > size):
                    raise self._error(StorageRangeError, "get", key, f"[{start}, {end}) is not within {size} bytes")
                found.append(_read(file, start, stop))
            return found

    def _info(self, key: str) -> ObjectInfo:
        status = os.stat(self._path(key))
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(None, "the key is a folder")
        return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1000)

    def _list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        objects: list[ObjectInfo] = []
        keys = self._walk("", prefix, start_after)
        for key in keys:
            with suppress(FileNotFoundError):  # deleted since
                objects.append(self._info(key))
            if len(objects) == limit:
                break
        return ListPage(objects, any(True for _ in islice(keys, 1)))

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys below a folder (``""`` or ``a/b/``) in order: a folder sorts as its name with the slash."""
        trio.from_thread.check_cancelled()
        try:
            with os.scandir(self._path(folder)) as entries:
                names = sorted(
                    f"{folder}{entry.name}/" if entry.is_dir(follow_symlinks=False) else folder + entry.name
                    for entry in entries
                    if not entry.name.startswith(".")
                )
        except FileNotFoundError:
            if folder:
                return  # removed since
            raise
        for name in names:
            if not name.endswith("/"):
                if name > after and name.startswith(prefix) and is_key(name):
                    yield name
            elif (name.startswith(prefix) or prefix.startswith(name)) and (name > after or after.startswith(name)):
                yield from self._walk(name, prefix, after)

    def _delete(self, keys: Sequence[str]) -> bool:
        """Delete objects; return whether there are files to shrink."""
        large, folders = False, set()
        for key in keys:
            trio.from_thread.check_cancelled()
            path = self._path(key)
            # Also of a missing object: an earlier attempt may have failed to sync it.
            folders.add(os.path.dirname(path))
            with suppress(FileNotFoundError, NotADirectoryError):
                status = os.stat(path)
                if not stat.S_ISREG(status.st_mode):
                    continue
                if status.st_size > _SHRINK_PIECE:
                    self._make_beside(_DELETED)  # if it were missing, rename() would report a missing object
                    os.rename(path, f"{self._root}/{_DELETED}/{secrets.token_hex(8)}")
                    large = True
                else:
                    os.unlink(path)
        for folder in folders:
            with suppress(FileNotFoundError, NotADirectoryError):  # another call has removed it, or there was none
                _sync(folder)
            self._prune(folder)
        return large

    def _make_beside(self, name: str) -> None:
        """Create a folder that holds no objects: a directory restored from a copy may lack it."""
        with suppress(FileExistsError):
            os.mkdir(f"{self._root}/{name}")
            _sync(self._root)

    def _prune(self, folder: str) -> None:
        """Remove a folder and its parents, as far as they are empty."""
        with self._structure:
            while folder != self._root:
                try:
                    os.rmdir(folder)
                except OSError:
                    return  # not empty, or gone
                self._known.discard(folder)
                folder = os.path.dirname(folder)

    def _abandon(self, prefix: str, older_than_s: float) -> int:
        count, before_us = 0, self._wall_clock_us() - older_than_s * 1e6
        for name in os.listdir(f"{self._root}/{UPLOADS}"):
            trio.from_thread.check_cancelled()
            path = f"{self._root}/{UPLOADS}/{name}"
            with suppress(FileNotFoundError):
                if belongs_to(name, prefix) and os.stat(path).st_mtime_ns // 1000 <= before_us:
                    os.unlink(path)
                    count += 1
        return count

    # In the background

    async def _free_space(self) -> None:
        """Task: truncate deleted objects step by step, at the start and after each deletion."""
        while True:
            self._deleted = trio.Event()
            try:
                for name in await self._in_thread(os.listdir, f"{self._root}/{_DELETED}"):
                    more = True
                    while more:
                        more = await self._in_thread(_shrink, f"{self._root}/{_DELETED}/{name}")
                        await trio.sleep(_SHRINK_PAUSE_S)
            except OSError as error:
                _log.warning(
                    "%s: cannot free the space of deleted objects: %s",
                    self._url,
                    error,
                    extra=log_event("storage.space_not_freed", repeating=True, storage=self._url),
                )
            await self._deleted.wait()

    async def _in_thread(self, work: Callable[[str], _Result], path: str) -> _Result:
        return await trio.to_thread.run_sync(work, path, limiter=self._threads)

    def _prepare(self) -> None:
        """Create the directory, durably."""
        made = []
        folder = Path(self._root)
        while not folder.exists():
            made.append(folder)
            folder = folder.parent
        for new in reversed(made):
            new.mkdir(exist_ok=True)
            _sync(os.fspath(new.parent))
        for name in (UPLOADS, _DELETED):
            Path(self._root, name).mkdir(exist_ok=True)
        _sync(self._root)


def _sync(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _read(file: int, start: int, end: int) -> bytes:
    pieces = []
    while start < end:
        trio.from_thread.check_cancelled()
        piece = os.pread(file, min(end - start, _READ_PIECE), start)
        if not piece:
            # Objects never change, but the file of a deleted one is being truncated.
            raise FileNotFoundError(None, "the object was deleted while it was read")
        pieces.append(piece)
        start += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _shrink(path: str) -> bool:
    """Truncate a file by one piece, or remove the rest of it; return whether there is more."""
    with suppress(FileNotFoundError):  # another process with the directory open does the same
        size = os.stat(path).st_size
        if size > _SHRINK_PIECE:
            os.truncate(path, size - _SHRINK_PIECE)
            return True
        os.unlink(path)
    return False


@asynccontextmanager
async def open_disk(
    directory: Path,
    *,
    url: str | None = None,
    limits: Limits | None = None,
    wall_clock_us: WallClock = system_wall_clock_us,
    shared: bool = False,
) -> AsyncIterator[DiskBackend]:
    """Open a backend over a directory, which is created if missing; close it at the end of the block.

    ``url`` is shown in messages (default ``disk://`` and the directory); ``limits`` bounds the threads
    (``storage_max_concurrency``); ``wall_clock_us`` is used for the age of uploads; ``shared``: see
    :class:`DiskConfig`.

    Raises:
        ConfigurationError: the directory cannot be created or used.
        OutOfDescriptorsError: no file descriptor is left.
    """
    limits = limits if limits is not None else Limits()
    backend = DiskBackend(
        directory,
        url=url if url is not None else f"disk://{directory}",
        concurrency=limits.storage_max_concurrency,
        wall_clock_us=wall_clock_us,
        shared=shared,
    )
    try:
        await trio.to_thread.run_sync(backend._prepare)
    except OSError as error:
        if is_out_of_descriptors(error):
            raise out_of_descriptors(backend.url, error) from error
        raise ConfigurationError(f"{backend.url}: the directory {directory} cannot be used: {error}") from error
    failed: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend._free_space)
        try:
            yield backend
        except Exception as error:  # noqa: BLE001 - raised below: the nursery must not wrap the caller's error
            failed = error
        nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed


class DiskConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of ``disk://``."""

    shared: bool = False
    """Whether all brokers of the cluster mount this directory, from one file system of the network: then a topic that
    is stored there may get another owner. The file system must create a link to a file only if the new name is free,
    on whichever machine."""


class DiskStoragePlugin(StoragePlugin[DiskConfig]):
    """``disk://``: objects as files."""

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "files in a directory of this machine"
    config: ClassVar[type[DiskConfig]] = DiskConfig

    @asynccontextmanager
    async def open(self, config: DiskConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Open the directory that the URL names, or ``storage`` in the data directory."""
        if surroundings.location:
            raise ConfigurationError(
                f"{surroundings.url}: write disk:// for the data directory, or disk:///a/directory with three slashes"
            )
        if surroundings.path:
            directory = Path(surroundings.path)
        elif surroundings.data_directory is not None:
            directory = storage_directory(surroundings.data_directory)
        else:
            raise ConfigurationError("disk:// needs a data directory; name the directory: disk:///a/directory")
        async with open_disk(
            directory,
            url=surroundings.url,
            limits=surroundings.limits,
            wall_clock_us=surroundings.wall_clock_us,
            shared=config.shared,
        ) as backend:
            yield backend
