"""The catalogue of sealed parts and their objects: the authoritative record of history, in the metadata store.

Keys::

    /owner                                  OwnerRecord: the broker that may change the keys below
    /segments/{topic id}/{base offset}      PartRecord: (object, byte range, offsets, checksum)
    /objects/{storage}/{object}             ObjectRecord: how many parts point to it
    /starts/{topic id}                      start offset set by retention
    /writers/history                        guard of the owner's changes

Every change is a transaction that is conditional on ``/owner``: a broker that starts takes a higher epoch and
writes that key, and from then on every change of a former owner fails (:class:`OwnerFencedError`). Transactions are
bounded, so a large change takes several; each of them is consistent in itself: an object's reference count is changed
together with the parts that refer to it.

All reads are served from memory. The records are ordered by offset instead of by key, so they are not in
:class:`~danube.metadata.Table` objects. Changes go through a :class:`~danube.metadata.TableWriter`: if the outcome of
one is unknown (its answer was lost, or it was cancelled), it is settled before the next change, and applied to memory
as soon as the outcome is certain. The owner's epoch is also the life of the writer's guard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import msgspec

from danube.history.parts import ObjectRecord, ObjectRef, PartRecord, TopicHistory
from danube.history.segment import SegmentPart
from danube.metadata import Change, Condition, Delete, MetadataStore, Put, TableWriter, decode_record
from danube.model.errors import MetadataConflictError, OwnerFencedError
from danube.model.ids import NO_OWNER_EPOCH, Offset, OwnerEpoch, TopicId

__all__ = ["HistoryCatalogue", "OwnerRecord"]

_PARTS_PER_TRANSACTION: Final = 60
"""Parts changed by one transaction. With their objects that makes slightly more than twice as many changes, which is
below ``metadata_max_transaction_changes``."""
_OWNER_KEY: Final = "/owner"
_WRITER: Final = "/writers/history"
_FIRST_EPOCH: Final = OwnerEpoch(1)


class OwnerRecord(msgspec.Struct, frozen=True, array_like=True):
    """The broker that owns the history."""

    epoch: OwnerEpoch
    """Incremented at each start of a broker on this metadata store."""
    incarnation: str
    """Identity of this metadata store. A bucket with another incarnation belongs to another broker."""


OnChange = Callable[[Sequence[PartRecord], Sequence[PartRecord], Mapping[TopicId, Offset]], None]
"""``on_change(added, removed, starts)``: called for one applied change; added parts may replace removed ones."""

_encode = msgspec.msgpack.encode
_OWNER = msgspec.msgpack.Decoder(OwnerRecord)
_PART = msgspec.msgpack.Decoder(PartRecord)
_OBJECT = msgspec.msgpack.Decoder(ObjectRecord)


def _part_key(part: SegmentPart) -> str:
    return f"/segments/{part.topic_id:016x}/{part.base_offset:016x}"


def _object_key(ref: ObjectRef) -> str:
    return f"/objects/{ref.storage}/{ref.key}"


def _start_key(topic_id: TopicId) -> str:
    return f"/starts/{topic_id:016x}"


class HistoryCatalogue:
    """The sealed parts and objects of all topics, in memory and in the metadata store. Create it with :meth:`claim`.

    Attributes:
        epoch: epoch of this owner.
        incarnation: identity of the metadata store.
        topics: histories by topic id, for topics with sealed parts or a start offset.
        objects: all known objects, including garbage.
        commits: referenced objects of durability ``remote``. They are kept in memory only: the objects describe
            themselves, and recovery finds them.
        on_change: called for each change, in order, as soon as it is known to have been applied.
    """

    def __init__(self, store: MetadataStore, writer: TableWriter, owner: OwnerRecord, owner_revision: int) -> None:
        self._store = store
        self._writer = writer
        self._owner_revision = owner_revision
        self._in_progress: set[ObjectRef] = set()
        self.epoch = owner.epoch
        self.incarnation = owner.incarnation
        self.topics: dict[TopicId, TopicHistory] = {}
        self.objects: dict[ObjectRef, ObjectRecord] = {}
        self.commits: dict[ObjectRef, ObjectRecord] = {}
        self.on_change: OnChange = _ignore

    @classmethod
    async def claim(
        cls, store: MetadataStore, incarnation: str, at_least: OwnerEpoch = _FIRST_EPOCH
    ) -> HistoryCatalogue:
        """Take ownership under a new epoch, fencing every former owner, and read the catalogue.

        Args:
            store: the metadata store.
            incarnation: identity to record if the store has no owner yet.
            at_least: the lowest acceptable epoch (a bucket may contain a higher epoch than a new metadata store).
        """
        while True:
            item = await store.get(_OWNER_KEY)
            former = (
                decode_record(item, _OWNER.decode) if item is not None else OwnerRecord(NO_OWNER_EPOCH, incarnation)
            )
            owner = OwnerRecord(max(OwnerEpoch(former.epoch + 1), at_least), former.incarnation)
            condition = Condition(_OWNER_KEY, item.mod_revision if item is not None else 0)
            try:
                writer, revision = await TableWriter.claim(
                    store, _WRITER, owner.epoch, [condition], [Put(_OWNER_KEY, _encode(owner))]
                )
            except MetadataConflictError:
                continue  # another broker claims at the same time; the last one wins
            self = cls(store, writer, owner, revision)
            await self._load()
            return self

    async def _load(self) -> None:
        for item in (await self._store.list("/objects/"))[0]:
            _, _, storage, key = item.key.split("/", 3)
            self.objects[ObjectRef(storage, key)] = decode_record(item, _OBJECT.decode)
        for item in (await self._store.list("/segments/"))[0]:
            record = decode_record(item, _PART.decode)
            self.topic(record.part.topic_id).add(record)
        for item in (await self._store.list("/starts/"))[0]:
            self.topic(TopicId(int(item.key.removeprefix("/starts/"), 16))).start_offset = Offset(int(item.value))

    async def raise_epoch(self, at_least: OwnerEpoch) -> None:
        """Raise this owner's epoch to ``at_least``, the lowest one that a bucket to be taken over permits.

        Raises:
            OwnerFencedError: another broker owns the history now.
            DanubeError: the store failed. If the outcome is unknown, the next change determines it.
        """
        async with self._changing():
            if self.epoch < at_least:
                operation = Put(_OWNER_KEY, _encode(OwnerRecord(at_least, self.incarnation)))
                await self._apply(Change((), (operation,), lambda revision: self._own(at_least, revision)))

    def _own(self, epoch: OwnerEpoch, revision: int) -> None:
        """Record the epoch that was written to the owner's record."""
        self.epoch, self._owner_revision = epoch, revision

    def topic(self, topic_id: TopicId) -> TopicHistory:
        """Return the history of a topic; create an empty one if the topic has no sealed data."""
        found = self.topics.get(topic_id)
        if found is None:
            found = self.topics[topic_id] = TopicHistory()
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
            OwnerFencedError: another broker owns the history now.
            DanubeError: the store failed; the outcome is still unknown.
        """
        async with self._changing():
            return

    def may_be_needed(self, ref: ObjectRef) -> bool:
        """Whether an object is known or in progress. Exact only after :meth:`settle`."""
        return ref in self.objects or ref in self._in_progress

    # --- Changes ---

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Hold the lock for changes; inside the block all earlier changes are settled."""
        settled = False
        try:
            async with self._writer.changing():
                settled = True
                yield
        except OwnerFencedError:
            if not settled:
                await self._check_owner()
            raise

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
            MetadataConflictError: some of the offsets are sealed already.
            OwnerFencedError: another broker owns the history now. Earlier entries of this call remain.
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
                    new_objects={ref: (size_bytes, created_us)},
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

    def forget_commits(self, storage: str) -> None:
        """Remove all commits in a storage, before they are read again."""
        for topic in self.topics.values():
            gone = [record for record in topic.parts if record.storage == storage and record.ref in self.commits]
            if gone:
                topic.remove(gone)
        self.commits = {ref: record for ref, record in self.commits.items() if ref.storage != storage}

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
            OwnerFencedError: another broker owns the history now.
        """
        async with self._changing():
            present = {record.part.base_offset: record for record in self.topic(part.topic_id).parts}
            if any(present.get(record.part.base_offset) != record for record in old):
                return False
            new = PartRecord(ref.storage, ref.key, part)
            await self._change(added=[new], removed=old, now_us=now_us, new_objects={ref: (size_bytes, now_us)})
            return True

    async def withdraw(self, topic_id: TopicId, parts: Sequence[PartRecord], now_us: int) -> None:
        """Remove parts of a topic whose batches are also stored elsewhere. Unknown parts are ignored.

        Raises:
            OwnerFencedError: another broker owns the history now.
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
            OwnerFencedError: another broker owns the history now.
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
            OwnerFencedError: another broker owns the history now.
        """
        while True:
            async with self._changing():
                topic = self.topics.get(topic_id)
                if topic is None:
                    return
                some = topic.parts[:_PARTS_PER_TRANSACTION]
                if not some:
                    await self._transact([Delete(_start_key(topic_id))], [], lambda: self._forget_topic(topic_id))
                    return
                await self._change(added=(), removed=some, now_us=now_us, taint=True)

    async def forget_object(self, ref: ObjectRef) -> None:
        """Remove an object that was deleted from its storage.

        Raises:
            OwnerFencedError: another broker owns the history now.
        """
        async with self._changing():
            found = self.objects.get(ref)
            if found is not None:
                assert not found.references, f"{ref} is still referenced"
                await self._transact([Delete(_object_key(ref))], [], lambda: self._forget_object(ref))

    def garbage(self, until_us: int) -> list[ObjectRef]:
        """Return the unreferenced objects that lost their last reference before a time."""
        return [
            ref
            for ref, record in self.objects.items()
            if not record.references and record.garbage_since_us and record.garbage_since_us < until_us
        ]

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
        new_objects: dict[ObjectRef, tuple[int, int]] | None = None,
        starts: Mapping[TopicId, Offset] | None = None,
        taint: bool = False,
    ) -> None:
        """Add and remove parts, and update the counts of their objects, in one transaction."""
        objects: dict[ObjectRef, ObjectRecord] = {}

        def count(record: PartRecord, sign: int) -> None:
            ref = record.ref
            found = objects.get(ref) or self.objects.get(ref)
            if found is None:
                assert new_objects is not None
                size_bytes, created_us = new_objects[ref]
                found = ObjectRecord(size_bytes, 0, 0, created_us)
            references = found.references + sign
            objects[ref] = msgspec.structs.replace(
                found,
                references=references,
                live_bytes=found.live_bytes + sign * record.part.size_bytes,
                garbage_since_us=0 if references else now_us,
                tainted=found.tainted or taint,
            )

        stored = [record for record in removed if record.ref not in self.commits]
        for record in stored:
            count(record, -1)
        for record in added:
            count(record, 1)
        operations: list[Put | Delete] = []
        conditions: list[Condition] = []
        replaced = {_part_key(record.part) for record in added}
        gone = (_part_key(record.part) for record in stored)
        operations += [Delete(key) for key in gone if key not in replaced]
        operations += [Put(_part_key(record.part), _encode(record)) for record in added]
        operations += [Put(_object_key(ref), _encode(record)) for ref, record in objects.items()]
        operations += [Put(_start_key(topic_id), str(start).encode()) for topic_id, start in (starts or {}).items()]
        if not stored:
            conditions += [Condition(_part_key(record.part), 0) for record in added]

        def apply() -> None:
            for record in removed:
                if record.ref in self.commits:
                    self._release_commit(record)
            for topic_id in {record.part.topic_id for record in removed}:
                self.topic(topic_id).remove(record for record in removed if record.part.topic_id == topic_id)
            for record in added:
                self.topic(record.part.topic_id).add(record)
            self.objects.update(objects)
            for topic_id, start in (starts or {}).items():
                self.topic(topic_id).start_offset = start
            self.on_change(added, removed, starts or {})

        if operations:
            await self._transact(operations, conditions, apply)
        else:
            apply()  # nothing to change in the store

    def _forget_topic(self, topic_id: TopicId) -> None:
        self.topics.pop(topic_id, None)

    def _forget_object(self, ref: ObjectRef) -> None:
        self.objects.pop(ref, None)

    async def _transact(
        self, operations: Sequence[Put | Delete], conditions: Sequence[Condition], apply: Callable[[], None]
    ) -> None:
        """Run a transaction as the owner, and then ``apply`` it to memory."""
        await self._apply(Change(conditions, operations, lambda _revision: apply()))

    async def _apply(self, change: Change) -> None:
        conditions = (Condition(_OWNER_KEY, self._owner_revision), *change.conditions)
        try:
            await self._writer.apply(change._replace(conditions=conditions))
        except (MetadataConflictError, OwnerFencedError):
            await self._check_owner()
            raise

    async def _check_owner(self) -> None:
        """Raise OwnerFencedError if another broker has taken over, and name its epoch."""
        item = await self._store.get(_OWNER_KEY)
        if item is None or item.mod_revision != self._owner_revision:
            owner = decode_record(item, _OWNER.decode).epoch if item is not None else 0
            raise OwnerFencedError(
                f"another broker (epoch {owner}) has taken over the history that this one (epoch {self.epoch})"
                " owned; this broker stops"
            )


def _ignore(added: Sequence[PartRecord], removed: Sequence[PartRecord], starts: Mapping[TopicId, Offset]) -> None:
    """Default callback that does nothing."""
