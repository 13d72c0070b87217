"""The broker: owns its components, and defines the order in which they start and stop.

Start: lock the data directory, bind the ports, read the identity of the directory, listen, open the metadata, check
that journal and metadata match, load the catalogue, recover the journal, build the topics, serve. From the moment it
listens, calls are refused as retryable; only the methods that need none of this are served (health, and links between
brokers, without which the metadata of a cluster could not be opened). Stop (drain): stop accepting, let the streams
settle what they have in flight, close them with a retryable status, finish the commits, close the metadata, then the
links. If the journal fails, nothing more is acknowledged and the process exits with an error; the next start recovers
from the disk.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from danube.broker.calls.schemas import schema_calls
from danube.broker.calls.security import security_calls
from danube.broker.calls.streams import streams
from danube.broker.calls.unary import unary_calls
from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.catalogue.policy_book import PolicyBook
from danube.broker.directory.bond import Bond
from danube.broker.directory.directory import Directory
from danube.broker.directory.identity import DirectoryIdentity
from danube.broker.directory.recovery import recover, settle
from danube.broker.directory.storages import OpenedStorages, expect_identity, open_storages
from danube.broker.directory.told import ToldOfTopics
from danube.broker.durability import Levels, Surroundings
from danube.broker.faces import Face, FaceMaker
from danube.broker.intake.composer import Composing
from danube.broker.joining import Joining, find_own_address
from danube.broker.moving import MoveFigures, move_topics
from danube.broker.operations import Operations
from danube.broker.operations.backups import BackupOperations
from danube.broker.operations.cluster import ClusterOperations
from danube.broker.reports import Reports
from danube.broker.runtime.config import BrokerConfig
from danube.broker.runtime.log_levels import LogLevels
from danube.broker.runtime.ports import Ports, bind
from danube.broker.runtime.publish_figures import Latencies
from danube.broker.runtime.pulse import Pulse
from danube.broker.runtime.runtime import Runtime
from danube.broker.runtime.seams import Seams
from danube.broker.schemas.replica import Replica
from danube.broker.security.caller import current_caller
from danube.broker.stages import StageDisk, Stages
from danube.cluster.asking import CHANNEL as STATUS
from danube.cluster.coordinating import Coordinating
from danube.cluster.features import FEATURE_LEVEL
from danube.cluster.membership import Membership
from danube.history import History, HistoryCatalogue
from danube.history.changes import CatalogueKeys
from danube.log import Journal
from danube.metadata import MetadataStore, ObservedStore
from danube.model import api
from danube.model.addresses import parse_address
from danube.model.errors import CallRefusedError, DanubeError, InternalError
from danube.model.log_events import log_event
from danube.model.tls import certified_broker
from danube.peers import Peer, Peers
from danube.peers.links import open_peers
from danube.wire import DEFAULT_CODECS, Channel, Codec, Context, Method, Server, Service, connect_channel

if TYPE_CHECKING:
    from danube.broker.access import AccessControl
    from danube.broker.metrics.collecting import Metrics
    from danube.broker.operations.security import SecurityOperations
    from danube.broker.schemas.payloads import Payloads
    from danube.broker.schemas.service import SchemaService
    from danube.cluster.upgrading import Upgrading
    from danube.http import Request
    from danube.http.server import HttpServer
    from danube.metrics.health import Health
    from danube.security.roles import Principal
    from danube.storage import Storage

__all__ = ["Broker", "Seams"]

_log = logging.getLogger("danube.broker")

_UPGRADE_LOOK_S: Final = 60.0
"""When the broker begins to look whether the feature level of the cluster can rise."""
_CONNECT_S: Final = 2.0
"""How long a connection to another broker, for calls that are passed on, may take to be opened."""
_FAREWELL_S: Final = 2.0
"""How long a broker that ends waits for the metadata."""


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
        self.identity: DirectoryIdentity
        """Who this broker is, and how often it was started."""
        self.peers: Peers
        """The links to other brokers."""
        self.directory: Directory
        """The topics of this broker."""
        self.operations: Operations
        """The use cases that the native calls and the faces share."""
        self.composing = Composing(self.runtime)
        """Composes messages that are sent one at a time into batches."""
        self.stages: Stages
        self.admin_addresses: list[str] = []
        """Addresses of the admin port."""
        self.http_addresses: list[str] = []
        self.registry_addresses: list[str] = []
        """Addresses of the HTTP port."""
        self._faces = faces
        self._bond: Bond
        self._storage_names: CatalogueKeys
        self._access: AccessControl | None = None
        self._farewell_said = False
        self._started_at = 0.0
        self._started = trio.Event()
        self._drain_wanted = trio.Event()
        self._ports: Ports
        self._pulse: Pulse
        self._reports: Reports
        self._schemas: Replica
        self._looks_inside: Payloads | None = None
        self._moves = MoveFigures()

    # --- Life cycle ---

    @property
    def started(self) -> bool:
        """Whether the start is over: all calls are served."""
        return self._started.is_set()

    async def wait_started(self) -> None:
        """Wait until the start is over."""
        await self._started.wait()

    @property
    def draining(self) -> bool:
        """Whether :meth:`drain` was called."""
        return self._drain_wanted.is_set()

    @property
    def _server(self) -> Server:
        """The server of the client port."""
        return self._ports.client

    @property
    def metadata(self) -> MetadataStore:
        """The metadata store, for records of faces."""
        return self.directory.catalogue.store

    def drain(self) -> None:
        """Start the shutdown; :meth:`run` returns when it is complete."""
        self._drain_wanted.set()

    @property
    def has_tls(self) -> bool:
        """Whether the ports serve TLS only."""
        return self.config.serves_tls

    def http_urls(self) -> dict[str, str]:
        """Return the URLs of the HTTP ports of all running brokers, by the addresses of their client ports."""
        sessions = self.directory.membership.sessions.values.values()
        return {each.address: each.http_address for each in sessions if each.http_address}

    @property
    def has_security(self) -> bool:
        """Whether callers must prove who they are."""
        return self.config.security.enabled

    async def reload_certificates(self) -> None:
        """Read the files of ``[tls]`` again, for new connections; those that cannot be used are logged."""
        if self._ports.tls is not None:
            await self._ports.tls.reload_in_thread(force=True)

    async def wait_draining(self) -> None:
        """Wait until :meth:`drain` is called."""
        await self._drain_wanted.wait()

    async def run(self, *, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until :meth:`drain`; ``task_status`` receives the addresses once the broker serves.

        Raises:
            DataDirectoryError: the data directory is locked, read-only or of another format.
            ConfigurationError: an address cannot be bound, the options about other brokers are wrong, a metadata
                engine or storage is unknown, or a storage accepts only objects that are too small.
            DataLossError: the journal or the metadata have lost data; nothing was changed.
            OwnerFencedError: another broker has claimed this broker's metadata.
            JournalFencedError: the disk failed; restart to recover.
            JournalFullError: the disk is full, and the start needs space on it.
            OutOfDescriptorsError: a step of the start got no file descriptor for ``start_descriptor_wait_s``.
        """
        config, seams = self.config, self.runtime.seams
        self._started_at = trio.current_time()
        secret = seams.read_secret(Path(config.cluster_secret)) if config.cluster_secret else None
        faces = [make(self) for make in self._faces]
        if config.security.enabled:
            from danube.broker.access import AccessControl  # not imported with security off

            self._access = AccessControl(self.runtime, faces, secret)
        async with AsyncExitStack() as opened:
            disk = await opened.enter_async_context(seams.open_disk(config))
            has_admin = any(face.admin_services for face in faces)
            web = next((face for face in faces if face.http is not None and face.http_door == "http"), None)
            registry = next((face for face in faces if face.http is not None and face.http_door == "registry"), None)
            ports = self._ports = await opened.enter_async_context(
                bind(config, seams, admin=has_admin, http=web is not None, registry=registry is not None)
            )
            self.http_addresses += ports.http_addresses
            self.registry_addresses += ports.registry_addresses
            self.runtime.addresses += ports.addresses
            self.admin_addresses += ports.admin_addresses
            wait_s = config.limits.start_descriptor_wait_s
            own = await find_own_address(config, seams, ports.addresses)
            self.identity = await DirectoryIdentity.open(disk, seams.random, config.data_directory, wait_s)
            life = self.identity.life + 1
            if config.has_neighbours:
                await self.identity.store_life(life)  # before others hear of it
            named = certified_broker(ports.tls.names) if ports.tls is not None else None
            certified = named.number if named is not None and named.cluster == config.cluster else None
            links = await opened.enter_async_context(
                open_peers(
                    Peer(
                        cluster=config.cluster,
                        identity=self.identity.identity,
                        life=life,
                        address=own,
                        level=FEATURE_LEVEL,
                        broker=certified or 0,
                    ),
                    secret,
                    config.limits,
                    connect=seams.connect,
                    tls=None if ports.tls is None else ports.tls.for_links,
                    random_bytes=seams.random_bytes,
                    wall_s=lambda: self.runtime.clock_us() / 1e6,
                )
            )
            self.peers = links
            gate = self._access.gate if self._access is not None else None
            await opened.enter_async_context(
                ports.serving(
                    [links.service(), *(face.services for face in faces)],
                    [face.admin_services for face in faces],
                    dict(ChainMap(*(dict(face.codecs) for face in faces), dict(DEFAULT_CODECS))),
                    "it opens its metadata",
                    guarded=gate.guarded if gate is not None else None,
                    blocks=gate.is_blocked if gate is not None else None,
                    http=None if web is None else partial(self._make_http, web),
                    registry=None if registry is None else partial(self._make_http, registry),
                )
            )
            joining = Joining(config, seams, self.identity, links, ports, certified)
            engine = await joining.open_metadata(opened, disk)
            ports.tell("it recovers its topics")
            journal = self.runtime.journal = Journal(
                disk,
                config.limits,
                file_size=config.journal_file_bytes,
                on_commit=self.runtime.commits.settled,
            )
            store = ObservedStore(engine, journal.note_metadata)
            # Before opening anything else, which may create files: after a loss everything must stay as it is.
            self._bond = await Bond.examine(
                journal, disk, store, seams.random, config.data_directory, directory_identity=self.identity.identity
            )
            joining.announce()
            journal.before_end = self._say_farewell
            async with (
                open_storages(self.runtime, self._remember_storage) as storages,
                seams.open_stage_disk(config) as stage_disk,
            ):
                membership = await joining.join(
                    store,
                    storages.for_history,
                    [name for name, storage in storages.for_history.items() if storage.capabilities.shared],
                )
                self._remove_member = joining.remove_member
                async with membership.present():
                    await self._live(store, membership, storages, stage_disk, faces, task_status)
            if not self._farewell_said:
                await self._say_farewell()

    async def _live(
        self,
        store: ObservedStore,
        membership: Membership,
        storages: OpenedStorages,
        stage_disk: StageDisk,
        faces: Sequence[Face],
        task_status: trio.TaskStatus[list[str]],
    ) -> None:
        """Run the broker on its opened disks, metadata and storages, after the bond has been verified."""
        config, runtime = self.config, self.runtime
        catalogue = await Catalogue.load(store, membership, config.limits, runtime.seams.random, runtime.clock_us)
        unshared = [name for name, storage in storages.for_history.items() if not storage.capabilities.shared]
        self._storage_names = CatalogueKeys(membership.broker, unshared)
        markers = {self._storage_names.stored(name): marker for name, marker in storages.markers.items()}
        for name, marker in markers.items():
            marker.expect(catalogue.storage_identity(name))
        catalogue.on_storage = partial(expect_identity, markers)
        await catalogue.deletions.sweep_orphans()
        self._schemas = Replica(store, runtime.subjects, runtime.limits)
        runtime.subjects.payloads = self._payloads
        policies = PolicyBook(catalogue, config.policies)
        directory = self.directory = Directory(runtime, catalogue, policies)
        history = directory.history = History(
            await HistoryCatalogue.open(store, membership, f"{runtime.seams.random.getrandbits(64):016x}", unshared),
            storages.for_history,
            runtime.journal,
            ToldOfTopics(directory),
            config.cluster,
            config.limits,
            runtime.seams.random,
            runtime.clock_us,
            self._schemas,
        )
        directory.registry = lambda: self.registry
        levels = directory.levels = Levels(
            Surroundings(
                runtime,
                catalogue,
                policies,
                history,
                membership,
                directory,
                self._restore_schemas,
            ),
            storages.lanes,
        )
        latencies = Latencies(runtime.publish_figures.durations.values, lambda: runtime.journal.sync_durations)
        pulse = self._pulse = Pulse(self._ports.traffic, runtime.stalls, latencies)
        reports = self._reports = Reports(directory, self._ports, pulse, latencies, self._started_at)
        coordinating = Coordinating(
            store,
            membership,
            topics=catalogue.tables.topics,
            creating=catalogue.tables.creating,
            deleted=catalogue.tables.deleted,
            random=runtime.seams.random,
            weighing=lambda: cluster.weighing(config.balance),
            hindrances=lambda topics: cluster.hindrances(topics),
            clock_s=lambda: runtime.clock_us() / 1e6,
            peers=self.peers,
        )
        directory.following.on_change.append(coordinating.look_again)

        @cache
        def upgrading() -> Upgrading:
            from danube.cluster.upgrading import Upgrading  # not needed when a broker starts

            return Upgrading(store, membership, lambda: coordinating.is_coordinator)

        async def upgrade_by_itself() -> None:
            await trio.sleep(_UPGRADE_LOOK_S)
            await upgrading().run()

        cluster = ClusterOperations(
            directory,
            membership,
            coordinator=lambda: coordinating.coordinator,
            info=reports.info,
            draining=self._drain_wanted.is_set,
            pulse=pulse,
            moves=self._moves,
            staged=lambda: self.stages.held_topics(),
            calls=lambda: self.peers,
            upgrading=upgrading,
        )
        cluster.remove_member = self._remove_member
        backups = BackupOperations(store, config.cluster, runtime.clock_us)
        if self._access is not None:
            self._access.gate.follow(store)
        log_levels = LogLevels(config.limits, lambda: "" if membership.is_alone else membership.broker)
        self.operations = Operations(
            directory,
            reports.info,
            cluster,
            backups,
            partial(self._open_security, store),
            log_levels,
            config.limits,
            connections=reports,
            facts=reports.facts,
            metrics=partial(self._open_metrics, store, storages),
            schemas=partial(self._open_schemas, store),
        )
        serving = lambda: self.started and not self.draining  # noqa: E731
        self.operations.topics.across.begin(self.peers, serving, lambda: self.security_known)
        self.operations.everywhere.begin(self.peers, serving)
        self.stages = Stages(directory, stage_disk)
        self.peers.on_call(STATUS, cluster.answer)  # from now on: others ask what a broker weighs while it recovers
        unsettled = await recover(
            directory,
            identity=self._bond.identity,
            synced=self._bond.synced,
            loss_accepted=self._bond.accepting,
            reconciling=self._bond.reconciling,
        )
        await self._bond.begin()
        await self.stages.load()
        if self._access is not None:
            self._access.numbers.stages = self.stages.topics_of
            self._access.numbers.schemas = self._schemas.owners
        self.stages.begin(self.peers, serving)
        runtime.hold_producers(lambda: self.stages.held_producers)
        async with trio.open_nursery() as journal_nursery:
            await journal_nursery.start(runtime.journal.run)
            await settle(directory, unsettled)
            async with trio.open_nursery() as nursery:
                runtime.begin(nursery)
                await nursery.start(history.run)
                await nursery.start(self._schemas.run)
                nursery.start_soon(catalogue.run)
                nursery.start_soon(directory.following.run)
                nursery.start_soon(coordinating.run)
                nursery.start_soon(upgrade_by_itself)
                nursery.start_soon(self._bond.run)
                nursery.start_soon(directory.expiry.run)
                nursery.start_soon(directory.count_stored)
                nursery.start_soon(runtime.clock_steps.run)
                nursery.start_soon(pulse.run)
                nursery.start_soon(log_levels.run)
                nursery.start_soon(cluster.run)
                nursery.start_soon(self.composing.run)
                await levels.bucket.start(nursery, journal_nursery)
                nursery.start_soon(self.stages.run)
                nursery.start_soon(move_topics, directory, self.peers, self.stages.holds, self._moves)
                if self._access is not None:
                    await self._access.start(nursery, store, directory)
                await self._serve(faces, task_status)
                if self._access is not None:
                    await self._access.close()
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
                        extra=log_event("drain.incomplete"),
                    )
            journal_nursery.cancel_scope.cancel()

    async def _say_farewell(self) -> None:
        """Note the end of the journal in the metadata."""
        # Without the note the next start compares less, and loses nothing.
        with trio.move_on_after(_FAREWELL_S) as patience:
            try:
                await self._bond.note()
            except DanubeError as error:
                _log.error(
                    "the end of the journal cannot be noted in the metadata: %s",
                    error,
                    extra=log_event("journal.end_not_noted"),
                )
        if patience.cancelled_caught:
            _log.warning(
                "the end of the journal is not noted in the metadata, which do not answer",
                extra=log_event("journal.end_not_noted"),
            )
        self._farewell_said = True

    async def _remember_storage(self, name: str, identity: str, replace: bool) -> str:
        stored = self._storage_names.stored(name)
        return await self.directory.catalogue.remember_storage(stored, identity, replace=replace)

    async def _serve(self, faces: Sequence[Face], task_status: trio.TaskStatus[list[str]]) -> None:
        """Serve all calls until the broker drains."""
        ports = self._ports
        async with trio.open_nursery() as nursery:
            for face in faces:
                await nursery.start(face.run)
            native = [
                streams(self.directory),
                unary_calls(self.operations),
                security_calls(lambda: self.operations.security, self.caller),
                schema_calls(lambda: self.operations.schemas),
                self.stages.service(),
            ]
            ports.open(native, [])
            if self._access is not None:
                others = any(face.services or face.admin_services for face in faces)
                self._access.gate.check_served(ports.client, ports.admin, native_only=not others)
            self._started.set()
            self.peers.complete()
            task_status.started(self.runtime.addresses)
            try:
                await self._drain_wanted.wait()
                self.composing.drain()
                await ports.drain()
            except BaseException:
                await ports.abort()  # before that on which its calls depend
                raise
            nursery.cancel_scope.cancel()

    # --- Calls for other brokers ---

    @property
    def own_address(self) -> str:
        """Address at which other brokers reach this one."""
        return self.peers.own.address

    def running_addresses(self) -> list[str]:
        """Return the addresses of all brokers that have a session."""
        return [each.address for each in self.directory.membership.sessions.values.values()]

    def known_brokers(self) -> list[str]:
        """Return the names of all brokers of the cluster."""
        return list(self.directory.membership.brokers.values)

    def open_channel(self, address: str, codec: Codec) -> AbstractAsyncContextManager[Channel]:
        """Connect to the client port of another broker, with TLS if the links have it."""
        host, port = parse_address(address)
        connect = self.runtime.seams.connect
        limits = self.config.limits
        return connect_channel(
            host,
            port,
            limits,
            connect=partial(connect, host, port) if connect is not None else None,
            codec=codec,
            connect_timeout_s=_CONNECT_S,
            tls=self._ports.tls.for_links() if self._ports.tls is not None else None,
        )

    def detour(self, choose: Callable[[Method, Mapping[str, str]], Method]) -> None:
        """Let a function choose what serves calls of foreign clients, by their headers."""
        self._ports.client.detour = choose

    async def prove(self, context: Context) -> None:
        """Check the credential of a call that is passed on."""
        if self._access is not None:
            await self._access.gate.prove(context)
        else:
            await trio.lowlevel.checkpoint()

    # --- HTTP ---

    def _make_http(self, face: Face, ports: Ports) -> HttpServer:
        from danube.http import PLAIN  # not imported without a listener
        from danube.http.server import HttpServer

        assert face.http is not None
        return HttpServer(
            face.http,
            self.config.limits,
            tls=ports.tls,
            wall_s=lambda: self.runtime.clock_us() / 1e6,
            headers=face.http_headers,
            dialect=face.http_dialect or PLAIN,
        )

    def native_method(self, path: str) -> Method:
        """Return a method of the native protocol as the client port serves it, with its guard.

        Raises:
            CallRefusedError: the broker is starting, and does not serve it yet.
        """
        found = self._ports.client.methods.get(path)
        if found is None:
            raise CallRefusedError("the broker is starting; try again")
        return found

    def guarded(self, service: Service) -> Service:
        """Return methods that a face serves in a way of its own, each judged like those of the ports.

        Raises:
            ConfigurationError: a path has no row in the table of rights.
        """
        return service if self._access is None else self._access.gate.guarded(service)

    async def serve_inner(self, stream: trio.abc.Stream, request: Request) -> None:
        """Serve the native protocol to the caller of an HTTP request, on a stream within this process."""
        await self._ports.client.serve_inner(
            stream, request.peer, secure=request.secure, peer_certificate=request.peer_certificate
        )

    # --- Access control ---

    @property
    def security_known(self) -> int:
        """The revision of the latest change of access control that this broker knows of; 0 with security off."""
        return self._access.gate.replica.latest if self._access is not None else 0

    def caller(self, _context: Context) -> Principal:
        """Return the principal of a call; with security off, ``ANONYMOUS``."""
        found = current_caller()
        if found is not None:
            return found.principal
        if self._access is not None:
            raise InternalError("a call of access control has no caller")
        from danube.broker.operations.security import ANONYMOUS

        return ANONYMOUS

    async def exchange_key(self, api_key: str, context: Context) -> str:
        """Return a token for the holder of an API key; with security off a text, which is ignored.

        Raises:
            UnauthenticatedError: the API key proves nothing.
        """
        if self._access is None:
            await trio.lowlevel.checkpoint()
            return "anonymous"
        return self.operations.security.exchange_key(await self._access.gate.identify_key(api_key, context))

    def note_refused(self, peer: str, path: str, reason: str) -> None:
        """Enter in the audit log that a face has refused a call; with security off there is none."""
        if self._access is not None:
            self._access.note_refused(peer, path, reason)

    def _open_security(self, store: MetadataStore) -> SecurityOperations:
        if self._access is not None:
            return self._access.operations(store, self._ports.tls)
        # A broker without access control needs none of this until it is prepared for it.
        from danube.broker.operations.security import LoadedRecords, SecurityOperations

        runtime, limits = self.runtime, self.config.security.all_limits
        records = LoadedRecords(store, self.config.cluster, limits)
        return SecurityOperations(
            store,
            records,
            self.config.cluster,
            runtime.clock_us,
            runtime.seams.random_bytes,
            limits,
            None,
            self._ports.tls,
            None,
        )

    # --- Schemas ---

    @property
    def registry(self) -> SchemaService:
        """The schema registry; once the broker has started."""
        return self.operations.registry

    def _payloads(self) -> Payloads:
        """Return what opens batches for policies of schemas; made with the first of these."""
        if self._looks_inside is None:
            from danube.broker.schemas.payloads import Payloads  # most brokers leave payloads to clients

            runtime = self.runtime
            check = runtime.seams.payload_checker(runtime.start, runtime.limits)
            self._looks_inside = Payloads(self._schemas, check, runtime.limits.max_batch_bytes)
        return self._looks_inside

    async def _restore_schemas(self, storage: Storage) -> None:
        """Bring the schemas of a storage into the registry; for the durability levels."""
        from danube.broker.directory.restore_schemas import restore_schemas_of  # only where topics are taken over

        await restore_schemas_of(self.directory, self.config.cluster, storage)

    def _open_schemas(self, store: MetadataStore) -> SchemaService:
        from danube.broker.schemas.service import SchemaService  # most brokers have no schemas

        runtime, quota_of = self.runtime, self.directory.catalogue.subjects_quota
        examine = runtime.seams.checker(runtime.start, runtime.limits)
        return SchemaService(store, self._schemas, runtime.clock_us, examine, quota_of)

    # --- Information ---

    def info(self) -> api.BrokerInfo:
        """Return the status that the broker reports about itself."""
        return self._reports.info()

    def _open_metrics(self, store: ObservedStore, storages: OpenedStorages) -> Metrics:
        access = self._access
        return self._reports.metrics(
            store,
            storages.lanes,
            moves=self._moves,
            staged_bytes=lambda: self.stages.used_bytes,
            draining=self._drain_wanted.is_set,
            denials=lambda: None if access is None else access.denials(),
        )

    def health(self) -> Health:
        """Return whether the broker lives, is ready, and has started. May be called at any time while it runs."""
        from danube.metrics.health import HealthFacts, health_of  # not every broker is asked

        # While the broker starts, some of its parts do not exist yet.
        ports, journal = getattr(self, "_ports", None), getattr(self.runtime, "journal", None)
        refusal = ports.client.refusal if ports is not None and hasattr(ports, "client") else None
        pulse: Pulse | None = getattr(self, "_pulse", None)
        return health_of(
            HealthFacts(
                started=self.started,
                starting=refusal or "",
                draining=self.draining,
                journal_failure=str(journal.failure or "") if journal is not None else "",
                loop_silent_s=pulse.silent_s() if pulse is not None else 0.0,
                metadata_problem=self._metadata_problem() if self.started else "",
            )
        )

    def _metadata_problem(self) -> str:
        """Return why the metadata cannot be used now; empty if they can."""
        try:
            self.directory.membership.check_reach()
        except DanubeError as error:
            return error.message
        standing = self.metadata.standing()
        return "their brokers have no leader now" if standing.member and not standing.leader else ""
