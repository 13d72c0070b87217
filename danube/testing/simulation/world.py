"""A world from a seed: it storms, it calms down, and then everything must be as it was promised.

:func:`run_world` builds what :mod:`danube.testing.simulation.plan` has drawn, lets the applications work while the
storm breaks one thing after the other, repairs everything, waits until all is settled and caught up, audits the topics,
seals them, ends the broker in one of three ways, audits again, and asks the history whether all of that can be.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import NamedTuple, TypeVar

import trio

from danube.client import Client
from danube.model.errors import DanubeError, JournalFencedError, JournalFullError
from danube.model.limits import Limits
from danube.storage import MemorySpace
from danube.testing.history import History
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import BrokerNode, Life, danube_error, shown_error
from danube.testing.simulation.plan import Plan, draw_plan
from danube.testing.simulation.storm import Storm
from danube.testing.simulation.trace import Trace
from danube.testing.simulation.workload import Applications, read_topic

__all__ = ["Report", "World", "run_world"]

_T = TypeVar("_T")

EPOCH_US = 1_700_000_000_000_000
"""Wall clock at the beginning of every world."""

_MOST_PASSES = 100_000
"""Passes of the scheduler at one moment of virtual time; worlds that are well need some hundreds."""

_PATIENCE_S = 300.0
"""Virtual seconds after which something that should end is stuck."""


class Report(NamedTuple):
    """What became of a world."""

    seed: int
    violations: list[str]
    digest: str
    virtual_s: float
    counts: dict[str, int]
    """How often what happened, from the trace."""
    published: int
    acknowledged: int
    delivered: int
    audited: int
    story: list[str]
    """The last lines of the trace."""


class World:
    """Everything that a seed stands for. Build it inside the run."""

    def __init__(self, plan: Plan, trace: Trace) -> None:
        self.plan = plan
        self.trace = trace
        self.history = History()
        self.network = Network(Random(f"network {plan.seed}"), trace)
        self.buckets: dict[str, MemorySpace] = {}
        self._scope = trio.CancelScope()
        self.node = BrokerNode(
            "broker",
            plan.config,
            network=self.network,
            buckets=self.buckets,
            random=Random(f"node {plan.seed}"),
            wall_clock_us=self.wall_clock_us,
            trace=trace,
            failed=self._failed,
        )
        self.applications = Applications(
            self.network, "broker", self.history, trace, self.wall_clock_us, Limits(keepalive_idle_s=2.0)
        )
        self.storm = Storm(self.plan, self.node, self.network, self.history, trace, Random(f"storm {plan.seed}"))

    def wall_clock_us(self) -> int:
        """Microseconds since the epoch, in this world."""
        return EPOCH_US + int(trio.current_time() * 1e6)

    def _failed(self, life: Life, error: BaseException) -> None:
        ours = danube_error(error)
        if isinstance(ours, JournalFencedError) and self.storm.disk_errors:
            return  # that is what it shall do when a sync fails
        if isinstance(ours, JournalFullError) and "full-disk" in self.plan.faults:
            return  # recovery needs a file of its own, and says so
        self.history.violation(f"life {life.number} of the broker ended: {shown_error(error)}")

    # --- The course of the world

    async def run(self) -> None:
        """From the first start to the last check."""
        async with trio.open_nursery() as machines:
            self._scope = machines.cancel_scope
            machines.start_soon(self._supervise)
            try:
                async with self._client("admin") as admin:
                    await self._create_topics(admin)
                await self._storm_and_calm()
                await self._audit("hot")
                await self._seal_and_restart()
                await self._audit("sealed")
                await self._nothing_comes_again()
                self.node.drain()
                await self._ended()
            except* StuckError as stuck:
                self.history.violation(shown_error(stuck))
            machines.cancel_scope.cancel()
        for violation in self.history.check():
            self.trace("violation", violation)

    def give_up(self, violation: str) -> None:
        """End the world here."""
        self.history.violation(violation)
        self.trace("given-up", violation)
        self.node.crash(power_loss=True)
        self._scope.cancel()

    async def _supervise(self) -> None:
        random = Random(f"supervisor {self.plan.seed}")
        await self.node.run(restart_delay_s=lambda: random.choice((0.0, 0.05, 1.0)))

    async def _storm_and_calm(self) -> None:
        plan, applications = self.plan, self.applications
        producing = trio.CancelScope()
        async with trio.open_nursery() as consumers:
            for consumer in plan.consumers:
                consumers.start_soon(applications.consume, consumer, self._random_of(consumer.name))
            with producing:
                async with trio.open_nursery() as producers:
                    for producer in plan.producers:
                        producers.start_soon(applications.produce, producer, self._random_of(producer.name))
                    await self.storm.rage()
                    applications.calm.set()
                    producing.deadline = trio.current_time() + _PATIENCE_S
            if producing.cancelled_caught:
                consumers.cancel_scope.cancel()
                raise StuckError("a producer is stuck: not everything is settled 300 s after the last fault")
            async with self._client("monitor") as monitor:
                await self._caught_up(monitor)
            applications.finished.set()
            consumers.cancel_scope.deadline = trio.current_time() + _PATIENCE_S
        if consumers.cancel_scope.cancelled_caught:
            raise StuckError("a consumer is stuck: it has not left 300 s after it was told to")
        for each in plan.consumers:
            for part in each.topic.parts:
                self.history.settled(part, each.subscription)

    def _random_of(self, name: str) -> Random:
        return Random(f"{name} {self.plan.seed}")

    async def _create_topics(self, admin: Client) -> None:
        for topic in self.plan.topics:
            await admin.create_topic(
                topic.name, partitions=topic.partitions, durability=topic.durability, retention=topic.retention
            )
            for part in topic.parts:
                self.history.topic(part, topic.durability, retention=bool(topic.retention))

    async def _caught_up(self, monitor: Client) -> None:
        """Wait until no subscription has a backlog."""
        subscriptions = dict.fromkeys((plan.topic.name, plan.subscription) for plan in self.plan.consumers)
        for topic, subscription in subscriptions:
            with trio.move_on_after(_PATIENCE_S) as patience:
                while True:
                    try:
                        rows = await monitor.describe_subscription(topic, subscription)
                        if not any(row.backlog_messages for row in rows):
                            break
                    except DanubeError as error:
                        self.trace("monitor-error", shown_error(error))
                    await trio.sleep(0.5)
            if patience.cancelled_caught:
                explanation = await monitor.explain_subscription(topic, subscription)
                raise StuckError(f"{subscription} of {topic} is stuck: {explanation}")

    async def _audit(self, label: str) -> None:
        async with self._client("auditor") as client:
            for topic in self.plan.topics:
                found = await self._patiently(
                    f"audit {label} of {topic.name}", partial(read_topic, client, topic, f"audit-{label}")
                )
                for part, messages in found.items():
                    self.history.audit(label, part, messages)
                    self.trace("audit", label, part, len(messages))

    async def _seal_and_restart(self) -> None:
        async with self._client("admin") as admin:
            for topic in self.plan.topics:
                await self._patiently(f"sealing {topic.name}", partial(admin.seal_topic, topic.name))
        if self.plan.last_end == "drain":
            self.node.drain()
        else:
            power_loss = self.plan.last_end == "power-loss"
            self.node.crash(power_loss=power_loss)
            if power_loss:
                self.history.power_loss()
        await self._ended()

    async def _ended(self) -> None:
        life = self.node.life
        if life is not None:
            with trio.move_on_after(_PATIENCE_S) as patience:
                await life.ended.wait()
            if patience.cancelled_caught:
                raise StuckError(f"life {life.number} of the broker does not end")

    async def _nothing_comes_again(self) -> None:
        """Open every subscription once more: all of it was acknowledged, so nothing may come."""
        plans = {(plan.topic.name, plan.subscription): plan for plan in self.plan.consumers}
        async with self._client("late") as client:
            for plan in plans.values():
                async with client.consumer(
                    plan.topic.name, subscription=plan.subscription, type=plan.kind, start="earliest"
                ) as consumer:
                    session = self.history.session(plan.subscription, plan.kind, plan.topic.parts)
                    with trio.move_on_after(5):
                        async for message in consumer:
                            self.history.deliver(
                                session, 1, message.topic, message.offset, message.payload, message.key
                            )
                            self.trace("again", plan.subscription, message.topic, message.offset)

    async def _patiently(self, what: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something in calm weather: it may take a while, and must succeed in the end."""
        last = ""
        with trio.move_on_after(_PATIENCE_S):
            while True:
                try:
                    return await work()
                except DanubeError as error:
                    last = shown_error(error)
                    self.trace("again", what, last)
                await trio.sleep(1)
        raise StuckError(f"{what} does not succeed: {last or 'no answer'}")

    @asynccontextmanager
    async def _client(self, host: str) -> AsyncIterator[Client]:
        give_up_at = trio.current_time() + _PATIENCE_S
        async with AsyncExitStack() as stack:
            while True:
                try:
                    client = await stack.enter_async_context(self.applications.client(host, self._random_of(host)))
                    break
                except DanubeError as error:
                    if trio.current_time() > give_up_at:
                        raise StuckError(f"{host} cannot connect: {shown_error(error)}") from error
                await trio.sleep(0.1)
            yield client


class StuckError(Exception):
    """Something does not come to its end."""


class _SpinWatch(trio.abc.Instrument):
    """Ends a world whose time stands still because somebody is always busy: in reality, a core at 100 %."""

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
            self._world.give_up(f"somebody spins: {_MOST_PASSES} passes of the scheduler at {now:.6f} s")


class _LogWatch(logging.Handler):
    """What the product logs is part of the trace; an exception in its log is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
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
    seed: int, *, plan: Plan | None = None, show: Callable[[str], None] | None = None, keep: int = 2_000
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
            published=history.published_messages,
            acknowledged=history.acknowledged_messages,
            delivered=history.delivered_messages,
            audited=history.audited_messages,
            story=list(trace.lines),
        )

    return run_seeded(main, seed)
