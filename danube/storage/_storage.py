"""``Storage``: a backend with checks, deadlines, retries and statistics, the same for all backends.

A :class:`~danube.storage.StorageBackend` makes single attempts and reports their results. Everything
around an attempt is done here: keys are checked, the number of concurrent calls is bounded, each attempt and each
operation has a deadline, retryable errors are retried after a pause, and everything is counted.

* **Pauses** are drawn evenly from 0 to 50 ms, 100 ms, 200 ms ... up to ``storage_max_backoff_s`` ("full jitter"), so
  that many brokers behind one throttling service spread out.
* **Retries**: only errors that are ``retryable``. Refused credentials are left to the caller.
* **Deadlines** grow with the object: one second for each MiB on top of ``storage_attempt_timeout_s`` and
  ``storage_operation_timeout_s``. A ``timeout_s`` passed to a call is used as it is, queueing included.
* **Lost answers.** A put with ``if_absent`` whose answer was lost may have stored the object; the next attempt then
  finds the key taken by its own object. So after an uncertain attempt the object is read and compared: equal bytes are
  a success, anything else is :class:`StorageExistsError`. Racing writers must therefore write different bytes (all
  objects of Danube contain their writer). If the last attempt is uncertain, its retryable error is raised: it may have
  succeeded.
* **An unavailable storage is not empty.** With a :class:`~danube.storage.Marker`, "no such object" and listings are
  accepted as answers, and objects put and deleted, only while the marker is found.

Time is Trio's clock, pauses are drawn from the given ``random.Random``, and there are no threads here: simulated runs
are reproducible.
"""

from __future__ import annotations

import random as random_module
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import NoReturn, TypeVar

import trio

from danube.metrics.histogram import Histogram
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    StorageConflictError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
    StorageTimeoutError,
    StorageUnavailableError,
)
from danube.model.limits import MIB, Limits
from danube.storage._contract import ListPage, ObjectInfo, StorageBackend, StorageCapabilities
from danube.storage._keys import validate_key, validate_prefix
from danube.storage._marker import Marker
from danube.storage._stats import OperationStats, StorageHealth, StorageStats

__all__ = ["Storage"]

_Result = TypeVar("_Result")

_SLOWEST_BYTES_PER_S = 1 * MIB
"""Assumed minimum speed; adds to the deadline of a small object."""
_SIZE_IF_UNKNOWN = 64 * MIB
"""Assumed size of a get up to the end of an object, for its deadline."""
_FIRST_BACKOFF_S = 0.05
_DELETES_AT_ONCE = 1000
_PAGE = 1000

_ANSWERS = (StorageNotFoundError, StorageExistsError, StorageRangeError, InvalidArgumentError)
"""Errors that show a working backend."""


class _Counts:
    __slots__ = ("busy_s", "bytes", "calls", "durations", "failures", "retries")

    def __init__(self) -> None:
        self.durations = Histogram()
        self.calls = self.failures = self.retries = self.bytes = 0
        self.busy_s = 0.0


