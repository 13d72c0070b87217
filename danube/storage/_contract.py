"""The contract of a storage backend: immutable objects under flat keys.

The contract is small because history is written once and never changed: segments, manifests and remote commits are
whole objects under keys that are used once. A backend needs no append, rename, lock or directory, so any object store,
file system, key-value server or remote process can be one.

* **Keys** are relative, ``/``-separated, and contain only characters that are harmless everywhere; no key is a folder
  of another one (:mod:`danube.storage._keys` has the rules). The backend handles the prefix of the URL internally: the
  same key means the same object for all users of the URL.
* **Puts are atomic.** A reader never sees a partial object. A put that failed or was cancelled may still have succeeded
  (its answer was lost); a refused put has not.
* **``if_absent``** resolves races: of many writers of one key exactly one succeeds, the others get
  :class:`~danube.model.errors.StorageExistsError`. Backends without it declare that in their capabilities.
* **Ranges are half-open byte ranges** and exact: an empty one returns ``b""`` without a request, one that ends
  after the end of the object is an error (:class:`~danube.model.errors.StorageRangeError`), never a short answer.
* **Cancellation is complete**: when a cancelled call has returned, none of it continues in the background, except
  work that the server had already received.

A plugin implements only single attempts and the translation of errors. Keys, prefixes and ranges passed to it
have been checked. Deadlines, retries with jitter, the limit of concurrent calls and statistics are added for all
of them by :class:`danube.storage.Storage`, so retries in the client libraries must be disabled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

__all__ = ["ListPage", "ObjectInfo", "StorageBackend", "StorageCapabilities"]


class StorageCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Guarantees of a backend. The broker refuses a backend that lacks those of its role, and says why."""

    durable: bool
    """An object whose put has returned survives the loss of power. The broker does not seal durable topics into a
    backend that is not durable."""
    conditional_put: bool
    """``if_absent`` is decided by the backend, for all writers on all machines. Durability ``remote`` needs it."""
    shared: bool
    """Other machines that open the same URL see the same objects."""
    max_object_bytes: int
    """Largest object of one put."""
    mounted: bool = False
    """The storage is a path that may be a mount point: while it is not mounted, an empty directory takes its place."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object, as returned by a listing or a head."""

    key: str
    size_bytes: int
    modified_us: int
    """Time of the put, microseconds since the epoch, by the backend's clock; 0 if unknown."""


class ListPage(msgspec.Struct, frozen=True):
    """One page of a listing, sorted by key."""

    objects: list[ObjectInfo]
    more: bool
    """Whether there may be further keys: continue with ``start_after`` = the last key of this page."""


class StorageBackend(ABC):
    """Objects under keys. Opened by its plugin in an async context manager, and ready when it is returned.

    Errors are those of :mod:`danube.model.errors` under :class:`StorageError`; a foreign exception that leaves a method
    is a bug of the plugin. All methods may be called concurrently.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL without secrets, for messages and manifests."""

    @property
    @abstractmethod
    def capabilities(self) -> StorageCapabilities:
        """The guarantees of the backend."""

    @abstractmethod
    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object, whole, in one attempt; replace an existing one unless ``if_absent``.

        The caller does not change ``data`` until the call has returned.

        Raises:
            StorageExistsError: ``if_absent``, and the key exists.
            StorageConflictError: the backend could not resolve a race now (S3's 409); try again.
            StorageThrottledError, StorageTimeoutError, StorageUnavailableError: retryable; the put may have succeeded.
            StorageDeniedError: credentials or permissions.
            StorageNotFoundError: the bucket or directory itself does not exist.
        """

    @abstractmethod
    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``[start, end)`` of an object, up to its end if ``end`` is None.

        Raises:
            StorageNotFoundError: no such object.
            StorageRangeError: the object ends before ``end`` (or before ``start``).
            StorageError: the retryable ones of :meth:`put`.
        """

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of one object, in the given order. Raises the errors of :meth:`get`.

        The default reads one after the other; backends that can read concurrently, or in one request, should do so.
        """
        return [await self.get(key, start, end) for start, end in ranges]

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object; raises :class:`StorageNotFoundError` if it does not exist."""

    @abstractmethod
    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return up to ``limit`` objects whose keys begin with ``prefix`` and sort after ``start_after``.

        Sorted by key, as bytes. Every object whose put returned before the call began is listed (list-after-write).
        Names that are not keys (folder markers, foreign objects) are left out.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are ignored. Not atomic: some may be deleted when it fails."""

    async def abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove remains of interrupted uploads (parts, temporary files); return their number.

        Only those older than ``older_than_s`` seconds: younger ones may be in progress. Backends whose puts leave
        no remains keep this default.
        """
        return 0
