"""Reads sealed history without a broker and without an event loop: for Spark's executors and drivers.

It uses the same backends, plugins, retries and checks as the broker, behind blocking calls. They run in a Trio loop in
a separate thread, which fetches ahead while the caller's thread decodes::

    with open_direct("s3://bucket/prefix", {"region": "eu-west-1"}) as storage:
        for batch in storage.read(part, 1000, 2000):      # parts come from the broker, or from the bucket's manifests
            records = open_records(batch.part, read_header(batch.part), limits.max_batch_bytes)

Every batch is verified: its stamp, the checksum of the producer's part, and that the offsets follow each other. Bytes
that fail verification are fetched once more before the damage is reported. The queue between the two threads is
bounded: a slow caller stops the fetching.

No message or repr shows an option that was given to :func:`open_direct`: it may be a secret.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from danube.history._direct_bucket import DirectBucket
from danube.history._direct_reading import DirectPart, Span, batches_of, denied, direct_parts, first_since
from danube.history._direct_run import DirectRun, FooterCache
from danube.history.manifest import read_bucket
from danube.history.schemas import read_schema
from danube.model.errors import ClosedError, StorageDeniedError, StorageNotFoundError
from danube.model.ids import Offset
from danube.model.limits import Limits
from danube.model.query_api import LogParts, RawBatch
from danube.storage import Storage, open_storage, parse_url

if TYPE_CHECKING:
    from danube.schema.kinds import Source

__all__ = ["DirectBucket", "DirectPart", "DirectStorage", "direct_parts", "open_direct"]

T = TypeVar("T")


@contextmanager
def open_direct(
    url: str, options: Mapping[str, Any] | None = None, *, limits: Limits | None = None
) -> Iterator[DirectStorage]:
    """Open a storage for reading, and close it at the end of the block.

    Args:
        url: of the storage, for example from :class:`~danube.model.query_api.LogState`.
        options: options of its backend that are not in the URL, such as credentials. Numbers may be given as text.
            Options in the URL take precedence.
        limits: ``storage_*`` are used: deadlines, attempts and concurrency.

    Raises:
        ConfigurationError: the URL or an option is invalid, or the plugin is not installed; the message has no secrets.
        StorageNotFoundError: a ``disk://`` directory that does not exist.
        StorageError: the backend cannot be opened.
    """
    _check_disk(url)
    loop = _Loop(url, dict(options or {}), limits)
    try:
        yield DirectStorage(loop)
    finally:
        loop.close()


class DirectStorage:
    """A storage opened for reading; created by :func:`open_direct`. May be used from several threads.

    Its calls block, so they are refused in an event loop.
    """

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop

    def __repr__(self) -> str:
        return f"<DirectStorage {self.url}>"

    @property
    def url(self) -> str:
        """The URL without secrets."""
        return self._loop.storage.url

    def bucket(self, cluster: str = "danube") -> DirectBucket:
        """Return the history of a cluster according to the manifests in the storage: for reading without a broker.

        Raises:
            DataLossError: a manifest is damaged or missing.
            StorageNotFoundError: there is no history of this cluster.
            StorageError: the storage cannot be read.
        """
        try:
            found = self._loop.call(read_bucket, self._loop.storage, cluster)
        except StorageDeniedError as error:
            raise denied(error, self.url) from error
        if not found.epoch:
            raise StorageNotFoundError(
                f"{self.url} has no manifests of cluster {cluster!r}; check that URL and cluster name are those of the"
                " broker, and that the broker has sealed data"
            )
        return DirectBucket(found, self.url)

    def schema(self, number: int, cluster: str = "danube") -> Source:
        """Return the schema with a number, with all that it refers to: it is beside the batches that carry the number.

        Raises:
            SchemaNotFoundError: the storage does not have it.
            DataLossError: it is damaged.
            StorageError: the storage cannot be read.
        """
        return self._loop.call(read_schema, self._loop.storage, cluster, number)

    def read(
        self, part: DirectPart, start: int = 0, end: int | None = None, *, producers: bool = True
    ) -> Iterator[RawBatch]:
        """Yield the stored batches of a part that overlap ``[start, end)``; see :meth:`read_all`."""
        return self.read_all([(part, start, part.part.end_offset if end is None else end)], producers=producers)

    def read_all(self, spans: Iterable[tuple[DirectPart, int, int]], *, producers: bool = True) -> Iterator[RawBatch]:
        """Yield the stored batches of parts, in order, that overlap the given ranges of offsets.

        The first batch of a span may begin before its range, and the last one may end after it. Data is fetched ahead
        while the caller processes a batch, also across parts. Errors are raised by the iteration, not by the call.

        Args:
            spans: part, start and end; a range is cut down to the offsets that the part holds.
            producers: whether to read names of producers; they cost another small read of each object.

        Raises:
            DataLossError: a batch, an index or the object is damaged; the message names object, topic, offset and
                remedy.
            StorageNotFoundError: an object does not exist: it was merged or has expired since the parts were listed, or
                this is another storage.
            StorageDeniedError: access is refused; the message names the permissions to grant.
            StorageError: the storage cannot be read.
            ClosedError: the storage was closed.
        """
        return batches_of(self._loop, self.url, spans, producers)

    def offset_at(self, found: LogParts, time_us: int) -> Offset:
        """Return the first offset within ``found`` that was appended at or after a time; its end if there is none.

        Args:
            found: parts, as returned by a broker or a bucket.
            time_us: microseconds since the epoch.

        Raises the errors of :meth:`read_all`.
        """
        return first_since(found, time_us, lambda part: self.read(part, found.start, found.end, producers=False))


class _Loop:
    """The Trio loop in its thread, with the storage open in it."""

    def __init__(self, url: str, options: dict[str, Any], limits: Limits | None) -> None:
        self.storage: Storage
        self._nursery: trio.Nursery
        self._token: trio.lowlevel.TrioToken
        self._footers = FooterCache()
        self._closing = trio.Event()
        opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        # A daemon: a process that was asked to exit does not wait for a storage.
        self._thread = threading.Thread(
            target=self._run, args=(url, options, limits, opened), name="danube-direct", daemon=True
        )
        self._thread.start()
        error = opened.get()
        if error is not None:
            self._thread.join()
            raise error

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run an asynchronous function in the loop, and wait for it."""
        try:
            return trio.from_thread.run(function, *arguments, trio_token=self._token)
        except trio.RunFinishedError:
            raise ClosedError("the storage is closed; open it again with open_direct()") from None

    def start(self, spans: Sequence[Span], skip_to: int, producers: bool, careful: bool) -> DirectRun:
        """Start a run."""

        async def start() -> DirectRun:
            run = DirectRun(self.storage, self._footers, spans, skip_to, producers, careful)
            self._nursery.start_soon(run.run)
            return run

        return self.call(start)

    def stop(self, run: DirectRun) -> None:
        """End a run, from any thread, without waiting for it. No-op if it has ended."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(run.close)

    def close(self) -> None:
        """Close the storage, and wait until it is closed."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._closing.set)
        self._thread.join()

    def _run(
        self, url: str, options: dict[str, Any], limits: Limits | None, opened: queue.SimpleQueue[BaseException | None]
    ) -> None:
        try:
            trio.run(self._main, url, options, limits, opened)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the opening
            opened.put(error)

    async def _main(
        self, url: str, options: dict[str, Any], limits: Limits | None, opened: queue.SimpleQueue[BaseException | None]
    ) -> None:
        async with open_storage(url, random=random.Random(), options=options, limits=limits) as storage:
            self.storage = storage
            self._token = trio.lowlevel.current_trio_token()
            async with trio.open_nursery() as self._nursery:
                opened.put(None)
                await self._closing.wait()
                self._nursery.cancel_scope.cancel()


def _check_disk(url: str) -> None:
    """Refuse a directory that does not exist: opening it would create an empty storage."""
    parts = parse_url(url)
    if parts.scheme == "disk" and parts.path and not Path(parts.path).is_dir():
        raise StorageNotFoundError(
            f"{parts.public}: there is no such directory on this machine; read it on the broker's machine, mount it"
            " here, or let the broker use a storage that machines share"
        )
