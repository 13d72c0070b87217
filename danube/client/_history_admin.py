"""The calls about sealed history: sealing, retention, storages, restoring. The other administrative half of the client.

Most of them take as long as they take: reading a storage through has no deadline that would fit. They end when the
broker answers, when the connection breaks (both sides look after that), or when they are cancelled, which the broker
notices and stops. None of them is repeated by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from danube.client._checks import check_list, check_seconds
from danube.model import api, history_api
from danube.model.history_api import HistoryMethod
from danube.model.names import validate_topic
from danube.model.policies import Retention

if TYPE_CHECKING:
    from danube.client._connection import Connection

__all__ = ["HistoryCalls"]

T = TypeVar("T")


class HistoryCalls:
    """The part of :class:`Client` that manages sealed history.

    ``timeout_s`` of a method bounds the call: DeadlineExceededError is raised then, and the broker stops, too. None
    waits for as long as the connection lives.
    """

    _connection: Connection

    async def seal_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Seal everything that a topic has, and return when it is in its storage; one row for each partition.

        Raises:
            StorageError: the storage failed; the broker goes on trying.
            FailedPreconditionError: the topic keeps nothing, or its storage forgets.
        """
        validate_topic(topic)
        request = history_api.SealTopic(topic)
        return (await self._call(HistoryMethod.SEAL_TOPIC, request, history_api.SealedTopics, timeout_s)).topics

    async def unload_topic(self, topic: str, *, timeout_s: float | None = None) -> list[history_api.SealedTopic]:
        """Disconnect everybody from a topic (they come back by themselves), and seal all of it.

        Raises what :meth:`seal_topic` raises.
        """
        validate_topic(topic)
        request = history_api.UnloadTopic(topic)
        return (await self._call(HistoryMethod.UNLOAD_TOPIC, request, history_api.SealedTopics, timeout_s)).topics

    async def change_retention(
        self,
        topic: str,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
        now: bool = False,
        timeout_s: float | None = None,
    ) -> history_api.RetentionPlans:
        """Give a topic other retention rules, apply them, or ask what they would do.

        Args:
            topic: a plain or partitioned topic.
            retention: the new rules, all of them; None leaves them as they are.
            dry_run: change nothing, only return what would go.
            now: apply the rules before returning; otherwise that happens within a minute.
            timeout_s: see the class.
        """
        validate_topic(topic)
        request = history_api.ChangeRetention(topic, retention, dry_run, now)
        return await self._call(HistoryMethod.CHANGE_RETENTION, request, history_api.RetentionPlans, timeout_s)

    async def storages_status(self) -> history_api.StoragesStatus:
        """Return the storages of the broker: what they can, how they are, and how far sealing is."""
        timeout_s = self._connection.options.request_timeout_s
        return await self._call(HistoryMethod.STORAGES_STATUS, api.Empty(), history_api.StoragesStatus, timeout_s)

    async def check_storage(
        self, storage: str = "default", *, deep: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Compare a storage with the broker's catalogue. Changes nothing.

        Args:
            storage: its name.
            deep: read everything that is referenced, and compare the checksums.
            timeout_s: see the class.

        Raises:
            NotFoundError: there is no storage of this name.
            StorageError: it cannot be read.
        """
        request = history_api.CheckStorage(storage, deep)
        return await self._call(HistoryMethod.CHECK_STORAGE, request, history_api.StorageFindings, timeout_s)

    async def repair_storage(
        self, storage: str = "default", *, adopt: bool = False, timeout_s: float | None = None
    ) -> history_api.StorageFindings:
        """Check a storage, and remove what nothing refers to: orphans, and what interrupted uploads have left.

        Args:
            storage: its name.
            adopt: first take the place that its URL names for this storage, though the marker by which it is recognized
                is missing there, or another one's. What is not there then counts as lost.
            timeout_s: see the class.

        Raises:
            FailedPreconditionError: the storage holds the history of another broker.
            and what :meth:`check_storage` raises.
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
        """Bring back the topics whose history is in a bucket: same names, ids, offsets and subscriptions.

        Args:
            url: of the bucket; the broker must have a storage that is configured with it.
            storage: name of that storage, if several have this URL.
            topics: only these; none means all.
            give_up_others: with ``topics``, whether the history of the others may be lost.
            deep: read every byte and compare the checksums before anything is changed.
            dry_run: change nothing, only return what would come back.
            timeout_s: see the class.

        Raises:
            FailedPreconditionError: no storage has this URL, or its history cannot be taken over.
            AlreadyExistsError: a topic of one of the names exists already.
            DataLossError: the bucket is damaged; it says where.
            StorageError: it cannot be read.
        """
        request = history_api.RestoreTopics(
            url, storage, check_list("topics", topics, "names"), give_up_others, deep, dry_run
        )
        return await self._call(HistoryMethod.RESTORE_TOPICS, request, history_api.RestoreReport, timeout_s)

    async def _call(self, path: str, request: Any, kind: type[T], timeout_s: float | None) -> T:
        limit_s = None if timeout_s is None else check_seconds("timeout_s", timeout_s)
        return await self._connection.unary(path, request, kind, timeout_s=limit_s)
