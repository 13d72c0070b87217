"""This broker as a member of the cluster: its record, its session, and its view of the others.

:meth:`Membership.join` enters the broker in the metadata, as the one it was before (by the identity of its data
directory) or as a new one. :meth:`Membership.run` opens its session and keeps it alive, opens another one when it has
ended, and follows the records of all brokers, sessions and assignments.

**Lives.** Each start of a broker has a number and is marked with a random one, in its record and, synced, in its data
directory. The directory gets both first, so it may be ahead of the record, after a crash between the two. It is behind,
or has another mark, only if it is a copy, or was set back (a restored snapshot of a machine): then the broker would
acknowledge messages under offsets that it has used before, so it does not start.

**Sessions.** A session is a key that is attached to a lease (:mod:`danube.cluster.session`). Losing it costs nothing
that was promised; topics without durability may move. While the metadata cannot be reached the broker goes on with what
it has.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

import msgspec
import trio

from danube.cluster.features import FEATURE_LEVEL, MOVES_LEVEL, SHARED_STAGES_LEVEL
from danube.cluster.forming import Founding
from danube.cluster.ownership import Elsewhere, Owners
from danube.cluster.placement import Candidate
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    MOVES,
    SESSIONS,
    WALS,
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    LastStart,
    MoveRecord,
    SessionRecord,
    WalRecord,
    beginner_of,
    broker_name,
    check_latest,
    check_not_gone,
    is_broker_name,
    is_topic_key,
    parse_broker,
    topic_key,
    wal_key,
    wal_name,
    wal_of,
)
from danube.cluster.session import SESSION_TTL_S, SessionClock
from danube.history.tenure import assigned_epoch, owner_epoch
from danube.metadata import Condition, HexNames, LeaseId, MetadataStore, Put, RowChange, Table, may_pass
from danube.metadata.table import decode_record
from danube.model.errors import (
    BrokerForgottenError,
    CallRefusedError,
    ClusterConfigurationError,
    ConfigurationError,
    DanubeError,
    DataLossError,
    FailedPreconditionError,
    MetadataConflictError,
    NotFoundError,
    NotOwnerError,
    UnavailableError,
)
from danube.model.ids import NO_OWNER_EPOCH, BrokerId, OwnerEpoch, TopicId
from danube.model.log_events import log_event

__all__ = ["Membership"]

_log = logging.getLogger("danube.cluster")

_RETRY_S: Final = 0.25
"""Pause after a failed attempt to open a session."""
_CLUSTER: Final = msgspec.msgpack.Decoder(ClusterRecord)
_BROKER: Final = msgspec.msgpack.Decoder(BrokerRecord)
_encode = msgspec.msgpack.encode


class Membership:
    """One start of one broker. Call :meth:`join` first, then :meth:`run`.

    Args:
        store: the metadata.
        cluster: name of the cluster.
        identity: of the data directory.
        record: what the broker says of itself while it runs; ``life`` is filled in.
        storages: names of its storages.
        shared: those of them that other brokers reach, too.
        rack: what this broker shares with those that fail together with it; empty: nothing.
        reserve: how many offsets its journal can use at most; see :class:`~danube.cluster.records.BrokerRecord`.
        random: draws the incarnation of a new cluster, and the number of this start.
        founding: how the cluster began, if this broker is one of its founders: they have the numbers of their places in
            the list of ``--peers``, in whatever order they join. None: it gets the next number.
        clock: seconds that go on while the process is stopped.
        ttl_s: time to live of the session without a keep-alive.
        certified: the number of the broker that its certificate names; None: it names none.

    Attributes:
        brokers, sessions, assignments, moves, wals: what all members have stored, followed by :meth:`run`.
        owners: answers who owns a topic; after :meth:`join`.
        topics: how many topics and partitions are assigned to each broker.
        placing: how many more will be, by changes of this broker that are under way.
        on_assignment: called for each change of an assignment; must not raise.
        on_assigned: called after that, likewise.
        on_wal: called whenever a wal has another owner; must not raise.
        on_move: called whenever a topic is to move, or no longer; must not raise.
        me: the id of this broker; after :meth:`join`.
        restored_epoch: the lowest epoch of the assignments of topics that are restored from a bucket.
        on_session: called whenever the session has ended, or another one was opened; must not raise.
        on_change: called whenever a row of these tables has changed; must not raise.
        on_cluster: called whenever the record of the cluster has changed; must not raise.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        cluster: str,
        identity: str,
        record: SessionRecord,
        storages: tuple[str, ...],
        random: Random,
        founding: Founding | None = None,
        clock: Callable[[], float] = trio.current_time,
        ttl_s: float = SESSION_TTL_S,
        certified: int | None = None,
        shared: tuple[str, ...] = (),
        rack: str = "",
        reserve: int = 0,
    ) -> None:
        self.brokers = Table(
            store, BROKERS, BrokerRecord, watched=True, on_change=self._table_changed, is_name=is_broker_name
        )
        self.sessions = Table(
            store, SESSIONS, SessionRecord, watched=True, on_change=self._session_changed, is_name=is_broker_name
        )
        self.assignments = Table(
            store, ASSIGNMENTS, Assignment, watched=True, on_change=self._assignment_changed, packed=HexNames(16)
        )
        self.moves = Table(store, MOVES, MoveRecord, watched=True, on_change=self._move_changed, is_name=is_topic_key)
        self._clusters = Table(
            store,
            CLUSTER_KEY,
            ClusterRecord,
            watched=True,
            on_change=self._cluster_changed,
            single=True,
        )
        self.wals = Table(store, WALS, WalRecord, watched=True, on_change=self._wal_changed)
        self.topics: Counter[BrokerId] = Counter()
        self.placing: Counter[BrokerId] = Counter()
        self.on_assignment: Callable[[RowChange[Assignment]], None] = _ignore
        self.on_assigned: list[Callable[[RowChange[Assignment]], None]] = []
        self.on_move: list[Callable[[RowChange[MoveRecord]], None]] = []
        self.on_wal: Callable[[], None] = lambda: None
        self.me: BrokerId
        self.restored_epoch = NO_OWNER_EPOCH
        self.owners: Owners
        self.cluster: ClusterRecord
        self.on_session: list[Callable[[], None]] = []
        self.on_change: list[Callable[[], None]] = []
        self.on_cluster: list[Callable[[], None]] = []
        self._store = store
        self._cluster_name = cluster
        self._identity = identity
        self._session_record = record
        self._storages = storages
        self._shared = shared
        self._rack = rack
        self._reserve = reserve
        self._random = random
        self._founding = founding
        self._clock = clock
        self._certified = certified
        self._ttl_s = ttl_s
        self._lease: LeaseId | None = None
        self._session_clock: SessionClock | None = None
        self._revision = 0
        self._may_have_ended = trio.Event()

    # --- Joining ---

    async def join(self, life: int, last: LastStart, store_start: Callable[[int, int], Awaitable[None]]) -> None:
        """Enter this broker in the metadata, as the one with its identity or as a new one.

        Args:
            life: the number of the last start, according to the data directory; 0: this is the first one.
            last: the last start that was to be entered, according to it: not each one gets so far.
            store_start: stores the number and the mark of this start, which is to be entered, there, synced.

        Raises:
            BrokerForgottenError: an operator has declared this broker gone.
            ConfigurationError: the cluster has another name, or formats that this version does not know, or this is
                not the broker that its certificate names; then nothing was changed.
            DataLossError: the data directory is a copy, or was set back.
            DanubeError: the metadata cannot be reached.
        """
        self.cluster, revision = await self._found()
        if self.cluster.name != self._cluster_name:
            raise ConfigurationError(
                f"the metadata belong to the cluster {self.cluster.name!r}, and this broker was started for"
                f" {self._cluster_name!r}; start it with the right --cluster, or with other metadata"
            )
        start = self._random.getrandbits(63) or 1
        next_life, is_stored = life + 1, False
        while True:
            if self.cluster.feature_level > FEATURE_LEVEL:
                raise ConfigurationError(
                    f"the cluster {self.cluster.name!r} uses features of level {self.cluster.feature_level}, and this"
                    f" version of Danube knows those up to level {FEATURE_LEVEL}; install the version of the other"
                    " brokers"
                )
            await self.brokers.load()
            own = [name for name, record in self.brokers.values.items() if record.identity == self._identity]
            known = self.brokers.values[own[0]] if own else None
            if known is not None:
                check_not_gone(own[0], known)
            if known is not None and known.start == start:
                break  # the answer to an earlier attempt was lost
            if known is not None:
                check_latest(own[0], known, last)
            if own:
                self._check_certified(own[0])
            if not is_stored:
                await store_start(next_life, start)
                is_stored = True
            if known is not None:
                changed = msgspec.structs.replace(
                    known,
                    life=next_life,
                    start=start,
                    storages=self._storages,
                    shared=self._shared,
                    rack=self._rack,
                    feature_level=FEATURE_LEVEL,
                    reserve=max(known.reserve, self._reserve),
                )
                # The level of the cluster must not have been raised meanwhile.
                conditions = [
                    Condition(CLUSTER_KEY, revision),
                    Condition(BROKERS + own[0], self.brokers.revision(own[0])),
                ]
                operations = [Put(BROKERS + own[0], _encode(changed))]
            else:
                changed = BrokerRecord(
                    identity=self._identity,
                    rack=self._rack,
                    storages=self._storages,
                    life=next_life,
                    start=start,
                    feature_level=FEATURE_LEVEL,
                    shared=self._shared,
                    reserve=self._reserve,
                )
                conditions, operations = self._enter(changed, revision)
            try:
                await self._store.transact(conditions, operations)
            except MetadataConflictError:
                self.cluster, revision = await self._found()
            except UnavailableError as error:
                _log.warning(
                    "the broker cannot be entered in the metadata yet: %s",
                    error,
                    extra=log_event("cluster.entry_delayed"),
                )
                await trio.sleep(_RETRY_S)
        self.me = parse_broker(own[0])
        self.owners = Owners(self.me, self.assignments.values, self.brokers.values, self.sessions.values)
        self._session_record = msgspec.structs.replace(
            self._session_record, life=self.brokers.values[own[0]].life, feature_level=FEATURE_LEVEL
        )

    def _enter(self, record: BrokerRecord, revision: int) -> tuple[list[Condition], list[Put]]:
        """Return the change that enters this broker for the first time; the cluster's record has this revision."""
        number = self._founding.broker(self._identity) if self._founding is not None else None
        # Metadata that were restored have other brokers, and count on from theirs.
        reserved = number is not None and number < self.cluster.next_broker
        if number is not None and reserved and broker_name(number) not in self.brokers.values:
            key = BROKERS + broker_name(number)
            self._check_certified(broker_name(number))
            # Changes the record of the cluster, though not what is in it: its level is not raised without this broker.
            conditions = [Condition(CLUSTER_KEY, revision), Condition(key, 0)]
            return conditions, [Put(CLUSTER_KEY, _encode(self.cluster)), Put(key, _encode(record))]
        self._check_certified(broker_name(BrokerId(self.cluster.next_broker)))
        key = BROKERS + broker_name(BrokerId(self.cluster.next_broker))
        counted = msgspec.structs.replace(self.cluster, next_broker=self.cluster.next_broker + 1)
        conditions = [Condition(CLUSTER_KEY, revision), Condition(key, 0)]
        return conditions, [Put(CLUSTER_KEY, _encode(counted)), Put(key, _encode(record))]

    def _check_certified(self, name: str) -> None:
        """Check that the certificate of this broker is the one of its name: other brokers take no other from it."""
        if self._certified is not None and name != f"b{self._certified}":
            raise ClusterConfigurationError(
                f"this is broker {name} of its cluster, and its certificate ([tls] cert) is that of b{self._certified};"
                f" make one with `danube security init --broker {name}`. A new broker gets the next free number: start"
                " new ones in the order of their names"
            )

    async def _found(self) -> tuple[ClusterRecord, int]:
        """Return the record of the cluster and its revision; the first broker on these metadata creates it."""
        while True:
            item = await self._store.get(CLUSTER_KEY)
            if item is not None:
                return decode_record(item, _CLUSTER.decode), item.mod_revision
            founding = self._founding
            record = ClusterRecord(
                name=self._cluster_name,
                incarnation=founding.incarnation if founding is not None else self._random.getrandbits(64) | 1,
                feature_level=FEATURE_LEVEL,
                next_broker=len(founding.identities) + 1 if founding is not None else 1,
            )
            try:
                await self._store.put(CLUSTER_KEY, _encode(record), expected_revision=0)
            except (MetadataConflictError, UnavailableError):
                await trio.sleep(_RETRY_S)

    # --- The session ---

    @property
    def session_revision(self) -> int:
        """Revision of this broker's session, a condition of its changes; 0: it has none."""
        return self._revision

    @property
    def session_condition(self) -> Condition:
        """The condition that the present session is alive.

        Raises:
            UnavailableError: there is none.
        """
        if not self._revision:
            raise UnavailableError(
                f"broker {broker_name(self.me)} has no session in the cluster at the moment, so it cannot change what"
                " the cluster shares; retry"
            )
        return Condition(SESSIONS + broker_name(self.me), self._revision)

    def is_certain(self) -> bool:
        """Whether the session is certain to be alive now; see :mod:`danube.cluster.session`."""
        return self._session_clock is not None and self._session_clock.is_certain(self._clock())

    def check_reach(self) -> None:
        """Check that this broker reaches the metadata, before it begins something that needs them.

        A broker that does not, although others may, refuses it as not begun: so clients ask another one.

        Raises:
            CallRefusedError: it has had no answer to a keep-alive for so long that its session may have ended.
        """
        if not self.is_alone and not self.is_certain():
            raise CallRefusedError(
                f"broker {self.broker} does not reach the metadata of the cluster at the moment, so it can neither"
                " change them nor look up what it does not know. Nothing was done: ask another broker. See: danube"
                " cluster status"
            )

    # --- What the members may use ---

    def may_move(self) -> bool:
        """Whether topics may move by plan: every broker of the cluster understands it."""
        return self.cluster.feature_level >= MOVES_LEVEL

    def may_share_stages(self) -> bool:
        """Whether one commit of staged batches may concern topics of several brokers."""
        return self.cluster.feature_level >= SHARED_STAGES_LEVEL

    def check_moves(self) -> None:
        """Check :meth:`may_move`.

        Raises:
            FailedPreconditionError: the feature level of the cluster is too low.
        """
        if not self.may_move():
            raise FailedPreconditionError(
                f"the feature level of the cluster is {self.cluster.feature_level}, and topics move from level"
                f" {MOVES_LEVEL} on. Start all brokers with this version of Danube, then: danube cluster upgrade"
            )

    def learn_cluster(self, record: ClusterRecord) -> None:
        """Take over the record of the cluster, as it is in the metadata; the followed table may show it later."""
        if record.feature_level >= self.cluster.feature_level and record != self.cluster:
            self.cluster = record
            for told in self.on_cluster:
                told()

    # --- The others ---

    @property
    def is_alone(self) -> bool:
        """Whether no other broker has ever joined this cluster, as far as this one knows."""
        return len(self.brokers.values) == 1

    def candidates(self) -> list[Candidate]:
        """Return the brokers that run, with their load as far as it is known.

        Raises:
            UnavailableError: this broker has no session, so its view of the others may be old.
        """
        self.session()
        running = {parse_broker(name) for name in self.sessions.values} | {self.me}
        found = []
        for broker in sorted(running):
            record = self.brokers.values.get(broker_name(broker))
            if record is not None:
                found.append(
                    Candidate(
                        broker=broker,
                        state=record.state,
                        rack=record.rack,
                        storages=frozenset(record.storages),
                        topics=self.topics[broker] + self.placing[broker],
                    )
                )
        return found

    def racks(self) -> dict[BrokerId, str]:
        """Return the racks of all brokers that have one, whether they run or not."""
        return {parse_broker(name): record.rack for name, record in self.brokers.values.items() if record.rack}

    async def is_forgotten(self) -> bool:
        """Whether this broker was declared gone, according to the metadata as they are now.

        Raises:
            DanubeError: the metadata cannot answer.
        """
        found = await self._store.get(BROKERS + self.broker)
        return found is not None and decode_record(found, _BROKER.decode).state is BrokerState.GONE

    def session_of(self, broker: BrokerId) -> Condition:
        """Return the condition that the session of a broker is alive; raises as :attr:`session_condition`."""
        if broker == self.me:
            return self.session_condition
        name = broker_name(broker)
        return Condition(SESSIONS + name, self.sessions.revision(name))

    # --- Ownership ---

    @property
    def broker(self) -> str:
        """The name of this broker; after :meth:`join`."""
        return broker_name(self.me)

    @property
    def life(self) -> int:
        """The number of this start of the broker; after :meth:`join`. Each start has a higher one."""
        return self._session_record.life

    @property
    def first_epoch(self) -> OwnerEpoch:
        """The epoch of the first owner of a new topic."""
        return OwnerEpoch(self.cluster.epoch_base + 1)

    def owner(self, topic_id: TopicId) -> BrokerId | None:
        """Return the broker to which a topic is assigned; None: to none."""
        assignment = self.assignments.values.get(topic_key(topic_id))
        return assignment.owner if assignment is not None else None

    def destination(self, topic_id: TopicId) -> BrokerId | None:
        """Return the broker that will have a topic once it has moved, if it is to move; else its :meth:`owner`."""
        move = self.moves.values.get(topic_key(topic_id))
        return move.target if move is not None else self.owner(topic_id)

    def spread(self, topic_ids: Iterable[TopicId]) -> Counter[BrokerId]:
        """Return how many partitions of a topic each broker has, or will have once those have moved that are to move.

        Args:
            topic_ids: of all its partitions.
        """
        brokers = map(self.destination, topic_ids)
        return Counter(broker for broker in brokers if broker is not None)

    def move_of(self, topic_id: TopicId) -> int:
        """Return the id of the move that gave a topic to its owner; 0: none did."""
        assignment = self.assignments.values.get(topic_key(topic_id))
        return assignment.move if assignment is not None else 0

    def session_address(self, broker: BrokerId) -> str:
        """Return the address of a broker that runs.

        Raises:
            UnavailableError: its session has ended, perhaps a moment ago.
        """
        session = self.sessions.values.get(broker_name(broker))
        if session is None:
            raise UnavailableError(f"broker {broker_name(broker)} does not run any more; try again")
        return session.address

    def owns(self, topic_id: TopicId) -> bool:
        """Whether a topic is assigned to this broker."""
        assignment = self.assignments.values.get(topic_key(topic_id))
        return assignment is not None and assignment.owner == self.me

    def epoch(self, topic_id: TopicId) -> OwnerEpoch:
        """Return the epoch under which this broker owns a topic, see :func:`danube.history.tenure.owner_epoch`.

        Raises:
            NotOwnerError: it does not own it.
        """
        assignment = self.assignments.values.get(topic_key(topic_id))
        if assignment is None or assignment.owner != self.me:
            raise self._not_mine(topic_id)
        return owner_epoch(assignment.epoch, self.life)

    def assigned_at(self, topic_id: TopicId) -> int:
        """Return the revision of a topic's assignment, as far as this broker has seen; 0: it has none."""
        return self.assignments.revision(topic_key(topic_id))

    def conditions(self, topic_id: TopicId) -> Sequence[Condition]:
        """Return the conditions of a change of a topic: this broker still owns it, and its session is alive.

        Raises:
            NotOwnerError: it does not own it.
            UnavailableError: it has no session at the moment.
        """
        if not self.owns(topic_id):
            raise self._not_mine(topic_id)
        key = topic_key(topic_id)
        return Condition(ASSIGNMENTS + key, self.assignments.revision(key)), self.session_condition

    def session(self) -> Sequence[Condition]:
        """Return the conditions of a change that concerns no topic; raises as :attr:`session_condition`."""
        return (self.session_condition,)

    def owner_of_wal(self, storage: str, wal: str) -> BrokerId:
        """Return the owner of a wal, as far as this broker knows; see :class:`~danube.cluster.records.WalRecord`."""
        record = self.wals.values.get(wal_key(storage, wal))
        return record.owner if record is not None else beginner_of(wal)

    def home_wal(self, storage: str) -> str:
        """Return the wal for new topics of a storage: the first one of this broker's own that it has not lost."""
        number = 1
        while self.owner_of_wal(storage, wal_name(self.me, number)) != self.me:
            number += 1
        return wal_name(self.me, number)

    def wal_of(self, topic_id: TopicId) -> str | None:
        """Return the wal that a topic of durability ``remote`` is in; None: it is assigned to no broker."""
        assignment = self.assignments.values.get(topic_key(topic_id))
        return wal_of(assignment) if assignment is not None else None

    async def check_wal(self, storage: str, wal: str) -> None:
        """Verify that this broker owns a wal, according to the metadata as they are now.

        Raises:
            NotOwnerError: another one owns it.
            UnavailableError: this broker has no session, so it may lose the wal at any moment.
            DanubeError: the metadata cannot answer.
        """
        self.session()
        await self.wals.refresh(wal_key(storage, wal))
        owner = self.owner_of_wal(storage, wal)
        if owner != self.me:
            raise NotOwnerError(f"wal {wal} in storage {storage!r} belongs to broker {broker_name(owner)} now")

    async def raise_epoch(self, at_least: OwnerEpoch) -> None:
        """Ensure that topics which are restored from a bucket after this call get an epoch of at least this."""
        self.restored_epoch = max(self.restored_epoch, OwnerEpoch(assigned_epoch(at_least) + 1))

    def _not_mine(self, topic_id: TopicId) -> NotOwnerError:
        owner = self.owners.owner_of(topic_id)
        address = owner.address if isinstance(owner, Elsewhere) else ""
        return NotOwnerError(
            f"topic {topic_key(topic_id)} is not assigned to broker {broker_name(self.me)}", {"address": address}
        )

    # --- Tasks ---

    @asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """Be a member during the body: :meth:`run` runs beside it. The body's exception is raised as it is."""
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(self.run)
                yield
            except Exception as error:  # noqa: BLE001 - raised below: a nursery would put it into a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Task: keep the session and the view. It counts as started once it has a session and the view is loaded.

        When it is cancelled the session ends, if the metadata answer within a second; else with its time to live.

        Raises:
            DataLossError: a record of the cluster does not decode, or another process runs with this broker's identity.
            DanubeError: the metadata store failed for good, for example because it was closed.
        """
        async with trio.open_nursery() as nursery:
            for table in (self._clusters, self.brokers, self.sessions, self.wals, self.assignments, self.moves):
                await nursery.start(table.follow)
            try:
                await self._open_session()
                task_status.started()
                while True:
                    await self._keep_alive()
                    await self._open_session()
            finally:
                await self._leave()

    async def _open_session(self) -> None:
        """Open a session, whatever it takes. At the start, what the metadata refuse is raised."""
        while True:
            try:
                await self._try_session()
                break
            except BrokerForgottenError:
                raise  # it was declared gone while it was cut off
            except DanubeError as error:
                is_usual = isinstance(error, MetadataConflictError | NotFoundError | UnavailableError)
                if not is_usual and (self._session_clock is None or not may_pass(error)):
                    raise
                _log.warning("no session in the cluster yet: %s", error, extra=log_event("cluster.session_delayed"))
                await trio.sleep(_RETRY_S)
        self._tell()

    async def _try_session(self) -> None:
        key = SESSIONS + broker_name(self.me)
        former = await self._store.get(key)
        if former is not None:
            record = decode_record(former, msgspec.msgpack.Decoder(SessionRecord).decode)
            if record.life > self._session_record.life:
                raise DataLossError(
                    f"another process runs as broker {broker_name(self.me)}, with a later start ({record.life},"
                    f" this one is {self._session_record.life}): stop one of them, and start it with an empty data"
                    " directory"
                )
            if former.lease is not None:
                await self._store.revoke(former.lease)
            else:
                await self._store.delete(key, expected_revision=former.mod_revision)
        # A broker is declared gone in a transaction that is conditional on the absence of its session.
        own = BROKERS + broker_name(self.me)
        found = await self._store.get(own)
        if found is not None:
            check_not_gone(broker_name(self.me), decode_record(found, _BROKER.decode))
        sent_at = self._clock()
        lease = await self._store.grant_lease(self._ttl_s)
        conditions = [Condition(key, 0), Condition(own, found.mod_revision if found is not None else 0)]
        revision = (await self._store.transact(conditions, [Put(key, _encode(self._session_record), lease)])).revision
        # While it had no session its topics may have got other owners, and the watch may be late.
        await self.assignments.load()
        self._lease, self._revision = lease, revision
        self._session_clock = SessionClock(sent_at, self._ttl_s)

    async def _keep_alive(self) -> None:
        """Keep the session alive until it ends in the metadata."""
        lease, clock = self._lease, self._session_clock
        assert lease is not None
        assert clock is not None
        while True:
            self._may_have_ended = trio.Event()
            sent_at = self._clock()
            try:
                # An answer that comes late still says that the request arrived, but the next one is due.
                with trio.move_on_after(self._ttl_s / 3):
                    await self._store.keep_alive(lease)
                    clock.answered(sent_at)
            except NotFoundError:
                _log.warning(
                    "the session of broker %s has ended: no keep-alive reached the metadata for %g s, or others took"
                    " this broker for dead, because its port refused their connections. It opens another session",
                    broker_name(self.me),
                    self._ttl_s,
                    extra=log_event("cluster.session_lost", broker=broker_name(self.me)),
                )
                self._end_session()
                return
            except DanubeError as error:
                if not may_pass(error):
                    raise
                _log.info("a keep-alive was not answered: %s", error)
            with trio.move_on_after(max(0.0, clock.next_keep_alive(sent_at) - self._clock())):
                await self._may_have_ended.wait()

    def _end_session(self) -> None:
        if self._session_clock is not None:
            self._session_clock.end()
        self._lease, self._revision = None, 0
        self._tell()

    @property
    def lease(self) -> LeaseId | None:
        """The lease of the session. What is attached to it vanishes with the session."""
        return self._lease

    def _assignment_changed(self, change: RowChange[Assignment]) -> None:
        if change.before is not None:
            self.topics[change.before.owner] -= 1
        if change.after is not None:
            self.topics[change.after.owner] += 1
        self.on_assignment(change)
        for told in self.on_assigned:
            told(change)
        self._table_changed(change)

    def _wal_changed(self, change: RowChange[WalRecord]) -> None:
        self.on_wal()
        self._table_changed(change)

    def _move_changed(self, change: RowChange[MoveRecord]) -> None:
        for told in self.on_move:
            told(change)
        self._table_changed(change)

    def _cluster_changed(self, change: RowChange[ClusterRecord]) -> None:
        if change.after is not None:
            self.learn_cluster(change.after)

    def _session_changed(self, change: RowChange[SessionRecord]) -> None:
        if change.after is None and self._revision and change.name == broker_name(self.me):
            self._may_have_ended.set()  # this session, or an earlier one: the next keep-alive tells
        self._table_changed(change)

    def _table_changed(self, change: RowChange[Any]) -> None:
        for told in self.on_change:
            told()

    def _tell(self) -> None:
        for told in self.on_session:
            told()

    async def _leave(self) -> None:
        """End the session, so that others need not wait for its time to live."""
        lease = self._lease
        self._end_session()
        if lease is None:
            return
        with trio.move_on_after(1) as scope:
            scope.shield = True
            try:
                await self._store.revoke(lease)
            except DanubeError as error:
                _log.info("the session ends with its time to live: %s", error)


def _ignore(change: RowChange[Assignment]) -> None:
    """Initial callback: does nothing."""
