"""The claims of a broker to buckets: which journals of durability ``remote`` are open, and how the others come to it.

::

    unknown ──▶ attempts, each with a longer pause ──▶ claimed: its journal runs, until the broker ends
                  │
                  └──▶ nothing to claim: no such topics there; claimed when the first one is created

Until it is known that no other broker owns topics in a bucket, no manifest is written there: nothing is sealed, merged
or deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import trio

from danube.broker.runtime.runtime import Runtime
from danube.history import History, RemoteJournal, highest_epoch, wal_place
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    OwnerFencedError,
    StorageError,
    StorageUnavailableError,
    UnavailableError,
)
from danube.model.ids import NO_OWNER_EPOCH, OwnerEpoch
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["Claims"]

_log = logging.getLogger("danube.remote")

_PATIENCE_S: Final = 10.0
"""How long the start of a broker waits for storages with such topics, before it serves the other topics."""
_RETRY_S: Final = 1.0
_MOST_RETRY_S: Final = 30.0


class Claims:
    """Opens the journals of buckets, and retries it until their storages answer.

    Args:
        runtime, history: of the broker.
        storages: by name; used for the commits only, so that they do not wait behind segments.
        has_topics: whether the metadata has topics of durability ``remote`` in a storage.
        recover: claims a bucket, and returns its journal with its topics recovered, before it runs.
        claimed: called when the journal of a storage runs.

    Attributes:
        journals: the open ones, by storage.
        failures: why a storage could not be claimed, by storage.
    """

    def __init__(
        self,
        runtime: Runtime,
        history: History,
        storages: Mapping[str, Storage],
        *,
        has_topics: Callable[[str], bool],
        recover: Callable[[str], Awaitable[RemoteJournal]],
        claimed: Callable[[str], Awaitable[None]],
    ) -> None:
        self._runtime = runtime
        self._history = history
        self._place = wal_place(runtime.config.cluster, history.catalogue.tenure.broker)
        self._storages = storages
        self._has_topics = has_topics
        self._recover = recover
        self._claimed = claimed
        self.journals: dict[str, RemoteJournal] = {}
        self.failures: dict[str, DanubeError] = {}
        self._opening = {name: trio.Lock() for name in storages}
        self._unread: dict[str, None] = {}
        """Storages not read yet, which may hold topics of a lost machine that this broker replaces."""
        self._nursery: trio.Nursery
        self._wanted = {name: trio.Event() for name in storages}
        """Set by those that need a storage before its next attempt is due."""
        self._looked = {name: trio.Event() for name in storages}
        """Set, and replaced, after each attempt to open a storage."""
        for name in self._capable():
            history.manifests[name].hold(partial(self._wait_claimed, name))

    def _capable(self) -> list[str]:
        return [name for name in self._storages if self._lacking(name) is None]

    async def start(self, tasks: trio.Nursery, journals: trio.Nursery, *, is_new: bool) -> None:
        """Claim the buckets; return when that is done, or when it takes too long (then it continues in the background).

        Args:
            tasks: for claiming in the background.
            journals: for the journals; they end last.
            is_new: whether the broker knows no topics: it may replace a lost one, see :meth:`unknown`.
        """
        self._nursery = journals
        capable = self._capable()
        if is_new:
            self._unread = dict.fromkeys(capable)
        opened = {name: trio.Event() for name in capable}
        for name, done in opened.items():
            tasks.start_soon(self._bring_up, name, done)
        with trio.move_on_after(_PATIENCE_S):
            for done in opened.values():
                await done.wait()

    async def _bring_up(self, name: str, done: trio.Event) -> None:
        pause_s = _RETRY_S
        while True:
            try:
                if self._has_topics(name) or await highest_epoch(self._storages[name], self._place):
                    await self.open(name)
                self._unread.pop(name, None)
                self.release_manifests(name)
                break
            except OwnerFencedError:
                raise
            except DanubeError as error:
                self.failures[name] = error
                # Retryable errors, which clients would retry, are retried here, too: the metadata may be unavailable
                # for a moment just as well as the storage.
                if not isinstance(error, StorageError) and not error.retryable:
                    _log.error(
                        "topics of durability 'remote' in storage %r cannot be served: %s",
                        name,
                        error,
                        extra=log_event("storage.not_claimed", storage=name),
                    )
                    self.release_manifests(name)  # its other topics are sealed
                    break
                if self._has_topics(name):
                    _log.error(
                        "topics of durability 'remote' wait for storage %r: %s",
                        name,
                        error,
                        extra=log_event("storage.claim_delayed", storage=name),
                    )
                else:
                    _log.warning(
                        "whether storage %r has topics of durability 'remote' is not known: %s",
                        name,
                        error,
                        extra=log_event("storage.claim_delayed", storage=name),
                    )
                self._note_look(name)
                with trio.move_on_after(pause_s):
                    await self._wanted[name].wait()
                self._wanted[name] = trio.Event()
                pause_s = min(2 * pause_s, _MOST_RETRY_S)
            finally:
                done.set()

    def _note_look(self, name: str) -> None:
        self._looked[name].set()
        self._looked[name] = trio.Event()

    def release_manifests(self, name: str, epoch: OwnerEpoch = NO_OWNER_EPOCH) -> None:
        """Let manifests be written: a former owner is fenced, or there is none, or the storage cannot be claimed."""
        self._history.manifests[name].release(epoch)
        self._note_look(name)

    async def _wait_claimed(self, name: str) -> None:
        """Try at once to claim a storage, and wait for the result.

        Raises:
            StorageUnavailableError: it is not claimed; its manifests must not be written yet.
        """
        self._wanted[name].set()
        await self._looked[name].wait()
        if self._history.manifests[name].held:
            raise StorageUnavailableError(
                f"{self._storages[name].url}: nothing is sealed, merged or deleted there before this broker knows that"
                f" no other one owns topics of durability 'remote' in it: {self.failures.get(name)}; try again"
            )

    def unknown(self, topic: str) -> StorageUnavailableError | None:
        """Return why it is unknown whether a topic exists; until that is known, it must not be created."""
        for name in self._unread:
            why = self.failures.get(name) or "it was not read yet"
            return StorageUnavailableError(
                f"whether topic {topic!r} exists is not known: this broker is new, and storage {name!r} may hold the"
                f" topics of another one that it replaces: {why}; try again"
            )
        return None

    async def aclose(self) -> None:
        """Commit pending entries, and close the journals."""
        async with trio.open_nursery() as nursery:
            for journal in self.journals.values():
                nursery.start_soon(journal.aclose)

    async def open(self, name: str) -> RemoteJournal:
        """Return the journal of a storage; open it if it is not running yet.

        Opening runs to completion even if the caller is cancelled: topics that are served need a journal that runs.

        Raises:
            FailedPreconditionError: the storage cannot carry such topics.
            OwnerFencedError: another broker owns them.
            DataLossError: an object in the bucket is damaged or missing.
            StorageError: the storage cannot be reached.
            UnavailableError: the broker is shutting down.
        """
        lacking = self._lacking(name)
        if lacking is not None:
            raise lacking
        if name not in self.journals:
            await self._runtime.finish(partial(self._bring_to_life, name))
        if name not in self.journals:
            raise UnavailableError(f"storage {name!r} is not opened any more: the broker is shutting down")
        return self.journals[name]

    async def _bring_to_life(self, name: str) -> None:
        async with self._opening[name]:
            if name in self.journals:
                return  # another call has opened it in the meantime
            journal = await self._recover(name)
            await self._nursery.start(journal.run)
            self.journals[name] = journal
            self.failures.pop(name, None)
        await self._claimed(name)

    def _lacking(self, name: str) -> FailedPreconditionError | None:
        found = self._storages[name]
        capabilities = found.capabilities
        if capabilities.durable and capabilities.conditional_put:
            return None
        why = "is not durable" if not capabilities.durable else "cannot store an object only if it is absent"
        return FailedPreconditionError(
            f"storage {name!r} ({found.url}) {why}, so it cannot carry topics of durability 'remote'; choose another"
            " storage for them"
        )
