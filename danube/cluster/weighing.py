"""Asks the brokers of a cluster for their loads, and has the rules of :mod:`danube.cluster.balance` plan moves.

Only the broker that coordinates asks, every :data:`ROUND_S`. Nothing is stored: another coordinator begins with its own
first round. Of each broker some topics are asked for (:data:`MOST_TOPICS`), so a round costs the same however many
there are; what a broker does not name stays where it is until a later round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple, Protocol

import trio

from danube.cluster.asking import CHANNEL, AskLoads, LoadsTold, decode_answer, encode
from danube.cluster.balance import DEFAULT_RULES, Balancer, BrokerLoad, Loads, Move, Rules, TopicLoad
from danube.cluster.membership import Membership
from danube.cluster.placement import Candidate
from danube.cluster.records import BrokerState, Reason, broker_name, parse_broker, parse_topic_id, topic_key
from danube.model.errors import DanubeError, InvalidArgumentError, UnavailableError
from danube.model.ids import BrokerId, TopicId
from danube.model.names import split_partition

__all__ = ["MOST_TOPICS", "ROUND_S", "Calls", "Scales", "Weighed", "Weighing"]

ROUND_S: Final = 20.0
"""How often the brokers are asked, so an imbalance of less than a minute moves nothing."""
MOST_TOPICS: Final = 100
"""Most topics that each broker names."""
ASK_S: Final = 2.0
"""How long a broker may take to answer."""


class Calls(Protocol):
    """The part of the links between brokers that this needs."""

    async def call(self, to: str, channel: str, payload: bytes, timeout_s: float) -> bytes:
        """Call the handler of a channel at the broker with an address, and return its answer."""
        ...


class Weighed(NamedTuple):
    """What the brokers have told."""

    loads: Loads
    silent: dict[BrokerId, str]
    """Brokers that did not answer, and why."""
    measured: bool
    """Every broker that answered has measured the traffic of its topics."""


class Scales:
    """Asks all brokers once; any broker may.

    Args:
        membership: of this broker; joined.
        own: tells the load of this broker, with at most so many topics.
        calls: returns the links to the other brokers; None: there are none.
        partitions: returns the ids of all partitions of a topic, by its name without a partition.
    """

    def __init__(
        self,
        membership: Membership,
        own: Callable[[int], Awaitable[LoadsTold]],
        calls: Callable[[], Calls | None],
        partitions: Callable[[str], Iterable[TopicId]],
    ) -> None:
        self.membership = membership
        self._own = own
        self._calls = calls
        self._partitions = partitions

    async def weigh(self, most: int, rests: Callable[[TopicId, bool], bool] = lambda topic_id, moved: False) -> Weighed:
        """Return the loads of all brokers that answer.

        Args:
            most: most topics that each of them names.
            rests: whether a topic must not move, given whether its owner got it by a move.
        """
        member = self.membership
        told: dict[BrokerId, LoadsTold] = {}
        silent: dict[BrokerId, str] = {}

        async def ask(broker: BrokerId) -> None:
            try:
                told[broker] = await self._ask(broker, most)
            except DanubeError as error:
                silent[broker] = str(error)

        async with trio.open_nursery() as nursery:
            for name in member.sessions.values:
                nursery.start_soon(ask, parse_broker(name))
        brokers, resting, spread = [], set[TopicId](), dict[str, Counter[BrokerId]]()
        ordered = Counter[BrokerId]()  # how many more topics each broker has once all orders are carried out
        for name, move in member.moves.values.items():
            owner = member.owner(parse_topic_id(name))
            if owner is not None:
                ordered[owner] -= 1
                ordered[move.target] += 1
        for broker in sorted(told):
            topics = [each for each in told[broker].topics if member.owner(each.topic_id) == broker]
            for topic in topics:
                assignment = member.assignments.values[topic_key(topic.topic_id)]
                if topic_key(topic.topic_id) in member.moves.values or rests(
                    topic.topic_id, assignment.reason is Reason.MOVED
                ):
                    resting.add(topic.topic_id)
                split = split_partition(topic.topic)
                if split is not None and split[0] not in spread:
                    spread[split[0]] = member.spread(self._partitions(split[0]))
            load = told[broker]
            record = member.brokers.values.get(broker_name(broker))
            is_active = record is not None and record.state is BrokerState.ACTIVE
            brokers.append(
                BrokerLoad(
                    broker=broker,
                    is_target=is_active,
                    storages=frozenset(record.storages) if record is not None else frozenset(),
                    topics=member.topics[broker] + ordered[broker],
                    in_bytes_s=load.in_bytes_s,
                    out_bytes_s=load.out_bytes_s,
                    cpu=load.cpu,
                    journal_used_bytes=load.journal_used_bytes,
                    journal_limit_bytes=load.journal_limit_bytes,
                    busiest=tuple(
                        TopicLoad(
                            each.topic_id,
                            each.topic,
                            each.storage,
                            each.in_bytes_s,
                            each.out_bytes_s,
                            each.journal_bytes,
                        )
                        for each in topics
                        if is_active  # those of a drained broker leave it anyway
                    ),
                )
            )
        loads = Loads(brokers=tuple(brokers), partitions=spread, racks=member.racks(), resting=frozenset(resting))
        return Weighed(loads, silent, all(each.interval_s > 0 for each in told.values()))

    async def _ask(self, broker: BrokerId, most: int) -> LoadsTold:
        if broker == self.membership.me:
            return await self._own(most)
        calls = self._calls()
        if calls is None:
            raise UnavailableError("this broker has no links to others")
        address = self.membership.session_address(broker)
        told = decode_answer(await calls.call(address, CHANNEL, encode(AskLoads(most)), ASK_S))
        if not isinstance(told, LoadsTold):
            raise InvalidArgumentError("it gave another answer than was asked for")
        return told


class Weighing:
    """The part of the coordinator that knows the loads.

    Args:
        scales: ask the brokers.
        enabled: whether topics move so that the load becomes even. The loads are known either way: topics of drained
            brokers go to those with the least.
        rules: of the balance.
        round_s: how often the brokers are asked.
    """

    def __init__(
        self, scales: Scales, *, enabled: bool = True, rules: Rules = DEFAULT_RULES, round_s: float = ROUND_S
    ) -> None:
        self._scales = scales
        self._enabled = enabled
        self._round_s = round_s
        self._balancer = Balancer(rules)
        self._candidates: dict[BrokerId, Candidate] = {}
        self._plan: tuple[Move, ...] = ()

    def candidates(self) -> dict[BrokerId, Candidate]:
        """Return the brokers that have answered in the last round."""
        return self._candidates

    def plan(self) -> tuple[Move, ...]:
        """Return what is left of the plan of the last round."""
        member, now = self._scales.membership, trio.current_time()
        self._plan = tuple(
            move
            for move in self._plan
            if member.owner(move.topic_id) == move.source
            and not self._balancer.rests(move.topic_id, now, was_moved=False)
        )
        return self._plan

    def note_moving(self, topic_ids: Iterable[TopicId]) -> None:
        """Note topics that are moving, whatever for: they rest afterwards."""
        self._balancer.note_moving(topic_ids, trio.current_time())

    async def run(self, coordinates: Callable[[], bool], planned: Callable[[], None]) -> None:
        """Task: ask in rounds whenever this broker coordinates.

        Args:
            coordinates: whether it does.
            planned: called when there is a plan.
        """
        was_coordinator = False
        while True:
            await trio.sleep(self._round_s)
            member = self._scales.membership
            if not coordinates() or len(member.sessions.values) < 2:
                was_coordinator, self._plan = False, ()
                self._candidates.clear()
                continue
            if not was_coordinator:
                was_coordinator = True
                self._balancer.begin(trio.current_time())
            await self._round()
            if self._plan:
                planned()

    async def _round(self) -> None:
        now = trio.current_time()
        found = await self._scales.weigh(
            MOST_TOPICS if self._enabled else 0,
            lambda topic_id, moved: self._balancer.rests(topic_id, now, was_moved=moved),
        )
        self._candidates = {
            each.broker: Candidate(
                broker=each.broker,
                traffic_bytes_s=each.in_bytes_s + each.out_bytes_s,
                journal_share=each.journal_share,
            )
            for each in found.loads.brokers
        }
        # What was not measured, or not told, says nothing about where there is more.
        even = not self._enabled or not found.measured or bool(found.silent)
        self._plan = () if even else tuple(self._balancer.round(found.loads))
