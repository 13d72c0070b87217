"""Wraps a metadata store: times its operations, and reports its revisions.

So a store with lost changes is detected at the next start.

A store may lose its newest changes without being able to detect it: an old copy was restored, or damage in its log was
mistaken for the end of the log. Only an observer that has seen a later revision can detect that. See
:mod:`danube.broker.directory.bond`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import trio

from danube.metadata._contract import (
    Capabilities,
    Condition,
    Delete,
    KeyValue,
    LeaseId,
    MetadataStore,
    Put,
    TransactionResult,
    Watch,
)
from danube.metrics.histogram import Histogram
from danube.model.cluster_api import MetadataStanding

__all__ = ["ObservedStore"]


class ObservedStore(MetadataStore):
    """Wraps a store, times its operations, and reports each revision that it has reached.

    Args:
        store: the wrapped store. It is opened and closed by its owner or through this one.
        reached: called with each revision in an answer of the store: from then on it is durable, if the store is,
            and the store must never be found at an earlier one.
    """

    def __init__(self, store: MetadataStore, reached: Callable[[int], None]) -> None:
        self._store = store
        self._reached = reached
        self.durations: dict[str, Histogram] = {}
        """How long operations took, in seconds, by name; those that have failed included."""

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        durations = self.durations.get(operation)
        if durations is None:
            durations = self.durations[operation] = Histogram()
        began = trio.current_time()
        try:
            yield
        finally:
            durations.observe(trio.current_time() - began)

    @property
    def capabilities(self) -> Capabilities:
        """Those of the wrapped store."""
        return self._store.capabilities

    def standing(self) -> MetadataStanding:
        """See :meth:`MetadataStore.standing`."""
        return self._store.standing()

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.__aexit__(kind, error, trace)

    async def aclose(self) -> None:
        """See :meth:`MetadataStore.aclose`."""
        await self._store.aclose()

    async def get(self, key: str) -> KeyValue | None:
        """See :meth:`MetadataStore.get`."""
        with self._timed("get"):
            return await self._store.get(key)

    async def list(self, prefix: str) -> tuple[Sequence[KeyValue], int]:
        """See :meth:`MetadataStore.list`."""
        with self._timed("list"):
            return await self._store.list(prefix)

    async def put(
        self, key: str, value: bytes, *, expected_revision: int | None = None, lease: LeaseId | None = None
    ) -> int:
        """See :meth:`MetadataStore.put`."""
        with self._timed("put"):
            revision = await self._store.put(key, value, expected_revision=expected_revision, lease=lease)
        self._reached(revision)
        return revision

    async def delete(self, key: str, *, expected_revision: int | None = None) -> int | None:
        """See :meth:`MetadataStore.delete`."""
        with self._timed("delete"):
            revision = await self._store.delete(key, expected_revision=expected_revision)
        if revision is not None:
            self._reached(revision)
        return revision

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`."""
        with self._timed("transact"):
            result = await self._store.transact(conditions, operations)
        self._reached(result.revision)
        return result

    async def grant_lease(self, ttl_s: float) -> LeaseId:
        """See :meth:`MetadataStore.grant_lease`."""
        with self._timed("grant_lease"):
            return await self._store.grant_lease(ttl_s)

    async def keep_alive(self, lease: LeaseId) -> None:
        """See :meth:`MetadataStore.keep_alive`."""
        with self._timed("keep_alive"):
            await self._store.keep_alive(lease)

    async def revoke(self, lease: LeaseId) -> int | None:
        """See :meth:`MetadataStore.revoke`."""
        revision = await self._store.revoke(lease)
        if revision is not None:
            self._reached(revision)
        return revision

    def watch(self, prefix: str, start_revision: int | None = None) -> Watch:
        """See :meth:`MetadataStore.watch`."""
        return self._store.watch(prefix, start_revision)
