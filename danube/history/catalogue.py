"""The catalogue of sealed parts and their objects: the authoritative record of history, in the metadata store.

Keys::

    /history                                HistoryRecord: identity of the metadata
    /segments/{topic id}/{base offset}      PartRecord: (object, byte range, offsets, checksum)
    /objects/{storage}/{object}             ObjectRecord: how many parts point to it
    /garbage/{storage}/{object}             GarbageRecord: no part points to it, and it is to be deleted
    /starts/{topic id}                      start offset set by retention
    /writers/{broker}/history               guard of the changes of one broker

Each broker has the parts of the topics that it owns in memory, and changes no others: every transaction is conditional
on the assignments of the topics that it concerns and on the broker's session (:mod:`danube.history.tenure`). So the
delayed change of a former owner is refused. The guard refuses those of a former life of the same broker, which gets
:class:`OwnerFencedError`.

Objects may have parts of topics of several owners. Their rows are counted by compare-and-set
(:mod:`danube.history.changes`): if another owner has changed one in the meantime, it is read again and the change is
repeated. Transactions are bounded, so a large change takes several; each of them is consistent in itself: an object's
reference count is changed together with the parts that refer to it.

All reads are served from memory. The records are ordered by offset instead of by key, so they are not in
:class:`~danube.metadata.Table` objects. Changes go through a :class:`~danube.metadata.TableWriter`: if the outcome of
one is unknown (its answer was lost, or it was cancelled), it is settled before the next change, and applied to memory
as soon as the outcome is certain. So no object is counted twice, and none is forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

import msgspec

from danube.history.changes import (
    GARBAGE,
    HISTORY_KEY,
    OBJECTS,
    SEGMENTS,
    STARTS,
    CatalogueKeys,
    HistoryRecord,
    NewObject,
    Plan,
    plan_change,
    start_key,
    topic_of_start,
)
from danube.history.parts import GarbageRecord, ObjectRecord, ObjectRef, PartRecord, TopicHistory
from danube.history.rows import HistoryRows, RowsFound
from danube.history.segment import SegmentPart
from danube.history.sole_tenure import SoleTenure
from danube.history.tenure import Tenure
from danube.metadata import Change, Condition, Delete, KeyValue, MetadataStore, Put, TableWriter, decode_record
from danube.model.errors import DataLossError, MetadataConflictError, NotOwnerError, UnavailableError
from danube.model.ids import FIRST_OFFSET, NO_OWNER_EPOCH, NO_TOPIC, Offset, OwnerEpoch, TopicId

__all__ = ["HistoryCatalogue"]

_PARTS_PER_TRANSACTION: Final = 40
"""Parts changed by one transaction. Each may be of another topic, and in another object: with their assignments that
makes up to three times as many conditions, which is below ``metadata_max_transaction_changes``."""
_ATTEMPTS: Final = 20
"""How often a change is repeated because other owners have changed the rows of its objects."""


OnChange = Callable[[Sequence[PartRecord], Sequence[PartRecord], Mapping[TopicId, Offset]], None]
"""``on_change(added, removed, starts)``: called for one applied change; added parts may replace removed ones."""

_encode = msgspec.msgpack.encode
_HISTORY = msgspec.msgpack.Decoder(HistoryRecord)
_PART = msgspec.msgpack.Decoder(PartRecord)
_OBJECT = msgspec.msgpack.Decoder(ObjectRecord)
_GARBAGE = msgspec.msgpack.Decoder(GarbageRecord)


class HistoryCatalogue:
    """The sealed parts of a broker's topics, in memory and in the metadata store. Create it with :meth:`open`.

    Attributes:
        tenure: which topics this broker owns.
        incarnation: identity of the metadata store.
        topics: histories by topic id, for topics with sealed parts or a start offset.
        objects: the objects that their parts are in. Other owners may have changed those that they share.
        garbage: objects that this broker has to delete.
        commits: referenced objects of durability ``remote``. They are kept in memory only: the objects describe
            themselves, and recovery finds them.
        on_change: called for each change, in order, as soon as it is known to have been applied.
    """

    def __init__(
        self,
        store: MetadataStore,
        tenure: Tenure,
        writer: TableWriter,
        incarnation: str,
        bucket_life: SoleTenure,
        unshared: Collection[str] = (),
    ) -> None:
        self._store = store
        self._writer = writer
        self._keys = CatalogueKeys(tenure.broker, unshared)
        self._rows = HistoryRows(store, self._keys)
        self._revisions: dict[ObjectRef, int] = {}
        """Of the rows of objects and of garbage; an object has one of them."""
        self._shared: set[ObjectRef] = set()
        """Objects that also have parts of other owners."""
        self._condemned: set[ObjectRef] = set()
        """Garbage whose deletion has begun: it can no longer be taken back into use."""
        self._in_progress: set[ObjectRef] = set()
        self._released: set[TopicId] = set()
        """Topics that other brokers own now."""
        self._reading: set[TopicId] = set()
        """Topics that are being adopted, and whose rows have not changed since they began to be read."""
        self._bucket_life = bucket_life
        self.tenure = tenure
        self.incarnation = incarnation
        self.topics: dict[TopicId, TopicHistory] = {}
        self.objects: dict[ObjectRef, ObjectRecord] = {}
        self.garbage: dict[ObjectRef, GarbageRecord] = {}
        self.commits: dict[ObjectRef, ObjectRecord] = {}
        self.on_change: OnChange = _ignore

    @classmethod
    async def open(
        cls, store: MetadataStore, tenure: Tenure, incarnation: str, unshared: Collection[str] = ()
    ) -> HistoryCatalogue:
        """Fence the former life of this broker, and read the history of the topics that it owns.

        Args:
            store: the metadata store.
            tenure: what this broker owns.
            incarnation: identity to record if the store has no history yet.
            unshared: storages that other brokers cannot reach; see :class:`~danube.history.changes.CatalogueKeys`.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store cannot answer.
        """
        while (item := await store.get(HISTORY_KEY)) is None:
            try:
                await store.put(HISTORY_KEY, _encode(HistoryRecord(incarnation)), expected_revision=0)
            except MetadataConflictError:
                continue  # another broker was faster, or the answer to an earlier attempt was lost
        writer = await TableWriter.open(store, f"/writers/{tenure.broker}/history")
        found = decode_record(item, _HISTORY.decode).incarnation
        life = tenure if isinstance(tenure, SoleTenure) else await SoleTenure.begin(store, tenure.broker)
        self = cls(store, tenure, writer, found, life, unshared)
        await self.load()
        return self

    @property
    def epoch(self) -> OwnerEpoch:
        """The epoch of this life of the broker in its buckets, higher than that of any former owner of these."""
        return self._bucket_life.epoch(NO_TOPIC)

    async def raise_epoch(self, at_least: OwnerEpoch) -> None:
        """Raise :attr:`epoch`, if it is lower than ``at_least``.

        Raises:
            OwnerFencedError: another process runs as this broker.
            DanubeError: the metadata cannot be written.
        """
        await self._bucket_life.raise_epoch(at_least)

    # --- Topics that come and go ---

    async def load(self) -> None:
        """Read the history of all topics that this broker owns, in a few lists.

        Raises:
            DataLossError: a record does not decode.
            DanubeError: the store cannot answer.
        """
        items, revision = await self._store.list(SEGMENTS)
        for item in items:
            record = decode_record(item, _PART.decode)
            topic_id = record.part.topic_id
            if self.tenure.owns(topic_id) and not self._keys.is_elsewhere(record):
                self.topic(topic_id).add(self._keys.read_part(record))
                if self.tenure.assigned_at(topic_id) > revision:
                    self.topic(topic_id).epoch = NO_OWNER_EPOCH  # assigned since: its former owner may have changed it
        for item in (await self._store.list(STARTS))[0]:
            if self.tenure.owns(topic_of_start(item.key)):
                self.topic(topic_of_start(item.key)).start_offset = Offset(int(item.value))
        own = self._own_references()
        for item in (await self._store.list(OBJECTS))[0]:
            ref = self._keys.ref(item.key)
            if ref in own:
                self._know(ref, item)
        for item in (await self._store.list(GARBAGE))[0]:
            waste = decode_record(item, _GARBAGE.decode)
            if waste.broker == self.tenure.broker:
                ref = self._keys.ref(item.key)
                self.garbage[ref], self._revisions[ref] = waste, item.mod_revision
        self._shared = {ref for ref, record in self.objects.items() if record.references != own[ref]}

    async def adopt(self, topic_id: TopicId) -> None:
        """Read the history of a topic that this broker has become the owner of. No-op if it is known in this epoch.

        Raises:
            DanubeError: the store cannot answer.
        """
        # Read before the lock is taken, because hundreds of topics may arrive at the same time.
        self._reading.add(topic_id)
        since = self._epoch(topic_id)
        found = await self._rows.of_topic(topic_id, self.objects)
        async with self._changing():
            if self._is_known(topic_id):
                return
            while True:
                if topic_id not in self._reading or self._epoch(topic_id) != since:
                    self._reading.add(topic_id)
                    since = self._epoch(topic_id)
                    found = await self._rows.of_topic(topic_id, self.objects)
                elif missing := found.missing(self.objects):  # other topics that have come or gone share them
                    found.objects.update(await self._rows.of_objects(missing))
                else:
                    break
            self._reading.discard(topic_id)
            if not since and topic_id in self._released:
                return  # it has gone to another owner meanwhile
            self._released.discard(topic_id)
            self._replace_former({topic_id: since}, found)

    async def adopt_all(self, topic_ids: Iterable[TopicId]) -> None:
        """As :meth:`adopt`, for many topics: in three lists, however many they are.

        Raises:
            DanubeError: the store cannot answer.
        """
        wanted = dict.fromkeys(topic_ids, NO_OWNER_EPOCH)
        async with self._changing():
            while True:
                wanted = {
                    topic_id: self._epoch(topic_id)
                    for topic_id in wanted
                    if not self._is_known(topic_id) and (self._epoch(topic_id) or topic_id not in self._released)
                }
                if not wanted:
                    return
                found = await self._rows.of_topics(wanted.keys())
                if all(self._epoch(topic_id) == epoch for topic_id, epoch in wanted.items()):
                    break
            self._released -= wanted.keys()
            self._replace_former(wanted, found)

    def _replace_former(self, epochs: Mapping[TopicId, OwnerEpoch], found: RowsFound) -> None:
        """Put histories that were read in the place of what is known of these topics from former epochs.

        Commits stay: they are in memory only, and were read from the storage in this epoch.

        Args:
            epochs: of each topic, from before it was read.
            found: what was read. The rows of all its objects are there, or known.
        """
        gone: list[PartRecord] = []
        for topic_id in epochs:
            former = self.topics.get(topic_id)
            if former is not None:
                stale = [record for record in former.parts if record.ref not in self.commits]
                former.remove(stale)
                former.start_offset = FIRST_OFFSET
                gone += stale
                if not former.parts:
                    del self.topics[topic_id]
        for record in found.records:
            self.topic(record.part.topic_id).add(record)
        for topic_id, start in found.starts.items():
            self.topic(topic_id).start_offset = start
        for topic_id in epochs.keys() & self.topics.keys():
            self.topics[topic_id].epoch = epochs[topic_id]
        for ref, row in found.objects.items():
            if ref not in self.objects and row is not None:
                self._know(ref, row)
        self._note_shared({record.ref for record in (*gone, *found.records)})
        if gone or found.records or found.starts:
            self.on_change(found.records, gone, found.starts)

    def _epoch(self, topic_id: TopicId) -> OwnerEpoch:
        """Return the epoch under which this broker owns a topic, as far as it has seen; 0: it does not."""
        return self.tenure.epoch(topic_id) if self.tenure.owns(topic_id) else NO_OWNER_EPOCH

    def _is_known(self, topic_id: TopicId) -> bool:
        """Whether the history in memory is of the present epoch.

        A broker that is starting, or that has not got to serving a topic yet, may have read what other owners have
        replaced since.
        """
        topic = self.topics.get(topic_id)
        return topic is not None and topic.epoch == self._epoch(topic_id)

    def was_released(self, topic_id: TopicId) -> bool:
        """Whether this broker has released a topic, and not adopted it since."""
        return topic_id in self._released

    def release(self, topic_id: TopicId) -> None:
        """Forget the history of a topic that has another owner now. Nothing changes in the metadata."""
        self._released.add(topic_id)
        self._reading.discard(topic_id)
        topic = self.topics.pop(topic_id, None)
        if topic is not None:
            self._note_shared({record.ref for record in topic.parts})
            self.on_change((), topic.parts, {})

    def _know(self, ref: ObjectRef, item: KeyValue) -> None:
        self.objects[ref], self._revisions[ref] = decode_record(item, _OBJECT.decode), item.mod_revision

    def _own_references(self) -> Counter[ObjectRef]:
        return Counter(record.ref for record in self.all_parts())

    def _note_shared(self, refs: Iterable[ObjectRef]) -> None:
        """Find out which of these objects have parts of other owners, and forget those that have no others."""
        own = self._own_references()
        for ref in refs:
            record = self.objects.get(ref)
            self._shared.discard(ref)
            if record is None:
                continue
            if not own[ref]:
                del self.objects[ref], self._revisions[ref]
            elif own[ref] != record.references:
                self._shared.add(ref)

    async def refresh_shared(self, storage: str) -> None:
        """Read the rows of a storage's objects that have parts of other owners, which may have deleted a topic in them.

        Raises:
            DanubeError: the store cannot answer.
        """
        for ref in [ref for ref in self._shared if ref.storage == storage]:
            async with self._changing():
                await self._read_row(ref)

    def topic(self, topic_id: TopicId) -> TopicHistory:
        """Return the history of a topic; create an empty one if the topic has no sealed data.

        One that was released does not become known: what was under way then ends here, and :meth:`adopt` reads it
        again if the topic returns.
        """
        found = self.topics.get(topic_id)
        if found is None:
            found = TopicHistory(self._epoch(topic_id))
            if topic_id not in self._released:
                self.topics[topic_id] = found
        return found

    def find(self, topic_id: TopicId) -> TopicHistory | None:
        """Return the history of a topic, None if there is none."""
        return self.topics.get(topic_id)

    # --- Objects in progress ---

    @contextmanager
    def storing(self, ref: ObjectRef) -> Iterator[None]:
        """Mark an object as in progress inside the block: it is stored and then entered, so it is not an orphan."""
        self._in_progress.add(ref)
        try:
            yield
        finally:
            self._in_progress.discard(ref)

    async def settle(self) -> None:
        """Determine whether the last change was applied, if that is unknown.

        Raises:
            OwnerFencedError: another process runs as this broker.
            DanubeError: the store failed; the outcome is still unknown.
        """
        async with self._changing():
            return

    def may_be_needed(self, ref: ObjectRef) -> bool:
        """Whether an object is known or in progress. Exact only after :meth:`settle`, and for this broker's topics."""
        return ref in self.objects or ref in self.garbage or ref in self._in_progress

    async def is_unknown(self, ref: ObjectRef) -> bool:
        """Whether no broker has entered an object, and it is neither garbage nor in progress on this one.

        Raises:
            OwnerFencedError: another process runs as this broker.
            DanubeError: the store failed.
        """
        async with self._changing():
            keys = (self._keys.object_key(ref), self._keys.garbage_key(ref))
            return not self.may_be_needed(ref) and [await self._store.get(key) for key in keys] == [None, None]

    # --- Changes ---

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Hold the lock for changes; inside the block all earlier changes are settled."""
        async with self._writer.changing():
            yield

    async def enter(
        self,
        ref: ObjectRef,
        size_bytes: int,
        created_us: int,
        parts: Sequence[SegmentPart],
        *,
        tainted: bool = False,
    ) -> None:
        """Make the parts of a verified object visible.

        Args:
            ref, size_bytes, created_us: the object.
            parts: its parts.
            tainted: it also holds data that is no longer needed.

        Raises:
            MetadataConflictError: some of the offsets are sealed already, or the object was given up.
            NotOwnerError: this broker does not own one of the topics. Earlier entries of this call remain.
            UnavailableError: it has no session at the moment, or the outcome is unknown.
            OwnerFencedError: another process runs as this broker.
        """
        records = [PartRecord(ref.storage, ref.key, part) for part in parts]
        for at in range(0, len(records), _PARTS_PER_TRANSACTION):
            some = records[at : at + _PARTS_PER_TRANSACTION]
            async with self._changing():
                for record in some:
                    self._check_unsealed(record.part)
                await self._change(
                    added=some,
                    removed=(),
                    now_us=created_us,
                    new=NewObject(ref, size_bytes, created_us),
                    taint=tainted,
                )

    def add_commit(self, ref: ObjectRef, size_bytes: int, created_us: int, parts: Sequence[SegmentPart]) -> None:
        """Make the parts of a commit of durability ``remote`` visible, in memory only.

        They are replaced, expired and dropped like sealed ones; a commit is removed with its last part.
        """
        live_bytes = sum(part.size_bytes for part in parts)
        self.commits[ref] = ObjectRecord(size_bytes, len(parts), live_bytes, created_us)
        for part in parts:
            self.topic(part.topic_id).add(PartRecord(ref.storage, ref.key, part))

    def forget_commits(self, storage: str, prefix: str) -> None:
        """Remove all commits in a storage whose keys have a prefix, before they are read again."""
        for topic in self.topics.values():
            gone = [
                record
                for record in topic.parts
                if record.storage == storage and record.object.startswith(prefix) and record.ref in self.commits
            ]
            if gone:
                topic.remove(gone)
        self.commits = {
            ref: record
            for ref, record in self.commits.items()
            if ref.storage != storage or not ref.key.startswith(prefix)
        }

    def forget_commits_of(self, topic_ids: Iterable[TopicId], storage: str, prefix: str) -> None:
        """Remove what commits in a storage whose keys have a prefix hold of topics that have left them.

        It is sealed by now. If such a topic returned, it would count as the only copy, and may be deleted by then.
        """
        for topic_id in topic_ids:
            topic = self.topics.get(topic_id)
            if topic is None:
                continue
            gone = [
                record
                for record in topic.parts
                if record.storage == storage and record.object.startswith(prefix) and record.ref in self.commits
            ]
            topic.remove(gone)
            for record in gone:
                self._release_commit(record)
            if not topic.parts and not topic.epoch:
                del self.topics[topic_id]

    def _release_commit(self, record: PartRecord) -> None:
        ref = record.ref
        found = self.commits[ref]
        if found.references == 1:
            del self.commits[ref]
        else:
            self.commits[ref] = msgspec.structs.replace(
                found, references=found.references - 1, live_bytes=found.live_bytes - record.part.size_bytes
            )

    def _check_unsealed(self, part: SegmentPart) -> None:
        found = self.topic(part.topic_id).find(part.base_offset)
        if found is not None and found.part.base_offset < part.end_offset:
            raise MetadataConflictError(
                f"topic {part.topic_id:016x}: offsets [{part.base_offset}, {part.end_offset}) cannot be entered: "
                f"[{found.part.base_offset}, {found.part.end_offset}) are sealed already, in {found.object}"
            )

    async def replace(
        self, old: Sequence[PartRecord], ref: ObjectRef, size_bytes: int, now_us: int, part: SegmentPart
    ) -> bool:
        """Replace adjacent parts by one part of a verified object that holds the same offsets.

        Returns:
            Whether that was done; False if one of the old parts was removed in the meantime.

        Raises:
            NotOwnerError, UnavailableError, OwnerFencedError: as :meth:`enter`.
        """
        async with self._changing():
            present = {record.part.base_offset: record for record in self.topic(part.topic_id).parts}
            if any(present.get(record.part.base_offset) != record for record in old):
                return False
            new = PartRecord(ref.storage, ref.key, part)
            await self._change(added=[new], removed=old, now_us=now_us, new=NewObject(ref, size_bytes, now_us))
            return True

    async def withdraw(self, topic_id: TopicId, parts: Sequence[PartRecord], now_us: int) -> None:
        """Remove parts of a topic whose batches are also stored elsewhere. Unknown parts are ignored.

        Raises:
            NotOwnerError, UnavailableError, OwnerFencedError: as :meth:`enter`.
        """
        for at in range(0, len(parts), _PARTS_PER_TRANSACTION):
            async with self._changing():
                present = {record.part.base_offset: record for record in self.topic(topic_id).parts}
                some = [
                    record
                    for record in parts[at : at + _PARTS_PER_TRANSACTION]
                    if present.get(record.part.base_offset) == record
                ]
                if some:
                    await self._change(added=(), removed=some, now_us=now_us)

    async def expire(self, topic_id: TopicId, start_offset: Offset, now_us: int) -> None:
        """Move a topic's start to ``start_offset`` and remove the parts that lie entirely below. Never moves backwards.

        Raises:
            NotOwnerError, UnavailableError, OwnerFencedError: as :meth:`enter`.
        """
        while True:
            async with self._changing():
                topic = self.topic(topic_id)
                gone = [record for record in topic.parts if record.part.end_offset <= start_offset]
                some = gone[:_PARTS_PER_TRANSACTION]
                # In steps: the start never passes a part that is still entered.
                step = some[-1].part.end_offset if len(gone) > len(some) else start_offset
                if step <= topic.start_offset and not some:
                    return
                step = max(step, topic.start_offset)
                await self._change(added=(), removed=some, now_us=now_us, starts={topic_id: step})
                if len(gone) == len(some):
                    return

    async def drop_topic(self, topic_id: TopicId, now_us: int) -> None:
        """Remove a deleted topic; objects that it shared become tainted.

        Raises:
            NotOwnerError, UnavailableError, OwnerFencedError: as :meth:`enter`.
        """
        while True:
            async with self._changing():
                topic = self.topics.get(topic_id)
                if topic is None:
                    return
                some = topic.parts[:_PARTS_PER_TRANSACTION]
                if not some:
                    await self._transact(
                        [Delete(start_key(topic_id))], [], [topic_id], lambda _revision: self._forget_topic(topic_id)
                    )
                    return
                await self._change(added=(), removed=some, now_us=now_us, taint=True)

    async def condemn(self, ref: ObjectRef) -> bool:
        """Begin the deletion of garbage; from now on it cannot be taken back into use.

        Returns:
            Whether it may be deleted from its storage now.

        Raises:
            OwnerFencedError: another process runs as this broker.
            DanubeError: the store failed, and the outcome of a change is unknown.
        """
        async with self._changing():
            if ref not in self.garbage or ref in self.objects or ref in self._in_progress:
                return False
            self._condemned.add(ref)
            return True

    async def give_up(self, created_us: Mapping[ObjectRef, int], now_us: int) -> list[ObjectRef]:
        """Make objects garbage that were stored by this broker and never entered, and condemn them.

        Args:
            created_us: the objects, with the times at which they were stored.
            now_us: wall clock.

        Returns:
            Those that may be deleted from their storage now. An object that some owner has entered is not among them.

        Raises:
            UnavailableError: this broker has no session at the moment, or the outcome is unknown.
            OwnerFencedError: another process runs as this broker.
        """
        given_up: list[ObjectRef] = []
        waste = {ref: GarbageRecord(self.tenure.broker, 0, since_us, now_us) for ref, since_us in created_us.items()}
        for some in _groups(list(waste)):
            async with self._changing():
                some = [ref for ref in some if ref not in self._in_progress and ref not in self.objects]
                try:
                    await self._bury_unknown({ref: waste[ref] for ref in some})
                except MetadataConflictError:
                    for ref in some:
                        with suppress(MetadataConflictError):
                            await self._bury_unknown({ref: waste[ref]})
                some = [ref for ref in some if ref in self.garbage]
                self._condemned.update(some)
                given_up += some
        return given_up

    async def _bury_unknown(self, waste: Mapping[ObjectRef, GarbageRecord]) -> None:
        waste = {ref: record for ref, record in waste.items() if ref not in self.garbage}
        if not waste:
            return

        def applied(revision: int) -> None:
            for ref, record in waste.items():
                self._bury(ref, record, revision)

        keys = self._keys
        conditions = [Condition(key(ref), 0) for ref in waste for key in (keys.object_key, keys.garbage_key)]
        operations = [Put(keys.garbage_key(ref), _encode(record)) for ref, record in waste.items()]
        await self._transact(operations, conditions, (), applied)

    async def forget_objects(self, refs: Sequence[ObjectRef]) -> None:
        """Remove garbage that was deleted from its storage. Unknown objects are ignored.

        Raises:
            UnavailableError: this broker has no session at the moment, or the outcome is unknown.
            OwnerFencedError: another process runs as this broker.
        """
        for some in _groups(refs):
            async with self._changing():
                for ref in some:
                    assert ref not in self.objects, f"{ref} is still referenced"
                some = [ref for ref in some if ref in self.garbage]
                if some:
                    await self._transact(
                        [Delete(self._keys.garbage_key(ref)) for ref in some],
                        [Condition(self._keys.garbage_key(ref), self._revisions[ref]) for ref in some],
                        (),
                        partial(self._forget, some),
                    )

    def garbage_until(self, until_us: int) -> list[ObjectRef]:
        """Return the garbage that lost its last reference before a time."""
        return [ref for ref, record in self.garbage.items() if record.since_us < until_us]

    def all_parts(self) -> Iterator[PartRecord]:
        """Yield every sealed part; those in commits of durability ``remote`` are not sealed yet."""
        for topic in self.topics.values():
            yield from (record for record in topic.parts if record.ref not in self.commits)

    async def _change(
        self,
        *,
        added: Sequence[PartRecord],
        removed: Sequence[PartRecord],
        now_us: int,
        new: NewObject | None = None,
        starts: Mapping[TopicId, Offset] | None = None,
        taint: bool = False,
    ) -> None:
        """Add and remove parts, and update the counts of their objects, in one transaction."""
        stored = [record for record in removed if record.ref not in self.commits]
        topics = {record.part.topic_id for record in (*added, *removed)} | (starts or {}).keys()
        rows: dict[ObjectRef, tuple[ObjectRecord | None, int]] = {}
        """Of objects that are not in memory, because only other owners had parts in them."""

        def row(ref: ObjectRef) -> tuple[ObjectRecord | None, int]:
            known = self.objects.get(ref)
            return (known, self._revisions[ref]) if known is not None else rows.get(ref, (None, 0))

        def revivable(ref: ObjectRef) -> int:
            return self._revisions[ref] if ref in self.garbage and ref not in self._condemned else 0

        def applied(revision: int) -> None:
            self._applied(plan, revision, added, removed, starts or {})
            if rows:
                self._note_shared(plan.counted)

        for attempt in range(1, _ATTEMPTS + 1):
            plan = plan_change(
                self._keys,
                row,
                revivable,
                added=added,
                removed=stored,
                starts=starts or {},
                new=new,
                broker=self.tenure.broker,
                now_us=now_us,
                taint=taint,
            )
            if not plan.operations:
                applied(0)  # nothing to change in the store
                return
            try:
                await self._transact(plan.operations, plan.conditions, topics, applied)
                return
            except MetadataConflictError:
                if not await self._reread(plan, rows) or attempt == _ATTEMPTS:
                    raise
                if lost := topics & self._released:  # their objects are possibly not in memory any more
                    raise NotOwnerError(
                        f"topic {min(lost):016x} does not belong to broker {self.tenure.broker} any more; nothing was"
                        " changed"
                    ) from None

    def _applied(
        self,
        plan: Plan,
        revision: int,
        added: Sequence[PartRecord],
        removed: Sequence[PartRecord],
        starts: Mapping[TopicId, Offset],
    ) -> None:
        """Apply a change to memory; its topics may have been released while it was in doubt."""
        topics = {record.part.topic_id for record in (*added, *removed)}
        self._reading -= topics | starts.keys()
        added = [record for record in added if record.part.topic_id not in self._released]
        removed = [record for record in removed if record.part.topic_id not in self._released]
        starts = {topic_id: start for topic_id, start in starts.items() if topic_id not in self._released}
        for record in removed:
            if record.ref in self.commits:
                self._release_commit(record)
        for topic_id in {record.part.topic_id for record in removed}:
            self.topic(topic_id).remove(record for record in removed if record.part.topic_id == topic_id)
        for record in added:
            self.topic(record.part.topic_id).add(record)
        for ref, found in plan.counted.items():
            if isinstance(found, GarbageRecord):
                self.objects.pop(ref, None)
                self._bury(ref, found, revision)
            else:
                self.garbage.pop(ref, None)
                self.objects[ref], self._revisions[ref] = found, revision
        for topic_id, start in starts.items():
            self.topic(topic_id).start_offset = start
        if not topics.isdisjoint(self._released):
            self._note_shared(plan.counted)
        elif not self._shared.isdisjoint(plan.counted):
            self._note_shared(self._shared & plan.counted.keys())
        self.on_change(added, removed, starts)

    def _bury(self, ref: ObjectRef, record: GarbageRecord, revision: int) -> None:
        self.garbage[ref], self._revisions[ref] = record, revision

    async def _reread(self, plan: Plan, rows: dict[ObjectRef, tuple[ObjectRecord | None, int]]) -> bool:
        """Read the rows of the objects of a refused change; return whether other owners have changed any."""
        changed = False
        for ref in plan.counted:
            if ref in self.objects:
                changed = await self._read_row(ref) or changed
                continue
            before = rows.get(ref, (None, 0))
            item = await self._store.get(self._keys.object_key(ref))
            rows[ref] = (decode_record(item, _OBJECT.decode), item.mod_revision) if item is not None else (None, 0)
            changed = changed or rows[ref] != before
        return changed

    async def _read_row(self, ref: ObjectRef) -> bool:
        """Read the row of an object that has parts of this broker's topics; return whether it has changed."""
        item = await self._store.get(self._keys.object_key(ref))
        if ref not in self.objects or (item is not None and item.mod_revision == self._revisions[ref]):
            return False
        if item is None:
            raise DataLossError(
                f"the metadata have no record of object {ref.key} of storage {ref.storage!r}, although parts of topics"
                " are in it; restore the metadata store from a copy"
            )
        self._know(ref, item)
        self._shared.add(ref)
        return True

    def _forget_topic(self, topic_id: TopicId) -> None:
        self._reading.discard(topic_id)
        self.topics.pop(topic_id, None)

    def _forget(self, refs: Sequence[ObjectRef], revision: int) -> None:
        for ref in refs:
            self.garbage.pop(ref, None)
            self._revisions.pop(ref, None)
            self._condemned.discard(ref)

    async def _transact(
        self,
        operations: Sequence[Put | Delete],
        conditions: Sequence[Condition],
        topics: Iterable[TopicId],
        applied: Callable[[int], None],
    ) -> None:
        """Run a transaction as the owner of some topics, and then apply it to memory."""
        tenure = {condition.key: condition for condition in self.tenure.session()}
        session = set(tenure)
        for topic_id in topics:
            tenure.update((condition.key, condition) for condition in self.tenure.conditions(topic_id))
        try:
            await self._writer.apply(Change((*tenure.values(), *conditions), operations, applied))
        except MetadataConflictError:
            for key, condition in tenure.items():
                item = await self._store.get(key)
                if (item.mod_revision if item is not None else 0) != condition.mod_revision:
                    if key in session:
                        raise UnavailableError(
                            f"the session of broker {self.tenure.broker} has ended; nothing was changed; try again"
                        ) from None
                    raise NotOwnerError(
                        f"{key} has changed: a topic does not belong to broker {self.tenure.broker} any more; nothing"
                        " was changed"
                    ) from None
            raise


def _groups(refs: Sequence[ObjectRef]) -> Iterator[Sequence[ObjectRef]]:
    for at in range(0, len(refs), _PARTS_PER_TRANSACTION):
        yield refs[at : at + _PARTS_PER_TRANSACTION]


def _ignore(added: Sequence[PartRecord], removed: Sequence[PartRecord], starts: Mapping[TopicId, Offset]) -> None:
    """Default callback that does nothing."""