class Storage:
    """A storage backend with checks, deadlines, retries and statistics. Opened by :func:`danube.storage.open_storage`.

    ``random`` draws the pauses; ``limits`` gives deadlines, attempts and concurrency (its ``storage_*`` fields);
    ``max_concurrency`` lowers ``storage_max_concurrency`` for this storage; ``name`` identifies it in configuration,
    figures and messages; ``marker`` identifies its contents, None: no check. The backend is
    opened and closed by its creator.

    Every method raises the errors of the method of the same name of :class:`StorageBackend`, and
    :class:`InvalidArgumentError` for a key, range or object that no backend accepts. ``timeout_s`` of a method bounds
    the whole operation instead of ``storage_operation_timeout_s``. All of them can be cancelled; a cancelled put
    may have succeeded.
    """

    def __init__(
        self,
        backend: StorageBackend,
        *,
        random: random_module.Random,
        limits: Limits | None = None,
        name: str = "default",
        max_concurrency: int | None = None,
        marker: Marker | None = None,
    ) -> None:
        self._backend = backend
        self._marker = marker
        self._random = random
        self._limits = limits if limits is not None else Limits()
        self.name = name
        self._places = self._limits.storage_max_concurrency
        if max_concurrency is not None:
            self._places = max(1, min(self._places, max_concurrency))
        self._line = trio.Semaphore(self._places, max_value=self._places)
        self._counts: dict[str, _Counts] = {}
        self._consecutive_failures = 0
        self._failing_since_s: float | None = None
        self._last_error: str | None = None
        self._last_error_at_s: float | None = None

    @property
    def url(self) -> str:
        """The URL without secrets."""
        return self._backend.url

    @property
    def capabilities(self) -> StorageCapabilities:
        """The guarantees of the backend."""
        return self._backend.capabilities

    @property
    def was_written(self) -> bool:
        """Whether the storage was ever written to under its marker."""
        return self._marker is not None and self._marker.known

    def stats(self) -> StorageStats:
        """Return the present statistics."""
        return StorageStats(
            name=self.name,
            url=self.url,
            max_concurrency=self._places,
            in_flight=self._places - self._line.value,
            waiting=self._line.statistics().tasks_waiting,
            operations={
                operation: OperationStats(
                    calls=counts.calls,
                    failures=counts.failures,
                    retries=counts.retries,
                    bytes=counts.bytes,
                    busy_s=counts.busy_s,
                    durations=counts.durations,
                )
                for operation, counts in self._counts.items()
            },
            health=StorageHealth(
                consecutive_failures=self._consecutive_failures,
                failing_since_s=self._failing_since_s,
                last_error=self._last_error,
                last_error_at_s=self._last_error_at_s,
            ),
        )

    async def put(
        self, key: str, data: bytes | bytearray, *, if_absent: bool = False, timeout_s: float | None = None
    ) -> None:
        """Store an object, whole; replace an existing one unless ``if_absent``.

        ``data`` must not be changed before the call has returned.

        Raises:
            StorageExistsError: ``if_absent``, and the key holds another object.
            StorageError: as :meth:`StorageBackend.put`; after a retryable one the object may have been stored.
        """
        validate_key(key)
        size, most = len(data), self.capabilities.max_object_bytes
        if size > most:
            raise InvalidArgumentError(f"{key} has {size} bytes, and {self.url} stores at most {most} in one object")
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain
            # An attempt that ends without an answer (by its deadline, too) is uncertain.
            if self._marker is not None:
                await self._marker.before_write(self._backend)
            before, uncertain = uncertain, True
            try:
                await self._backend.put(key, data, if_absent=if_absent)
            except StorageConflictError:
                uncertain = before
                raise
            except StorageExistsError:
                if not before or not await self._holds(key, data):
                    raise
            if self._marker is not None and self.capabilities.mounted:
                # If the path was unmounted during the put, the object is in the directory below the mount point.
                await self._marker.recognize(self._backend)

        await self._call("put", key, size, attempt, timeout_s)
        self._counts["put"].bytes += size

    async def get(self, key: str, start: int = 0, end: int | None = None, *, timeout_s: float | None = None) -> bytes:
        """Return the bytes ``[start, end)`` of an object, up to its end if ``end`` is None."""
        validate_key(key)
        _check_range(key, start, end)
        if start == end:
            return b""
        size = None if end is None else end - start

        async def attempt() -> bytes:
            data = await self._verified(lambda: self._backend.get(key, start, end))
            if size is not None and len(data) != size:
                self._short(key, len(data), size)
            return data

        data = await self._call("get", key, _SIZE_IF_UNKNOWN if size is None else size, attempt, timeout_s)
        self._counts["get"].bytes += len(data)
        return data

    async def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], *, timeout_s: float | None = None
    ) -> list[bytes]:
        """Return several ranges of one object, in the given order."""
        validate_key(key)
        for start, end in ranges:
            _check_range(key, start, end)
        size = sum(end - start for start, end in ranges)
        if not size:
            return [b""] * len(ranges)

        async def attempt() -> list[bytes]:
            found = await self._verified(lambda: self._backend.get_ranges(key, ranges))
            for (start, end), data in zip(ranges, found, strict=True):
                if len(data) != end - start:
                    self._short(key, len(data), end - start)
            return found

        found = await self._call("get_ranges", key, size, attempt, timeout_s)
        self._counts["get_ranges"].bytes += size
        return found

    async def head(self, key: str, *, timeout_s: float | None = None) -> ObjectInfo:
        """Return size and time of an object."""
        validate_key(key)
        return await self._call("head", key, 0, lambda: self._verified(lambda: self._backend.head(key)), timeout_s)

    async def list(
        self, prefix: str = "", *, start_after: str = "", limit: int = _PAGE, timeout_s: float | None = None
    ) -> ListPage:
        """Return up to ``limit`` objects whose keys begin with ``prefix`` and sort after ``start_after``."""
        validate_prefix(prefix)
        validate_prefix(start_after)
        if limit < 1:
            raise InvalidArgumentError(f"limit of a listing must be at least 1, not {limit}")

        async def attempt() -> ListPage:
            page = await self._verified(lambda: self._backend.list(prefix, start_after=start_after, limit=limit))
            if self._marker is not None and self._marker.known:
                await self._marker.recognize(self._backend)
            return page

        return await self._call("list", f"{prefix}*", 0, attempt, timeout_s)

    async def list_all(self, prefix: str = "", start_after: str = "") -> AsyncGenerator[ListPage, None]:
        """Iterate over all pages of a listing. Each page has its own deadline; objects put meanwhile may be missing."""
        while True:
            page = await self.list(prefix, start_after=start_after)
            yield page
            if not page.more:
                return
            if not page.objects or page.objects[-1].key <= start_after:
                raise StorageError(f"{self.url}: the listing of {prefix}* does not advance after {start_after!r}")
            start_after = page.objects[-1].key

    async def delete(self, keys: Sequence[str], *, timeout_s: float | None = None) -> None:
        """Delete objects; missing ones are ignored. Not atomic: some may be deleted when it fails.

        Deleted in portions of 1,000; deadlines (``timeout_s`` too) apply to each portion.
        """
        for key in keys:
            validate_key(key)
        for first in range(0, len(keys), _DELETES_AT_ONCE):
            portion = keys[first : first + _DELETES_AT_ONCE]
            more = f" and {len(portion) - 1} more" if len(portion) > 1 else ""
            await self._call("delete", portion[0] + more, 0, partial(self._delete, portion), timeout_s)

    async def _delete(self, keys: Sequence[str]) -> None:
        if self._marker is not None:
            await self._marker.before_write(self._backend)
        await self._backend.delete(keys)

    async def abandon_uploads(self, prefix: str, older_than_s: float, *, timeout_s: float | None = None) -> int:
        """Remove remains of interrupted uploads below ``prefix`` that are old enough; return their number."""
        validate_prefix(prefix)
        return await self._call(
            "abandon_uploads", f"{prefix}*", 0, lambda: self._backend.abandon_uploads(prefix, older_than_s), timeout_s
        )

    async def adopt(self, *, timeout_s: float | None = None) -> None:
        """Accept the present contents as this storage: with the marker found there, or a new one."""
        marker = self._marker
        if marker is not None:
            await self._call("put", marker.key, 0, lambda: marker.adopt(self._backend), timeout_s)

    async def _verified(self, ask: Callable[[], Awaitable[_Result]]) -> _Result:
        """Query the backend; the answer "no such object" requires that the marker is found."""
        try:
            return await ask()
        except StorageNotFoundError:
            if self._marker is not None and self._marker.known:
                await self._marker.recognize(self._backend)
            raise

    async def _call(
        self,
        operation: str,
        subject: str,
        size: int,
        attempt: Callable[[], Awaitable[_Result]],
        timeout_s: float | None,
    ) -> _Result:
        """Run attempts until one succeeds or fails permanently, or time or attempts are used up."""
        counts = self._counts.get(operation)
        if counts is None:
            counts = self._counts[operation] = _Counts()
        limits = self._limits
        extra_s = size / _SLOWEST_BYTES_PER_S
        started = trio.current_time()
        deadline = started + (limits.storage_operation_timeout_s + extra_s if timeout_s is None else timeout_s)
        tried = 0
        error: DanubeError | None = None
        while True:
            with trio.CancelScope(deadline=deadline) as waiting:
                await self._line.acquire()
            if waiting.cancelled_caught:
                if error is not None:  # more specific than the timeout
                    self._give_up(counts, error, tried)
                counts.calls += 1
                counts.failures += 1
                raise StorageTimeoutError(
                    f"{self.url}: {operation} {subject}: no free slot within {deadline - started:.1f} s (limit"
                    f" storage_max_concurrency = {self._places})"
                )
            tried += 1
            begun = trio.current_time()
            try:
                with trio.CancelScope(deadline=min(deadline, begun + limits.storage_attempt_timeout_s + extra_s)):
                    result = await attempt()
                    # No checkpoint from here to the end of the block: a success must not become a cancellation.
                    counts.calls += 1
                    self._consecutive_failures, self._failing_since_s = 0, None
                    return result
                # The deadline may cut off an attempt whose predecessors have told what is wrong.
                told = f"; before that: {error.message}" if error and not isinstance(error, StorageTimeoutError) else ""
                error = StorageTimeoutError(
                    f"{self.url}: {operation} {subject}: no answer within {trio.current_time() - begun:.1f} s{told}"
                )
            except DanubeError as caught:
                error = caught
            finally:
                self._line.release()
                taken_s = trio.current_time() - begun
                counts.busy_s += taken_s
                counts.durations.observe(taken_s)
            self._note(error)
            if not error.retryable or tried >= limits.storage_max_attempts:
                self._give_up(counts, error, tried)
            pause_s = self._random.uniform(0, min(limits.storage_max_backoff_s, _FIRST_BACKOFF_S * 2 ** (tried - 1)))
            if trio.current_time() + pause_s >= deadline:
                self._give_up(counts, error, tried)
            await trio.sleep(pause_s)
            counts.retries += 1

    def _note(self, error: DanubeError) -> None:
        if isinstance(error, _ANSWERS):
            self._consecutive_failures, self._failing_since_s = 0, None
            return
        now = trio.current_time()
        self._consecutive_failures += 1
        if self._failing_since_s is None:
            self._failing_since_s = now
        self._last_error, self._last_error_at_s = f"{type(error).__name__}: {error.message}", now

    def _give_up(self, counts: _Counts, error: DanubeError, tried: int) -> NoReturn:
        counts.calls += 1
        counts.failures += not isinstance(error, _ANSWERS)
        if tried == 1:
            raise error
        raise type(error)(error.message + _tries(tried)) from error

    async def _holds(self, key: str, data: bytes | bytearray) -> bool:
        """Whether the object of that key is ``data``; compares the size first."""
        try:
            if (await self._backend.head(key)).size_bytes != len(data):
                return False
            return await self._backend.get(key) == data
        except StorageNotFoundError as error:
            # It was deleted since: the key is free, so put again.
            raise StorageConflictError(f"{self.url}: put {key}: the object was deleted since; try again") from error

    def _short(self, key: str, found: int, wanted: int) -> NoReturn:
        raise StorageUnavailableError(f"{self.url}: get {key}: the answer has {found} bytes instead of {wanted}")


def _check_range(key: str, start: int, end: int | None) -> None:
    if start < 0 or (end is not None and end < start):
        raise InvalidArgumentError(f"[{start}, {end}) is not a range of {key}: use 0 <= start <= end")


def _tries(tried: int) -> str:
    return f" (after {tried} attempts)" if tried > 1 else ""
