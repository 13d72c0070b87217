"""The broker: its parts, and the order in which they come to life and end.

Start: lock the data directory, open the metadata, see whether journal and metadata fit together, read the catalogue and
the snapshots, recover the journal, build the topics, listen. End (drain): stop accepting, let the streams settle what
they have in flight, close them with a retryable status, finish the commits, checkpoint, close the metadata. If the
journal fails, nothing more is acknowledged and the process ends with an error; the next start recovers from the disk.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import trio
from msgspec.structs import replace

from danube.broker.calls.admin import Administration
from danube.broker.calls.consume import consume
from danube.broker.calls.publish import PublishStream, publish
from danube.broker.delivery.expiry import MessageExpiry
from danube.broker.directory.bond import Bond
from danube.broker.directory.building import build_topic
from danube.broker.directory.catalogue import Catalogue
from danube.broker.directory.policies import PolicyBook
from danube.broker.directory.records import SubscriptionRecord, TopicRecord, members
from danube.broker.durability.remote import RemoteTopics
from danube.broker.faces import FaceMaker
from danube.broker.intake.composer import Composing
from danube.broker.runtime.clock_steps import ClockSteps
from danube.broker.runtime.config import DEFAULT_ADMIN_PORT, DEFAULT_STORAGE, BrokerConfig, with_port
from danube.broker.runtime.descriptors import ADMIN_SHARE
from danube.broker.runtime.named_locks import NamedLocks
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.broker.runtime.seams import Seams, shown_address
from danube.broker.stages import StageDisk, Stages
from danube.broker.topic.recovered import RecoveryVisitor
from danube.broker.topic.topic import Topic
from danube.dispatch import Cursor, encode_entry
from danube.history import History, HistoryCatalogue, Subscriptions
from danube.log import BatchCache, Entry, Journal
from danube.metadata import MetadataStore, ObservedStore
from danube.model import Durability, Limits, TopicPolicies, api, validate_name, validate_topic
from danube.model.batch import crc32c
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    InvalidArgumentError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.limits import MIB
from danube.model.names import split_partition
from danube.storage import Marker, Storage, StorageBackend
from danube.wire import DEFAULT_CODECS, Context, Method, Server, ServerStream

__all__ = ["Broker", "Seams"]

_log = logging.getLogger("danube.broker")

_METADATA_RETRY_S = 1.0

_FOOTER_BYTES = 8 * MIB
"""More than what a segment has beside its batches: indexes, names, and a table of its parts."""

_SNAPSHOTS_PER_TURN = 100
"""After so many topics a checkpoint lets other tasks run."""


class Broker:
    """One broker process. Build it, and run it once.

    Args:
        config, seams: what it is to do, and with what.
        faces: makers of further faces (see :mod:`danube.broker.faces`), beside the native one.
    """

    def __init__(self, config: BrokerConfig, seams: Seams, faces: Sequence[FaceMaker] = ()) -> None:
        self.config = config
        self.seams = seams
        self._faces = faces
        self.opened = OpenedBatches(config.limits)
        self.composing = Composing(self)
        """Puts messages together that are sent one at a time."""
        self.to_flush: list[PublishStream] = []
        """Publish streams with acknowledgements to send at the end of the current commit."""
        self.administration = Administration(self)
        """The native calls of those who look after it."""
        self.nursery: trio.Nursery
        self.catalogue: Catalogue
        self.journal: Journal
        self._bond: Bond
        self._farewell_said = False
        self.history: History
        self.remote: RemoteTopics
        self.stages: Stages
        self.policies: PolicyBook
        self.addresses: list[str] = []
        """Where it listens."""
        self.admin_addresses: list[str] = []
        """Where it listens for those who look after it."""
        self.cache = BatchCache(config.limits.cache_bytes)
        self._topics: dict[str, Topic] = {}
        self.expiry = MessageExpiry(self.kept_topics, seams.wall_clock_us)
        self.clock_steps = ClockSteps(seams.wall_clock_us)
        self.topics_version = seams.wall_clock_us()
        """Another one after any topic or partition has come or gone, and in each life."""
        self.watchers: set[trio.Event] = set()
        """Set when a topic or partition has come or gone."""
        self._touched: dict[Topic, None] = {}
        self._commit = trio.Event()
        self._started_at = 0.0
        self._consumer_id = 0
        # Checksums of the snapshots that are stored: most topics do not change between two checkpoints.
        self._saved: dict[tuple[str, int], int] = {}
        self._drain_wanted = trio.Event()
        self._server: Server
        self.creating = NamedLocks()
        """Held, by base name, while a topic is looked for and then created."""
        self.restoring = trio.Lock()
        """Held while topics are brought back from a bucket."""

    # --- Life ---

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called."""
        return self._drain_wanted.is_set()

    def drain(self) -> None:
        """Begin to shut down; :meth:`run` returns when that is done."""
        self._drain_wanted.set()

    async def wait_draining(self) -> None:
        """Wait until :meth:`drain` is called."""
        await self._drain_wanted.wait()

    async def run(self, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until :meth:`drain`; ``task_status`` gets the addresses once the broker listens.

        Raises:
            DataDirectoryError: the data directory is locked, read-only or of another format.
            ConfigurationError: an address cannot be listened on, a metadata engine or storage is unknown, or a storage
                takes only objects that are too small.
            DataLossError: the journal or the metadata have lost something; nothing was changed.
            OwnerFencedError: another broker has taken over this one's metadata.
            JournalFencedError: the disk failed; restart to recover.
        """
        config = self.config
        self._started_at = trio.current_time()
        async with self.seams.open_disk(config) as disk, self.seams.open_metadata(config) as engine:
            self.journal = Journal(
                disk,
                config.limits,
                file_size=config.journal_file_bytes,
                on_commit=self.on_commit,
                checkpoint=self._checkpoint,
            )
            store = ObservedStore(engine, self.journal.note_metadata)
            # Before anything else is opened, which may create something: what has lost a part stays as it is.
            self._bond = await Bond.examine(self.journal, disk, store, self.seams.random, config.data_directory)
            self.journal.before_end = self._say_farewell
            async with (
                self._open_storages() as (storages, lanes, markers),
                self.seams.open_stage_disk(config) as stage_disk,
            ):
                await self._live(store, storages, lanes, markers, stage_disk, task_status)
            if not self._farewell_said:
                await self._say_farewell()

    async def _live(
        self,
        store: MetadataStore,
        storages: dict[str, Storage],
        lanes: dict[str, Storage],
        markers: dict[str, Marker],
        stage_disk: StageDisk,
        task_status: trio.TaskStatus[list[str]],
    ) -> None:
        """Run on what was opened, and found to be whole."""
        config = self.config
        self.catalogue = await Catalogue.load(store, config.limits, self.seams.random, self.seams.wall_clock_us)
        for name, marker in markers.items():
            marker.identity = self.catalogue.storage_identity(name)
        await self.catalogue.sweep_orphans()
        self.policies = PolicyBook(self.catalogue, config.policies)
        self.history = History(
            await HistoryCatalogue.claim(store, f"{self.seams.random.getrandbits(64):016x}"),
            storages,
            self.journal,
            self,
            config.cluster,
            config.limits,
            self.seams.random,
            self.seams.wall_clock_us,
        )
        self.remote = RemoteTopics(self, lanes)
        await self._recover()
        await self._bond.begin()
        self.stages = Stages(self, stage_disk)
        await self.stages.load()
        async with trio.open_nursery() as journal_nursery:
            await journal_nursery.start(self.journal.run)
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                await nursery.start(self.history.run)
                nursery.start_soon(self._bond.run)
                nursery.start_soon(self.expiry.run)
                nursery.start_soon(self.clock_steps.run)
                nursery.start_soon(self.composing.run)
                await self.remote.start(nursery, journal_nursery)
                nursery.start_soon(self.stages.run)
                await self._serve(task_status)
                nursery.cancel_scope.cancel()
            for journal in (self.journal, self.remote):
                with trio.move_on_after(config.drain_timeout_s) as patience:
                    await journal.aclose()
                if patience.cancelled_caught:
                    _log.error(
                        "the %s did not finish its commits within drain_timeout_s = %g; what was not acknowledged"
                        " is given up",
                        "journal" if journal is self.journal else "storage of topics of durability 'remote'",
                        config.drain_timeout_s,
                    )
            journal_nursery.cancel_scope.cancel()

    async def _say_farewell(self) -> None:
        """Store a last checkpoint, and let the metadata know where the journal ends."""
        try:
            await self._checkpoint()
            await self._bond.note()
        except DanubeError as error:
            _log.error("the last checkpoint cannot be stored; the next start reads more of the journal: %s", error)
        self._farewell_said = True

    @asynccontextmanager
    async def _open_storages(self) -> AsyncIterator[tuple[dict[str, Storage], dict[str, Storage], dict[str, Marker]]]:
        """Open the storages: each once for history, and once as a lane for commits that must not wait behind it.

        What forgets when the broker stops has no marker: nothing that must last is ever written there.
        """
        async with AsyncExitStack() as stack:
            storages: dict[str, Storage] = {}
            lanes: dict[str, Storage] = {}
            markers: dict[str, Marker] = {}
            for name, storage in self.config.all_storages.items():
                backend = await stack.enter_async_context(
                    self.seams.open_backend(self.config, storage, self.seams.wall_clock_us)
                )
                if backend.capabilities.durable:
                    _check_object_size(name, backend, self.config.limits)
                    markers[name] = Marker(
                        name,
                        self.config.cluster,
                        random=self.seams.random,
                        remember=partial(self._remember_storage, name),
                    )
                storages[name], lanes[name] = (
                    Storage(
                        backend,
                        random=self.seams.random,
                        limits=self.config.limits,
                        name=name,
                        max_concurrency=storage.max_concurrency,
                        marker=markers.get(name),
                    )
                    for _ in range(2)
                )
                if not storages[name].capabilities.durable:
                    _log.warning(
                        "storage %r (%s) forgets what it holds: durable topics are not sealed into it, and stay in the"
                        " journal",
                        name,
                        storages[name].url,
                    )
            yield storages, lanes, markers

    async def _remember_storage(self, name: str, identity: str) -> None:
        await self.catalogue.remember_storage(name, identity)

    async def _serve(self, task_status: trio.TaskStatus[list[str]]) -> None:
        limits = self.config.limits
        faces = [make(self) for make in self._faces]

        async def on_publish(stream: ServerStream, context: Context) -> None:
            await publish(self, stream, context)

        async def on_consume(stream: ServerStream, context: Context) -> None:
            await consume(self, stream, context)

        streams = {
            api.Method.PUBLISH: Method(
                path=api.Method.PUBLISH,
                kind="bidi",
                handler=on_publish,
                max_request_bytes=limits.max_batch_bytes + 64,
            ),
            api.Method.CONSUME: Method(path=api.Method.CONSUME, kind="bidi", handler=on_consume),
        }
        codecs = dict(DEFAULT_CODECS)
        for face in faces:
            codecs |= face.codecs
        admin_services = [face.admin_services for face in faces if face.admin_services]
        self._server = Server(
            [streams, self.administration.service(), self.stages.service(), *(face.services for face in faces)],
            limits,
            codecs=codecs,
        )
        servers = [self._server]
        async with trio.open_nursery() as nursery:
            for face in faces:
                await nursery.start(face.run)
            await self._listen(self._server, self.config.listen, self.addresses, nursery)
            if admin_services and self.config.admin_listen:
                few = replace(limits, max_connections=max(1, limits.max_connections // ADMIN_SHARE))
                servers.append(Server(admin_services, few, codecs=codecs))
                addresses = [with_port(each, DEFAULT_ADMIN_PORT) for each in self.config.admin_listen]
                await self._listen(servers[1], addresses, self.admin_addresses, nursery)
            task_status.started(self.addresses)
            await self._drain_wanted.wait()
            self.composing.drain()
            # Streams and calls that have something in flight end when it has settled; the others end at once.
            await self._server.drain(0, self.config.drain_timeout_s)
            for server in servers[1:]:  # last, because it can be asked until then
                server.linger_s = 0.0  # its clients hold no streams
                await server.drain(0, self.config.drain_timeout_s)
            nursery.cancel_scope.cancel()

    async def _listen(self, server: Server, addresses: Sequence[str], shown: list[str], nursery: trio.Nursery) -> None:
        listeners = await self.seams.listen(addresses)
        shown += [shown_address(listener) for listener in listeners]  # before the first call, which may ask for them
        await nursery.start(server.run, listeners)

    # --- Recovery and checkpoints ---

    async def _recover(self) -> None:
        """Build the topics from the catalogue, the snapshots and the journal."""
        catalogue = self.catalogue
        subscriptions = await catalogue.subscriptions()
        names = {
            topic_id: topic_name
            for name, record in catalogue.topics()
            for topic_name, topic_id in members(name, record)
        }
        visitor = RecoveryVisitor(
            names,
            subscriptions,
            await catalogue.snapshots.load("topics"),
            await catalogue.snapshots.load("cursors"),
            self.config.limits,
        )
        report = await self.journal.recover(visitor, identity=self._bond.identity, synced=self._bond.synced)
        if report.torn is not None:
            _log.warning(
                "%d bytes at the end of journal file %d are incomplete, as a crash leaves the last write; nothing after"
                " them says that they were synced. If neither broker nor machine crashed, the file was damaged",
                report.torn.size,
                report.torn.file,
            )
        for corruption in report.corruptions:
            _log.error("%s", corruption.error())
        stopped = report.stopped_topics(
            {
                topic_id: max(found.start_offset, found.end_offset)
                for topic_id, found in self.history.catalogue.topics.items()
            }
        )
        await self.history.sweep({topic_id for _, record in catalogue.topics() for topic_id in record.topic_ids})
        clamped: list[tuple[str, int, bytes]] = []
        for name, record in catalogue.topics():
            if record.durability is Durability.REMOTE:
                continue  # their storages tell of them
            for topic_name, topic_id in members(name, record):
                recovered = report.topics.pop(topic_id, None)
                topic = build_topic(self, topic_name, topic_id, record, recovered, visitor.topics.get(topic_id))
                if report.corruptions or report.missing_files:
                    lost = topic.producers.note_lost_names()
                    if lost:
                        _log.error("topic %r: the names of %d of its producers are lost with damage", topic_name, lost)
                failure = topic.failure or stopped.get(topic_id)
                if failure is not None:
                    topic.stop(failure)
                    _log.error("topic %r stops: %s", topic_name, failure)
                for subscription, entry in subscriptions.get(topic_id, {}).items():
                    cursor = visitor.cursors[entry.subscription_id]
                    if cursor.clamp(topic.end_offset):
                        _log.warning(
                            "subscription %r of topic %r was beyond the recovered end %d and is set back to it",
                            subscription,
                            topic_name,
                            topic.end_offset,
                        )
                        clamped.append(
                            ("cursors", entry.subscription_id, encode_entry(cursor.snapshot(entry.subscription_id)))
                        )
                    topic.restore_subscription(subscription, entry, cursor)
                self.adopt(topic)
        # Before anything new gets the offsets that these had acknowledged: after another crash it would count as that.
        await catalogue.snapshots.save(clamped)
        for topic_id in report.topics:
            self.journal.drop_topic(topic_id)  # deleted topics

    async def _checkpoint(self) -> None:
        """Store what the journal's control entries have said, so that their files can be recycled."""
        known: dict[tuple[str, int], int] = {}
        changed: list[tuple[str, int, bytes]] = []

        def note(kind: str, number: int, value: bytes) -> None:
            known[kind, number] = crc = crc32c(value)
            if self._saved.get((kind, number)) != crc:
                changed.append((kind, number, value))

        for count, topic in enumerate(list(self._topics.values())):
            if topic.durability in (Durability.NONE, Durability.REMOTE) or topic.deleted:
                continue  # nothing is kept, or the storage has it
            note("topics", topic.topic_id, topic.snapshot())
            for subscription in topic.subscriptions.values():
                note("cursors", subscription.subscription_id, subscription.snapshot())
            if not count % _SNAPSHOTS_PER_TURN:
                await trio.lowlevel.checkpoint()
        # A snapshot must not outlive the batches of topics of durability os that it tells of.
        await self.journal.sync(self.journal.sequence)
        await self.catalogue.snapshots.save(changed)
        self._saved = known

    def adopt(self, topic: Topic) -> None:
        """Serve a topic from now on."""
        self._topics[topic.name] = topic
        self._topics_changed()
        if topic.durability is not Durability.NONE:
            self.history.add_topic(topic)
        if topic.message_ttl_s:
            self.expiry.look_again()

    def _topics_changed(self) -> None:
        self.topics_version += 1
        for watcher in self.watchers:
            watcher.set()

    # --- What history asks ---

    def of_topics(self, names: Iterable[str]) -> tuple[dict[str, bytes], Subscriptions]:
        """Return the records of the topics that these topics and partitions belong to, and their subscriptions.

        With the former those of their namespaces, and the policies of the broker.
        """
        found: dict[str, bytes] = {}
        subscriptions: Subscriptions = {}
        for name in names:
            split = split_partition(name)
            base = split[0] if split else name
            record = self.catalogue.find(base)
            if record is not None:
                found[base] = self.catalogue.encode(record)
                found |= self.catalogue.records_above(base)
                subscriptions[self.topic(name).topic_id] = self._subscriptions_of(self.topic(name))
        return found, subscriptions

    def record_of(self, name: str) -> bytes | None:
        """Return the record of a topic, None if there is none of that name."""
        record = self.catalogue.find(name)
        return self.catalogue.encode(record) if record is not None else None

    def _subscriptions_of(self, topic: Topic) -> dict[str, tuple[bytes, bytes]]:
        return {
            name: (self.catalogue.encode(found.record), found.snapshot())
            for name, found in topic.subscriptions.items()
            if found.record is not None
        }

    def everything(self, storage: str) -> tuple[dict[str, bytes], Subscriptions]:
        """Return the records of the topics of a storage by name and of those above, and their durable subscriptions.

        The latter as topic id, name, (record, cursor).
        """
        records: dict[str, bytes] = {}
        for name, record in self.catalogue.topics():
            if record.storage == storage:
                records[name] = self.catalogue.encode(record)
                records |= self.catalogue.records_above(name)
        subscriptions = {
            topic.topic_id: self._subscriptions_of(topic)
            for topic in self._topics.values()
            if topic.subscriptions and topic.storage == storage
        }
        return records, subscriptions

    # --- Commits ---

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        """The journal has settled entries: tell their owners, then send what that has caused, once each."""
        for entry in entries:
            owner: Any = entry.owner
            owner.settled(entry, error)
        self._commit.set()
        self._commit = trio.Event()
        self.flush()
        if error is None:
            touched, self._touched = self._touched, {}
            for topic in touched:
                topic.pump()

    def touch(self, topic: Topic) -> None:
        """Remember that a topic has new messages to show."""
        self._touched[topic] = None

    def flush(self) -> None:
        """Send the acknowledgements that have gathered."""
        streams, self.to_flush = self.to_flush, []
        for stream in streams:
            stream.flush()

    async def next_commit(self) -> None:
        """Wait until the journal has settled something."""
        await self._commit.wait()

    @property
    def held_producers(self) -> frozenset[int]:
        """Ids of producers that their topics must not forget."""
        return self.stages.held_producers

    def next_consumer_id(self) -> int:
        """Return an id that no other consumer of this process has."""
        self._consumer_id += 1
        return self._consumer_id

    def info(self, version: str, pid: int) -> api.BrokerInfo:
        """Return what the broker says about itself."""
        usage, sealing = self.journal.usage(), self.history.sealer.status()
        limits = self.config.limits
        return api.BrokerInfo(
            version,
            pid,
            self.config.data_directory,
            trio.current_time() - self._started_at,
            self.config.durability,
            self._server.connections,
            len(self._topics),
            usage.used_bytes,
            usage.limit_bytes,
            usage.files,
            usage.commits,
            usage.syncs,
            limits.max_message_bytes,
            limits.max_batch_bytes,
            sealing.unsealed_bytes,
            sealing.oldest_age_s,
            sealing.failing_for_s,
            sealing.last_error,
            sealing.sealed_objects,
            sealing.sealed_bytes,
        )

    # --- Topics ---

    def kept_topics(self) -> list[Topic]:
        """Return the topics and partitions that have a log."""
        return [topic for topic in self._topics.values() if topic.durability is not Durability.NONE]

    def living(self, name: str, record: TopicRecord) -> list[Topic]:
        """Return the topic of a record, or its partitions, as far as they have come to life."""
        return [self._topics[each] for each, _ in members(name, record) if each in self._topics]

    def topic(self, name: str) -> Topic:
        """Return a plain topic or a partition.

        Raises:
            TopicNotFoundError: it does not exist.
            InvalidArgumentError: it is the base name of a partitioned topic.
        """
        topic = self._topics.get(name)
        if topic is None:
            validate_topic(name)
            record, _ = self.catalogue.locate(name)
            raise self.remote.unavailable(name, record) or TopicNotFoundError(
                f"topic {name!r} is being created or deleted; try again"
            )
        return topic

    async def topic_for_producer(self, request: api.PublishOpen) -> Topic:
        """Return the topic that a producer wants, and create it if that is allowed."""
        name = request.topic
        validate_name("producer", request.producer_name)
        found = self._topics.get(name)
        if found is not None:
            return found
        validate_topic(name)
        try:
            self.catalogue.locate(name)
        except TopicNotFoundError:
            if not self.config.auto_create_topics:
                raise
            split = split_partition(name)
            base, partitions = (split[0], request.partitions) if split else (name, 0)
            if split and not partitions:
                raise
            async with self.creating.hold(base):
                if self.catalogue.find(base) is None:
                    await self.create_topic(base, request.durability, partitions)
        return self.topic(name)

    async def create_topic(
        self,
        name: str,
        durability: Durability | None,
        partitions: int,
        storage: str = "",
        policies: TopicPolicies | None = None,
    ) -> TopicRecord:
        """Create a topic and bring it to life."""
        storage = storage or DEFAULT_STORAGE
        if storage not in self.history.storages:
            known = ", ".join(sorted(self.history.storages))
            raise InvalidArgumentError(
                f"topic {name!r} cannot be created: storage {storage!r} is not configured; configured are {known}"
            )
        durability = durability or self.config.durability
        if durability is Durability.REMOTE:
            return await self.remote.create(name, partitions, storage, policies)
        record = await self.catalogue.create_topic(name, durability, partitions, storage, policies)
        for topic_name, topic_id in members(name, record):
            self.adopt(build_topic(self, topic_name, topic_id, record))
        return record

    def revive(
        self,
        name: str,
        record: TopicRecord,
        subscriptions: Mapping[int, Mapping[str, tuple[SubscriptionRecord, Cursor]]],
    ) -> None:
        """Bring a topic to life whose history is in the catalogue; ``subscriptions`` are by topic id and name."""
        for topic_name, topic_id in members(name, record):
            topic = build_topic(self, topic_name, topic_id, record)
            for subscription, (entry, cursor) in subscriptions.get(topic_id, {}).items():
                topic.restore_subscription(subscription, entry, cursor)
            self.adopt(topic)

    async def unload_topic(self, name: str) -> None:
        """Disconnect everybody from a topic (they come back), and seal all of it.

        Raises:
            StorageError: sealing failed.
        """
        record = self.catalogue.find(name)
        topics = [self.topic(each) for each, _ in members(name, record)] if record is not None else [self.topic(name)]
        for topic in topics:
            topic.disconnect(UnavailableError(f"topic {topic.name!r} was unloaded; connect again"))
            for subscription in topic.subscriptions.values():
                subscription.forget_failure()
            await topic.intake.wait_settled()
        await self.history.seal_now(topics)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic: nothing of it can be reached any more when this returns. Cancelling gives up the waiting."""
        known = self.catalogue.find(name)
        if known is not None and known.durability is Durability.REMOTE:
            await self.remote.open(known.storage)  # before anything is changed: it can be reached
        done = trio.Event()
        failed: list[Exception] = []

        async def delete() -> None:
            try:
                await self._delete_topic(name)
            except Exception as error:  # noqa: BLE001 - for the caller, as if it had called this itself
                failed.append(error)
            finally:
                done.set()

        # A topic of which only the record is gone would be sealed and merged for ever, in vain.
        self.nursery.start_soon(delete)
        await done.wait()
        if failed:
            raise failed[0]

    async def _delete_topic(self, name: str) -> None:
        record = await self.catalogue.delete_topic(name)
        self._topics_changed()
        # All of them at once: while one settles, a topic of the same name may come to life.
        gone = [self._topics.pop(topic_name, None) for topic_name, _ in members(name, record)]
        for topic in filter(None, gone):
            topic.end(TopicNotFoundError(f"topic {topic.name!r} was deleted"))
        for topic in filter(None, gone):
            await topic.intake.wait_settled()  # what is on its way counts as needed once it is written
        if record.durability is Durability.REMOTE:
            await self.remote.deleted(name, record)
        for topic_id in record.topic_ids:
            self.journal.drop_topic(topic_id)
            while True:
                try:
                    await self.history.drop_topic(topic_id, name)
                    break
                except UnavailableError as error:
                    _log.warning("the history of the deleted topic %r is forgotten later: %s", name, error)
                    await trio.sleep(_METADATA_RETRY_S)


def _check_object_size(name: str, backend: StorageBackend, limits: Limits) -> None:
    """Refuse a storage that cannot take what sealing will put there: it would be refused again and again, for good."""
    needed = limits.segment_bytes + limits.max_batch_bytes + _FOOTER_BYTES
    if backend.capabilities.max_object_bytes < needed:
        raise ConfigurationError(
            f"storage {name!r} ({backend.url}) stores at most {backend.capabilities.max_object_bytes} bytes in one"
            f" object, and a segment may have {needed} (limits segment_bytes = {limits.segment_bytes} and"
            f" max_batch_bytes = {limits.max_batch_bytes}, and its index): raise the one, or lower the others"
        )
