"""Runs a world from a seed: applications under faults, then repair, and a check that all promises were kept.

:func:`run_world` builds what :mod:`danube.testing.simulation.plan` has drawn, lets the applications work while the
faults are injected one after the other, repairs everything, waits until all is settled and caught up, audits the
topics, seals them, ends the broker in one of three ways, audits again, and checks the history for violations.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import NamedTuple, TypeVar

import msgspec
import trio

from danube.broker import BrokerConfig
from danube.client import Client
from danube.model.errors import (
    CorruptBatchError,
    DanubeError,
    DataLossError,
    JournalFencedError,
    JournalFullError,
    OwnerFencedError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.limits import Limits
from danube.model.policies import Durability, PoisonPolicy
from danube.storage import MemorySpace
from danube.testing.history import History
from danube.testing.simulation._scheduler import Pauses, run_seeded
from danube.testing.simulation.chores import do_chore
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import PORT, BrokerNode, Life, danube_error, shown_error
from danube.testing.simulation.plan import WorldPlan, draw_plan
from danube.testing.simulation.storm import Storm
from danube.testing.simulation.trace import Trace
from danube.testing.simulation.upstream import consume_upstream, produce_upstream
from danube.testing.simulation.workload import Applications, ConsumerPlan, read_letters, read_topic

__all__ = ["Report", "World", "run_world"]

_T = TypeVar("_T")

EPOCH_US = 1_700_000_000_000_000
"""Wall clock at the beginning of every world."""

_MOST_PASSES = 100_000
"""Passes of the scheduler at one moment of virtual time; worlds that are well need some hundreds."""

_LOUD = (DataLossError, CorruptBatchError)
"""How topics stop whose data is damaged."""

_PATIENCE_S = 300.0
"""Virtual seconds after which something that should end is stuck."""


class Report(NamedTuple):
    """Result of a world."""

    seed: int
    violations: list[str]
    digest: str
    virtual_s: float
    counts: dict[str, int]
    """How often what happened, from the trace."""
    faults: dict[str, int]
    """How many were injected, by kind."""
    published: int
    acknowledged: int
    delivered: int
    audited: int
    story: list[str]
    """The last lines of the trace."""


class World:
    """All objects of one simulated world. Create it inside the run."""

    def __init__(self, plan: WorldPlan, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.history = History(trio.current_time)
        self.pauses = Pauses()
        self.network = Network(self.random_of("network"), trace)
        self.network.like_sockets = plan.like_sockets
        self.buckets: dict[str, MemorySpace] = {}
        self.nodes: list[BrokerNode] = []
        """All machines with a broker that there ever were."""
        self.serving: list[BrokerNode] = []
        """Those that shall serve now, one for each home, in the order of the plan's homes."""
        routes = {
            home: [home, *(f"{home}-{number}" for number in range(2, 2 + plan.most_moves))] for home in plan.configs
        }
        self.applications = Applications(
            self.network, routes, self.history, trace, self.wall_clock_us, Limits(keepalive_idle_s=2.0)
        )
        for home, config in plan.configs.items():
            self.serving.append(self._add_node(home, config))
        self.storm = Storm(self)
        self._machines: trio.Nursery

    def _add_node(self, name: str, config: BrokerConfig) -> BrokerNode:
        node = BrokerNode(
            name,
            msgspec.structs.replace(config, listen=(f"{name}:{PORT}",)),
            network=self.network,
            buckets=self.buckets,
            random=self.random_of(f"node {name}"),
            wall_clock_us=self.wall_clock_us,
            pauses=self.pauses,
            trace=self.trace,
            started=lambda node: self.history.new_life(self.plan.home_of(node.name)),
            recovered=lambda node: self.history.recovered(self.plan.home_of(node.name)),
            failed=self._failed,
        )
        self.nodes.append(node)
        return node

    @property
    def node(self) -> BrokerNode:
        """The only node that serves, in worlds that have but one."""
        (node,) = self.serving
        return node

    def wall_clock_us(self) -> int:
        """Microseconds since the epoch, in this world."""
        return EPOCH_US + int(trio.current_time() * 1e6)

    def random_of(self, name: str) -> Random:
        """Return a separate source of randomness for a name."""
        return Random(f"{name} {self.plan.seed}")

    def crash(self, node: BrokerNode, *, power_loss: bool) -> None:
        """Kill a broker or cut its power, and record it in the history."""
        node.crash(power_loss=power_loss)
        if power_loss:
            self.history.power_loss(self.plan.home_of(node.name))

    def damaged(self, node: BrokerNode, topic_ids: set[TopicId]) -> None:
        """Data of some topics was damaged (0: of any of the node's): they may stop, loudly."""
        assert node.life is not None
        every = 0 in topic_ids
        topics = node.life.broker.directory.topics()
        names = dict.fromkeys(topic.name for topic in topics if every or topic.topic_id in topic_ids)
        if every:  # also those that it has not opened yet, because their storage is away
            home = self.plan.home_of(node.name)
            names |= dict.fromkeys(part for topic in self.plan.topics if topic.home == home for part in topic.parts)
        for name in names:
            self.trace("damaged", name)
            self.history.damaged(name)

    def replace(self, former: BrokerNode) -> BrokerNode:
        """Start a broker on a new machine in the place of another one, whose process goes on if it is alive."""
        home = self.plan.home_of(former.name)
        former.retired = True
        if former.life is not None and not former.life.over:
            self.history.replaced(home)
        node = self._add_node(f"{home}-{len(self.nodes) + 1}", self.plan.configs[home])
        node.set_storage_faults(latency_s=0.005)
        self.serving[self.serving.index(former)] = node
        self._machines.start_soon(self._supervise, node)
        return node

    def _failed(self, node: BrokerNode, life: Life, error: BaseException) -> None:
        ours = danube_error(error)
        if node.lost and isinstance(ours, DataLossError) and "Nothing was changed" in str(ours):
            changed = node.mend()  # that is what it shall do
            if changed:
                self.history.violation(f"life {life.number} of {node.name}: {changed}")
            return
        if isinstance(ours, JournalFencedError) and node.disk_errors:
            return  # that is what it shall do when a sync fails
        if isinstance(ours, JournalFullError) and "full-disk" in self.plan.faults:
            return  # recovery needs a file of its own, and says so
        if isinstance(ours, UnavailableError) and "metadata" in str(ours) and "metadata-trouble" in self.plan.faults:
            return  # it cannot start, or not go on, without its metadata
        if isinstance(ours, OwnerFencedError) and len(self.nodes) > len(self.plan.configs):
            return  # another machine has taken over
        ended = f"life {life.number} of {node.name} ended: {shown_error(error)}"
        if node.lost:
            self.give_up(ended)  # whatever comes after that says nothing
        else:
            self.history.violation(ended)

    # --- The course of the world

    async def run(self) -> None:
        """Run the world from the first start to the last check."""
        async with self.machines():
            try:
                await self._create_topics()
                await self._storm_and_calm()
                await self._audit("hot")
                await self._seal_and_restart()
                await self._audit("sealed")
                await self._nothing_comes_again()
                for node in self.serving:
                    node.drain()
                    await self._ended(node)
            except* StuckError as stuck:
                self.history.violation(shown_error(stuck))
        for violation in self.history.check():
            self.trace("violation", violation)

    def give_up(self, violation: str) -> None:
        """End the world here."""
        self.history.violation(violation)
        self.trace("given-up", violation)
        for node in self.nodes:
            node.crash(power_loss=True)
        self._machines.cancel_scope.cancel()

    @asynccontextmanager
    async def machines(self) -> AsyncIterator[None]:
        """Run the brokers while the block lasts."""
        async with trio.open_nursery() as self._machines:
            for node in self.serving:
                self._machines.start_soon(self._supervise, node)
            yield
            self._machines.cancel_scope.cancel()

    async def _supervise(self, node: BrokerNode) -> None:
        random = self.random_of(f"supervisor {node.name}")
        await node.run(restart_delay_s=lambda: random.choice((0.0, 0.05, 1.0)))

    async def _storm_and_calm(self) -> None:
        plan, applications = self.plan, self.applications
        producing = trio.CancelScope()
        async with trio.open_nursery() as consumers:
            for consumer in plan.consumers:
                work = partial(consume_upstream, applications) if consumer.upstream else applications.consume
                consumers.start_soon(work, consumer, self.random_of(consumer.name))
            with producing:
                async with trio.open_nursery() as producers:
                    for producer in plan.producers:
                        producers.start_soon(applications.produce, producer, self.random_of(producer.name))
                    for upstream in plan.upstream:
                        producers.start_soon(produce_upstream, applications, upstream, self.random_of(upstream.name))
                    for chore in plan.chores:
                        producers.start_soon(do_chore, applications, chore, self.random_of(chore.name))
                    await self.storm.rage()
                    applications.calm.set()
                    producing.deadline = trio.current_time() + _PATIENCE_S
            if producing.cancelled_caught:
                consumers.cancel_scope.cancel()
                raise StuckError("a producer is stuck: not everything is settled 300 s after the last fault")
            await self._caught_up()
            applications.finished.set()
            consumers.cancel_scope.deadline = trio.current_time() + _PATIENCE_S
        if consumers.cancel_scope.cancelled_caught:
            raise StuckError("a consumer is stuck: it has not left 300 s after it was told to")
        for each in plan.consumers:
            for part in each.topic.parts:
                self.history.settled(part, each.subscription)

    async def _create_topics(self) -> None:
        for consumer in self.plan.consumers:
            self.history.rules(consumer.topic.parts, consumer.subscription, consumer.rules)
        for topic in self.plan.topics:
            async with self._client("admin", topic.home) as client:
                await client.admin.create_topic(
                    topic.name, partitions=topic.partitions, durability=topic.durability, retention=topic.retention
                )
                if topic.message_ttl_s:
                    await client.admin.change_policies(topic.name, message_ttl_s=topic.message_ttl_s)
            for part in topic.parts:
                self.history.topic(
                    part,
                    topic.durability,
                    retention=bool(topic.retention),
                    least_bytes=topic.retention.max_bytes,
                    home=topic.home,
                )
        for consumer in self.plan.consumers:
            if consumer.upstream:
                await self._subscribe(consumer)

    async def _subscribe(self, plan: ConsumerPlan) -> None:
        """Create a subscription that begins with the first message: those of the upstream protocol never do."""
        async with (
            self._client("admin", plan.topic.home) as client,
            client.consumer(
                plan.topic.name, subscription=plan.subscription, type=plan.kind, start="earliest", policy=plan.policy
            ),
        ):
            pass

    async def _caught_up(self) -> None:
        """Wait until no subscription has a backlog, and no message is on its way to a log.

        The broker may have accepted messages of a producer that has crashed since. They arrive later, in a topic of
        durability ``remote`` when its storage permits.
        """
        for plan in {(plan.topic, plan.subscription): plan for plan in self.plan.consumers}.values():
            topic, subscription = plan.topic, plan.subscription
            if self.history.is_damaged(topic.parts):
                continue
            if PoisonPolicy.BLOCK in plan.poisons:
                # Its blocking message may never be acknowledged any more: allow no poison.
                async with self._client("monitor", topic.home) as monitor:
                    change = partial(
                        monitor.admin.change_subscription_policy, topic.name, subscription, max_redelivery_count=-1
                    )
                    await self._patiently(f"unblocking {subscription} of {topic.name}", change)
            async with self._client("monitor", topic.home) as monitor:
                with trio.move_on_after(_PATIENCE_S) as patience:
                    while True:
                        arriving = self._node_of(topic.home).has_unsettled(topic.parts)
                        try:
                            rows = await monitor.admin.describe_subscription(topic.name, subscription)
                            if not arriving and not any(row.backlog_messages for row in rows):
                                break
                        except DanubeError as error:
                            self.trace("monitor-error", shown_error(error))
                        await trio.sleep(0.5)
                if patience.cancelled_caught:
                    try:
                        explanation = (await monitor.admin.explain_subscription(topic.name, subscription)).sentence
                    except DanubeError as error:
                        explanation = shown_error(error)
                    raise StuckError(f"{subscription} of {topic.name} is stuck: {explanation}")

    def _node_of(self, home: str) -> BrokerNode:
        """Return the machine that serves a home."""
        return next(node for node in self.serving if self.plan.home_of(node.name) == home)

    async def _audit(self, label: str) -> None:
        for topic in self.plan.topics:
            if topic.durability is Durability.NONE:
                continue
            async with self._client("auditor", topic.home) as client:
                try:
                    found = await self._patiently(f"audit {label} of {topic.name}", partial(read_topic, client, topic))
                except StuckError as stuck:
                    if not self.history.is_damaged(topic.parts) or not isinstance(stuck.__cause__, _LOUD):
                        raise
                    self.trace("stopped", label, topic.name, shown_error(stuck.__cause__))
                    continue
            for part, (messages, start) in found.items():
                self.history.audit(label, part, messages, start)
                self.trace("audit", label, part, len(messages))
        for plan in {(plan.topic, plan.subscription): plan for plan in self.plan.consumers}.values():
            if self.history.is_damaged(plan.topic.parts):
                continue
            if PoisonPolicy.DEAD_LETTER in plan.poisons and plan.topic.durability is not Durability.NONE:
                async with self._client("auditor", plan.topic.home) as client:
                    letters = await self._patiently(
                        f"reading the dead letters of {plan.subscription} of {plan.topic.name}",
                        partial(read_letters, client, f"{plan.topic.name}-{plan.subscription}-dlq"),
                    )
                self.history.dead_letters(plan.topic.name, plan.subscription, letters)
                self.trace("letters", label, plan.topic.name, plan.subscription, len(letters))

    async def _seal_and_restart(self) -> None:
        for topic in self.plan.topics:
            if topic.durability is not Durability.NONE and not self.history.is_damaged(topic.parts):
                async with self._client("admin", topic.home) as client:
                    await self._patiently(f"sealing {topic.name}", partial(client.admin.seal_topic, topic.name))
        for node in list(self.serving):
            if self.plan.last_end == "drain":
                node.drain()
            elif self.plan.last_end == "loss":
                self.crash(node, power_loss=True)
                self.replace(node)
            else:
                self.crash(node, power_loss=self.plan.last_end == "power-loss")
            await self._ended(node)

    async def _ended(self, node: BrokerNode) -> None:
        life = node.life
        if life is not None:
            with trio.move_on_after(_PATIENCE_S) as patience:
                await life.ended.wait()
            if patience.cancelled_caught:
                raise StuckError(f"life {life.number} of {node.name} does not end")

    async def _nothing_comes_again(self) -> None:
        """Open every subscription again: everything was acknowledged, so nothing may be delivered."""
        plans = {(plan.topic.name, plan.subscription): plan for plan in self.plan.consumers}
        for plan in plans.values():
            if self.history.is_damaged(plan.topic.parts):
                continue
            async with (
                self._client("late", plan.topic.home) as client,
                client.consumer(
                    plan.topic.name, subscription=plan.subscription, type=plan.kind, start="earliest"
                ) as consumer,
            ):
                session = self.history.session(plan.subscription, plan.kind, plan.topic.parts)
                with trio.move_on_after(5):
                    async for message in consumer:
                        self.history.deliver(session, 1, message.topic, message.offset, message.payload, message.key)
                        self.trace("again", plan.subscription, message.topic, message.offset)

    async def _patiently(self, what: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something in calm weather: it may take a while, and must succeed in the end."""
        last: DanubeError | None = None
        with trio.move_on_after(_PATIENCE_S):
            while True:
                try:
                    return await work()
                except DanubeError as error:
                    last = error
                    self.trace("again", what, shown_error(last))
                    if isinstance(last, _LOUD):
                        break
                await trio.sleep(1)
        raise StuckError(f"{what} does not succeed: {shown_error(last) if last else 'no answer'}") from last

    @asynccontextmanager
    async def _client(self, host: str, home: str) -> AsyncIterator[Client]:
        give_up_at = trio.current_time() + _PATIENCE_S
        async with AsyncExitStack() as stack:
            while True:
                try:
                    client = await stack.enter_async_context(self.applications.client(host, self.random_of(host), home))
                    break
                except DanubeError as error:
                    if trio.current_time() > give_up_at:
                        raise StuckError(f"{host} cannot connect: {shown_error(error)}") from error
                await trio.sleep(0.1)
            yield client


class StuckError(Exception):
    """Something does not end."""


class _SpinWatch(trio.abc.Instrument):
    """Ends a world whose time stands still because a task is always busy: in reality, a core at 100 %."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._now = 0.0
        self._passes = 0

    def before_io_wait(self, timeout: float) -> None:
        """Count a pass of the scheduler."""
        now = trio.current_time()
        if now != self._now:
            self._now = now
            self._passes = 0
        self._passes += 1
        if self._passes == _MOST_PASSES:
            self._world.give_up(f"a task never waits: {_MOST_PASSES} passes of the scheduler at {now:.6f} s")


class _LogWatch(logging.Handler):
    """What the product logs is part of the trace; an exception in its log is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record to the trace."""
        self._world.trace("log", record.levelname, record.getMessage())
        if record.exc_info is not None:
            error = record.exc_info[1]
            self._world.history.violation(
                f"the broker logged a failure: {record.getMessage()}: {shown_error(error) if error else ''}"
            )


@contextmanager
def _watched_log(world: World) -> Iterator[None]:
    logger = logging.getLogger("danube")
    watch = _LogWatch(world)
    before = logger.propagate
    logger.addHandler(watch)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(watch)
        logger.propagate = before


def run_world(
    seed: int, *, plan: WorldPlan | None = None, show: Callable[[str], None] | None = None, keep: int = 2_000
) -> Report:
    """Run the world of a seed from beginning to end; blocks, and takes no real time that is not computed.

    Args:
        seed: of everything.
        plan: another plan than the seed's, for tests.
        show: gets each line of the trace.
        keep: lines of the trace that the report tells.
    """
    plan = plan if plan is not None else draw_plan(seed)
    trace = Trace(show=show, keep=keep)

    async def main() -> Report:
        world = World(plan, trace)
        trio.lowlevel.add_instrument(_SpinWatch(world))
        with _watched_log(world):
            await world.run()
        history = world.history
        return Report(
            seed=seed,
            violations=history.violations,
            digest=trace.digest,
            virtual_s=trio.current_time(),
            counts=dict(sorted(trace.counts.items())),
            faults=dict(sorted(trace.faults.items())),
            published=history.published_messages,
            acknowledged=history.acknowledged_messages,
            delivered=history.delivered_messages,
            audited=history.audited_messages,
            story=list(trace.lines),
        )

    return run_seeded(main, seed)
