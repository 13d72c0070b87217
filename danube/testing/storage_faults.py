"""A storage backend with injected faults, for tests of code that uses storage.

:class:`FaultyStorage` wraps a backend, below a :class:`~danube.storage.Storage`, and behaves like networks and
services: it is slow, throttles, is unavailable for a while, loses answers, refuses credentials, leaves parts of
uploads behind, flips bits, loses its bucket, and is not mounted. All faults follow the ``random.Random`` and Trio's
clock, so that a seed reproduces a run.
"""

from __future__ import annotations

import random as random_module
from collections import Counter
from collections.abc import Sequence

import msgspec
import trio

from danube.model.errors import (
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageNotFoundError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.storage import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.testing.clock import sleep

__all__ = ["FaultyStorage"]


class FaultyStorage(StorageBackend):
    """Wraps a backend behind a simulated bad network. All attributes may be changed at any time.

    Faults in the order in which they are applied to a call; numbers are probabilities between 0 and 1:

    * ``latency_s``: each call takes up to this long before its work, and again after it.
    * ``bucket_gone``: the bucket is missing: StorageNotFoundError.
    * ``denied``, ``down``: every call raises StorageDeniedError, StorageUnavailableError. :meth:`deny_between` and
      :meth:`down_between` schedule that for a time.
    * ``away``: the mount is missing, and an empty directory is in its place: nothing is found, and objects are put
      there; ``beside`` has their keys. :meth:`away_between` schedules that for a time. ``mounted`` makes the
      capabilities declare it possible.
    * ``throttle``: StorageThrottledError, before the work.
    * ``unavailable``: StorageUnavailableError, before the work; a put that fails so may leave a part behind
      (``leave_parts``), which is not an object and waits for ``abandon_uploads``.
    * ``conflict``: a put with ``if_absent`` is StorageConflictError, before the work.
    * ``hang``: there is never an answer; the work is not done.
    * ``lose_answer``: StorageTimeoutError or StorageUnavailableError, after the work. If ``lose_answer_of`` is given,
      only calls with these method names lose theirs.
    * ``corrupt``: one bit in the result of a get is wrong. The object itself is unchanged.

    ``faults`` counts injected faults by these names. ``calls`` counts the calls by method.
    """

    def __init__(
        self,
        backend: StorageBackend,
        random: random_module.Random,
        *,
        latency_s: float = 0.0,
        throttle: float = 0.0,
        unavailable: float = 0.0,
        leave_parts: float = 0.0,
        conflict: float = 0.0,
        hang: float = 0.0,
        lose_answer: float = 0.0,
        lose_answer_of: frozenset[str] | None = None,
        corrupt: float = 0.0,
    ) -> None:
        self._backend = backend
        self._random = random
        self.latency_s = latency_s
        self.throttle = throttle
        self.unavailable = unavailable
        self.leave_parts = leave_parts
        self.conflict = conflict
        self.hang = hang
        self.lose_answer = lose_answer
        self.lose_answer_of = lose_answer_of
        self.corrupt = corrupt
        self.down = False
        self.denied = False
        self.bucket_gone = False
        self.away = False
        self.mounted = False
        self.beside: list[str] = []
        """Keys of objects put while it was away."""
        self._away: list[tuple[float, float]] = []
        self.faults: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.parts: list[tuple[str, float]] = []
        """Key and time (Trio's clock) of abandoned uploads."""
        self._windows: list[tuple[float, float, type[StorageError]]] = []

    @property
    def url(self) -> str:
        """That of the wrapped backend."""
        return self._backend.url

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the wrapped backend."""
        found = self._backend.capabilities
        return msgspec.structs.replace(found, mounted=True) if self.mounted else found

    def away_between(self, from_s: float, until_s: float) -> None:
        """Be away from ``from_s`` to ``until_s`` seconds from now."""
        now = trio.current_time()
        self._away.append((now + from_s, now + until_s))

    def _is_away(self) -> bool:
        now = trio.current_time()
        struck = self.away or any(start <= now < end for start, end in self._away)
        self.faults["away"] += struck
        return struck

    def down_between(self, from_s: float, until_s: float) -> None:
        """Be unavailable from ``from_s`` to ``until_s`` seconds from now."""
        self._add_window(from_s, until_s, StorageUnavailableError)

    def deny_between(self, from_s: float, until_s: float) -> None:
        """Refuse the credentials from ``from_s`` to ``until_s`` seconds from now."""
        self._add_window(from_s, until_s, StorageDeniedError)

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        """Store an object, unless a fault strikes."""
        try:
            await self._before("put", key)
        except StorageUnavailableError:
            if self._strikes("leave_parts", self.leave_parts):
                self.parts.append((key, trio.current_time()))
            raise
        if if_absent and self._strikes("conflict", self.conflict):
            raise StorageConflictError(f"{self.url}: put {key}: injected conflict")
        if self._is_away():
            self.beside.append(key)
        else:
            await self._backend.put(key, data, if_absent=if_absent)
        await self._after("put", key)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of an object, possibly with a wrong bit."""
        if start == end:
            return b""
        await self._before("get", key)
        self._check_there("get", key)
        data = self._flip(await self._backend.get(key, start, end))
        await self._after("get", key)
        return data

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return several ranges of an object, each possibly with a wrong bit."""
        await self._before("get_ranges", key)
        self._check_there("get_ranges", key)
        found = [self._flip(data) for data in await self._backend.get_ranges(key, ranges)]
        await self._after("get_ranges", key)
        return found

    async def head(self, key: str) -> ObjectInfo:
        """Return size and time of an object."""
        await self._before("head", key)
        self._check_there("head", key)
        info = await self._backend.head(key)
        await self._after("head", key)
        return info

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        """Return a page of the listing. Parts of uploads are not in it."""
        await self._before("list", prefix)
        empty = ListPage([], False)
        page = empty if self._is_away() else await self._backend.list(prefix, start_after=start_after, limit=limit)
        await self._after("list", prefix)
        return page

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A call that fails may have deleted the first half."""
        try:
            await self._before("delete", keys[0] if keys else "")
        except StorageUnavailableError:
            if keys and not self.down:
                await self._backend.delete(keys[: self._random.randrange(len(keys))])
            raise
        if not self._is_away():
            await self._backend.delete(keys)
        await self._after("delete", keys[0] if keys else "")

    async def abandon_uploads(self, prefix: str, older_than_s: float) -> int:
        """Remove old parts of uploads."""
        await self._before("abandon_uploads", prefix)
        before = trio.current_time() - older_than_s
        kept = [(key, at) for key, at in self.parts if not key.startswith(prefix) or at > before]
        count = len(self.parts) - len(kept)
        self.parts = kept
        count += await self._backend.abandon_uploads(prefix, older_than_s)
        await self._after("abandon_uploads", prefix)
        return count

    def _check_there(self, method: str, key: str) -> None:
        if self._is_away():
            raise StorageNotFoundError(f"{self.url}: {method} {key}: injected fault: the mount is missing")

    def _add_window(self, from_s: float, until_s: float, kind: type[StorageError]) -> None:
        now = trio.current_time()
        self._windows.append((now + from_s, now + until_s, kind))

    def _strikes(self, fault: str, probability: float) -> bool:
        # Drawn even if the probability is 0, so that one fault more or less does not shift the others of a seed.
        struck = self._random.random() < probability
        self.faults[fault] += struck
        return struck

    def _flip(self, data: bytes) -> bytes:
        if not self._strikes("corrupt", self.corrupt) or not data:
            return data
        wrong = bytearray(data)
        wrong[self._random.randrange(len(wrong))] ^= 1 << self._random.randrange(8)
        return bytes(wrong)

    def _standing(self) -> tuple[str, type[StorageError]] | None:
        now = trio.current_time()
        self._windows = [window for window in self._windows if now < window[1]]
        kinds = {kind for start, _, kind in self._windows if start <= now}
        if self.bucket_gone:
            return "bucket_gone", StorageNotFoundError
        if self.denied or StorageDeniedError in kinds:
            return "denied", StorageDeniedError
        if self.down or StorageUnavailableError in kinds:
            return "down", StorageUnavailableError
        return None

    async def _before(self, method: str, key: str) -> None:
        self.calls[method] += 1
        await sleep(self._random.random() * self.latency_s)
        standing = self._standing()
        if standing is not None:
            fault, kind = standing
            self.faults[fault] += 1
            raise kind(f"{self.url}: {method} {key}: injected fault: {fault}")
        if self._strikes("throttle", self.throttle):
            raise StorageThrottledError(f"{self.url}: {method} {key}: injected throttling")
        if self._strikes("unavailable", self.unavailable):
            raise StorageUnavailableError(f"{self.url}: {method} {key}: injected outage")
        if self._strikes("hang", self.hang):
            await trio.sleep_forever()

    async def _after(self, method: str, key: str) -> None:
        await sleep(self._random.random() * self.latency_s)
        concerned = self.lose_answer_of is None or method in self.lose_answer_of
        if self._strikes("lose_answer", self.lose_answer if concerned else 0.0):
            kind = self._random.choice((StorageTimeoutError, StorageUnavailableError))
            raise kind(f"{self.url}: {method} {key}: injected loss of the answer")
