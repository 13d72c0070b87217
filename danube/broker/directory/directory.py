"""The directory: the topics that this broker serves; finds, creates, enlarges, unloads and deletes them.

A name stands for a plain topic, for a partition, or (as the base name of a partitioned topic) for all its partitions.
The catalogue holds the records; the directory holds the topics that are served. A topic with a record that is not in
the directory is being created or deleted, or its storage is unavailable.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.broker.delivery.expiry import MessageExpiry
from danube.broker.delivery.forwarding import ForwardedTopic
from danube.broker.directory.following import Following, deletion_of
from danube.broker.durability import Levels
from danube.broker.runtime.config import DEFAULT_STORAGE
from danube.broker.runtime.named_locks import NamedLocks
from danube.broker.security.caller import require_creation
from danube.broker.topic.topic import Topic
from danube.cluster.ownership import Elsewhere, Mine, Unassigned
from danube.cluster.placement import Placement
from danube.cluster.records import BrokerState, broker_name, topic_key
from danube.history.tenure import owner_epoch
from danube.model import Durability, TopicPolicies, api, partition_name, validate_name, validate_topic
from danube.model.errors import (
    AlreadyExistsError,
    CallRefusedError,
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotOwnerError,
    OwnerAwayError,
    StorageUnavailableError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import FIRST_OFFSET, NO_TOPIC, BrokerId, TopicId
from danube.model.names import split_partition
from danube.model.records import TopicRecord, members

if TYPE_CHECKING:
    from danube.broker.catalogue.catalogue import Catalogue
    from danube.broker.catalogue.entering import Place
    from danube.broker.catalogue.policy_book import PolicyBook
    from danube.broker.delivery.forwarding import SendLetters
    from danube.broker.delivery.subscription import Subscription
    from danube.broker.durability.level import Level
    from danube.broker.runtime.runtime import Runtime
    from danube.broker.schemas.service import SchemaService
    from danube.cluster.gaps import GapRecord
    from danube.cluster.records import BrokerRecord
    from danube.history import History

__all__ = ["Directory", "names_behind"]

_log = logging.getLogger("danube.broker")

_ARRIVAL_S: Final = 1.0
"""How long a caller waits for a topic that is arriving, before this broker checks that it reaches the metadata."""


class Directory:
    """The topics of one broker.

    Args:
        runtime: of the broker.
        catalogue, policies: the stored records and policies of topics.

    Attributes:
        history: the sealed history of all topics that have one.
        levels: one object for each durability.
        expiry: expires messages of topics with a time to live.
        version: changes whenever a topic or partition is added or removed, and with each start of the broker.
        watchers: events to set when a topic or partition is added or removed.
        membership: this broker in the cluster.
        following: acts on changes of the catalogue.
        forward_letters: has the owner of a topic publish dead letters; see :mod:`danube.broker.delivery.forwarding`.
        restoring: held while topics are restored from a bucket.
        expected: topics of which this broker has a copy, because they are about to move to it.
        kept: topics in the journal that were moved here, as metadata that are older than that do not know.
        arriving: topics that have moved to this broker and are served in a moment; the events are set then.
        registry: returns the schema registry, once the broker has started.
    """

    history: History
    levels: Levels
    forward_letters: Callable[[SendLetters], Awaitable[int]]
    registry: Callable[[], SchemaService]

    def __init__(self, runtime: Runtime, catalogue: Catalogue, policies: PolicyBook) -> None:
        self.runtime = runtime
        self.catalogue = catalogue
        self.policies = policies
        self.expiry = MessageExpiry(self.kept_topics, runtime.clock_us)
        self.version = runtime.clock_us()
        self.watchers: set[trio.Event] = set()
        self.restoring = trio.Lock()
        self.expected: set[TopicId] = set()
        self.arriving: dict[TopicId, trio.Event] = {}
        self.kept: set[TopicId] = set()
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[TopicId, Topic] = {}
        self._creating = NamedLocks()
        self._deleting = NamedLocks()
        self.membership = catalogue.membership
        self.following = Following(self)
        catalogue.gaps.on_change = self._gaps_changed
        runtime.namespace_rates.rate_of = catalogue.publish_quota
        runtime.namespace_deliveries.rate_of = catalogue.dispatch_quota
        runtime.namespace_spaces.limit_of = catalogue.space_quota
        runtime.namespace_connections.limit_of = catalogue.connections_quota

    def gaps_of(self, topic_id: TopicId) -> Sequence[GapRecord]:
        """Return the declared gaps of a topic or partition, in order."""
        return self.catalogue.gaps.of(topic_id)

    def _gaps_changed(self, topic_id: TopicId) -> None:
        topic = self._by_id.get(topic_id)
        if topic is not None:
            topic.gaps_changed()

    def level(self, record: TopicRecord) -> Level:
        """Return the level of a topic, by its durability."""
        return self.levels.of(record.durability)

    # --- Lookup ---

    def __len__(self) -> int:
        return len(self._topics)

    def topics(self) -> list[Topic]:
        """Return all topics and partitions."""
        return list(self._topics.values())

    async def count_stored(self) -> None:
        """Count what namespaces with a quota store here, until cancelled."""
        await self.runtime.namespace_spaces.run(lambda: list(self._topics), self.stored_bytes)

    def stored_bytes(self, name: str) -> int:
        """Return the bytes of a topic's messages in the journal and in the storage; 0 if it is not served here."""
        topic = self._topics.get(name)
        if topic is None or topic.lossy:
            return 0
        sealed = self.history.catalogue.find(topic.topic_id)
        return topic.stored_bytes + (sealed.size_bytes if sealed is not None else 0)

    def kept_topics(self) -> list[Topic]:
        """Return the topics and partitions that have a log."""
        return [topic for topic in self._topics.values() if not topic.lossy]

    def living(self, name: str, record: TopicRecord) -> list[Topic]:
        """Return the topic of a record, or its partitions, as far as they are served."""
        return [self._topics[each] for each, _ in members(name, record) if each in self._topics]

    def served(self, topic_id: TopicId) -> Topic | None:
        """Return a plain topic or a partition if this broker serves it."""
        return self._by_id.get(topic_id)

    def find(self, name: str) -> Topic:
        """Return a plain topic or a partition.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
            NotOwnerError: another broker serves it; the error names that one.
            OwnerAwayError: it waits for its owner.
            StorageUnavailableError: its storage is unavailable.
        """
        topic = self._topics.get(name)
        if topic is None:
            validate_topic(name)
            record, topic_id = self.catalogue.locate(name)
            raise self.absence(name, record, topic_id)
        return topic

    def absence(self, name: str, record: TopicRecord, topic_id: TopicId) -> DanubeError:
        """Return why a topic that exists is not served here."""
        owner = self.membership.owners.owner_of(topic_id)
        if isinstance(owner, Mine):
            if topic_id in self.expected:
                return CallRefusedError(f"topic {name!r} has just moved to this broker; try again")
            return self.level(record).unavailable(name, record) or TopicNotFoundError(
                f"topic {name!r} is being created or deleted; try again"
            )
        if isinstance(owner, Elsewhere):
            return not_owner(name, owner)
        if isinstance(owner, Unassigned):
            return UnavailableError(f"topic {name!r} is being created: it has no owner yet; try again")
        what = f"broker {broker_name(owner.owner)}"
        if owner.state is not BrokerState.ACTIVE:
            what += f" ({owner.state or 'forgotten'})"
        if not self.level(record).keeps:
            return OwnerAwayError(f"topic {name!r} is being moved: its owner, {what}, is away; try again")
        if self.level(record).commits_to_storage:
            return OwnerAwayError(f"topic {name!r} waits for {what}, which is away")
        known = self.history.catalogue.find(topic_id)
        sealed = known.end_offset if known is not None else FIRST_OFFSET
        return OwnerAwayError(f"topic {name!r} waits for {what}, whose disk holds offsets from {sealed} on")

    @property
    def broker(self) -> str:
        """The name of this broker in its cluster."""
        return self.membership.broker

    def partitions(self, topic: str) -> Sequence[TopicId]:
        """Return the ids of all partitions of a topic; of a plain one its own; empty: it does not exist."""
        record = self.catalogue.find(topic)
        return record.topic_ids if record is not None else ()

    async def search(self, name: str, known: TopicId = NO_TOPIC) -> Topic:
        """As :meth:`find`, but read the metadata before saying that it does not exist, or is not served yet.

        Another broker may have created the topic a moment ago, and assigned it to this one; or deleted the one that is
        served here, and created another one. What a client sent to the deleted one would be acknowledged and lost.

        Args:
            name: of a plain topic or a partition.
            known: the id that the client knows. If another one is served, the metadata are read, too.

        Raises:
            CallRefusedError: this broker does not reach the metadata at the moment.
            DanubeError: as :meth:`find`, or the metadata cannot answer.
        """
        if self.arriving and name not in self._topics:
            with trio.move_on_after(_ARRIVAL_S):  # it is known to have moved here: no metadata have to be read
                await self._until_arrived(name)
        try:
            found = self.find(name)
            if known in (NO_TOPIC, found.topic_id):
                return found
        except (CallRefusedError, StorageUnavailableError):
            if self._id_of(name) not in self.expected:
                raise
        except (TopicNotFoundError, UnavailableError):
            if self.membership.is_alone:
                raise
        await self.refresh(name)
        await self._until_arrived(name)
        return self.find(name)

    async def _until_arrived(self, name: str) -> None:
        """Wait for a topic that has moved to this broker and is not served yet."""
        arrival = self.arriving.get(self._id_of(name))
        if arrival is not None:
            await arrival.wait()

    def _id_of(self, name: str) -> TopicId:
        """Return the id of a plain topic or a partition; NO_TOPIC if there is none of that name."""
        try:
            return self.catalogue.locate(name)[1]
        except DanubeError:
            return NO_TOPIC

    async def refresh(self, name: str) -> None:
        """Read the record of a topic and its assignments again, if others may have changed them, and act on them.

        Raises:
            CallRefusedError: this broker does not reach the metadata at the moment.
            DanubeError: the metadata cannot answer.
        """
        if self.membership.is_alone:
            return
        self.membership.check_reach()
        await self.catalogue.refresh(name)
        topic_id = self._id_of(name)
        if topic_id in self.expected:  # clients may hear of a move before this broker does
            await self.membership.assignments.refresh(topic_key(topic_id))
        split = split_partition(name)
        for base in (name, split[0]) if split else (name,):
            self.following.look(base)

    def snapshot_of(self, topic_id: TopicId) -> bytes | None:
        """Return the state of a topic for the journal; None if the topic is not served, or stored elsewhere."""
        topic = self._by_id.get(topic_id)
        if topic is None or topic.deleted is not None or not topic.level.checkpointed:
            return None
        return topic.whole_snapshot()

    def resolve(self, name: str) -> list[Topic]:
        """Return the topic, or all partitions of a partitioned base name; raises as :meth:`find`."""
        record = self.catalogue.find(name)
        return [self.find(each) for each in names_behind(name, record)]

    def subscriptions(self, topic: str, subscription: str) -> list[tuple[Topic, Subscription]]:
        """Return a subscription of a topic, or of all partitions that have it, each with its topic or partition.

        Raises:
            SubscriptionNotFoundError: neither the topic nor a partition has it.
            TopicNotFoundError: the topic does not exist.
        """
        validate_topic(topic)
        validate_name("subscription", subscription)
        topics = self.resolve(topic)
        found = [(each, each.subscriptions[subscription]) for each in topics if subscription in each.subscriptions]
        if not found:
            raise SubscriptionNotFoundError(
                f"topic {topic!r} has no subscription {subscription!r}; list them with:"
                f" danube subscriptions list {topic}"
            )
        return found

    # --- Changes ---

    def adopt(self, topic: Topic) -> None:
        """Add a topic, which is served from now on."""
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._changed()
        if not topic.lossy:
            self.history.add_topic(topic)
        if topic.message_ttl_s:
            self.expiry.look_again()

    def _changed(self) -> None:
        self.version += 1
        for watcher in self.watchers:
            watcher.set()

    async def for_producer(self, request: api.PublishOpen) -> Topic:
        """Return the topic that a producer publishes to; create it if the configuration allows that.

        Raises:
            TopicNotFoundError: it does not exist, and may not be created.
            DanubeError: it cannot be created now.
        """
        name = request.topic
        validate_name("producer", request.producer_name)
        found = self._topics.get(name)
        if found is not None and request.topic_id in (NO_TOPIC, found.topic_id):
            return found
        validate_topic(name)
        try:
            return await self.search(name, request.topic_id)
        except TopicNotFoundError:
            if not self.runtime.config.auto_create_topics:
                raise
            split = split_partition(name)
            base, partitions = (split[0], request.partitions) if split else (name, 0)
            if split and not partitions:
                raise
            async with self._creating.hold(base):
                if self.catalogue.find(base) is None:
                    require_creation(base)
                    with suppress(AlreadyExistsError):  # another broker was faster
                        await self.create(base, request.durability, partitions)
        self.following.look(base)  # a creation whose caller was cancelled may not be served yet
        return self.find(name)

    async def ensure(self, name: str, durability: Durability) -> Topic:
        """Return a topic or a partition; create or enlarge its topic on demand, for clients that never create topics.

        A client of the upstream protocol opens a producer on each partition by its full name, and never states the
        number of partitions. A missing partition therefore creates its partitioned topic, or enlarges it.

        Args:
            name: of a plain topic or of a partition.
            durability: of a topic that is created.

        Raises:
            AlreadyExistsError: a partition of a plain topic, or the base name of a partitioned one.
            TopicNotFoundError: it does not exist, and may not be created.
            UnavailableError: it is being created or deleted; try again.
            InvalidArgumentError, LimitExceededError: there would be too many partitions or topics.
        """
        with suppress(TopicNotFoundError, InvalidArgumentError):
            return await self.search(name)  # without waiting for topics that are being created
        validate_topic(name)
        split = split_partition(name)
        base, wanted = (split[0], split[1] + 1) if split else (name, 0)
        async with self._creating.hold(base):
            record = self.catalogue.find(base)
            if record is not None and bool(record.partitions) is not bool(split):
                raise AlreadyExistsError(
                    f"topic {base!r} has {record.partitions or 'no'} partitions; {name!r} cannot be created beside it"
                )
            if record is None or record.partitions < wanted:
                if not self.runtime.config.auto_create_topics:
                    self.catalogue.locate(name)  # raises, with advice
                require_creation(base)
                if record is None:
                    with suppress(AlreadyExistsError):  # another broker was faster
                        await self.create(base, durability, wanted)
                else:
                    await self.enlarge(base, record, wanted)
        self.following.look(base)  # a creation whose caller was cancelled may not be served yet
        try:
            return self.find(name)
        except TopicNotFoundError as error:
            raise UnavailableError(error.message) from error

    async def create(
        self,
        name: str,
        durability: Durability | None,
        partitions: int,
        storage: str = "",
        policies: TopicPolicies | None = None,
        *,
        here: bool = False,
    ) -> TopicRecord:
        """Create a topic; return when it is durable. Brokers that own a part of it serve that from then on.

        Args:
            name: of a plain topic, or the base name of a partitioned one.
            durability: None: the broker's default.
            partitions: how many; 0: a plain topic.
            storage: the storage of its history; empty: the default one.
            policies: of the topic.
            here: whether this broker is to own all of it.

        Raises:
            InvalidArgumentError: the storage is not configured, or the name or a value is invalid.
            AlreadyExistsError: a topic of this name exists.
            DanubeError: it cannot be created now.
        """
        storage = storage or DEFAULT_STORAGE
        known = {*self.history.storages, *(each for known in self._brokers() for each in known.storages)}
        if storage not in known:
            raise InvalidArgumentError(
                f"topic {name!r} cannot be created: storage {storage!r} is not configured; configured are"
                f" {', '.join(sorted(known))}"
            )
        durability = durability or self.runtime.config.durability
        level = self.levels.of(durability)
        place = self._place(level, storage) if not here else None
        return await level.create(name, durability, partitions, storage, policies, place)

    async def expand(self, name: str, partitions: int) -> None:
        """Give a partitioned topic more partitions, and serve those of this broker; no change if it has as many.

        Raises:
            TopicNotFoundError: it does not exist.
            FailedPreconditionError: it is no partitioned topic.
            InvalidArgumentError, LimitExceededError: it has more already, or there would be too many.
            DanubeError: it cannot be changed now.
        """
        validate_topic(name)
        if self.catalogue.find(name) is None:
            await self.refresh(name)
        async with self._creating.hold(name):
            record = self.catalogue.expect(name)
            if not record.partitions:
                raise FailedPreconditionError(
                    f"topic {name!r} is a plain topic and gets no partitions; create a partitioned one beside it"
                )
            if partitions < record.partitions:
                raise InvalidArgumentError(
                    f"topic {name!r} has {record.partitions} partitions, which cannot become {partitions}: partitions"
                    " are not removed"
                )
            if partitions > record.partitions:
                await self.enlarge(name, record, partitions)
        self.following.look(name)

    async def enlarge(self, name: str, record: TopicRecord, partitions: int) -> None:
        """Give a partitioned topic more partitions; return when that is durable.

        Raises:
            DanubeError: it cannot be changed now.
        """
        level = self.level(record)
        self.check_bucket(name, record)
        await level.enlarge(name, record, partitions, self._place(level, record.storage))

    def _brokers(self) -> Iterable[BrokerRecord]:
        return self.membership.brokers.values.values()

    def _place(self, level: Level, storage: str) -> Place | None:
        """Return what chooses the owners of new topics; None: this broker.

        Topics of durability ``remote`` are in the bucket journal of the broker that creates them.
        """
        if self.membership.is_alone or level.recovers_itself:
            return None

        def place(count: int, existing: Sequence[BrokerId]) -> Sequence[BrokerId]:
            placement = Placement(self.membership.candidates(), self.membership.racks())
            return placement.place_partitions(count, storage if level.keeps else None, existing)

        return place

    def check_bucket(self, name: str, record: TopicRecord) -> None:
        """Check that the record of a topic may be changed here: a bucket journal is written by one broker only.

        Raises:
            NotOwnerError, OwnerAwayError: another broker owns it.
        """
        if self.level(record).recovers_itself:
            first = record.topic_ids[0]
            if self.membership.owner(first) is not None and not self.membership.owns(first):
                raise self.absence(name, record, first)

    async def unload(self, name: str) -> None:
        """Disconnect all producers and consumers of a topic (they reconnect), and seal all its messages.

        Raises:
            StorageError: sealing failed.
        """
        record = self.catalogue.find(name)
        topics = [self.find(each) for each, _ in members(name, record)] if record is not None else [self.find(name)]
        for topic in topics:
            topic.disconnect(UnavailableError(f"topic {topic.name!r} was unloaded; connect again"))
            for subscription in topic.subscriptions.values():
                subscription.forget_failure()
            await topic.intake.wait_settled()
        await self.history.seal_now(topics)

    async def delete(self, name: str, topic_ids: Collection[TopicId] = ()) -> None:
        """Delete a topic: none of its data is reachable when this returns. Cancellation stops the waiting only.

        Args:
            name: of a plain or partitioned topic.
            topic_ids: one of them is its first id; empty: any may be.

        Raises:
            TopicReplacedError: it has none of the ids.
        """
        known = self.catalogue.find(name)
        if known is None:
            await self.refresh(name)
            known = self.catalogue.find(name)
        if known is not None:
            self.check_bucket(name, known)
            await self.level(known).prepare_change(known)
        done = trio.Event()
        failed: list[Exception] = []

        async def delete() -> None:
            try:
                await self._delete(name, topic_ids)
            except Exception as error:  # noqa: BLE001 - raised to the caller, as if it had called this itself
                failed.append(error)
            finally:
                done.set()

        # A topic that lost only its record would be sealed and merged forever.
        if not self.runtime.start(delete):
            raise UnavailableError(f"topic {name!r} was not deleted: the broker ends; try again")
        await done.wait()
        if failed:
            raise failed[0]

    async def _delete(self, name: str, topic_ids: Collection[TopicId]) -> None:
        async with self._deleting.hold(name):
            record = await self.level(self.catalogue.expect(name)).delete(name, self._end, topic_ids)
        burial = self.following.burial(record)
        if burial is not None:
            await burial.wait()

    async def _end(self, name: str, record: TopicRecord) -> None:
        """Serve a topic that is being deleted no longer; return when nothing that was submitted is pending."""
        for topic in self.withdraw(record.topic_ids, deletion_of):
            await topic.intake.wait_settled()

    def withdraw(self, topic_ids: Iterable[TopicId], error_of: Callable[[str], DanubeError]) -> list[Topic]:
        """Serve some topics or partitions no longer; return those that were served.

        Args:
            topic_ids: which ones.
            error_of: returns, by name, the error that all who use the topic get from now on.
        """
        gone = [topic for topic in map(self._by_id.get, topic_ids) if topic is not None]
        for topic in gone:
            del self._by_id[topic.topic_id]
            if self._topics.get(topic.name) is topic:
                del self._topics[topic.name]
        self._changed()
        for topic in gone:
            topic.end(error_of(topic.name))
        return gone

    # --- Requests of topics ---

    def planned_for(self, name: str, topic_id: TopicId, subscription: str) -> Mapping[str, Any]:
        """Return the policy changes that were planned for a subscription that does not exist yet."""
        try:
            record, _ = self.catalogue.locate(name)
        except DanubeError:
            return {}  # deleted; its callers detect that themselves
        return record.planned_for(topic_id, subscription)

    async def dead_letter_topics(self, source: Topic, name: str) -> Sequence[Topic | ForwardedTopic]:
        """Return the topic of a name, or its partitions, for dead letters; create it, like ``source``, if it is absent.

        Those of other brokers get them over the links to their owners.

        Raises:
            FailedPreconditionError: it stores no messages.
            DanubeError: it cannot be created or found now.
        """
        if self.catalogue.find(name) is None and split_partition(name) is None:
            try:
                await self.create(name, source.durability, 0, source.storage, here=True)
            except AlreadyExistsError:
                _log.debug("another subscription has just created %s", name)
        record = self.catalogue.find(name)
        if record is None:
            record, _ = self.catalogue.locate(name)
            names = [name]
        else:
            names = names_behind(name, record)
        if not self.level(record).keeps:
            raise FailedPreconditionError(
                f"topic {name!r} keeps nothing (durability 'none') and cannot hold dead letters; name another"
                " dead_letter_topic"
            )
        return [self._letter_target(each) for each in names]

    def _letter_target(self, name: str) -> Topic | ForwardedTopic:
        try:
            return self.find(name)
        except NotOwnerError:
            return ForwardedTopic(name, self.forward_letters)


def not_owner(name: str, owner: Elsewhere) -> NotOwnerError:
    """Return the error that names the owner of a plain topic or a partition, which is another broker."""
    return NotOwnerError(
        f"topic {name!r} is owned by broker {broker_name(owner.owner)} at {owner.address}",
        {"address": owner.address, "epoch": str(owner_epoch(owner.epoch, owner.life))},
    )


def names_behind(name: str, record: TopicRecord | None) -> list[str]:
    """Return the names of the topics behind a name: itself, or all partitions if ``record`` is of a partitioned topic.

    Raises:
        TopicNotFoundError: a partitioned topic has no partitions.
    """
    if record is None or not record.partitions:
        return [name]
    if not record.topic_ids:
        raise TopicNotFoundError(f"topic {name!r} has no partitions")
    return [partition_name(name, index) for index in range(record.partitions)]
