"""Backups of the metadata, made by a running broker, piece by piece.

The first call reads all keys, at one revision; the broker keeps them in memory until the last piece was fetched, or
none was for :data:`KEPT_S`. One backup is made at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from danube.cluster.backup_format import KeptBackup, encode_head
from danube.model.cluster_api import BackupMetadata, BackupPiece
from danube.model.errors import FailedPreconditionError, UnavailableError

if TYPE_CHECKING:
    from danube.metadata import MetadataStore

__all__ = ["KEPT_S", "BackupOperations"]

KEPT_S: Final = 60.0
"""A backup of which no piece is fetched for so long is given up."""


class BackupOperations:
    """Backups of the metadata.

    Args:
        store: the metadata.
        cluster: the name of the cluster.
        clock_us: the wall clock.
    """

    def __init__(self, store: MetadataStore, cluster: str, clock_us: Callable[[], int]) -> None:
        self._store = store
        self._cluster = cluster
        self._clock_us = clock_us
        self._kept = KeptBackup((), 0)
        self._fetched_at = -KEPT_S
        self._beginning = trio.Lock()

    async def backup(self, request: BackupMetadata) -> BackupPiece:
        """Return a piece of a backup; see :class:`~danube.model.cluster_api.BackupMetadata`.

        Raises:
            UnavailableError: another backup is being made, or the metadata cannot be read.
            FailedPreconditionError: this backup was given up.
        """
        if not request.revision:
            async with self._beginning:
                return await self._begin()
        now = trio.current_time()
        if now >= self._fetched_at + KEPT_S:
            self._kept.drop()
        piece = self._kept.piece(request.position) if request.revision == self._kept.revision else None
        if piece is None:
            raise FailedPreconditionError(
                "this backup was given up because its pieces were not fetched in time, or the broker was restarted;"
                " begin another one"
            )
        self._fetched_at = now
        return piece

    async def _begin(self) -> BackupPiece:
        if self._kept.has_keys and trio.current_time() < self._fetched_at + KEPT_S:
            raise UnavailableError(
                f"this broker is making another backup, of revision {self._kept.revision}; try again when it is done,"
                f" or {KEPT_S:.0f} s after it was abandoned"
            )
        self._kept = KeptBackup(*await self._store.list("/"))
        self._fetched_at = trio.current_time()
        head = encode_head(self._cluster, self._kept.revision, self._clock_us())
        return BackupPiece(self._kept.revision, 0, head)
