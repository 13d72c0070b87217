r"""The marker object that identifies a storage, so that an unavailable storage is not mistaken for an empty one.

A directory that is not mounted looks like an empty storage; so does a recreated bucket, a Redis that restarted without
its file, or a wrong URL. Treating it as empty would declare history lost, or write new history to the wrong place.
Therefore a storage that a broker writes to contains one small object::

    markers/<cluster>        "DNB-MARK 1 <identity, 32 hex digits>\n"

The identity is drawn at the first write and stored in the metadata; of brokers that share a storage, the first one
decides for all. From then on:

* The answer "no such object", and every listing, count only if the marker is found.
* Nothing is put or deleted before the marker was found. On a path of a file system (``capabilities.mounted``) it is
  checked before and after each put; a service is checked again every :data:`TRUST_S` seconds.

A storage without its marker is *unavailable*: calls raise :class:`~danube.model.errors.StorageUnavailableError`, which
is retryable, so callers wait as for a service that is down, and continue when the marker is found again. A storage with
another marker is refused in the same way. A copy of all objects includes the marker; :meth:`Marker.adopt` is for a
storage whose former contents are abandoned deliberately.
"""

from __future__ import annotations

import math
import random as random_module
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from danube.model.errors import (
    DanubeError,
    StorageConflictError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageUnavailableError,
)
from danube.storage._contract import StorageBackend
from danube.storage._marker_text import away, damaged, decode_identity, encode_identity

__all__ = ["TRUST_S", "Marker"]

TRUST_S: Final = 10.0
"""How long the check of a service's marker is valid; that of a path is repeated for each put."""
_LOOKS: Final = 3


class Marker:
    """The marker of one storage of one cluster; shared by all users of the storage in this process.

    Args:
        name: of the storage, for messages.
        cluster: the cluster of the marker; clusters that share a storage have a marker each.
        identity: the stored identity; empty if the storage was never written to.
        random: draws the identity.
        remember: stores an identity for the next start, and for the brokers that share the storage, unless there is one
            already; if the second argument is true, even then. Returns the one that is stored. Awaited before the
            storage is written to.

    Attributes:
        identity: the expected identity; empty before the first write.
    """

    def __init__(
        self,
        name: str,
        cluster: str,
        *,
        random: random_module.Random,
        remember: Callable[[str, bool], Awaitable[str]],
        identity: str = "",
    ) -> None:
        self.name = name
        self.key = f"markers/{cluster}"
        self.identity = identity
        self._random = random
        self._remember = remember
        self._recording = trio.Lock()
        self._seen_at = -math.inf
        """Start time of the last successful check, by Trio's clock."""

    @property
    def known(self) -> bool:
        """Whether there is an identity to check."""
        return bool(self.identity)

    def expect(self, identity: str) -> None:
        """Note the identity in the metadata: that of the last start, or one that another broker has stored."""
        if identity != self.identity:
            self.identity, self._seen_at = identity, -math.inf

    async def before_write(self, backend: StorageBackend) -> None:
        """Verify that a backend is this storage, unless that was done recently; mark it if it has no identity yet.

        Raises:
            StorageUnavailableError: the marker is missing or another one, or the identity cannot be stored now.
            StorageError: the backend failed.
        """
        if not self.identity:
            await self._record_identity(backend)
        if trio.current_time() - self._seen_at >= (0.0 if backend.capabilities.mounted else TRUST_S):
            await self.recognize(backend)

    async def recognize(self, backend: StorageBackend) -> None:
        """Check the marker.

        Raises:
            StorageUnavailableError: the marker is missing, or another one.
            StorageError: the backend failed.
        """
        begun = trio.current_time()
        found = await self._read(backend)
        if found != self.identity:
            self._seen_at = -math.inf
            raise StorageUnavailableError(away(backend.url, self.key, self.name, found))
        self._seen_at = begun

    async def adopt(self, backend: StorageBackend) -> None:
        """Accept the present contents as this storage, whatever identity was expected; create the marker if missing.

        Raises:
            StorageError: the backend failed; nothing has changed, and the call may be repeated.
        """
        await self._record_identity(backend, again=True)

    async def _record_identity(self, backend: StorageBackend, *, again: bool = False) -> None:
        async with self._recording:
            if self.identity and not again:
                return  # another call, or another broker, has done it in the meantime
            begun = trio.current_time()
            identity = await self._read_or_make(backend)
            try:
                stored = await self._remember(identity, again)
            except StorageError:
                raise
            except DanubeError as error:
                raise StorageUnavailableError(
                    f"{backend.url}: storage {self.name!r} cannot be written: storing its identity in the metadata"
                    f" failed: {error}"
                ) from error
            # Another broker may have stored the identity of another place: this one is not the storage then.
            self.identity, self._seen_at = stored, begun if stored == identity else -math.inf

    async def _read_or_make(self, backend: StorageBackend) -> str:
        for _ in range(_LOOKS):
            found = await self._read(backend)
            if found:
                return found
            identity = f"{self._random.getrandbits(128):032x}"
            try:
                await backend.put(self.key, encode_identity(identity), if_absent=backend.capabilities.conditional_put)
            except (StorageExistsError, StorageConflictError):
                continue  # another process of this cluster was first: use its marker
            return identity
        raise StorageUnavailableError(f"{backend.url}: the marker {self.key} keeps changing; try again")

    async def _read(self, backend: StorageBackend) -> str:
        """Return the identity in the marker; empty if there is no marker."""
        try:
            data = await backend.get(self.key)
        except StorageNotFoundError:
            return ""
        identity = decode_identity(data)
        if not identity:
            raise StorageUnavailableError(damaged(backend.url, self.key, self.name))
        return identity
