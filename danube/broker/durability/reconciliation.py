"""Makes the metadata agree with what a bucket has of topics of durability ``remote``.

Which of them is right, :mod:`danube.broker.durability.bucket` says.

A wal is recovered in these steps, each of which may be interrupted and is repeated then::

    enter_history   only if the bucket has other metadata than these: its segments go into the catalogue
    agree           topics that only the wal has are entered, those that only the metadata have are removed
    unrestored      what else such a bucket has; until that is restored, its history is not taken over
    take_over       the first manifest under the new epoch; the topics are served by then

A topic whose name another one has is *withheld*: not served, and not lost. It is served when the other one is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.cluster.deleted import doomed, existing
from danube.cluster.records import Wal
from danube.history import Bucket, RemoteJournal, RemoteRecovered, brokers_with_commits, enter, survey_topics
from danube.model import Durability
from danube.model.errors import DanubeError, DataLossError, OwnerFencedError, UnavailableError
from danube.model.ids import TopicId
from danube.model.log_events import log_event
from danube.model.records import TopicRecord, decode_topic
from danube.storage import Storage

if TYPE_CHECKING:
    from danube.broker.durability.bucket import BucketLevel

__all__ = ["Reconciliation"]

_log = logging.getLogger("danube.remote")

_RETRY_S: Final = 1.0


class Reconciliation:
    """Compares metadata and buckets, and changes the metadata; see the module.

    Args:
        level: has the topics.
        storages: by name.
    """

    def __init__(self, level: BucketLevel, storages: Mapping[str, Storage]) -> None:
        self._level = level
        self._storages = storages
        self._runtime, self._catalogue, self._history = level.runtime, level.catalogue, level.history
        self._membership, self._registry = level.membership, level.registry
        self._owed: dict[Wal, dict[TopicId, str]] = {}
        """By wal: topics that had been deleted when it was opened, and are not served; :meth:`bury_noted` buries them.

        Each with the name of the topic as a whole; empty: the wal has noted the deletion.
        """

    def is_foreign(self, bucket: Bucket) -> bool:
        """Whether a bucket was written with other metadata than these."""
        return bucket.is_foreign(self._history.catalogue.incarnation)

    async def enter_history(
        self, wal: Wal, bucket: Bucket, recovered: RemoteRecovered, restoring: AsyncExitStack
    ) -> None:
        """Enter the segments of recovered topics from the manifests; the metadata is new and the bucket is not.

        The commits state which topics these are; a manifest may list parts of a topic without its record. Objects that
        no manifest mentions are left alone: their messages are still in commits, and the broker that wrote them may
        still delete them.
        """
        name = wal.storage
        if bucket.epoch >= self._history.catalogue.epoch:
            raise OwnerFencedError(
                f"{self._storages[name].url}: a broker of epoch {bucket.epoch} has taken over this history; this one,"
                f" of epoch {self._history.catalogue.epoch}, stops"
            )
        # Before the topics that need them, as in a restore; a number that means another schema here ends the start.
        await self._level.restore_schemas(self._storages[name])
        await self._catalogue.policy_changes.restore(bucket.namespaces)
        ids = sorted(number for topic_ids, _ in recovered.state.topics.values() for number in topic_ids)
        survey = await survey_topics(self._storages[name], self._runtime.config.cluster, bucket, ids)
        damaged = [what for number in ids for what in survey.damage.get(number, ())]
        if damaged:
            raise DataLossError(f"{self._storages[name].url} is damaged: {'; '.join(damaged[:5])}")
        chains = [survey.chain(number) for number in ids]
        await restoring.enter_async_context(self._catalogue.assigning.restoring(ids, self._level.noted(wal)))
        for number in ids:
            await self._history.adopt_topic(number)  # an earlier attempt may have entered some of it
        await enter(self._history.catalogue, name, survey, chains, self._runtime.clock_us())

    async def take_over(self, name: str, bucket: Bucket) -> None:
        """Write the first manifest under the epoch of the claim, also if the bucket was this broker's before.

        Another owner that was fenced on its way here may still write its first manifest, under an epoch below the
        claim's and above all earlier ones. Without a manifest of the claim's epoch, it would count.

        Raises:
            OwnerFencedError: another owner has taken over the bucket since it was read.
        """
        try:
            await self._history.take_over(name, bucket)
        except OwnerFencedError:
            raise
        except DanubeError as error:  # its topics are served by now, and need their journal
            _log.warning(
                "%s cannot be taken over; retrying later: %s",
                self._storages[name].url,
                error,
                extra=log_event("storage.takeover_delayed", storage=name),
            )

    async def unrestored(self, name: str, bucket: Bucket) -> list[str]:
        """Return the topics of other metadata that a bucket's manifests list, and that are not in these; log them.

        Commits describe the topics of durability remote: one that only a manifest lists was deleted at the very end.
        That holds only if there are no commits in other wals, which will be claimed by the brokers of their names.

        Raises:
            StorageError: the storage does not answer.
        """
        claims = self._level.claims
        logs = await brokers_with_commits(self._storages[name], self._runtime.config.cluster)
        is_only_log = {Wal(name, log) for log in logs} <= claims.wals.keys() | {claims.home(name)}
        others = sorted(
            topic
            for topic, record in bucket.topics.items()
            if self._catalogue.find(topic) is None
            and not (is_only_log and decode_topic(record).durability is Durability.REMOTE)
        )
        if others:
            _log.warning(
                "%s also holds %d topics of a lost broker that are not restored, %s for one; nothing in it is merged"
                " or deleted until they are: danube topics restore --from %s",
                self._storages[name].url,
                len(others),
                others[0],
                self._storages[name].url,
                extra=log_event("storage.foreign_topics", storage=name),
            )
        return others

    async def agree(
        self, wal: Wal, recovered: RemoteRecovered, *, is_foreign: bool
    ) -> dict[str, tuple[list[TopicId], TopicRecord]]:
        """Make the metadata agree with the bucket.

        Returns:
            The topics of the wal that can be served: the ids that are in it, and the record.
        """
        name = wal.storage
        catalogue, url = self._catalogue, self._storages[name].url
        self._level.left[wal] = recovered.state.left
        if not self._membership.is_alone:
            self._level.handover.compare(wal, recovered, is_foreign=is_foreign)
        found: dict[str, tuple[list[TopicId], TopicRecord]] = {}
        deleted, assignments = self._deleted(), self._membership.assignments.values

        def may_lack(topic_id: TopicId) -> bool:
            return is_foreign or topic_id not in recovered.state.leaving

        for topic, (topic_ids, encoded) in recovered.state.topics.items():
            ids = existing(topic_ids, wal.name, assignments, deleted, may_lack)
            if ids:
                found[topic] = ids, msgspec.structs.replace(decode_topic(encoded), storage=name)
        for topic, (_, record) in list(found.items()):
            present = catalogue.find(topic)
            if present is None or present.topic_ids[0] == record.topic_ids[0]:
                continue
            if present.durability is Durability.REMOTE and present.storage == name:
                # Deleted and created again, before the bucket recorded either.
                await self._take_back(wal, topic, present)
            else:
                await self._withhold(topic, record, present)
                del found[topic]
        for topic, record in self._level.records(wal).items():
            if topic not in found and record.topic_ids == self._level.ids_in(wal, record):
                moved = [each for each in record.topic_ids if self._membership.move_of(each)]
                if moved:
                    raise DataLossError(
                        f"{url}: wal {wal.name} lacks topic {topic!r}, which was moved there; restore the objects below"
                        " wal/ from a copy"
                    )
                await self._take_back(wal, topic, record)
        for topic, (ids, record) in found.items():
            copy = catalogue.find(topic)
            if copy is None:
                await catalogue.creations.restore(topic, record, {}, self._level.noted(wal))
                _log.warning(
                    "topic %r was recovered from %s", topic, url, extra=log_event("topic.recovered", topic=topic)
                )
            elif record.topic_ids[0] not in ids:
                found[topic] = ids, copy  # changes are written to the wal of the first partition
            elif copy.policies != record.policies or copy.topic_ids != record.topic_ids:
                await catalogue.policy_changes.replace_topic(topic, record)  # a change that was interrupted in between
        for topic, record in catalogue.withheld(name).items():
            if topic in found:
                await catalogue.release(topic, name)  # its name is free now
            elif topic not in recovered.state.topics and self._membership.is_alone:  # else it may be in another wal
                for number in record.topic_ids:  # another owner has deleted it
                    await self._history.drop_topic(number, topic)
                await catalogue.release(topic, name)
        return found

    async def _withhold(self, topic: str, record: TopicRecord, present: TopicRecord) -> None:
        """Keep a topic whose name another one has, without serving it. The other one may have been created meanwhile.

        It happens if the metadata was lost, or is older than the bucket, or the storage was added later.
        """
        _log.error(
            "topic %r of %s is not served, because there is another topic of that name, of durability %r in storage"
            " %r. Nothing of it is lost: it is served as soon as that one is deleted (danube topics delete %s)",
            topic,
            self._storages[record.storage].url,
            present.durability.value,
            present.storage,
            topic,
            extra=log_event("topic.withheld", topic=topic, storage=record.storage),
        )
        if self._catalogue.withheld(record.storage).get(topic) != record:
            await self._catalogue.withhold(topic, record)

    async def serve_withheld(self, name: str) -> None:
        """Serve withheld topics of a name, if it is free; with two of them, one stays withheld."""
        for storage in list(self._level.claims.journals):  # others may be opened meanwhile
            record = self._catalogue.withheld(storage).get(name)
            if record is None or self._catalogue.find(name) is not None or record.topic_ids[0] not in self._level.by_id:
                continue
            try:
                wal = self._level.wal_with(record.topic_ids[0])
                assert wal is not None, "it was built"
                await self._catalogue.creations.restore(name, record, {}, self._level.noted(wal))
            except DanubeError as error:
                _log.error(
                    "topic %r of %s cannot be served yet: %s",
                    name,
                    self._storages[storage].url,
                    error,
                    extra=log_event("topic.not_served", topic=name, storage=storage),
                )
                continue
            _log.warning(
                "topic %r of %s is served: its name is free",
                name,
                self._storages[storage].url,
                extra=log_event("topic.served", topic=name, storage=storage),
            )
            for number in record.topic_ids:
                self._level.by_id[number].log.owner_epoch = self._membership.epoch(number)
                self._registry.adopt(self._level.by_id[number])
            await self._release(name, storage)

    async def _release(self, name: str, storage: str) -> None:
        try:
            await self._catalogue.release(name, storage)
        except DanubeError as error:
            _log.warning(
                "that topic %r was withheld is forgotten at the next start: %s",
                name,
                error,
                extra=log_event("topic.note_left", topic=name),
            )

    async def _take_back(self, wal: Wal, topic: str, record: TopicRecord) -> None:
        _log.warning(
            "topic %r is removed: its creation was not finished, or its deletion had begun",
            topic,
            extra=log_event("topic.removed", topic=topic),
        )
        here = self._level.ids_in(wal, record)
        await self._catalogue.deletions.delete(topic, storage=record.storage)
        for number in record.topic_ids:
            await self._history.drop_topic(number, topic)  # it is not this broker's any more without its assignment
        await self._catalogue.deletions.buried(record.topic_ids, here)

    # --- Deletions

    def _deleted(self) -> set[TopicId]:
        """Return the ids of deleted topics that are noted, without those that were restored since."""
        notes = self._catalogue.deletions.noted()
        return {each for note in notes for each in note.topic_ids} - self._catalogue.alive() if notes else set()

    def undeleted(
        self, wal: Wal, recovered: RemoteRecovered, found: Mapping[str, tuple[list[TopicId], TopicRecord]]
    ) -> dict[str, tuple[list[TopicId], TopicRecord]]:
        """Return the topics of a wal that were not deleted since they were found, and keep the others in mind.

        To be called just before the topics are served: what is deleted later is ended by that.
        """
        deleted = self._deleted()
        for topic, (ids, record) in found.items():
            present = self._catalogue.find(topic)
            if present is None or present.topic_ids[0] != record.topic_ids[0]:
                deleted.update(ids)  # its note is about to be heard of
        owed = doomed({name: ids for name, (ids, _) in recovered.state.topics.items()}, deleted)
        for note in self._catalogue.deletions.noted():
            if note.storage == wal.storage:
                here = [each for each in note.topic_ids if self._membership.wal_of(each) == wal.name]
                owed.update((each, "") for each in here if each in deleted and each not in owed)
        self._owed[wal] = owed
        return {topic: (ids, record) for topic, (ids, record) in found.items() if deleted.isdisjoint(ids)}

    def owes(self, wal: Wal, topic_id: TopicId) -> bool:
        """Whether :meth:`bury_noted` buries a topic, and no other task."""
        return topic_id in self._owed.get(wal, ())

    async def bury_noted(self, wal: Wal) -> None:
        """Task: note in a wal which topics were deleted while it was not open, and remove what is left of them.

        Those that are deleted later note that themselves. Repeated until it succeeds, or the wal is lost.
        """
        failing, noted = False, set[str]()
        while (owed := self._owed.get(wal)) and (journal := self._level.claims.wals.get(wal)) is not None:
            try:
                await self._bury_owed(wal, journal, owed, noted)
            except DanubeError as error:
                if not failing:
                    _log.warning(
                        "what is left of deleted topics in wal %s of storage %r is removed later: %s",
                        wal.name,
                        wal.storage,
                        error,
                        extra=log_event("remote.deletion_left", storage=wal.storage),
                    )
                failing = True
                await trio.sleep(_RETRY_S)

    async def _bury_owed(self, wal: Wal, journal: RemoteJournal, owed: dict[TopicId, str], noted: set[str]) -> None:
        for name in sorted(set(owed.values()) - {""} - noted):
            await self._level.bury(name, [topic_id for topic_id, each in owed.items() if each == name], {wal: journal})
            noted.add(name)
        mine = [each for each in owed if self._membership.wal_of(each) == wal.name]
        if not all(map(self._membership.owns, mine)):
            raise UnavailableError(f"some of them are about to be assigned to broker {self._membership.broker}")
        for topic_id in mine:
            await self._history.drop_topic(topic_id, owed[topic_id])
        together = [note.topic_ids for note in self._catalogue.deletions.noted()]
        for topic_ids in (*together, mine):
            here = [each for each in mine if each in topic_ids]
            if here:
                await self._catalogue.deletions.buried(topic_ids, here)
        owed.clear()
