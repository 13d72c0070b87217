"""Storages of a broker, which hold the sealed history of its topics: ``client.storages``.

Most of these calls have no default deadline, because reading a whole storage may take any time. They end when the
broker replies, when the connection breaks (both sides check it), or when they are cancelled, which also stops the
broker's work. None of them is repeated automatically.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from danube.client._checks import check_list, check_seconds
from danube.model import api, history_api
from danube.model.history_api import HistoryMethod

if TYPE_CHECKING:
    from danube.client._pool import Pool

__all__ = ["Storages"]

T = TypeVar("T")


class Storages:
    """Reports on the storages of a broker, checks and repairs them, and restores topics; it is :attr:`Client.storages`.

    ``timeout_s`` of a method bounds the call: after it the call raises DeadlineExceededError, and the broker stops its
    work. None waits as long as the connection exists.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def status(self) -> history_api.StoragesStatus:
        """Return the storages of the broker: capabilities, state, and the progress of sealing."""
        timeout_s = self._pool.options.request_timeout_s
        return await self._call(HistoryMethod.STORAGES_STATUS, api.Empty(), history_api.StoragesStatus, timeout_s)

    async def check(
        self, storage: str = "default", *, deep: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Compare a storage with the broker's catalogue. Changes nothing.

        Args:
            storage: its name.
            deep: read all referenced objects, and compare the checksums.
            timeout_s: see the class.

        Raises:
            NotFoundError: the storage does not exist.
            StorageError: it cannot be read.
        """
        request = history_api.CheckStorage(storage, deep)
        return await self._call(HistoryMethod.CHECK_STORAGE, request, history_api.StorageFindings, timeout_s)

    async def repair(
        self, storage: str = "default", *, adopt: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Check a storage, and remove unreferenced data: orphaned objects, and remains of interrupted uploads.

        Args:
            storage: its name.
            adopt: first accept the location of its URL for this storage, although its identifying marker is missing
                there, or belongs to another storage. Objects that are not there then count as lost.
            timeout_s: see the class.

        Raises:
            FailedPreconditionError: the storage holds the history of another broker.
            DanubeError: as :meth:`check`.
        """
        request = history_api.RepairStorage(storage, adopt)
        return await self._call(HistoryMethod.REPAIR_STORAGE, request, history_api.StorageFindings, timeout_s)

    async def restore_topics(
        self,
        url: str,
        *,
        storage: str = "",
        topics: Sequence[str] = (),
        give_up_others: bool = False,
        deep: bool = False,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RestoreReport:
        """Restore the topics whose history is in a bucket: same names, ids, offsets and subscriptions.

        Args:
            url: of the bucket; the broker must have a storage that is configured with it.
            storage: name of that storage, if several have this URL.
            topics: only these; an empty list means all.
            give_up_others: with ``topics``, whether the history of the others may be lost.
            deep: read every byte and compare the checksums before anything is changed.
            dry_run: change nothing, only report which topics would be restored.
            timeout_s: see the class.

        Raises:
            FailedPreconditionError: no storage has this URL, or its history cannot be taken over.
            AlreadyExistsError: a topic of one of the names exists already.
            DataLossError: the bucket is damaged; the message says where.
            StorageError: it cannot be read.
        """
        request = history_api.RestoreTopics(
            url, storage, check_list("topics", topics, "names"), give_up_others, deep, dry_run
        )
        return await self._call(HistoryMethod.RESTORE_TOPICS, request, history_api.RestoreReport, timeout_s)

    async def _call(self, path: str, request: Any, kind: type[T], timeout_s: float | None) -> T:
        limit_s = None if timeout_s is None else check_seconds("timeout_s", timeout_s)
        return await self._pool.unary(path, request, kind, timeout_s=limit_s)
