"""Operations that move topics between brokers: drain, activate, move, balance.

Any broker carries them out. They change a broker's record or write orders (:mod:`danube.cluster.ordering`), which the
owners of the topics carry out; the orders of a drain are written by the coordinator. All are answered at once: how far
it is, the same calls say with ``dry_run``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.broker.security.caller import caller_name
from danube.cluster.balance import Rules, load_of, plan_and_loads
from danube.cluster.ordering import order_move
from danube.cluster.placement import Placement
from danube.cluster.records import (
    BROKERS,
    BrokerRecord,
    BrokerState,
    MoveReason,
    broker_name,
    parse_broker,
    topic_key,
)
from danube.cluster.weighing import MOST_TOPICS, Weighed
from danube.metadata import Condition, Put
from danube.metadata.table import decode_record
from danube.model import validate_topic
from danube.model.cluster_api import (
    MOST_PLANNED,
    ActivateBroker,
    BalanceCluster,
    BalancePlan,
    BrokerDrain,
    BrokerLoadRow,
    DrainBroker,
    MoveList,
    MoveRow,
    MoveTopic,
    StayingTopic,
)
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    InvalidArgumentError,
    MetadataConflictError,
    NotFoundError,
    UnavailableError,
)
from danube.model.ids import BrokerId, TopicId
from danube.model.records import members

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.operations.cluster import ClusterOperations

__all__ = ["MoveOperations"]

_log = logging.getLogger("danube.broker")

_ATTEMPTS: Final = 5
"""How often a change of a broker's record is tried again that met another change of it."""
_AT_ONCE: Final = 64
"""Orders that are written at a time."""
_MEASURE_S: Final = 4.5
"""Between two questions, if brokers have not measured the traffic of their topics yet."""
_BROKER: Final = msgspec.msgpack.Decoder(BrokerRecord)
_encode = msgspec.msgpack.encode


