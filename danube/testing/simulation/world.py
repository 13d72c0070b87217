"""Runs a world from a seed: applications under faults, then repair, and a check that all promises were kept.

:func:`run_world` builds what :mod:`danube.testing.simulation.plan` has drawn, lets the applications work while the
faults are injected one after the other, repairs everything, waits until all is settled and caught up, audits the
topics, seals them, ends the broker in one of three ways, audits again, and checks the history for violations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import NamedTuple, TypeVar

import msgspec
import trio

from danube.broker import BrokerConfig
from danube.broker.directory.directory import Directory
from danube.client import Client, Receipt
from danube.cluster.records import ASSIGNMENTS, SESSIONS, Assignment, broker_name, topic_key
from danube.metadata import MetadataStore
from danube.model.errors import (
    ClosedError,
    CorruptBatchError,
    DanubeError,
    DataDirectoryError,
    DataLossError,
    JournalFencedError,
    JournalFullError,
    OwnerAwayError,
    OwnerFencedError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.limits import Limits
from danube.model.policies import Durability, PoisonPolicy
from danube.storage import MemorySpace
from danube.testing.history import History
from danube.testing.metadata_history import MetadataHistory
from danube.testing.simulation._scheduler import Pauses, run_seeded
from danube.testing.simulation.chores import NO_TOPIC_RULES, do_chore
from danube.testing.simulation.forgotten import Forgetting
from danube.testing.simulation.holders import Holders
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import PORT, BrokerNode, Life, SharedMetadata, danube_error, shown_error
from danube.testing.simulation.owners import OwnerWatch, check_owners, find_differences
from danube.testing.simulation.plan import CLUSTER, WorldPlan, draw_plan
from danube.testing.simulation.raft_machine import ROOMY, TIGHT, RaftMachine
from danube.testing.simulation.registering import audit_schemas, use_schemas
from danube.testing.simulation.storm import Storm
from danube.testing.simulation.topic_moves import drain_brokers, move_topics
from danube.testing.simulation.trace import Trace
from danube.testing.simulation.upstream import consume_upstream, produce_upstream
from danube.testing.simulation.workload import Applications, ConsumerPlan, TopicPlan, read_letters, read_topic

__all__ = ["Report", "World", "run_world"]

_T = TypeVar("_T")

EPOCH_US = 1_700_000_000_000_000
"""Wall clock at the beginning of every world."""

_MOST_PASSES = 100_000
"""Passes of the scheduler at one moment of virtual time; worlds that are well need some hundreds."""

_LOUD = (DataLossError, CorruptBatchError)
"""How topics stop whose data is damaged."""

CONVERGE_S = 30.0
"""Virtual seconds in which a cluster has to be whole again after the last fault, and then to accept messages, unless a
storage hangs."""

_LEAST_ANSWER_S = 2.0
"""A member of the metadata that does not answer for so long is not waited for."""
_ASSIGNMENT = msgspec.msgpack.Decoder(Assignment)
_HANGING_S = 65.0
"""How long a read from a storage waits for an answer that never comes, if it does not know the size of the object."""

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
        self.metadata = SharedMetadata() if plan.is_cluster and not plan.keeps_metadata else None
        self.metadata_history = MetadataHistory()
        """Of the metadata that the brokers keep."""
        self.wiped: dict[str, str] = {}
        """Machines that have lost their disks, and the names of the brokers that they had been."""
        self._lost_topics = trio.Event()
        """Set when it is known which topics were lost with these disks."""
        self._forgetting: Forgetting | None = None
        self.joined: list[BrokerNode] = []
        """Machines whose brokers have joined the cluster since it was formed."""
        self.drained: dict[str, None] = {}
        """Brokers that may be draining."""
        self.topics = list(plan.topics)
        """Those that can be served; partitions take the place of a topic of which others are lost."""
        self.consumers = list(plan.consumers)
        """The consumers of these."""
        self.converge_s = CONVERGE_S + (_HANGING_S if "storage-trouble" in plan.faults else 0.0)
        """Virtual seconds that a cluster has for that."""
        self._calm_at = math.inf
        self.applications = Applications(
            self.network,
            plan.routes,
            self.history,
            trace,
            self.wall_clock_us,
            Limits(keepalive_idle_s=2.0),
            is_cluster=plan.is_cluster,
        )
        for home, config in plan.configs.items():
            self.serving.append(self._add_node(home, config))
        self.holders = Holders(self.history, trace)
        """Which machines hold the topics of a cluster."""
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
            started=self._has_started,
            recovered=self._recovered,
            failed=self._failed,
            metadata=self.metadata,
            raft=self._make_member(name) if self.plan.keeps_metadata else None,
        )
        node.shares_storages = self._shares_storages
        self.nodes.append(node)
        return node

    def _make_member(self, name: str) -> RaftMachine:
        options = TIGHT if self.plan.cuts_log else ROOMY
        return RaftMachine(name, self.random_of(f"metadata of {name}"), self.metadata_history, options)

    def _has_started(self, node: BrokerNode) -> None:
        if self.plan.is_cluster:
            self.holders.started(node)
        else:
            self.history.new_life(self.plan.home_of(node.name))

    def _recovered(self, node: BrokerNode) -> None:
        if self.plan.is_cluster:
            self.holders.recovered(node)
        else:
            self.history.recovered(self.plan.home_of(node.name))

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
        held = self.holders.of(node)
        node.crash(power_loss=power_loss)
        if power_loss and self.plan.is_cluster:
            self.holders.lost_power(held)
        elif power_loss:
            self.history.power_loss(self.plan.home_of(node.name))

    # --- Clusters

    def leader(self) -> BrokerNode | None:
        """Return the machine whose member leads the metadata, or whose broker coordinates; None if there is none."""
        for node in self.serving:
            if node.raft is not None and node.raft.is_leader:
                return node
        for node in self._ready():
            assert node.life is not None
            coordinator = node.life.broker.operations.cluster._coordinator()
            if coordinator is not None:
                return next((each for each in self._ready() if broker_of(each) == broker_name(coordinator)), None)
        return None

    def busiest(self) -> BrokerNode | None:
        """Return the machine that serves most topics; None if no broker is ready."""
        return max(self._ready(), key=lambda node: len(directory_of(node)), default=None)

    def wipe(self, node: BrokerNode) -> None:
        """Replace a machine's disks by empty ones, once in a world: what it stored alone stays away.

        Topics without durability, and those in a storage that others reach, get another owner. A topic that moves at
        this moment belongs to its owner by the metadata, as soon as the broker's session has ended.
        """
        if self.wiped or not node.ready.is_set() or node.life is None or node.life.over:
            return
        broker = self.wiped[node.name] = broker_of(node)
        self.trace.fault("wipe", node.name)
        self.crash(node, power_loss=True)
        node.wipe()
        self._machines.start_soon(self._find_lost, broker)

    async def _find_lost(self, broker: str) -> None:
        """Note which topics were lost with a disk: once its broker has no session, none can move to it or from it."""
        configs = self.plan.configs.values()
        fails_over = self._shares_storages or any("shared=true" in str(config.storage) for config in configs)
        owners = await self._owners_without(broker)
        while owners is None:
            await trio.sleep(0.25)
            owners = await self._owners_without(broker)
        for topic in self.plan.topics:
            is_there = topic.durability is Durability.NONE or (fails_over and topic.durability is Durability.REMOTE)
            for part in () if is_there else topic.parts:
                if owners[topic_key(self.holders.topic_id(part))] == broker:
                    self.trace("gone", part)
                    self.history.gone(part)
        if self.plan.forgets:
            self._forgetting = Forgetting(self)
        self._lost_topics.set()

    @property
    def _shares_storages(self) -> bool:
        """Whether brokers say that others reach all their storages: else topics with history cannot move."""
        return bool(self.plan.moves_every_s)

    async def _forget_early(self) -> None:
        """Task: have the broker whose disks were lost declared gone while faults go on."""
        await self._lost_topics.wait()
        assert self._forgetting is not None
        await self._forgetting.forget_early()

    async def _owners_without(self, broker: str) -> dict[str, str] | None:
        """Return the owners of all topics once a broker has no session; None: it has, or the metadata do not answer."""
        for store in [node.raft.store for node in self._ready() if node.raft is not None]:
            if store is None:
                continue
            with trio.move_on_after(_LEAST_ANSWER_S):
                try:
                    if await store.get(SESSIONS + broker) is not None:
                        return None
                    rows, _ = await store.list(ASSIGNMENTS)
                except DanubeError:
                    continue
                return {
                    row.key.removeprefix(ASSIGNMENTS): broker_name(_ASSIGNMENT.decode(row.value).owner) for row in rows
                }
        return None

    def operator(self) -> AbstractAsyncContextManager[Client]:
        """Return a client of the cluster for those who look after it; it tries only once to connect."""
        return self.applications.client("operator", self.random_of(f"operator {trio.current_time()}"), CLUSTER)

    async def _activate(self) -> None:
        """Make all brokers active again that were drained and are still there."""
        for name in self.drained:
            if name in self.wiped.values():
                continue
            async with self._client("operator", CLUSTER) as client:
                await self._patiently(f"activating {name}", partial(client.admin.activate_broker, name))

    def join(self) -> None:
        """Start a broker on a further machine, once in a world: it joins the cluster."""
        ready = self._ready()
        if self.joined or not ready:
            return
        config = self.plan.configs[self.serving[0].name]
        if self.plan.keeps_metadata:
            config = msgspec.structs.replace(config, peers="", join=f"{ready[0].name}:{PORT}")
        node = self._add_node(f"h{len(self.plan.configs) + 1}", config)
        self.trace.fault("join", node.name)
        # Its watch begins where the others are: what was before that, the copy of the table has.
        position = self.metadata_history.position
        position[node.name] = max(position.values(), default=0)
        self.joined.append(node)
        self.serving.append(node)
        self._machines.start_soon(self._supervise, node)
        if node.raft is not None:
            self._machines.start_soon(node.raft.follow)

    def _ready(self) -> list[BrokerNode]:
        return [node for node in self.serving if node.ready.is_set() and node.life is not None and not node.life.over]

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
        if isinstance(ours, JournalFencedError | DataDirectoryError) and node.disk_errors:
            return  # that is what it shall do when a sync fails
        if isinstance(ours, DataDirectoryError) and "Input/output error" in str(ours) and node.disk_errors:
            return  # the same, at a start: the file with its identity is written first
        if isinstance(ours, JournalFullError) and "full-disk" in self.plan.faults:
            return  # recovery needs a file of its own, and says so
        if isinstance(ours, UnavailableError) and "metadata" in str(ours) and "metadata-trouble" in self.plan.faults:
            return  # it cannot start, or not go on, without its metadata
        if isinstance(ours, UnavailableError | ClosedError) and self.plan.keeps_metadata and self._is_stormy():
            return  # the same: other members may be away
        if isinstance(ours, OwnerFencedError) and len(self.nodes) > len(self.plan.configs):
            return  # another machine has taken over
        ended = f"life {life.number} of {node.name} ended: {shown_error(error)}"
        if node.lost:
            self.give_up(ended)  # whatever comes after that says nothing
        else:
            self.history.violation(ended)

    def _is_stormy(self) -> bool:
        """Whether faults may still have effects."""
        return trio.current_time() < self._calm_at + self.converge_s

    # --- The course of the world

    async def run(self) -> None:
        """Run the world from the first start to the last check."""
        async with self.machines():
            try:
                if self.plan.is_cluster:
                    await self._formed()
                await self._create_topics()
                if self.plan.is_cluster:
                    await self._find_homes()
                await self._storm_and_calm()
                await self._audit("hot")
                await self._audit_schemas("hot")
                forgetting = self._forgetting
                if forgetting is None or not forgetting.is_ordered:
                    await self._find_gone()
                if forgetting is not None:
                    await forgetting.forget()
                await self._seal_and_restart()
                await self._audit("sealed")
                await self._audit_schemas("sealed")
                await self._nothing_comes_again()
                if forgetting is not None:
                    await forgetting.publish_again()
                if self.plan.keeps_metadata:
                    await self._check_metadata()
                for node in self.serving:
                    node.drain()
                    await self._ended(node)
            except* StuckError as stuck:
                self.history.violation(shown_error(stuck))
        for violation in self.applications.schemas.check():
            self.history.violation(violation)
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
        async with AsyncExitStack() as stack:
            if self.metadata is not None:
                await stack.enter_async_context(self.metadata)
            self._machines = await stack.enter_async_context(trio.open_nursery())
            for node in self.serving:
                self._machines.start_soon(self._supervise, node)
            if self.plan.is_cluster:
                self._machines.start_soon(OwnerWatch(self.serving, self.history).run)
            for node in self.serving:
                if node.raft is not None:
                    self._machines.start_soon(node.raft.follow)
            try:
                yield
            finally:
                for node in self.nodes:
                    node.resume()  # the tasks of a stopped machine would never end
            self._machines.cancel_scope.cancel()

    async def _formed(self) -> None:
        """Wait until all brokers are ready, so that topics are divided among all of them."""
        with trio.move_on_after(self.converge_s) as patience:
            while len(self._ready()) < len(self.serving):  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.1)
        if patience.cancelled_caught:
            raise StuckError(f"C8: the cluster has not formed within {self.converge_s:g} s")

    async def _find_homes(self) -> None:
        """Note which machine holds each topic: what becomes of its disk concerns this topic only."""
        nodes = {broker_of(node): node.name for node in self._ready()}
        for topic in self.plan.topics:
            for part in topic.parts:
                topic_id, owner = await self._patiently(f"looking up {part}", partial(self._owner_of, part))
                self.holders.begin(part, topic_id, nodes[owner])

    async def _owner_of(self, part: str) -> tuple[TopicId, str]:
        await trio.lowlevel.checkpoint()
        for node in self._ready():
            membership = directory_of(node).membership
            _, topic_id = directory_of(node).catalogue.locate(part)
            owner = membership.owner(topic_id)
            if owner is not None:
                return topic_id, broker_name(owner)
        raise UnavailableError(f"{part} has no owner yet")

    async def _converge(self) -> None:
        """Wait until the topics are divided among all brokers, and each of them accepts a message (C6, C7, C8)."""
        began, found = trio.current_time(), ["no broker is ready"]
        with trio.move_on_after(self.converge_s):
            while found:
                found = await self._differences()
                await trio.sleep(0.25)
        if found:
            raise StuckError(f"C6: {self.converge_s:g} s after the last fault {'; '.join(found[:5])}")
        self.trace("converged", f"{trio.current_time() - began:.2f}")
        self._set_aside()
        with trio.move_on_after(self.converge_s) as patience:
            async with trio.open_nursery() as nursery:
                for number, topic in enumerate(self.topics):
                    nursery.start_soon(self._probe, f"probe{number}", topic)
        if patience.cancelled_caught:
            raise StuckError(f"C8: a topic accepts no message {self.converge_s:g} s after all have owners")
        self.trace("probed", f"{trio.current_time() - began:.2f}")

    async def _differences(self) -> list[str]:
        stores: list[MetadataStore | None] = [node.raft.store for node in self._ready() if node.raft is not None]
        store = next(iter(stores), self.metadata)
        if store is None:
            return ["no broker is ready"]
        try:
            return await find_differences(store, self.serving, set(self.wiped.values()))
        except DanubeError as error:
            return [shown_error(error)]

    async def _probe(self, name: str, topic: TopicPlan) -> None:
        """Publish one message to each partition."""
        async with self._client(name, topic.home) as client:
            for number, part in enumerate(topic.parts):
                payload = f"{name}|{number}|".encode()
                self.history.publish(name, 1, number, part, payload, None)
                receipt = await self._patiently(f"publishing to {part}", partial(_send, client, name, part, payload))
                self.history.acknowledge(payload, receipt.topic, receipt.offset)

    def _set_aside(self) -> None:
        """Replace topics of which partitions are gone by those that are left, and their consumers."""
        topics: list[TopicPlan] = []
        for topic in self.plan.topics:
            parts = [part for part in topic.parts if not self.history.is_gone(part)]
            if len(parts) == len(topic.parts):
                topics.append(topic)
                continue
            left = [topic._replace(name=part, partitions=0) for part in parts]
            topics += left
            consumers = [each for each in self.consumers if each.topic == topic]
            self.consumers = [each for each in self.consumers if each.topic != topic]
            self.consumers += [each._replace(topic=part) for each in consumers for part in left]
        self.topics = topics

    async def _find_gone(self) -> None:
        """Check that what is gone says so, and names the broker that it waits for (C8)."""
        async with trio.open_nursery() as nursery:
            for topic in self.plan.topics:
                for part in filter(self.history.is_gone, topic.parts):
                    nursery.start_soon(self._ask_for, part, topic.home)

    async def _ask_for(self, part: str, home: str) -> None:
        (broker,) = self.wiped.values()
        async with self._client("auditor", home) as client:
            found = await self._patiently(f"asking for {part}", partial(_refusal, client, part))
        self.trace("away", part, found)
        if f"waits for broker {broker}" not in found:
            self.history.violation(f"C8: {part}, whose disk was lost with broker {broker}, says: {found}")

    async def _check_metadata(self) -> None:
        """Check what was seen of the metadata, once all members have told all of it (C1, C2, C7)."""
        history = self.metadata_history
        store = next(node.raft.store for node in self._ready() if node.raft is not None and node.raft.store is not None)
        items, revision = await store.list("/")
        with trio.move_on_after(self.converge_s):
            while any(history.position[node.name] < revision for node in self.serving):  # noqa: ASYNC110
                await trio.sleep(0.1)
        for node in self.serving:
            if history.position[node.name] < revision:
                history.violation(f"C7: a watch at {node.name} has told {history.position[node.name]} of {revision}")
        for violation in [*history.check(items, revision), *check_owners(history.story)]:
            self.history.violation(violation)
        self.trace("metadata", revision, history.changes, history.reads, history.leases_ended)

    async def _supervise(self, node: BrokerNode) -> None:
        random = self.random_of(f"supervisor {node.name}")
        await node.run(restart_delay_s=lambda: random.choice(self.plan.restarts_s))

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
                    for user in plan.schema_users:
                        producers.start_soon(use_schemas, applications, user, self.random_of(user.name))
                    async with trio.open_nursery() as movers:
                        if plan.moves_every_s:
                            movers.start_soon(move_topics, self, plan.moves_every_s)
                        if plan.drains_every_s:
                            movers.start_soon(drain_brokers, self, plan.drains_every_s)
                        if plan.forgets_early:
                            movers.start_soon(self._forget_early)
                        await self.storm.rage()
                        movers.cancel_scope.cancel()
                    self._calm_at = trio.current_time()
                    if self.wiped:
                        with trio.move_on_after(self.converge_s):
                            await self._lost_topics.wait()
                        if not self._lost_topics.is_set():
                            raise StuckError(f"C8: the session of {self.wiped} has not ended, or no broker is ready")
                    applications.abandoned.update(
                        topic.name for topic in plan.topics if any(map(self.history.is_gone, topic.parts))
                    )
                    applications.calm.set()
                    producing.deadline = trio.current_time() + _PATIENCE_S
                    if plan.is_cluster:
                        await self._activate()
                        await self._converge()
                        await self._take_over(consumers)
            if producing.cancelled_caught:
                consumers.cancel_scope.cancel()
                raise StuckError("a producer is stuck: not everything is settled 300 s after the last fault")
            await self._caught_up()
            applications.finished.set()
            consumers.cancel_scope.deadline = trio.current_time() + _PATIENCE_S
        if consumers.cancel_scope.cancelled_caught:
            raise StuckError("a consumer is stuck: it has not left 300 s after it was told to")
        for each in self.consumers:
            for part in each.topic.parts:
                self.history.settled(part, each.subscription)

    async def _take_over(self, consumers: trio.Nursery) -> None:
        """Start consumers of the partitions that are left, without the rules that may have been set for their topic."""
        for topic in self.plan.topics:
            if topic.name in self.applications.abandoned and not all(map(self.history.is_gone, topic.parts)):
                async with self._client("admin", topic.home) as client:
                    change = partial(client.admin.change_policies, topic.name, **NO_TOPIC_RULES)
                    await self._patiently(f"changing the policies of {topic.name}", change)
        for consumer in self.consumers:
            if consumer not in self.plan.consumers:
                name = f"{consumer.name}-{consumer.topic.name.rpartition('-')[2]}"
                consumers.start_soon(self.applications.consume, consumer._replace(name=name), self.random_of(name))

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
        for plan in {(plan.topic, plan.subscription): plan for plan in self.consumers}.values():
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
                        arriving = any(node.has_unsettled(topic.parts) for node in self._nodes_of(topic.home))
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

    def _nodes_of(self, home: str) -> list[BrokerNode]:
        """Return the machines that serve a home."""
        return [node for node in self.serving if self.plan.home_of(node.name) == home]

    async def _audit(self, label: str) -> None:
        for topic in self.topics:
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
        for plan in {(plan.topic, plan.subscription): plan for plan in self.consumers}.values():
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

    async def _audit_schemas(self, label: str) -> None:
        """Read the schema registry from each broker that could have changed it."""
        for home in dict.fromkeys(user.topic.home for user in self.plan.schema_users):
            for node in self._nodes_of(home):
                async with self._client("auditor", home, node.name) as client:
                    audit = partial(audit_schemas, self.applications.schemas, client, label, node.name)
                    await self._patiently(f"audit {label} of the schemas at {node.name}", audit)
        history = self.applications.schemas
        if self.plan.schema_users:
            self.trace("schemas", label, history.registered, history.found)

    async def _seal_and_restart(self) -> None:
        for topic in self.topics:
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
        plans = {(plan.topic.name, plan.subscription): plan for plan in self.consumers}
        async with trio.open_nursery() as nursery:
            for plan in plans.values():
                if self.history.is_damaged(plan.topic.parts):
                    continue
                if self.plan.is_cluster:  # all at once: a cluster is busy while nothing happens
                    nursery.start_soon(self._look_for_more, plan)
                else:
                    await self._look_for_more(plan)

    async def _look_for_more(self, plan: ConsumerPlan) -> None:
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

    def client(self, host: str) -> AbstractAsyncContextManager[Client]:
        """Return a client of the cluster that connects however long it takes, in calm weather."""
        return self._client(host, CLUSTER)

    async def patiently(self, what: str, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do something in calm weather: it may take a while, and must succeed in the end.

        Raises:
            StuckError: it does not.
        """
        return await self._patiently(what, work)

    async def send(self, client: Client, name: str, part: str, payload: bytes) -> int:
        """Publish a message that the history does not know; return its offset."""
        return (await _send(client, name, part, payload)).offset

    @asynccontextmanager
    async def _client(self, host: str, home: str, machine: str = "") -> AsyncIterator[Client]:
        give_up_at = trio.current_time() + _PATIENCE_S
        async with AsyncExitStack() as stack:
            while True:
                try:
                    connecting = self.applications.client(host, self.random_of(host), home, machine)
                    client = await stack.enter_async_context(connecting)
                    break
                except DanubeError as error:
                    if trio.current_time() > give_up_at:
                        raise StuckError(f"{host} cannot connect: {shown_error(error)}") from error
                await trio.sleep(0.1)
            yield client


class StuckError(Exception):
    """Something does not end."""


def directory_of(node: BrokerNode) -> Directory:
    """Return the topics of a broker that is ready."""
    assert node.life is not None
    return node.life.broker.directory


def broker_of(node: BrokerNode) -> str:
    """Return the name in the cluster of a broker that is ready."""
    return directory_of(node).broker


async def _send(client: Client, name: str, part: str, payload: bytes) -> Receipt:
    async with client.producer(part, name=name) as producer:
        return await producer.send(payload)


async def _refusal(client: Client, part: str) -> str:
    """Return why a topic is not served; raises if it is about to be moved or created."""
    try:
        await client.admin.describe_topic(part)
    except OwnerAwayError as error:
        return str(error)
    return "it is served"


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
