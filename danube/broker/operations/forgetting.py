"""Declares a broker gone for good, and has others go on with its topics: ``danube cluster forget``.

Without the operator's consent it only says what is lost. With it::

    1. the record of the broker says GONE     if it has no session: from then on it gets none, and seals nothing
    2. its topics of durability disk and os   get other owners, by load, and a declared gap (danube.cluster.gaps),
                                              a group in one transaction, conditional on the record of step 1
    3. its member of the metadata's group     is removed

Topics of durability ``none`` and ``remote`` get other owners from the coordinator, as after any failure. The record
stays: it refuses the broker if it returns. A call that was cut off is repeated, and goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import trio

from danube.broker.security.caller import caller_name
from danube.cluster.gaps import DEFAULT_RESERVE, GAPS, GapRecord, GapState, gap_name, shown_gap
from danube.cluster.group_memory import MEMBERS, MemberRecord, is_member_name
from danube.cluster.placement import Placement
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    SESSIONS,
    Assignment,
    BrokerRecord,
    BrokerState,
    Reason,
    broker_name,
    parse_broker,
    topic_key,
)
from danube.history.sealed_end import Sealed, sealed_range
from danube.metadata import Condition, Put
from danube.metadata.table import decode_record
from danube.model.cluster_api import MOST_LOST, ForgetBroker, ForgetGaps, Forgotten, ForgottenGaps, LostTopic
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
)
from danube.model.ids import BrokerId, Offset, OwnerEpoch, TopicId
from danube.model.log_events import log_event
from danube.model.records import members
from danube.model.spoken import spoken_count
from danube.raft import NodeId

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.model.records import TopicRecord

__all__ = ["ForgetOperations"]

_log = logging.getLogger("danube.broker")

_GROUP: Final = 20
"""Topics of one transaction: up to four conditions and two changes each."""
_ATTEMPTS: Final = 8
"""How often a change is tried again that met another one."""
_REMOVALS: Final = 3
"""How often it is tried to remove a metadata member: the leader makes one change of its voters at a time."""
_REMOVAL_PAUSE_S: Final = 1.0
_BROKER: Final = msgspec.msgpack.Decoder(BrokerRecord)
_MEMBER: Final = msgspec.msgpack.Decoder(MemberRecord)
_encode = msgspec.msgpack.encode


class _Orphan(NamedTuple):
    """A topic or partition that has lost its broker."""

    topic_id: TopicId
    name: str
    record: TopicRecord
    assignment: Assignment
    sealed: Sealed
    conditions: tuple[Condition, Condition]
    """That its assignment and its record are still these."""

    @property
    def gap_start(self) -> Offset:
        """The first offset that nobody has."""
        return self.sealed.lost_from if self.sealed.lost_from is not None else self.sealed.end


class ForgetOperations:
    """See the module.

    Args:
        directory: of the topics.
        remove_member: removes a member from the group that keeps the metadata; None: the brokers do not keep them.
    """

    def __init__(self, directory: Directory, remove_member: Callable[[NodeId], Awaitable[object]] | None) -> None:
        self._directory = directory
        self._membership = directory.membership
        self._store = directory.catalogue.store
        self._random = directory.runtime.seams.random
        self._remove_member = remove_member

    async def forget(self, request: ForgetBroker) -> Forgotten:
        """Declare a broker gone for good; or say what is lost then, and change nothing.

        Raises:
            InvalidArgumentError: this is not the name of a broker.
            NotFoundError: it does not exist.
            FailedPreconditionError: it runs, or it is this broker; no broker can take its topics; or the feature level
                of the cluster is too low.
            MetadataConflictError: its topics change all the time; try again.
            UnavailableError: the metadata do not answer, for example because too few of their voters run; part of
                it may be done: repeat the call.
        """
        try:
            return await self._forget(request)
        except UnavailableError as error:
            standing = self._store.standing()
            if not standing.member or standing.leader:
                raise
            raise UnavailableError(
                f"broker {request.broker} cannot be forgotten now: the metadata have no leader, because too few of"
                f" their {spoken_count(len(standing.voters), 'voter')} run. Start brokers that vote (danube cluster"
                " voters lists them), and repeat the command; if their disks are permanently lost, too, see: danube"
                " cluster recover --help"
            ) from error

    async def _forget(self, request: ForgetBroker) -> Forgotten:
        broker = parse_broker(request.broker)
        self._membership.check_moves()
        record, revision = await self._checked(broker)
        orphans = await self._orphans(broker)
        reserve = record.reserve or DEFAULT_RESERVE
        member_problem = ""
        targets: dict[TopicId, BrokerId] = {}
        if request.accept_loss:
            if orphans:
                self._placement()  # refused before anything changes
            if record.state is not BrokerState.GONE:
                revision = await self._declare_gone(broker)
                orphans = await self._orphans(broker)  # until then it could have sealed some more
            left = orphans
            for _ in range(_ATTEMPTS):
                targets |= await self._give(broker, revision, left, reserve)
                left = await self._orphans(broker)
                if not left:
                    break
                orphans = [*(each for each in orphans if each.topic_id in targets), *left]
            else:
                raise MetadataConflictError(
                    f"broker {request.broker} is gone from now on, and {len(left)} of its topics have no other owner"
                    " yet, because they change all the time; repeat the command"
                )
            member_problem = await self._leave_group(record.identity)
        told = self._told(broker, request, orphans, targets, reserve)
        told.member_problem = member_problem
        return told

    # --- What is there ---

    async def _checked(self, broker: BrokerId) -> tuple[BrokerRecord, int]:
        """Check that a broker can be forgotten; return its record, and its revision."""
        name = broker_name(broker)
        item = await self._store.get(BROKERS + name)
        if item is None:
            known = ", ".join(sorted(self._membership.brokers.values, key=lambda each: (len(each), each)))
            raise NotFoundError(f"there is no broker {name!r} in this cluster; its brokers are {known}")
        record = decode_record(item, _BROKER.decode)
        if broker == self._membership.me:
            raise FailedPreconditionError(
                f"broker {name} cannot be forgotten: it is the one that answers. To take it out of the cluster: danube"
                f" cluster drain {name} --wait"
            )
        if await self._store.get(SESSIONS + name) is not None:
            raise FailedPreconditionError(
                f"broker {name} cannot be forgotten: it runs, or has ended so recently that it still has a session. To"
                f" take it out of the cluster without any loss: danube cluster drain {name} --wait, then stop it. If it"
                " has ended, repeat the command in a minute"
            )
        return record, item.mod_revision

    async def _orphans(self, broker: BrokerId) -> list[_Orphan]:
        """Return the topics that wait for the disk of a broker."""
        member, catalogue = self._membership, self._directory.catalogue
        await member.assignments.load()
        owned = {key for key, assignment in member.assignments.values.items() if assignment.owner == broker}
        if not owned:
            return []
        await catalogue.tables.topics.load()
        await catalogue.gaps.refresh()  # after the assignments, so a gap that is not seen has changed one of them
        found = []
        for name, record in list(catalogue.topics()):  # topics may be deleted meanwhile
            level = self._directory.level(record)
            if not level.keeps or level.recovers_itself:
                continue
            for each, topic_id in members(name, record):
                key = topic_key(topic_id)
                assignment = member.assignments.values.get(key) if key in owned else None
                stored = catalogue.tables.topics.values.get(name)
                if (
                    assignment is None
                    or assignment.owner != broker
                    or stored is None
                    or topic_id not in stored.topic_ids
                ):
                    continue
                conditions = (
                    Condition(ASSIGNMENTS + key, member.assignments.revision(key)),
                    Condition("/topics" + name, catalogue.tables.topics.revision(name)),
                )
                sealed = await sealed_range(self._store, topic_id, catalogue.gaps.floor(topic_id))
                found.append(_Orphan(topic_id, each, stored, assignment, sealed, conditions))
        return found

    def _placement(self) -> Placement:
        candidates = [each for each in self._membership.candidates() if each.state is BrokerState.ACTIVE]
        if not candidates:
            raise FailedPreconditionError(
                "no broker is active and running, so the topics could go nowhere: start or activate one (danube cluster"
                " activate)"
            )
        return Placement(candidates)

    # --- What is done ---

    async def _declare_gone(self, broker: BrokerId) -> int:
        """Store that a broker is gone; return the revision of its record. From then on it can have no session."""
        name = broker_name(broker)
        for _ in range(_ATTEMPTS):
            record, revision = await self._checked(broker)
            gone = msgspec.structs.replace(record, state=BrokerState.GONE)
            conditions = [Condition(BROKERS + name, revision), Condition(SESSIONS + name, 0)]
            try:
                result = await self._store.transact(
                    [*conditions, *self._membership.session()], [Put(BROKERS + name, _encode(gone))]
                )
            except MetadataConflictError:
                continue
            await self._membership.brokers.reached(result.revision)
            _log.warning(
                "broker %s is gone for good, as %s says; what only its disk has is lost until it is given back",
                name,
                caller_name() or "an operator",
                extra=log_event("cluster.forgotten", broker=name),
            )
            return result.revision
        raise MetadataConflictError(f"the record of broker {name} changes all the time; try again")

    async def _give(
        self, broker: BrokerId, revision: int, orphans: Sequence[_Orphan], reserve: int
    ) -> dict[TopicId, BrokerId]:
        """Give topics to other brokers; return the owners of those for which that has worked."""
        placement, targets = self._placement(), dict[TopicId, BrokerId]()
        for orphan in orphans:
            targets[orphan.topic_id] = placement.place(orphan.record.storage)
        given: dict[TopicId, BrokerId] = {}
        for begin in range(0, len(orphans), _GROUP):
            group = orphans[begin : begin + _GROUP]
            try:
                await self._give_group(broker, revision, group, targets, reserve)
            except MetadataConflictError:
                for orphan in group:  # one of them has changed: each in its own
                    try:
                        await self._give_group(broker, revision, [orphan], targets, reserve)
                    except MetadataConflictError:
                        continue
                    given[orphan.topic_id] = targets[orphan.topic_id]
            else:
                given.update((orphan.topic_id, targets[orphan.topic_id]) for orphan in group)
        return given

    async def _give_group(
        self,
        broker: BrokerId,
        revision: int,
        group: Sequence[_Orphan],
        targets: dict[TopicId, BrokerId],
        reserve: int,
    ) -> None:
        conditions = {BROKERS + broker_name(broker): Condition(BROKERS + broker_name(broker), revision)}
        operations = []
        now_s, by = self._directory.runtime.clock_us() / 1e6, caller_name()
        assignments = self._membership.assignments
        for orphan in group:
            target, key = targets[orphan.topic_id], topic_key(orphan.topic_id)
            gap = GapRecord(
                start=orphan.gap_start,
                end=Offset(orphan.sealed.end + reserve),
                broker=broker,
                since_s=now_s,
                by=by,
                move=orphan.assignment.move,
            )
            assignment = Assignment(
                target,
                OwnerEpoch(orphan.assignment.epoch + 1),
                Reason.FORGOTTEN,
                move=self._random.getrandbits(63) or 1,
            )
            needed = [
                *orphan.conditions,
                self._membership.session_of(target),
                Condition(GAPS + gap_name(orphan.topic_id, gap.start), 0),
            ]
            conditions.update((each.key, each) for each in needed)
            operations += [
                Put(ASSIGNMENTS + key, _encode(assignment)),
                Put(GAPS + gap_name(orphan.topic_id, gap.start), _encode(gap)),
            ]
        result = await self._store.transact(list(conditions.values()), operations)
        await assignments.reached(result.revision)

    async def _leave_group(self, identity: str) -> str:
        """Remove the members of a broker from the group that keeps the metadata; return why one stays, if it does."""
        if self._remove_member is None:
            return ""
        rows, _ = await self._store.list(MEMBERS)
        for row in rows:
            name = row.key.removeprefix(MEMBERS)
            if is_member_name(name) and decode_record(row, _MEMBER.decode).identity == identity:
                problem = await self._remove(self._remove_member, NodeId(int(name)))
                if problem:
                    _log.warning(
                        "metadata member %s of a broker that is gone stays for now: %s; repeat the command",
                        name,
                        problem,
                        extra=log_event("metadata.member_stays"),
                    )
                    return problem
        return ""

    async def _remove(self, remove: Callable[[NodeId], Awaitable[object]], member: NodeId) -> str:
        problem = ""
        for attempt in range(_REMOVALS):
            if attempt:
                await trio.sleep(_REMOVAL_PAUSE_S)
            try:
                await remove(member)
            except UnavailableError as error:  # the leader is changing the voters just now, or is another one
                problem = str(error)
            except DanubeError as error:
                return str(error)
            else:
                return ""
        return problem

    def _told(
        self,
        broker: BrokerId,
        request: ForgetBroker,
        orphans: Sequence[_Orphan],
        targets: dict[TopicId, BrokerId],
        reserve: int,
    ) -> Forgotten:
        rows = [
            LostTopic(
                topic=orphan.name,
                durability=orphan.record.durability,
                sealed_end=orphan.gap_start,
                gap_end=orphan.sealed.end + reserve,
                target=targets.get(orphan.topic_id, 0),
                loses_history=orphan.sealed.lost_from is not None,
            )
            for orphan in sorted(orphans, key=lambda each: each.name)
        ]
        return Forgotten(
            broker=broker,
            name=broker_name(broker),
            accepted=request.accept_loss,
            topics=rows[:MOST_LOST],
            more=max(0, len(rows) - MOST_LOST),
        )

    # --- Gaps ---

    async def forget_gaps(self, request: ForgetGaps) -> ForgottenGaps:
        """Have subscriptions wait no longer for what was lost; the owners see the rows, and tell the subscriptions.

        Raises:
            TopicNotFoundError: there is no such topic.
            MetadataConflictError: a gap was filled meanwhile.
            UnavailableError: the metadata do not answer.
        """
        catalogue = self._directory.catalogue
        await self._directory.refresh(request.topic)
        record = catalogue.find(request.topic)
        named = (
            members(request.topic, record)
            if record is not None
            else [(request.topic, TopicId(catalogue.locate(request.topic)[1]))]
        )
        await catalogue.gaps.refresh()
        found = []
        for name, topic_id in named:
            for gap in catalogue.gaps.of(topic_id):
                if gap.state is not GapState.OPEN:
                    continue
                if not request.dry_run:
                    forgotten = msgspec.structs.replace(gap, state=GapState.FORGOTTEN)
                    await catalogue.gaps.settle(topic_id, forgotten, self._membership.session())
                    _log.warning(
                        "topic %r: offsets [%d, %d), which were lost with broker %s, are given up, as %s asked",
                        name,
                        gap.start,
                        gap.end,
                        broker_name(gap.broker),
                        caller_name() or "an operator",
                        extra=log_event("topic.gap_forgotten", topic=name),
                    )
                found.append(shown_gap(name, gap))
        return ForgottenGaps(found)
