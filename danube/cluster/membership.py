"""This broker as a member of the cluster: its record, its session, and its view of the others.

:meth:`Membership.join` enters the broker in the metadata, as the one it was before (by the identity of its data
directory) or as a new one. :meth:`Membership.run` opens its session and keeps it alive, opens another one when it has
ended, and follows the records of all brokers, sessions and assignments.

**Lives.** Each start of a broker has a number, in its record and, synced, in its data directory. The directory gets the
number first, so it may be ahead of the record, after a crash between the two. It is behind only if it is a copy, or was
set back (a restored snapshot of a machine): then the broker would acknowledge messages under offsets that it has used
before, so it does not start.

**Sessions.** A session is a key that is attached to a lease (:mod:`danube.cluster.session`). Losing it costs nothing
that was promised; topics without durability may move. While the metadata cannot be reached the broker goes on with what
it has.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import msgspec
import trio

from danube.cluster.ownership import Owners
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    SESSIONS,
    Assignment,
    BrokerRecord,
    ClusterRecord,
    SessionRecord,
    broker_name,
    parse_broker,
)
from danube.cluster.session import SESSION_TTL_S, SessionClock
from danube.metadata import Condition, LeaseId, MetadataStore, Put, RowChange, Table
from danube.metadata.table import decode_record
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    DataLossError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
)
from danube.model.ids import BrokerId

__all__ = ["FEATURE_LEVEL", "Membership"]

_log = logging.getLogger("danube.cluster")

FEATURE_LEVEL: Final = 1
"""The newest formats and messages that this version understands; see :class:`~danube.cluster.records.ClusterRecord`."""

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
        random: draws the incarnation of a new cluster, and the number of this start.
        clock: seconds that go on while the process is stopped.
        ttl_s: time to live of the session without a keep-alive.

    Attributes:
        brokers, sessions, assignments: what all members have stored, followed by :meth:`run`.
        owners: answers who owns a topic; after :meth:`join`.
        me: the id of this broker; after :meth:`join`.
        on_session: called whenever the session has ended, or another one was opened; must not raise.
        on_change: called whenever a row of the three tables has changed; must not raise.
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
        clock: Callable[[], float] = trio.current_time,
        ttl_s: float = SESSION_TTL_S,
    ) -> None:
        self.brokers = Table(store, BROKERS, BrokerRecord, watched=True, on_change=self._table_changed)
        self.sessions = Table(store, SESSIONS, SessionRecord, watched=True, on_change=self._table_changed)
        self.assignments = Table(store, ASSIGNMENTS, Assignment, watched=True, on_change=self._table_changed)
        self.me: BrokerId
        self.owners: Owners
        self.cluster: ClusterRecord
        self.on_session: list[Callable[[], None]] = []
        self.on_change: list[Callable[[], None]] = []
        self._store = store
        self._cluster_name = cluster
        self._identity = identity
        self._session_record = record
        self._storages = storages
        self._random = random
        self._clock = clock
        self._ttl_s = ttl_s
        self._lease: LeaseId | None = None
        self._session_clock: SessionClock | None = None
        self._revision = 0

    # --- Joining ---

    async def join(self, life: int, store_life: Callable[[int], Awaitable[None]]) -> None:
        """Enter this broker in the metadata, as the one with its identity or as a new one.

        Args:
            life: the number of the last start, according to the data directory; 0: this is the first one.
            store_life: stores the number of this start in the data directory, synced.

        Raises:
            ConfigurationError: the cluster has another name, or formats that this version does not know.
            DataLossError: the data directory is a copy, or was set back.
            DanubeError: the metadata cannot be reached.
        """
        self.cluster, revision = await self._found()
        if self.cluster.name != self._cluster_name:
            raise ConfigurationError(
                f"the metadata belong to the cluster {self.cluster.name!r}, and this broker was started for"
                f" {self._cluster_name!r}; start it with the right --cluster, or with other metadata"
            )
        if self.cluster.feature_level > FEATURE_LEVEL:
            raise ConfigurationError(
                f"the cluster {self.cluster.name!r} uses features of level {self.cluster.feature_level}, and this"
                f" version of Danube knows those up to level {FEATURE_LEVEL}; install the version of the other brokers"
            )
        start = self._random.getrandbits(63) or 1
        stored = 0
        while True:
            await self.brokers.load()
            own = [name for name, record in self.brokers.values.items() if record.identity == self._identity]
            known = self.brokers.values[own[0]] if own else None
            if known is not None and known.start == start:
                break  # the answer to an earlier attempt was lost
            # Only what the directory said at its start counts: another process with a copy of it may have come first.
            if known is not None and known.life > life:
                raise DataLossError(
                    f"the data directory is of start {life} of broker {own[0]}, which has been started"
                    f" {known.life} times: the directory is a copy of another one that is in use, or an old snapshot of"
                    " it was restored. Start the broker with its latest directory; or, if that is lost, with an empty"
                    " one: then it becomes a new broker"
                )
            next_life = max(life, known.life if known is not None else 0) + 1
            if next_life != stored:
                await store_life(next_life)
                stored = next_life
            if known is not None:
                changed = msgspec.structs.replace(known, life=next_life, start=start, storages=self._storages)
                conditions = [Condition(BROKERS + own[0], self.brokers.revision(own[0]))]
                operations = [Put(BROKERS + own[0], _encode(changed))]
            else:
                name = broker_name(BrokerId(self.cluster.next_broker))
                changed = BrokerRecord(identity=self._identity, storages=self._storages, life=next_life, start=start)
                counted = msgspec.structs.replace(self.cluster, next_broker=self.cluster.next_broker + 1)
                conditions = [Condition(CLUSTER_KEY, revision), Condition(BROKERS + name, 0)]
                operations = [Put(CLUSTER_KEY, _encode(counted)), Put(BROKERS + name, _encode(changed))]
            try:
                await self._store.transact(conditions, operations)
            except MetadataConflictError:
                self.cluster, revision = await self._found()
            except UnavailableError as error:
                _log.warning("the broker cannot be entered in the metadata yet: %s", error)
                await trio.sleep(_RETRY_S)
        self.me = parse_broker(own[0])
        self.owners = Owners(self.me, self.assignments.values, self.brokers.values, self.sessions.values)
        self._session_record = msgspec.structs.replace(
            self._session_record, life=self.brokers.values[own[0]].life, feature_level=FEATURE_LEVEL
        )

    async def _found(self) -> tuple[ClusterRecord, int]:
        """Return the record of the cluster and its revision; the first broker on these metadata creates it."""
        while True:
            item = await self._store.get(CLUSTER_KEY)
            if item is not None:
                return decode_record(item, _CLUSTER.decode), item.mod_revision
            record = ClusterRecord(
                name=self._cluster_name, incarnation=self._random.getrandbits(64) | 1, feature_level=FEATURE_LEVEL
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

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Task: keep the session and the view. It counts as started once it has a session and the view is loaded.

        When it is cancelled the session ends, if the metadata answer within a second; else with its time to live.

        Raises:
            DataLossError: a record of the cluster does not decode, or another process runs with this broker's identity.
            DanubeError: the metadata store failed for good, for example because it was closed.
        """
        async with trio.open_nursery() as nursery:
            for table in (self.brokers, self.sessions, self.assignments):
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
        """Open a session, whatever it takes."""
        while True:
            try:
                await self._try_session()
                break
            except (MetadataConflictError, NotFoundError, UnavailableError) as error:
                _log.warning("no session in the cluster yet: %s", error)
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
        sent_at = self._clock()
        lease = await self._store.grant_lease(self._ttl_s)
        revision = await self._store.put(key, _encode(self._session_record), expected_revision=0, lease=lease)
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
            sent_at = self._clock()
            try:
                # An answer that comes late still says that the request arrived, but the next one is due.
                with trio.move_on_after(self._ttl_s / 3):
                    await self._store.keep_alive(lease)
                    clock.answered(sent_at)
            except NotFoundError:
                _log.warning(
                    "the session of broker %s has ended: no keep-alive reached the metadata for %g s",
                    broker_name(self.me),
                    self._ttl_s,
                )
                self._end_session()
                return
            except UnavailableError as error:
                _log.info("a keep-alive was not answered: %s", error)
            await trio.sleep(max(0.0, clock.next_keep_alive(sent_at) - self._clock()))

    def _end_session(self) -> None:
        if self._session_clock is not None:
            self._session_clock.end()
        self._lease, self._revision = None, 0
        self._tell()

    @property
    def lease(self) -> LeaseId | None:
        """The lease of the session. What is attached to it vanishes with the session."""
        return self._lease

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
