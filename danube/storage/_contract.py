"""The contract of a storage backend: immutable objects under flat keys, and nothing else.

Why it is so small. History is written once and never changed: segments, manifests and remote commits are whole objects
under names that are used once. So a backend needs no append, no rename, no lock and no directory, and every object
store, a directory, a key-value server or a process on another machine can be one.

* **Keys** are relative, ``/``-separated, and have only characters that are harmless everywhere; no key is a folder of
  another one (:mod:`danube.storage._keys` has the rules). The prefix of the URL is the backend's own business: the same
  key means the same object whoever opened the URL.
* **An object appears whole or not at all.** A reader never sees a part of one. A put that failed or was cancelled may
  still have happened (the answer was lost); one that was refused has not.
* **``if_absent``** makes a put the arbiter of a race: of many writers of one key exactly one succeeds, the others get
  :class:`~danube.model.errors.StorageExistsError`. Backends that cannot do that say so in their capabilities.
* **Ranges are half-open byte ranges** and exact: an empty one returns ``b""`` without asking anybody, one that ends
  behind the object is an error (:class:`~danube.model.errors.StorageRangeError`), never a short answer.
* **Cancelling really cancels**: when a cancelled call has returned, nothing of it is going on in the background, apart
  from what the server already had in hand.

A plugin implements this class plainly: one attempt each, errors translated. Keys, prefixes and ranges that reach it
have been checked. Deadlines, retries with jitter, the bound on concurrent calls and the figures are added once for all
of them by :class:`danube.storage.Storage`, so the retry layers of the client libraries are to be switched off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec

__all__ = ["ListPage", "ObjectInfo", "StorageBackend", "StorageCapabilities"]


class StorageCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend can be trusted with. The broker refuses a backend that cannot carry its role, and says why."""

    durable: bool
    """An object whose put has returned survives the loss of power. The broker does not seal durable topics into a
    backend that forgets."""
    conditional_put: bool
    """``if_absent`` is decided by the backend, for all writers on all machines. Durability ``remote`` needs it."""
    shared: bool
    """Other machines that open the same URL see the same objects."""
    max_object_bytes: int
    """Largest object of one put."""
    mounted: bool = False
    """The place is a path of a file system: it may be missing for a while, with an empty directory in its stead."""


class ObjectInfo(msgspec.Struct, frozen=True):
    """One object, as a listing or a head knows it."""

    key: str
    size_bytes: int
    modified_us: int
    """When it was put, microseconds since the epoch, by the backend's clock; 0 if the backend does not know."""


class ListPage(msgspec.Struct, frozen=True):
    """One page of a listing, sorted by key."""

    objects: list[ObjectInfo]
    more: bool
    """Whether there may be further keys: ask again with ``start_after`` = the last key of this page."""


class StorageBackend(ABC):
    """Objects under keys. An async context manager's product: opened by its plugin, ready when it is handed out.

    Errors are those of :mod:`danube.model.errors` under :class:`StorageError`; a foreign exception that leaves a method
    is a bug of the plugin. All methods may be called concurrently.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL without secrets: what messages and manifests say."""

    @property
    @abstractmethod
    def capabilities(self) -> StorageCapabilities:
        """What the backend can be trusted with."""

    @abstractmethod
    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object, whole, in one attempt; replace one that is there unless ``if_absent``.

        ``data`` is not changed by the caller until the call has returned.

        Raises:
            StorageExistsError: ``if_absent``, and the key exists.
            StorageConflictError: the backend could not decide a race just now (S3's 409); try again.
            StorageThrottledError, StorageTimeoutError, StorageUnavailableError: retryable; it may have happened.
            StorageDeniedError: credentials or permissions.
            StorageNotFoundError: the bucket or directory itself is gone.
        """

    @abstractmethod
    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes ``[start, end)`` of an object, up to its end if ``end`` is None.

        Raises:
            StorageNotFoundError: no such object.
            StorageRangeError: the object ends before ``end`` (or before ``start``).
            and the retryable ones as for :meth:`put`.
        """

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of one object, in the order asked for. Raises what :meth:`get` raises.

        The default asks for one after the other; backends that can do better (concurrently, or in one request) should.
        """
        return [await self.get(key, start, end) for start, end in ranges]

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo:
        """Return what is known of an object; raises :class:`StorageNotFoundError` if there is none."""

    @abstractmethod
    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return up to ``limit`` objects whose keys begin with ``prefix`` and sort behind ``start_after``.

        Sorted by key, as bytes. Every object whose put returned before the call began is listed (list-after-write).
        Names that are no keys (markers of folders, what others have put there) are left out.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are no error. Not atomic: some may be gone when it fails."""

    async def abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove what interrupted uploads have left behind (parts, temporary files); return how many.

        Only what is older than ``older_than_s`` seconds: younger ones may be under way. Backends whose puts leave
        nothing behind keep this default.
        """
        return 0
