"""Seals batches: copies them from the journal into segment objects, then releases them from the journal.

A topic is due when it has a segment's worth of batches (``segment_bytes``), when the oldest batch is old enough
(``segment_max_age_s``; then every topic at least half as old is included, so that topics with little traffic share
objects), when the journal fills up (``segment_journal_ratio``: the topics in its oldest files), or on request.

Objects are built one after the other from the topics that are due. Then, for each::

    schemas  ->  upload  ->  read back and compare  ->  catalogue (transaction as the owner)  ->  manifest  ->  release

The schemas are those of its batches (:mod:`danube.history.schemas`), the release is that of the journal's copy.
Before the catalogue changes, the journal is synced as far as it was written: batches of topics of durability ``os`` may
not be synced yet, and history must not outlive the journal's record of its producers. Uploads overlap, the later steps
keep the order. An interruption at any point loses nothing: before the change of the catalogue the object is an orphan
that the janitor removes, and after it the journal's copy is released later.

A failing backend does not stop the broker: a failed round is repeated after a pause, the journal keeps unsealed
batches, and its limit applies back-pressure when it is full.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from itertools import takewhile
from typing import Final, Protocol

import msgspec
import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.manifest import ManifestLog
from danube.history.manifest_format import Subscriptions
from danube.history.objects import object_name, upload
from danube.history.packing import BuiltObject, Packer
from danube.history.schemas import SchemaKeeper
from danube.history.segment import SegmentPart
from danube.log import Journal, StoredBatch, TopicLog
from danube.model.batch import STAMP_SIZE
from danube.model.errors import DanubeError, DataLossError, NotOwnerError, OwnerFencedError, StorageError
from danube.model.ids import ProducerId, TopicId
from danube.model.limits import KIB, MIB, Limits
from danube.model.log_events import log_event
from danube.storage import Storage

__all__ = ["Sealable", "Sealer", "SealingStatus"]

_log = logging.getLogger("danube.history")

_READ_BYTES: Final = 1 * MIB
_PARTS_PER_OBJECT: Final = 20_000
_FIRST_RETRY_S: Final = 0.2
_NEWS_S: Final = 0.1
"""How long a broker may need to hear that a topic has another owner, which the metadata say already."""


class Sealable(Protocol):
    """Interface of a topic for the sealer."""

    name: str
    topic_id: TopicId

    @property
    def log(self) -> TopicLog:
        """Its log."""
        ...

    @property
    def storage(self) -> str:
        """Name of the storage for its history."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it was deleted or stopped."""
        ...

    def producer_name(self, producer_id: ProducerId) -> str:
        """Return the name of a producer."""
        ...

    def stop(self, error: DataLossError) -> None:
        """Stop the topic, because its stored bytes are damaged."""
        ...


class SealingStatus(msgspec.Struct, frozen=True):
    """Progress of sealing. Sizes in bytes, times in seconds."""

    unsealed_bytes: int
    """Bytes in the journal of topics that are sealed."""
    unsealed_topics: int
    oldest_age_s: float
    """Age of the oldest unsealed batch."""
    sealed_objects: int
    """Number of objects sealed since the broker was started."""
    sealed_bytes: int
    failing_for_s: float
    """For how long sealing has been failing; 0 while it works."""
    last_error: str


class _Request:
    """A request to seal all present batches of some topics."""

    def __init__(self, topic_ids: Sequence[TopicId]) -> None:
        self.topic_ids = topic_ids
        self.done = trio.Event()
        self.error: BaseException | None = None


