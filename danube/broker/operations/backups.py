"""Backups of the metadata, made by a running broker, piece by piece.

The first call reads all keys, at one revision; the broker keeps them in memory until the last piece was fetched, or
none was for :data:`KEPT_S`. One backup is made at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from danube.cluster.backup_format import encode_end, encode_head, encode_items, take_piece
from danube.model.cluster_api import BackupMetadata, BackupPiece
from danube.model.errors import FailedPreconditionError, UnavailableError

if TYPE_CHECKING:
    from danube.metadata import KeyValue, MetadataStore

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
        self._items: Sequence[KeyValue] = ()
        self._revision = 0
        self._fetched_at = -KEPT_S

    async def backup(self, request: BackupMetadata) -> BackupPiece:
        """Return a piece of a backup; see :class:`~danube.model.cluster_api.BackupMetadata`.

        Raises:
            UnavailableError: another backup is being made, or the metadata cannot be read.
            FailedPreconditionError: this backup was given up.
        """
        now = trio.current_time()
        if not request.revision:
            if self._items and now < self._fetched_at + KEPT_S:
                raise UnavailableError(
                    f"this broker is making another backup, of revision {self._revision}; try again when it is done, or"
                    f" {KEPT_S:.0f} s after it was abandoned"
                )
            self._items, self._revision = await self._store.list("/")
            self._fetched_at = trio.current_time()
            head = encode_head(self._cluster, self._revision, self._clock_us())
            return BackupPiece(self._revision, 0, head)
        if request.revision != self._revision or now >= self._fetched_at + KEPT_S:
            self._items = ()
            raise FailedPreconditionError(
                "this backup was given up because its pieces were not fetched in time, or the broker was restarted;"
                " begin another one"
            )
        self._fetched_at = now
        piece = take_piece(self._items, request.position)
        if piece:
            return BackupPiece(self._revision, request.position + len(piece), encode_items(piece))
        end = encode_end(len(self._items))
        self._items = ()
        return BackupPiece(self._revision, request.position, end, last=True)