class MoveOperations:
    """See the module.

    Args:
        directory: of the topics.
        cluster: operations that ask the other brokers.
    """

    def __init__(self, directory: Directory, cluster: ClusterOperations) -> None:
        self._directory = directory
        self._cluster = cluster
        self._random = directory.runtime.seams.random
        self._membership = directory.membership
        self._store = directory.catalogue.store
        self._clock_s: Callable[[], float] = lambda: directory.runtime.clock_us() / 1e6

    # --- Drain and activate ---

    async def drain(self, request: DrainBroker) -> BrokerDrain:
        """Have a broker give all its topics away, and get none from now on; or say how far it is.

        Raises:
            InvalidArgumentError: this is not the name of a broker.
            NotFoundError: it does not exist.
            FailedPreconditionError: it was declared gone; or no other broker is active, so its topics could go nowhere.
            UnavailableError: the metadata do not answer.
        """
        broker, record = self._find(request.broker)
        if not request.dry_run and record.state is not BrokerState.DRAINING:
            if not self._others(broker):
                raise FailedPreconditionError(
                    f"broker {request.broker} cannot be drained: no other broker is active and running, so its topics"
                    " could go nowhere. Start or activate another one; or end it with SIGTERM: then its topics wait"
                )
            await self._set_state(broker, BrokerState.DRAINING)
        return await self._progress(broker)

    async def activate(self, request: ActivateBroker) -> BrokerDrain:
        """Have a broker get topics again. What it has still to give away, it keeps.

        Raises:
            InvalidArgumentError, NotFoundError, FailedPreconditionError, UnavailableError: as :meth:`drain`.
        """
        broker, record = self._find(request.broker)
        if not request.dry_run and record.state is not BrokerState.ACTIVE:
            await self._set_state(broker, BrokerState.ACTIVE)
        return await self._progress(broker)

    def _find(self, name: str) -> tuple[BrokerId, BrokerRecord]:
        broker = parse_broker(name)
        record = self._membership.brokers.values.get(name)
        if record is None:
            known = ", ".join(sorted(self._membership.brokers.values, key=lambda each: (len(each), each)))
            raise NotFoundError(f"there is no broker {name!r} in this cluster; its brokers are {known}")
        _check_not_gone(name, record)
        return broker, record

    def _others(self, broker: BrokerId) -> list[BrokerId]:
        """Return the brokers beside one that run and are active."""
        member = self._membership
        return [
            parse_broker(name)
            for name, record in member.brokers.values.items()
            if record.state is BrokerState.ACTIVE and name in member.sessions.values and parse_broker(name) != broker
        ]

    async def _set_state(self, broker: BrokerId, state: BrokerState) -> None:
        key = BROKERS + broker_name(broker)
        for _ in range(_ATTEMPTS):
            item = await self._store.get(key)
            if item is None:
                raise NotFoundError(f"broker {broker_name(broker)} was forgotten meanwhile")
            record = decode_record(item, _BROKER.decode)
            _check_not_gone(broker_name(broker), record)  # this broker may not know it yet
            changed = msgspec.structs.replace(record, state=state)
            try:
                result = await self._store.transact(
                    [Condition(key, item.mod_revision), *self._membership.session()], [Put(key, _encode(changed))]
                )
            except MetadataConflictError:
                continue  # it has just been started, say
            await self._membership.brokers.reached(result.revision)
            _log.info(
                "broker %s is %s from now on, as %s asked",
                broker_name(broker),
                state,
                caller_name() or "an operator",
            )
            return
        raise MetadataConflictError(f"the record of broker {broker_name(broker)} changes all the time; try again")

    async def _progress(self, broker: BrokerId) -> BrokerDrain:
        """Say how far a broker is."""
        member, name = self._membership, broker_name(broker)
        record = member.brokers.values.get(name)
        found = BrokerDrain(
            broker=broker,
            name=name,
            state=(record.state if record is not None else BrokerState.GONE).value,
            topics=member.topics[broker],
            moving=sum(member.owner(TopicId(int(key, 16))) == broker for key in member.moves.values),
        )
        if not found.topics:
            return found
        if name not in member.sessions.values:
            found.problem = f"{name} does not run: what it has is on its disk"
            return found
        try:
            told = await self._cluster.ask_leaving(broker)
        except DanubeError as error:
            found.problem = f"{name} does not answer: {error}"
            return found
        found.staying = min(told.hindered, found.topics)
        found.named = [StayingTopic(each.topic, each.why) for each in told.named]
        found.failed = [StayingTopic(each.topic, each.why) for each in told.failed]
        if record is None or record.state is not BrokerState.DRAINING:
            return found
        if not self._others(broker):
            found.problem = "no other broker is active and running, so its topics can go nowhere"
        elif not found.moving and found.topics > found.staying:
            found.problem = self._unplaceable(broker)
        return found

    def _unplaceable(self, broker: BrokerId) -> str:
        """Say why no broker can take some of the topics of one; empty: there is one for each."""
        member = self._membership
        storages: dict[str | None, str] = {}
        for name, record in self._directory.catalogue.topics():
            if any(member.owner(topic_id) == broker for topic_id in record.topic_ids):
                storages.setdefault(record.storage if self._directory.level(record).keeps else None, name)
        placement = Placement(member.candidates(), member.racks())
        for storage, name in storages.items():
            try:
                placement.place(storage)
            except FailedPreconditionError as error:
                return f"topic {name} stays: {error}"
        return ""

    # --- Move ---

    async def move(self, request: MoveTopic) -> MoveList:
        """Order a topic, a partition, or all partitions of a topic to move to a broker.

        Partitions that cannot be ordered to move are answered with the reason; a single topic is refused with it.

        Raises:
            InvalidArgumentError, NotFoundError: there is no such topic or broker.
            FailedPreconditionError: the broker takes no topics; or the only topic cannot move.
            UnavailableError: the broker does not run; or the metadata do not answer.
        """
        validate_topic(request.topic)
        target, record = self._find(request.broker)
        if record.state is not BrokerState.ACTIVE:
            raise FailedPreconditionError(
                f"broker {request.broker} is {record.state}, so it gets no topics: danube cluster activate"
                f" {request.broker}"
            )
        if request.broker not in self._membership.sessions.values:
            raise UnavailableError(f"topic {request.topic} cannot move to broker {request.broker}, which does not run")
        catalogue = self._directory.catalogue
        found = catalogue.find(request.topic)
        if found is None:
            _, topic_id = catalogue.locate(request.topic)
            named = [(request.topic, TopicId(topic_id))]
        else:
            named = members(request.topic, found)
        rows = []
        for name, topic_id in named:
            owner = self._membership.owner(topic_id)
            if owner != target or len(named) == 1:
                rows.append(
                    MoveRow(
                        topic=name,
                        topic_id=topic_id,
                        source=owner or 0,
                        target=target,
                        reason=MoveReason.ASKED.value,
                        by=caller_name(),
                    )
                )
        await self._judge(rows)
        if not request.dry_run:
            await self._order(rows, MoveReason.ASKED)
        if len(named) == 1 and rows[0].problem:
            raise FailedPreconditionError(rows[0].problem)
        return MoveList(rows)

    async def _judge(self, rows: Sequence[MoveRow]) -> None:
        """Note why topics cannot be ordered to move."""
        member = self._membership
        hindrances = await self._cluster.hindrances([(row.topic, row.topic_id) for row in rows])
        for row in rows:
            target = broker_name(BrokerId(row.target))
            move = member.moves.values.get(topic_key(row.topic_id))
            if not row.source:
                row.problem = f"topic {row.topic} has no owner at the moment"
            elif row.source == row.target:
                row.problem = f"topic {row.topic} is on broker {target} already"
            elif move is not None:
                row.problem = f"topic {row.topic} is ordered to move to broker {broker_name(move.target)} already"
            elif broker_name(BrokerId(row.source)) not in member.sessions.values:
                row.problem = f"topic {row.topic} cannot move: broker b{row.source}, which owns it, does not run"
            elif target not in member.sessions.values:
                row.problem = f"topic {row.topic} cannot move to broker {target}, which does not run"
            elif hindrances.get(row.topic_id):
                row.problem = f"topic {row.topic} cannot move: {hindrances[row.topic_id]}"

    async def _order(self, rows: Sequence[MoveRow], reason: MoveReason) -> int:
        """Order the moves of rows without a problem; return how many were."""
        limit, ordered = trio.CapacityLimiter(_AT_ONCE), 0

        async def order(row: MoveRow) -> None:
            nonlocal ordered
            async with limit:
                try:
                    await order_move(
                        self._store,
                        self._membership,
                        row.topic_id,
                        BrokerId(row.target),
                        random=self._random,
                        reason=reason,
                        by=caller_name(),
                        ordered_s=self._clock_s(),
                    )
                except DanubeError as error:
                    row.problem = str(error)
                else:
                    ordered += 1
                    row.age_s = 0.0

        async with trio.open_nursery() as nursery:
            for row in rows:
                if not row.problem:
                    nursery.start_soon(order, row)
        if ordered:
            _log.info(
                "%d topics are ordered to move (%s), as %s asked",
                ordered,
                reason.value,
                caller_name() or "an operator",
            )
        return ordered

    # --- Balance ---

    async def balance(self, request: BalanceCluster) -> BalancePlan:
        """Order topics to move until the load is even, at once and not little by little.

        Raises:
            InvalidArgumentError: ``most_moves`` is out of range.
            FailedPreconditionError: there is no other broker.
            UnavailableError: the metadata do not answer.
        """
        if not 1 <= request.most_moves <= MOST_PLANNED:
            raise InvalidArgumentError(f"most_moves is {request.most_moves}; it must be from 1 to {MOST_PLANNED}")
        if len(self._membership.sessions.values) < 2:
            raise FailedPreconditionError("there is nothing to balance: this broker is the only one that runs")
        found = await self._weigh()
        rules = Rules(gap_share=1.0, most_moves=request.most_moves)
        plan, after = plan_and_loads(found.loads, rules)
        rows = [
            MoveRow(
                topic=move.topic,
                topic_id=move.topic_id,
                source=move.source,
                target=move.target,
                reason=MoveReason.BALANCE.value,
                why=move.reason,
                by=caller_name(),
            )
            for move in plan
        ]
        ordered = 0 if request.dry_run else await self._order(rows, MoveReason.BALANCE)
        return BalancePlan(
            automatic=self._directory.runtime.config.balance.enabled,
            brokers=_load_rows(found, load_of(found.loads, rules), after),
            moves=rows,
            ordered=ordered,
            silent=[f"{broker_name(broker)}: {why}" for broker, why in sorted(found.silent.items())],
        )

    async def _weigh(self) -> Weighed:
        found = await self._cluster.scales.weigh(MOST_TOPICS)
        if not found.measured:
            await trio.sleep(_MEASURE_S)
            found = await self._cluster.scales.weigh(MOST_TOPICS)
        return found


def _check_not_gone(name: str, record: BrokerRecord) -> None:
    if record.state is BrokerState.GONE:
        raise FailedPreconditionError(f"broker {name} was declared gone for good")


def _load_rows(found: Weighed, loads: Mapping[BrokerId, float], after: Mapping[BrokerId, float]) -> list[BrokerLoadRow]:
    return [
        BrokerLoadRow(
            broker=each.broker,
            load=loads[each.broker],
            after=after[each.broker],
            topics=each.topics,
            in_bytes_s=each.in_bytes_s,
            out_bytes_s=each.out_bytes_s,
            cpu=each.cpu,
            journal_share=each.journal_share,
            is_target=each.is_target,
        )
        for each in found.loads.brokers
    ]