class Sealer:
    """The sealer of one storage: a failing backend does not delay sealing into the others.

    Args:
        catalogue, manifests, storage, schemas: destinations of sealed data.
        journal: provides the topics of its oldest files.
        cluster, limits: configuration.
        rng, wall_clock_us: seams.
        expire: applies a topic's retention: expired batches need not be sealed.
        of_topics: returns records and subscriptions of topics, for manifests; see :class:`danube.history.RecordSource`.
    """

    def __init__(
        self,
        catalogue: HistoryCatalogue,
        manifests: ManifestLog,
        storage: Storage,
        schemas: SchemaKeeper,
        journal: Journal,
        cluster: str,
        limits: Limits,
        rng: random.Random,
        wall_clock_us: Callable[[], int],
        of_topics: Callable[[Iterable[str]], tuple[dict[str, bytes], Subscriptions]],
        expire: Callable[[Sealable], Awaitable[None]],
    ) -> None:
        self._catalogue = catalogue
        self._manifests = manifests
        self._storage = storage
        self._schemas = schemas
        self._journal = journal
        self._cluster = cluster
        self._limits = limits
        self._rng = rng
        self._clock_us = wall_clock_us
        self._of_topics = of_topics
        self._expire = expire
        self._topics: dict[TopicId, Sealable] = {}
        # Topics with unsealed batches, in the order in which they got them.
        self._unsealed: dict[TopicId, None] = {}
        self._full: dict[TopicId, None] = {}
        # Topics that the last round failed to seal; True: they must be sealed completely.
        self._left: dict[TopicId, bool] = {}
        self._requests: list[_Request] = []
        # Buffers of stored objects, for reuse: allocating fresh pages would take time in the event loop.
        self._buffers: list[bytearray] = []
        self._wake = trio.Event()
        self._sealed_objects = 0
        self._sealed_bytes = 0
        self._failing_since: float | None = None
        self._last_error = ""

    # --- Work to do ---

    def watch(self, topic: Sealable) -> None:
        """Seal a topic from now on."""
        self._topics[topic.topic_id] = topic
        self.unsealed(topic.log)

    def forget(self, topic_id: TopicId) -> None:
        """Remove a deleted topic."""
        self._topics.pop(topic_id, None)
        self._unsealed.pop(topic_id, None)
        self._full.pop(topic_id, None)

    def unsealed(self, log: TopicLog) -> None:
        """Note that a topic has unsealed batches, or another segment's worth of them."""
        if log.topic_id not in self._topics or not log.unsealed_bytes:
            return
        if not self._unsealed:
            self._wake.set()  # the first topic: its age matters from now on
        self._unsealed.setdefault(log.topic_id)
        if log.unsealed_bytes >= self._limits.segment_bytes:
            self._full.setdefault(log.topic_id)
            self._wake.set()

    def journal_rolled(self) -> None:
        """Note that the journal has begun another file, so that it may need relief."""
        self._wake.set()

    async def seal_now(self, topics: Iterable[Sealable]) -> None:
        """Seal all data of topics, and return when that is done. May be cancelled.

        Raises:
            StorageError: the backend failed.
        """
        ids = [topic.topic_id for topic in topics if topic.topic_id in self._topics]
        request = _Request(ids)
        self._requests.append(request)
        self._wake.set()
        await request.done.wait()
        if request.error is not None:
            raise StorageError(f"sealing failed and will be retried: {request.error}")

    def status(self) -> SealingStatus:
        """Return the progress of sealing."""
        now_us = self._clock_us()
        logs = [self._topics[topic_id].log for topic_id in self._unsealed if topic_id in self._topics]
        oldest_us = min((log.unsealed_since_us for log in logs if log.unsealed_since_us), default=now_us)
        return SealingStatus(
            sum(log.unsealed_bytes for log in logs),
            len(logs),
            max(0.0, (now_us - oldest_us) / 1e6),
            self._sealed_objects,
            self._sealed_bytes,
            0.0 if self._failing_since is None else trio.current_time() - self._failing_since,
            self._last_error,
        )

    # --- The loop ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Seal what is due, until cancelled.

        Raises:
            OwnerFencedError: another broker owns the history now.
        """
        task_status.started()
        pause_s = 0.0
        while True:
            self._wake = trio.Event()
            requests, self._requests = self._requests, []
            due, whole = self._due(requests)
            starts = [topic.log.journal_start for topic in due]
            error: BaseException | None = None
            fenced: BaseException | None = None
            try:
                if due:
                    await self._seal(due, whole)
            except* OwnerFencedError as group:
                fenced = _first(group)
            except* (DanubeError, OSError) as group:
                error = _first(group)
            if fenced is not None:
                raise fenced  # not above: Python before 3.11.4 wraps what except* raises in a group
            for request in requests:
                request.error = error
                request.done.set()
            if error is not None:
                pause_s = min(max(_FIRST_RETRY_S, pause_s * 2), self._limits.segment_retry_max_s)
                self._failed(error, pause_s)
                self._left = {topic.topic_id: topic.topic_id in whole for topic in due}
                await trio.sleep(pause_s)
            elif due:
                pause_s = 0.0
                self._recovered()
                moved = any(
                    topic.gone or topic.log.journal_start > start for topic, start in zip(due, starts, strict=True)
                )
                # Data that a round could not seal is due again: pause, to avoid a busy loop.
                await trio.sleep(0 if moved or requests else _FIRST_RETRY_S)
            else:
                with trio.move_on_after(self._next_age_s()):
                    await self._wake.wait()

    def _failed(self, error: BaseException, pause_s: float) -> None:
        self._last_error = str(error)
        if self._failing_since is None:
            self._failing_since = trio.current_time()
            _log.error(
                "sealing fails and is retried from now on (next attempt in %.1f s): %s. Publishing continues until the"
                " journal has reached limits.journal_max_bytes",
                pause_s,
                error,
                extra=log_event("sealing.failing"),
            )

    def _recovered(self) -> None:
        if self._failing_since is not None:
            _log.warning(
                "sealing works again after %.1f s",
                trio.current_time() - self._failing_since,
                extra=log_event("sealing.working"),
            )
            self._failing_since = None
            self._last_error = ""

    def _next_age_s(self) -> float:
        """Return in how many seconds the oldest unsealed batch is old enough."""
        topic = self._oldest()
        if topic is None:
            return math.inf
        age_s = (self._clock_us() - topic.log.unsealed_since_us) / 1e6
        return min(max(0.001, self._limits.segment_max_age_s - age_s), self._limits.segment_max_age_s)

    def _oldest(self) -> Sealable | None:
        for topic_id in list(self._unsealed):
            topic = self._topics[topic_id]
            if topic.log.unsealed_bytes and not topic.gone:
                return topic
            del self._unsealed[topic_id]
        return None

    def _due(self, requests: Sequence[_Request]) -> tuple[list[Sealable], set[TopicId]]:
        """Return the topics that are due, and the ids of those to be sealed completely."""
        ids: dict[TopicId, None] = dict.fromkeys(topic_id for request in requests for topic_id in request.topic_ids)
        whole: set[TopicId] = set(ids)
        left, self._left = self._left, {}
        ids |= dict.fromkeys(left)
        whole |= {topic_id for topic_id, everything in left.items() if everything}
        usage = self._journal.used_bytes
        excess = usage - int(self._limits.journal_max_bytes * self._limits.segment_journal_ratio)
        if excess > 0:
            # A topic without unsealed batches may still hold a file: sealing it again would not free the file.
            oldest_files = (self._topics.get(topic_id) for topic_id in self._journal.topics_of_oldest(excess))
            found = [topic.topic_id for topic in oldest_files if topic is not None and topic.log.unsealed_bytes]
            ids |= dict.fromkeys(found)
            whole |= set(found)
        oldest = self._oldest()
        if oldest is not None:
            now_us = self._clock_us()
            max_age_us = int(self._limits.segment_max_age_s * 1e6)
            if now_us - oldest.log.unsealed_since_us >= max_age_us:
                since = now_us - max_age_us // 2
                old = [i for i in self._unsealed if self._topics[i].log.unsealed_since_us <= since]
                ids |= dict.fromkeys(old)
                whole |= set(old)
        for topic_id in list(self._full):
            if self._topics[topic_id].log.unsealed_bytes < self._limits.segment_bytes or self._topics[topic_id].gone:
                del self._full[topic_id]
        ids |= self._full
        return [self._topics[i] for i in ids if i in self._topics and not self._topics[i].gone], whole

    # --- One round ---

    async def _seal(self, due: Sequence[Sealable], whole: set[TopicId]) -> None:
        # Changes of the catalogue whose manifest an earlier round has failed to write.
        await self._manifests.flush()
        for topic in due:
            self._release_sealed(topic)
            with suppress(NotOwnerError):  # it is about to be released
                await self._expire(topic)
        slots = trio.Semaphore(self._limits.segment_uploads)
        before = trio.Event()
        before.set()
        async with trio.open_nursery() as nursery, aclosing(self._build(due, whole)) as objects:
            await slots.acquire()
            async for built in objects:
                done = trio.Event()
                nursery.start_soon(self._store, built, before, done, slots)
                before = done
                del built
                await slots.acquire()

    def _release_sealed(self, topic: Sealable) -> None:
        if topic.topic_id not in self._topics:
            return  # deleted during a round: it must not be queued again
        history = self._catalogue.find(topic.topic_id)
        start = topic.log.journal_start
        if history is not None and history.end_offset > start:
            records = takewhile(lambda record: record.part.end_offset > start, reversed(history.parts))
            fresh = [record.part for record in records]
            # Retention may have moved the journal's start into a part while it was uploaded: only some of the part's
            # bytes count as unsealed then, and the part does not tell how many.
            cut = fresh[-1].base_offset < start
            topic.log.sealed_up_to(history.end_offset, None if cut else sum(part.size_bytes for part in fresh))
            # The remaining batches are young: move the topic to the end of the queue.
            self._unsealed.pop(topic.topic_id, None)
            if topic.log.unsealed_bytes:
                self._unsealed[topic.topic_id] = None

    async def _build(self, topics: Sequence[Sealable], whole: set[TopicId]) -> AsyncGenerator[BuiltObject, None]:
        """Yield full objects with the topics' batches."""
        packer: Packer | None = None
        for topic in topics:
            if not self._catalogue.tenure.owns(topic.topic_id):
                continue  # it is about to be released
            # Less than a segment's worth is left for a later round, unless everything is requested.
            size = topic.log.unsealed_bytes
            if topic.topic_id not in whole:
                size -= size % self._limits.segment_bytes
            async with aclosing(self._batches(topic, size)) as runs:
                async for batches in runs:
                    if not self._catalogue.tenure.owns(topic.topic_id):
                        break  # it has moved away since
                    for batch in batches:
                        if packer is None:
                            buffer = self._take_buffer(topics)
                            created_us, tenure = self._clock_us(), self._catalogue.tenure
                            key = object_name(self._cluster, created_us, tenure.broker, tenure.life, self._rng)
                            packer = Packer(key, tenure.life, created_us, buffer, tenure.epoch)
                        packer.add(topic, batch)
                        if packer.size_bytes >= self._limits.segment_bytes:
                            yield packer.finish()
                            packer = None
                    await trio.lowlevel.checkpoint()
            if packer is not None and packer.part_count >= _PARTS_PER_OBJECT:
                yield packer.finish()
                packer = None
        if packer is not None:
            yield packer.finish()

    def _take_buffer(self, topics: Sequence[Sealable]) -> bytearray:
        """Return a buffer for an object: a segment plus one batch, or all remaining bytes if these are fewer."""
        left = sum(topic.log.unsealed_bytes for topic in topics)
        whole = self._limits.segment_bytes + 2 * MIB
        wanted = min(left + left // 8 + 64 * KIB, whole)
        if wanted < whole:
            return bytearray(wanted)
        buffer = self._buffers.pop() if self._buffers else bytearray()
        buffer.extend(bytes(max(0, whole - len(buffer))))
        return buffer

    def _keep_buffer(self, buffer: bytearray) -> None:
        """Keep the buffer of a stored object for the next one."""
        if len(buffer) >= self._limits.segment_bytes and len(self._buffers) < self._limits.segment_uploads:
            self._buffers.append(buffer)

    async def _batches(self, topic: Sealable, size_bytes: int) -> AsyncGenerator[list[StoredBatch], None]:
        """Yield a topic's batches in the journal, about ``size_bytes`` of them."""
        log = topic.log
        offset, end = log.journal_start, log.end_offset
        while size_bytes > 0 and offset < end and not topic.gone:
            try:
                batches = await log.read(offset, min(_READ_BYTES, size_bytes))
            except DataLossError as error:
                _log.error(
                    "topic %r cannot be sealed: %s",
                    topic.name,
                    error,
                    extra=log_event("sealing.topic_failed", topic=topic.name),
                )
                topic.stop(error)
                return
            if not batches:
                return
            offset = batches[-1].end_offset
            size_bytes -= sum(STAMP_SIZE + len(batch.part) for batch in batches)
            yield batches

    async def _store(self, built: BuiltObject, before: trio.Event, done: trio.Event, slots: trio.Semaphore) -> None:
        await self._manifests.check()
        with self._catalogue.storing(built.ref(self._storage.name)):
            await self._upload_and_enter(built, before)
        self._keep_buffer(built.data)
        done.set()
        slots.release()

    async def _upload_and_enter(self, built: BuiltObject, before: trio.Event) -> None:
        written = self._journal.sequence
        await self._schemas.keep(built.schemas)
        await upload(self._storage, built)
        await self._journal.sync(written)
        await before.wait()
        entered = await self._enter(built)
        for part in entered:
            topic = self._topics.get(part.topic_id)
            if topic is not None:
                self._release_sealed(topic)
        if entered:
            self._sealed_objects += 1
            self._sealed_bytes += len(built.data)

    async def _enter(self, built: BuiltObject) -> list[SegmentPart]:
        """Enter the parts that are still of use into the catalogue, and return them.

        Those of a topic that has moved away meanwhile are not. If this broker has not heard of that yet, it soon will.

        Raises:
            NotOwnerError: as far as this broker knows, the topics are its own.
        """
        is_first, has_waited = True, False
        while True:
            parts = [part for part in built.footer.parts if self._fits(part)]
            if not parts:
                if is_first:  # everything in it has expired or was deleted in the meantime
                    await self._storage.delete([built.key])
                return []  # else some of it may have been entered
            names = {self._topics[part.topic_id].name for part in parts if part.topic_id in self._topics}
            records, subscriptions = self._of_topics(names)
            self._manifests.note(topics=records, subscriptions=subscriptions)
            try:
                await self._catalogue.enter(built.ref(self._storage.name), len(built.data), built.created_us, parts)
            except NotOwnerError:
                if self._owns_all(parts):
                    if has_waited:
                        raise
                    has_waited = True
                    await trio.sleep(_NEWS_S)
                is_first = False
                for topic in filter(None, [self._topics.get(part.topic_id) for part in parts]):
                    self._release_sealed(topic)  # of which a part was entered before the refusal
                continue
            await self._manifests.flush()
            return parts

    def _owns_all(self, parts: Sequence[SegmentPart]) -> bool:
        return all(self._catalogue.tenure.owns(part.topic_id) for part in parts)

    def _fits(self, part: SegmentPart) -> bool:
        """Return whether a part still continues its topic, which may have been deleted or expired, or may have moved.

        The topic's start may now be in the middle of the part. A part that would leave a gap after the sealed batches
        does not fit.
        """
        topic = self._topics.get(part.topic_id)
        if topic is None or topic.gone or not self._catalogue.tenure.owns(part.topic_id):
            return False
        return part.base_offset <= topic.log.journal_start < part.end_offset


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
