"""Raises the feature level of the cluster: for an operator, or as the coordinator when the time has come."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import trio

from danube.cluster.features import FEATURE_LEVEL, Outlook, due_level, outlook
from danube.cluster.membership import Membership
from danube.cluster.records import (
    BROKERS,
    CLUSTER_KEY,
    SESSIONS,
    BrokerRecord,
    ClusterRecord,
    SessionRecord,
    is_broker_name,
    parse_broker,
)
from danube.metadata import Condition, MetadataStore, Put, may_pass
from danube.metadata.table import decode_record
from danube.model.errors import DanubeError, FailedPreconditionError, MetadataConflictError, UnavailableError
from danube.model.log_events import log_event

__all__ = ["Upgrading"]

_log = logging.getLogger("danube.cluster")

_LOOK_S: Final = 15.0
"""How often the coordinator looks at the levels of the brokers."""
_MOST_ATTEMPTS: Final = 5
_MOST_BROKERS: Final = 60
"""Of more brokers not all records are conditions of the change: a transaction has 128 at most."""
_CLUSTER: Final = msgspec.msgpack.Decoder(ClusterRecord)
_BROKER: Final = msgspec.msgpack.Decoder(BrokerRecord)
_SESSION: Final = msgspec.msgpack.Decoder(SessionRecord)

R = TypeVar("R")


class Upgrading:
    """Raises the feature level.

    Args:
        store: the metadata.
        membership: of this broker.
        is_coordinator: whether this broker coordinates, as far as it knows.
    """

    def __init__(self, store: MetadataStore, membership: Membership, is_coordinator: Callable[[], bool]) -> None:
        self._store = store
        self._membership = membership
        self._is_coordinator = is_coordinator

    def outlook(self) -> Outlook:
        """Return to which level the cluster can be raised, as this broker knows it."""
        member = self._membership
        level = member.cluster.feature_level
        return outlook(level, member.brokers.values, member.sessions.values, FEATURE_LEVEL)

    async def upgrade(self) -> Outlook:
        """Raise the level of the cluster to the newest one, and return what was found before.

        Raises:
            FailedPreconditionError: a broker that may return knows less; nothing was changed.
            UnavailableError: the metadata do not answer, or change all the time.
        """
        for _ in range(_MOST_ATTEMPTS):
            found = self.outlook()
            if found.older:
                raise FailedPreconditionError(_held_back(found))
            if found.level >= found.newest:
                return found
            try:
                await self._raise(found.newest)
            except MetadataConflictError:
                await trio.sleep(0.1)  # a broker has started or ended: the tables will show it
                continue
            return found
        raise UnavailableError("brokers start and end at the moment, so the feature level was not raised; try again")

    async def run(self) -> None:
        """Task: raise the level by itself whenever this broker coordinates and the time has come.

        A coordinator that has just been elected begins to count anew.

        Raises:
            DanubeError: the metadata store failed for good, for example because it was closed.
        """
        seen: int | None = None
        since_s = 0.0
        while True:
            await trio.sleep(_LOOK_S)
            if not self._is_coordinator():
                seen = None
                continue
            found, now_s = self.outlook(), trio.current_time()
            if found.possible != seen:
                seen, since_s = found.possible, now_s
            level = due_level(found, since_s, now_s)
            if level is None:
                continue
            try:
                await self._raise(level)
            except MetadataConflictError:
                pass  # a broker has started or ended: look again
            except DanubeError as error:
                if not may_pass(error):
                    raise
                _log.info("the feature level is raised later: %s", error)

    async def _raise(self, level: int) -> None:
        """Raise the level of the cluster, if none of its brokers has started or ended meanwhile.

        Each start of a broker changes its record. One that joins for the first time changes that of the cluster.
        """
        member = self._membership
        item = await self._store.get(CLUSTER_KEY)
        if item is None:
            raise UnavailableError("the metadata have no record of the cluster; try again")
        record = decode_record(item, _CLUSTER.decode)
        if record.feature_level >= level:
            member.learn_cluster(record)
            return
        # What is judged is what is stored now, and what the change depends on: tables may be late, or change meanwhile.
        brokers = await self._rows(BROKERS, _BROKER)
        sessions = await self._rows(SESSIONS, _SESSION)
        known = {name: broker for name, (broker, _) in brokers.items()}
        found = outlook(record.feature_level, known, {name: each for name, (each, _) in sessions.items()}, level)
        if found.possible < level:
            raise MetadataConflictError(_held_back(found))
        raised = msgspec.structs.replace(record, feature_level=level)
        names = sorted(brokers, key=parse_broker)[:_MOST_BROKERS]
        conditions = [Condition(CLUSTER_KEY, item.mod_revision), *member.session()]
        conditions += [Condition(BROKERS + name, brokers[name][1]) for name in names]
        conditions += [
            Condition(SESSIONS + name, sessions[name][1])
            for name in names
            if name in sessions and name != member.broker
        ]
        await self._store.transact(conditions, [Put(CLUSTER_KEY, msgspec.msgpack.encode(raised))])
        member.learn_cluster(raised)
        _log.warning(
            "the feature level of the cluster is %d now, and was %d: no broker can be set back to the former version",
            level,
            record.feature_level,
            extra=log_event("cluster.upgraded", level=level),
        )

    async def _rows(self, prefix: str, decoder: msgspec.msgpack.Decoder[R]) -> dict[str, tuple[R, int]]:
        """Return the records of brokers as they are stored, with their revisions."""
        rows, _ = await self._store.list(prefix)
        return {
            name: (decode_record(row, decoder.decode), row.mod_revision)
            for row in rows
            if is_broker_name(name := row.key.removeprefix(prefix))
        }


def _held_back(found: Outlook) -> str:
    each = ", ".join(
        f"{older.broker} knows level {older.level}{'' if older.is_running else ' and is away'}" for older in found.older
    )
    return (
        f"the feature level of the cluster stays {found.level}: {each}, and others know level {found.newest}. Start"
        " these brokers with the new version of Danube first; one that will not return has to be forgotten"
    )
