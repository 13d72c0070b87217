"""The generic backend over any fsspec file system, and base class of the plugins for the big object stores.

``fsspec+PROTOCOL://...`` opens the file system of that protocol (``fsspec+sftp://host/dir``, ``fsspec+file:///dir``).
It is generic, so it guarantees little: not durable unless the option says so, no conditional puts, and a listing reads
a whole folder for each page. A plugin for one service derives from :class:`FsspecBackend`, overrides hooks with better
implementations, translates the service's errors, and declares its actual guarantees.

There are two kinds of file systems:

* **asyncio** ones (s3fs, gcsfs, adlfs): their coroutines run on fsspec's own loop thread and are awaited through
  :func:`~danube.storage._asyncio_bridge.call_asyncio`, so cancelling really cancels. An upload is one call.
* **blocking** ones (local, sftp, smb, hdfs, memory): calls run in threads. An upload is written in pieces to another
  name and then renamed; a cancelled one stops between two pieces and leaves nothing. A call that hangs inside the
  library cannot be cancelled, except for reads, which are abandoned.

Differences between the libraries are hidden: an empty range (error, empty or the whole object), a range after
the end (error or a short answer), deleting missing objects (error or not), missing folders. No listing is cached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypeVar

import fsspec
import fsspec.asyn
import msgspec
import trio

from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    StorageDeniedError,
    StorageError,
    StorageNotFoundError,
    StorageRangeError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import GIB, MIB
from danube.storage._asyncio_bridge import call_asyncio
from danube.storage._contract import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.storage._keys import is_key
from danube.storage._os_errors import kind_of
from danube.storage._plugins import StoragePlugin, StorageSurroundings
from danube.storage._uploads import UPLOADS, belongs_to, upload_name
from danube.storage._url import public_text

__all__ = ["FsspecBackend", "FsspecConfig", "FsspecStoragePlugin", "call_asyncio"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_PIECE = 1 * MIB


class FsspecBackend(StorageBackend):
    """A backend over an fsspec file system.

    ``fs`` is the file system (made with ``skip_instance_cache=True, use_listings_cache=False``), ``root`` the path in
    it below which the objects are (``bucket/prefix``), ``url`` the URL for messages. ``concurrency`` bounds the calls
    of one :meth:`get_ranges` and :meth:`delete`, and the threads of a blocking file system.

    Plugins override ``_put``, ``_get``, ``_head``, ``_list``, ``_delete``, ``_abandon_uploads`` and :meth:`translate`.
    Hooks get keys, may raise anything (``translate`` converts it), and call the library with :meth:`call` and
    :meth:`path`.
    """

    tells_range_errors: ClassVar[bool] = False
    """Whether :meth:`translate` recognises a range after the end. Otherwise any unspecific error of a ranged read may
    mean that, and the size of the object decides."""

    def __init__(
        self, fs: Any, root: str, *, url: str, capabilities: StorageCapabilities, concurrency: int = 8
    ) -> None:
        self.fs = fs
        self.root = root.rstrip("/")
        self._url = url
        self._capabilities = capabilities
        self._concurrency = concurrency
        self._threads = trio.CapacityLimiter(concurrency)

    @property
    def url(self) -> str:
        """The URL without secrets."""
        return self._url

    @property
    def capabilities(self) -> StorageCapabilities:
        """The capabilities declared when it was opened."""
        return self._capabilities

    # For plugins

    def path(self, key: str) -> str:
        """Return the path of a key in the file system."""
        return f"{self.root}/{key}"

    async def call(self, function: Callable[..., Coroutine[Any, Any, _Result]], *args: Any, **kwargs: Any) -> _Result:
        """Run a coroutine function of an asyncio file system (such as ``self.fs._info``) on its loop."""
        loop: asyncio.AbstractEventLoop = self.fs.loop
        return await call_asyncio(loop, function, *args, **kwargs)

    async def each(
        self, function: Callable[[_Item], Coroutine[Any, Any, _Result]], items: Sequence[_Item]
    ) -> list[_Result]:
        """Run a (Trio) coroutine function for every item, ``concurrency`` at a time; return the results in order.

        The first error ends all of them and is raised unchanged.
        """
        results: dict[int, _Result] = {}
        failed: list[Exception] = []
        turns = iter(range(len(items)))

        async def work() -> None:
            for turn in turns:
                try:
                    results[turn] = await function(items[turn])
                except Exception as error:  # noqa: BLE001 - raised below, without a group around it
                    failed.append(error)
                    nursery.cancel_scope.cancel()
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(min(self._concurrency, len(items))):
                nursery.start_soon(work)
        if failed:
            raise failed[0]
        return [results[turn] for turn in range(len(items))]

    def translate(self, error: Exception, operation: str, key: str) -> StorageError:
        """Return the storage error for one of the library's. ``key`` is "" or a prefix for a listing.

        Overriding methods handle the errors of their service and leave the rest to this one, which handles Python's
        own exceptions.
        """
        return self.error(kind_of(error, operation), operation, key, error)

    def error(self, kind: type[StorageError], operation: str, key: str, cause: BaseException | str) -> StorageError:
        """Build an error whose message names backend, operation and key, without secrets from the cause's text."""
        text = cause if isinstance(cause, str) else f"{type(cause).__name__}: {public_text(str(cause))}"
        return kind(f"{self._url}: {operation} {key}: {text}")

    # The contract

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object."""
        with self._errors("put", key):
            await self._put(key, data, if_absent)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of an object."""
        if start == end:
            return b""
        whole = start == 0 and end is None
        failed: StorageError | None = None
        data = b""
        try:
            with self._errors("get", key):
                data = await self._get(key, start, end)
        except (StorageNotFoundError, StorageDeniedError, StorageThrottledError, StorageTimeoutError):
            raise
        except StorageError as error:
            if whole or (self.tells_range_errors and not isinstance(error, StorageRangeError)):
                raise
            failed = error
        if failed is None:
            if whole or (end is None and data) or (end is not None and len(data) == end - start):
                return data
            if end is not None and len(data) > end - start:
                raise self.error(StorageError, "get", key, f"received {len(data)} bytes for [{start}, {end})")
        # Libraries report a range after the end in many ways, and some return fewer bytes: the size decides.
        size = (await self.head(key)).size_bytes
        if start > size or (end is not None and end > size):
            raise self.error(StorageRangeError, "get", key, f"[{start}, {end}) is not within {size} bytes") from failed
        if start == size:
            return b""
        if failed is not None:
            raise failed
        raise self.error(StorageUnavailableError, "get", key, f"received only {len(data)} bytes of [{start}, {end})")

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of an object; they are read concurrently."""
        return await self.each(lambda span: self.get(key, *span), ranges)

    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object."""
        with self._errors("head", key):
            return await self._head(key)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return a page of the listing."""
        with self._errors("list", prefix):
            return await self._list(prefix, start_after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        if keys:
            with self._errors("delete", keys[0]):
                await self._delete(keys)

    async def abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove old unfinished uploads."""
        with self._errors("abandon uploads of", prefix):
            return await self._abandon_uploads(prefix, older_than_s)

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except DanubeError:
            raise
        except Exception as error:
            raise self.translate(error, operation, key) from error

    # Hooks: overridden by plugins for one service

    async def _put(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        """Store an object, whole. Here ``if_absent`` only checks first: it is not a conditional put."""
        if not self.fs.async_impl:
            await self._thread(self._write, key, data, if_absent)
            return
        path = self.path(key)
        if if_absent and await self.call(self.fs._exists, path):
            raise FileExistsError("the object already exists")
        await self.call(self.fs._pipe_file, path, bytes(data))

    async def _get(self, key: str, start: int, end: int | None) -> bytes:
        """Return bytes ``[start, end)``; never called for an empty range. Bytes after the end may be missing."""
        bounds: dict[str, int] = {} if start == 0 and end is None else {"start": start}
        if end is not None:
            bounds["end"] = end
        path = self.path(key)
        data: bytes = (
            await self.call(self.fs._cat_file, path, **bounds)
            if self.fs.async_impl
            else await self._thread(partial(self.fs.cat_file, path, **bounds), reads=True)
        )
        return data

    async def _head(self, key: str) -> ObjectInfo:
        """Return size and time of an object."""
        path = self.path(key)
        info: dict[str, Any] = (
            await self.call(self.fs._info, path)
            if self.fs.async_impl
            else await self._thread(self.fs.info, path, reads=True)
        )
        if info.get("type") == "directory":
            raise FileNotFoundError("the key is a folder")
        return ObjectInfo(key, info["size"], _modified_us(info))

    async def _list(self, prefix: str, start_after: str, limit: int) -> ListPage:
        """Return a page. Here the folder of the prefix is read in full each time."""
        folder = self.path(prefix.rpartition("/")[0]).rstrip("/")
        try:
            found: dict[str, dict[str, Any]] = (
                await self.call(self.fs._find, folder, detail=True)
                if self.fs.async_impl
                else await self._thread(partial(self.fs.find, folder, detail=True), reads=True)
            )
        except FileNotFoundError:
            return ListPage([], False)
        keys: list[tuple[str, dict[str, Any]]] = []
        root = f"{self.root}/"
        for path, info in found.items():
            key = path[len(root) :]
            # Some file systems treat the folder as a plain prefix, and also return its siblings.
            if not path.startswith(root) or info.get("type") != "file":
                continue
            if key > start_after and key.startswith(prefix) and is_key(key):
                keys.append((key, info))
        keys.sort(key=lambda item: item[0])
        return ListPage(
            [ObjectInfo(key, info["size"], _modified_us(info)) for key, info in keys[:limit]], len(keys) > limit
        )

    async def _delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored."""
        if not self.fs.async_impl:
            await self._thread(self._remove, [self.path(key) for key in keys])
            return

        async def remove(key: str) -> None:
            with suppress(FileNotFoundError):
                await self.call(self.fs._rm_file, self.path(key))

        await self.each(remove, keys)

    async def _abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove old unfinished uploads. Remains of asyncio file systems are unknown to this class."""
        if self.fs.async_impl:
            return 0
        return await self._thread(self._sweep, prefix, older_than_s)

    # Blocking file systems, in threads

    async def _thread(self, function: Callable[..., _Result], *args: Any, reads: bool = False) -> _Result:
        # A read that hangs may be abandoned: its result is discarded.
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=reads, limiter=self._threads)

    def _write(self, key: str, data: bytes | bytearray, if_absent: bool) -> None:
        fs, path, upload = self.fs, self.path(key), f"{self.root}/{UPLOADS}/{upload_name(key)}"
        fs.makedirs(f"{self.root}/{UPLOADS}", exist_ok=True)
        try:
            with fs.open(upload, "wb") as file, memoryview(data) as view:
                for first in range(0, len(view), _PIECE):
                    trio.from_thread.check_cancelled()
                    file.write(view[first : first + _PIECE])
            trio.from_thread.check_cancelled()
            if if_absent and fs.exists(path):
                raise FileExistsError("the object already exists")
            fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            fs.mv(upload, path)
        except BaseException:
            # Report the error that ended the upload; abandon_uploads removes the remains.
            with suppress(Exception):
                fs.rm_file(upload)
            raise

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            trio.from_thread.check_cancelled()
            with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self.fs.rm_file(path)

    def _sweep(self, prefix: str, older_than_s: float) -> int:
        count, now_s = 0, time.time()
        try:
            found = self.fs.ls(f"{self.root}/{UPLOADS}", detail=True)
        except FileNotFoundError:
            return 0
        for info in found:
            if belongs_to(info["name"].rpartition("/")[2], prefix) and _modified_us(info) / 1e6 <= now_s - older_than_s:
                self._remove([info["name"]])
                count += 1
        return count


