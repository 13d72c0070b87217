"""The broker: owns its components, and defines the order in which they start and stop.

Start: lock the data directory, open the metadata, check that journal and metadata match, load the catalogue, recover
the journal, build the topics, listen. Stop (drain): stop accepting, let the streams settle what they have in flight,
close them with a retryable status, finish the commits, close the metadata. If the journal
fails, nothing more is acknowledged and the process exits with an error; the next start recovers from the disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import trio
from msgspec.structs import replace

from danube.broker.calls.consume import consume
from danube.broker.calls.publish import publish
from danube.broker.calls.unary import unary_calls
from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.catalogue.policy_book import PolicyBook
from danube.broker.directory.bond import Bond
from danube.broker.directory.directory import Directory
from danube.broker.directory.recovery import recover, settle
from danube.broker.directory.storages import OpenedStorages, open_storages
from danube.broker.directory.told import ToldOfTopics
from danube.broker.durability import Levels, Surroundings
from danube.broker.faces import FaceMaker
from danube.broker.intake.composer import Composing
from danube.broker.operations import Operations
from danube.broker.runtime.config import DEFAULT_ADMIN_PORT, BrokerConfig
from danube.broker.runtime.descriptors import ADMIN_SHARE
from danube.broker.runtime.runtime import Runtime
from danube.broker.runtime.seams import Seams, shown_address
from danube.broker.stages import StageDisk, Stages
from danube.history import History, HistoryCatalogue
from danube.log import Journal, with_descriptors
from danube.metadata import MetadataStore, ObservedStore
from danube.model import api
from danube.model.addresses import with_port
from danube.model.errors import DanubeError
from danube.model.version import __version__
from danube.wire import DEFAULT_CODECS, Context, Method, Server, ServerStream

__all__ = ["Broker", "Seams"]

_log = logging.getLogger("danube.broker")


class Broker:
    """One broker process. Build it and run it once.

    Args:
        config, seams: its configuration and its injected dependencies.
        faces: factories of additional faces (see :mod:`danube.broker.faces`), beside the native protocol.
    """

    def __init__(self, config: BrokerConfig, seams: Seams, faces: Sequence[FaceMaker] = ()) -> None:
        self.config = config
        self.runtime = Runtime(config, seams)
        """Services shared by all topics."""
        self.directory: Directory
        """The topics of this broker."""
        self.operations: Operations
        """The use cases that the native calls and the faces share."""
        self.composing = Composing(self.runtime)
        """Composes messages that are sent one at a time into batches."""
        self.stages: Stages
        self.admin_addresses: list[str] = []
        """Addresses of the admin port."""
        self._faces = faces
        self._bond: Bond
        self._farewell_said = False
        self._started_at = 0.0
        self._drain_wanted = trio.Event()
        self._server: Server

    # --- Life cycle ---

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called."""
        return self._drain_wanted.is_set()

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, for records of faces."""
        return self.directory.catalogue.store

    def drain(self) -> None:
        """Start the shutdown; :meth:`run` returns when it is complete."""
        self._drain_wanted.set()

    async def wait_draining(self) -> None:
        """Wait until :meth:`drain` is called."""
        await self._drain_wanted.wait()

    async def run(self, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until :meth:`drain`; ``task_status`` receives the addresses once the broker listens.

        Raises:
            DataDirectoryError: the data directory is locked, read-only or of another format.
            ConfigurationError: an address cannot be bound, a metadata engine or storage is unknown, or a storage
                accepts only objects that are too small.
            DataLossError: the journal or the metadata have lost data; nothing was changed.
            OwnerFencedError: another broker has claimed this broker's metadata.
            JournalFencedError: the disk failed; restart to recover.
            OutOfDescriptorsError: a step of the start got no file descriptor for ``start_descriptor_wait_s``.
        """
        config = self.config
        self._started_at = trio.current_time()
        seams = self.runtime.seams
        async with seams.open_disk(config) as disk, seams.open_metadata(config) as engine:
            journal = self.runtime.journal = Journal(
                disk,
                config.limits,
                file_size=config.journal_file_bytes,
                on_commit=self.runtime.commits.settled,
            )
            store = ObservedStore(engine, journal.note_metadata)
            # Before opening anything else, which may create files: after a loss everything must stay as it is.
            self._bond = await Bond.examine(journal, disk, store, seams.random, config.data_directory)
            journal.before_end = self._say_farewell
            async with (
                open_storages(self.runtime, self._remember_storage) as storages,
                seams.open_stage_disk(config) as stage_disk,
            ):
                await self._live(store, storages, stage_disk, task_status)
            if not self._farewell_said:
                await self._say_farewell()

    async def _live(
        self,
        store: MetadataStore,
        storages: OpenedStorages,
        stage_disk: StageDisk,
        task_status: trio.TaskStatus[list[str]],
    ) -> None:
        """Run the broker on its opened disks, metadata and storages, after the bond has been verified."""
        config, runtime = self.config, self.runtime
        catalogue = await Catalogue.load(store, config.limits, runtime.seams.random, runtime.clock_us)
        for name, marker in storages.markers.items():
            marker.identity = catalogue.storage_identity(name)
        await catalogue.sweep_orphans()
        policies = PolicyBook(catalogue, config.policies)
        directory = self.directory = Directory(runtime, catalogue, policies)
        history = directory.history = History(
            await HistoryCatalogue.claim(store, f"{runtime.seams.random.getrandbits(64):016x}"),
            storages.for_history,
            runtime.journal,
            ToldOfTopics(directory),
            config.cluster,
            config.limits,
            runtime.seams.random,
            runtime.clock_us,
        )
        levels = directory.levels = Levels(
            Surroundings(runtime, catalogue, policies, history, directory), storages.lanes
        )
        self.operations = Operations(directory, self.info)
        unsettled = await recover(
            directory,
            identity=self._bond.identity,
            synced=self._bond.synced,
            loss_accepted=self._bond.accepting,
            reconciling=self._bond.reconciling,
        )
        await self._bond.begin()
        self.stages = Stages(directory, stage_disk)
        await self.stages.load()
        runtime.hold_producers(lambda: self.stages.held_producers)
        async with trio.open_nursery() as journal_nursery:
            await journal_nursery.start(runtime.journal.run)
            await settle(directory, unsettled)
            async with trio.open_nursery() as nursery:
                runtime.begin(nursery)
                await nursery.start(history.run)
                nursery.start_soon(catalogue.run)
                nursery.start_soon(self._bond.run)
                nursery.start_soon(directory.expiry.run)
                nursery.start_soon(runtime.clock_steps.run)
                nursery.start_soon(self.composing.run)
                await levels.bucket.start(nursery, journal_nursery)
                nursery.start_soon(self.stages.run)
                await self._serve(task_status)
                nursery.cancel_scope.cancel()
            for journal in (runtime.journal, levels.bucket):
                with trio.move_on_after(config.drain_timeout_s) as patience:
                    await journal.aclose()
                if patience.cancelled_caught:
                    _log.error(
                        "the %s did not finish its commits within drain_timeout_s = %g; unacknowledged entries"
                        " are abandoned",
                        "journal" if journal is runtime.journal else "storage of topics of durability 'remote'",
                        config.drain_timeout_s,
                    )
            journal_nursery.cancel_scope.cancel()

    async def _say_farewell(self) -> None:
        """Note the end of the journal in the metadata."""
        try:
            await self._bond.note()
        except DanubeError as error:
            _log.error("the end of the journal cannot be noted in the metadata: %s", error)
        self._farewell_said = True

    async def _remember_storage(self, name: str, identity: str) -> None:
        await self.directory.catalogue.remember_storage(name, identity)

    async def _serve(self, task_status: trio.TaskStatus[list[str]]) -> None:
        limits = self.config.limits
        faces = [make(self) for make in self._faces]

        async def on_publish(stream: ServerStream, context: Context) -> None:
            await publish(self.directory, stream, context)

        async def on_consume(stream: ServerStream, context: Context) -> None:
            await consume(self.directory, stream, context)

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
            [streams, unary_calls(self.operations), self.stages.service(), *(face.services for face in faces)],
            limits,
            codecs=codecs,
        )
        servers = [self._server]
        async with trio.open_nursery() as nursery:
            for face in faces:
                await nursery.start(face.run)
            await self._listen(self._server, self.config.listen, self.runtime.addresses, nursery)
            if admin_services and self.config.admin_listen:
                few = replace(limits, max_connections=max(1, limits.max_connections // ADMIN_SHARE))
                servers.append(Server(admin_services, few, codecs=codecs))
                addresses = [with_port(each, DEFAULT_ADMIN_PORT) for each in self.config.admin_listen]
                await self._listen(servers[1], addresses, self.admin_addresses, nursery)
            task_status.started(self.runtime.addresses)
            await self._drain_wanted.wait()
            self.composing.drain()
            # Streams and calls with something in flight end once it has settled; the others end at once.
            await self._server.drain(0, self.config.drain_timeout_s)
            for server in servers[1:]:  # last, so that admin calls are answered until then
                server.linger_s = 0.0  # admin clients hold no streams
                await server.drain(0, self.config.drain_timeout_s)
            nursery.cancel_scope.cancel()

    async def _listen(self, server: Server, addresses: Sequence[str], shown: list[str], nursery: trio.Nursery) -> None:
        what, wait_s = f"listening on {', '.join(addresses)}", self.config.limits.start_descriptor_wait_s
        listeners = await with_descriptors(what, lambda: self.runtime.seams.listen(addresses), wait_s)
        shown += [shown_address(listener) for listener in listeners]  # before the first call, which may need them
        try:
            await with_descriptors(what, lambda: nursery.start(server.run, listeners), wait_s)
        except BaseException:
            for listener in listeners:  # those of a server that runs are closed by it
                await trio.aclose_forcefully(listener)
            raise

    # --- Information ---

    def info(self) -> api.BrokerInfo:
        """Return the status that the broker reports about itself."""
        journal, sealing = self.runtime.journal.usage(), self.directory.history.sealer.status()
        limits = self.config.limits
        return api.BrokerInfo(
            version=__version__,
            pid=os.getpid(),
            data_directory=self.config.data_directory,
            uptime_s=trio.current_time() - self._started_at,
            default_durability=self.config.durability,
            connections=self._server.connections,
            topics=len(self.directory),
            journal_used_bytes=journal.used_bytes,
            journal_limit_bytes=journal.limit_bytes,
            journal_files=journal.files,
            commits=journal.commits,
            syncs=journal.syncs,
            max_message_bytes=limits.max_message_bytes,
            max_batch_bytes=limits.max_batch_bytes,
            unsealed_bytes=sealing.unsealed_bytes,
            oldest_unsealed_age_s=sealing.oldest_age_s,
            sealing_failing_s=sealing.failing_for_s,
            sealing_error=sealing.last_error,
            sealed_objects=sealing.sealed_objects,
            sealed_bytes=sealing.sealed_bytes,
            stranded_topics=journal.stranded_topics,
            stranded_bytes=journal.stranded_bytes,
        )
