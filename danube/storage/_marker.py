r"""The marker object that identifies a storage, so that an unavailable storage is not mistaken for an empty one.

A directory whose mount is missing looks like an empty directory; so does a bucket that was recreated, a Redis that
restarted without its file, or a URL that names another place. Taking it for empty would mean declaring history lost, or
writing new history to the wrong place. Therefore a storage that a broker writes to holds one small object::

    markers/<cluster>        "DNB-MARK 1 <identity, 32 hex digits>\n"

The identity is drawn at the first write and stored in the metadata. From then on:

* A missing object, and every listing, are believed only if the marker is there.
* Nothing is put or deleted unless the marker was seen. On a path of a file system (``capabilities.mounted``) it is
  checked before and after each put; a service is checked again every :data:`TRUST_S` seconds.

Without its marker a storage is *away*: :class:`~danube.model.errors.StorageUnavailableError`, which is retryable, so
everything waits as for a service that is down, and continues when the marker is seen again. A place with another
marker is another storage, and is refused in the same way. Copying all objects to a new place copies the marker, too;
:meth:`Marker.adopt` is for a place whose former contents are given up deliberately.
"""

from __future__ import annotations

import math
import random as random_module
import re
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

__all__ = ["TRUST_S", "Marker"]

TRUST_S: Final = 10.0
"""How long a service (not a path) counts as recognized after its marker was seen."""
_FORMAT = re.compile(rb"DNB-MARK 1 ([0-9a-f]{32})\n")
_LOOKS: Final = 3


class Marker:
    """The marker of one storage of one cluster; shared by all users of the storage in this process.

    Args:
        name: of the storage, for messages.
        cluster: the cluster of the marker; clusters that share a place have one each.
        identity: the stored identity; empty if the storage was never written to.
        random: draws the identity.
        remember: stores an identity for the next start; awaited before the storage is written to.

    Attributes:
        identity: the expected identity; empty before the first write.
    """

    def __init__(
        self,
        name: str,
        cluster: str,
        *,
        random: random_module.Random,
        remember: Callable[[str], Awaitable[None]],
        identity: str = "",
    ) -> None:
        self.name = name
        self.key = f"markers/{cluster}"
        self.identity = identity
        self._random = random
        self._remember = remember
        self._learning = trio.Lock()
        self._seen_at = -math.inf
        """Start time of the last successful check, by Trio's clock."""

    @property
    def known(self) -> bool:
        """Whether there is an identity to check."""
        return bool(self.identity)

    async def before_write(self, backend: StorageBackend) -> None:
        """Verify that a backend is this storage, unless that was done recently; mark it if it has no identity yet.

        Raises:
            StorageUnavailableError: it is away, or another one, or the identity cannot be stored now.
            StorageError: the backend failed.
        """
        if not self.identity:
            await self._learn(backend)
        elif trio.current_time() - self._seen_at >= (0.0 if backend.capabilities.mounted else TRUST_S):
            await self.recognize(backend)

    async def recognize(self, backend: StorageBackend) -> None:
        """Check the marker.

        Raises:
            StorageUnavailableError: the storage is away, or another one.
            StorageError: the backend failed.
        """
        begun = trio.current_time()
        found = await self._read(backend)
        if found != self.identity:
            self._seen_at = -math.inf
            raise self._away(backend, found)
        self._seen_at = begun

    async def adopt(self, backend: StorageBackend) -> None:
        """Adopt the place for this storage from now on, whatever identity was expected.

        Raises:
            StorageError: the backend failed; nothing has changed, and the call may be repeated.
        """
        await self._learn(backend, again=True)

    async def _learn(self, backend: StorageBackend, *, again: bool = False) -> None:
        async with self._learning:
            if self.identity and not again:
                return  # another call has done it in the meantime
            begun = trio.current_time()
            identity = await self._read_or_make(backend)
            try:
                await self._remember(identity)
            except StorageError:
                raise
            except DanubeError as error:
                raise StorageUnavailableError(
                    f"{backend.url}: storage {self.name!r} is not written to before its identity is stored in the"
                    f" metadata, which failed: {error}"
                ) from error
            self.identity, self._seen_at = identity, begun

    async def _read_or_make(self, backend: StorageBackend) -> str:
        for _ in range(_LOOKS):
            found = await self._read(backend)
            if found:
                return found
            identity = f"{self._random.getrandbits(128):032x}"
            try:
                await backend.put(
                    self.key, b"DNB-MARK 1 %s\n" % identity.encode(), if_absent=backend.capabilities.conditional_put
                )
            except (StorageExistsError, StorageConflictError):
                continue  # another process of this cluster was first: its marker counts
            return identity
        raise StorageUnavailableError(f"{backend.url}: the marker {self.key} comes and goes; try again")

    async def _read(self, backend: StorageBackend) -> str:
        """Return the identity of the place; empty if it has none."""
        try:
            data = await backend.get(self.key)
        except StorageNotFoundError:
            return ""
        found = _FORMAT.fullmatch(data)
        if found is None:
            raise StorageUnavailableError(
                f"{backend.url}: the marker {self.key} of storage {self.name!r} is damaged; restore it from a copy, or"
                f" take the place as it is with: danube storage repair {self.name} --adopt"
            )
        return found[1].decode()

    def _away(self, backend: StorageBackend, found: str) -> StorageUnavailableError:
        what = "holds the marker of another storage" if found else f"has no marker ({self.key})"
        return StorageUnavailableError(
            f"{backend.url} {what}, so it is not storage {self.name!r}, or that is not mounted: nothing is read from it"
            " as missing, and nothing is written to it; bring the storage back (mount it, correct its URL), or give up"
            f" what it held with: danube storage repair {self.name} --adopt"
        )