def _modified_us(info: Mapping[str, Any]) -> int:
    """Return the modification time of a file under any of the names that file systems use; 0 if unknown."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "modified", "created"):
        value = info.get(name)
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            return int(value * 1_000_000)
    return 0


class FsspecConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of ``fsspec+PROTOCOL://``."""

    durable: bool = False
    """Declare that written objects survive a power loss. fsspec cannot determine that."""
    shared: bool = True
    """Other machines that open the same URL see the same objects."""
    max_object_bytes: int = 1 * GIB
    """Largest object."""
    filesystem_options: dict[str, Any] | str = {}
    """Arguments of the file system's class, a table or a JSON object: host, username, password, ... Never shown."""


class FsspecStoragePlugin(StoragePlugin[FsspecConfig]):
    """``fsspec+PROTOCOL://``: any file system that fsspec supports, with few guarantees."""

    name: ClassVar[str] = "fsspec"
    summary: ClassVar[str] = "any file system of fsspec, as fsspec+PROTOCOL://; no conditional puts"
    config: ClassVar[type[FsspecConfig]] = FsspecConfig

    @asynccontextmanager
    async def open(self, config: FsspecConfig, surroundings: StorageSurroundings) -> AsyncIterator[StorageBackend]:
        """Create the file system of the URL."""
        _, plus, protocol = surroundings.scheme.partition("+")
        if not plus or not protocol:
            raise ConfigurationError(
                f"{surroundings.url}: write fsspec+PROTOCOL://, for example fsspec+sftp://host/dir"
            )
        try:
            kind = fsspec.get_filesystem_class(protocol)
        except ValueError:
            raise ConfigurationError(f"{surroundings.url}: fsspec does not support protocol {protocol!r}") from None
        except ImportError as error:
            raise ConfigurationError(f"{surroundings.url}: {error}") from error
        url = f"{protocol}://{surroundings.location}{surroundings.path}"
        options = _filesystem_options(config, surroundings.url)
        make = partial(
            kind,
            **(kind._get_kwargs_from_urls(url) | options),
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        try:
            # In a thread: some connect on creation.
            fs = await trio.to_thread.run_sync(make, abandon_on_cancel=True)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"{surroundings.url}: fsspec does not accept these filesystem_options: {public_text(str(error))}"
            ) from None
        except OSError as error:
            raise StorageUnavailableError(f"{surroundings.url}: open: {public_text(str(error))}") from error
        yield FsspecBackend(
            fs,
            kind._strip_protocol(url),
            url=surroundings.url,
            capabilities=StorageCapabilities(
                durable=config.durable,
                conditional_put=False,
                shared=config.shared and protocol not in ("file", "local", "memory"),
                max_object_bytes=config.max_object_bytes,
                mounted=True,
            ),
            concurrency=surroundings.limits.storage_max_concurrency,
        )


def _filesystem_options(config: FsspecConfig, url: str) -> dict[str, Any]:
    if not isinstance(config.filesystem_options, str):
        return config.filesystem_options
    try:
        return msgspec.json.decode(config.filesystem_options, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise ConfigurationError(f"{url}: filesystem_options must be a table, or a JSON object") from None
