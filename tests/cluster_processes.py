"""Three real brokers for tests, a load on their topics, and the books of what they have promised.

A :class:`Cluster` is three broker processes that form one cluster. A :class:`Load` writes to some topics, one task a
topic, so that a topic whose owner is away stops no other, consumes them, and notes when each publish was acknowledged:
:meth:`Load.gap` is how long topics were without one. At the end :meth:`Load.check` reads every log and holds the
brokers to the books: what was acknowledged is there, at its offset, once, and was consumed.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType

import trio
from brokers import BrokerProcess
from ledgers import Ledger, receipt_ranges

import danube
from danube.client import Client
from danube.model.cluster_api import ClusterStatus
from danube.model.errors import AlreadyExistsError, DanubeError

SERVED_WITHIN_S = 10.0
"""How long after the last broker is up every topic has to be served."""
PATIENCE_S = 60.0
_POLL_S = 0.05


class Cluster:
    """A context manager: three brokers that form a cluster, or those that are given."""

    def __init__(self, directory: Path, brokers: Sequence[BrokerProcess] | None = None) -> None:
        self.directory = directory
        self.brokers = list(brokers or [])
        self._stack = ExitStack()
        if brokers is None:
            self.brokers = [BrokerProcess(directory / f"b{n}", stderr=directory / f"b{n}.log") for n in (1, 2, 3)]
            listed = ",".join(self.address(broker) for broker in self.brokers)
            for broker in self.brokers:
                broker.options = ("--peers", listed)

    def __enter__(self) -> Cluster:
        with self._stack:
            for broker in self.brokers:
                broker.launch()
                self._stack.push(broker.__exit__)
            for broker in self.brokers:
                assert broker.wait_ready(), self.logs()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if error is not None:
            error.add_note(self.logs())

    def logs(self) -> str:
        """The ends of what the brokers have logged."""
        ends = [
            f"--- {broker.stderr.name}:\n" + "\n".join(broker.stderr.read_text().splitlines()[-15:])
            for broker in self.brokers
            if broker.stderr is not None and broker.stderr.exists()
        ]
        return "\n".join(ends)

    def address(self, broker: BrokerProcess) -> str:
        """``host:port`` of a broker."""
        return broker.url.removeprefix("danube://")

    def url(self, brokers: Collection[BrokerProcess] | None = None) -> str:
        """The URL with all brokers, or with some."""
        return "danube://" + ",".join(self.address(broker) for broker in brokers or self.brokers)

    def others(self, *gone: BrokerProcess) -> list[BrokerProcess]:
        """All brokers but some."""
        return [broker for broker in self.brokers if broker not in gone]

    def at(self, address: str) -> BrokerProcess:
        """The broker with an address."""
        return next(broker for broker in self.brokers if self.address(broker) == address)

    async def status(self, broker: BrokerProcess) -> ClusterStatus:
        """The status, as one broker gives it."""
        async with danube.connect(broker.url, request_timeout_s=5) as client:
            return await client.admin.cluster_status()

    async def leader(self) -> BrokerProcess:
        """The broker whose metadata member leads, as soon as there is one."""
        with trio.fail_after(PATIENCE_S):
            while True:
                status = await self.status(self.brokers[0])
                for member in status.metadata.members:
                    if member.role == "leader" and member.address:
                        return self.at(member.address)
                await trio.sleep(_POLL_S)

    async def owners(self, client: Client, topics: Collection[str]) -> dict[str, str]:
        """The address of the owner of each topic; empty if it is away."""
        found = {}
        for topic in topics:
            explained = await client.admin.cluster_explain(topic)
            for place in explained.topics:
                found[place.topic] = place.address
        return found

    async def settle(self, topics: Collection[str], *, active: int = 3, voters: int = 3) -> float:
        """Wait until all brokers agree that they are active and vote, and all topics are served; return how long."""
        began = time.monotonic()
        problem = ""
        with trio.move_on_after(PATIENCE_S):
            for broker in self.brokers:
                while problem := await self._unsettled(broker, topics, active, voters):  # noqa: ASYNC110 - processes
                    await trio.sleep(_POLL_S)
            return time.monotonic() - began
        raise AssertionError(f"the cluster did not settle within {PATIENCE_S:g} s: {problem}\n{self.logs()}")

    async def _unsettled(self, broker: BrokerProcess, topics: Collection[str], active: int, voters: int) -> str:
        try:
            async with danube.connect(broker.url, request_timeout_s=5) as client:
                status = await client.admin.cluster_status()
                rows = [(row.name, row.state) for row in status.brokers]
                roles = [member.role for member in status.metadata.members]
                if [state for _, state in rows].count("active") != active:
                    return f"{rows}"
                if roles.count("leader") != 1 or roles.count("voter") + 1 != voters:
                    return f"metadata members: {roles}"
                for topic in topics:
                    explained = await client.admin.cluster_explain(topic)
                    if explained.state != "served":
                        return explained.sentence
        except (DanubeError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    async def noticed(self, victim: BrokerProcess, *, at: BrokerProcess) -> float:
        """Wait until a broker shows another one as away; return when, by the monotonic clock."""
        async with danube.connect(at.url, request_timeout_s=5) as client:
            with trio.fail_after(PATIENCE_S):
                while True:
                    rows = (await client.admin.cluster_status(gather=False)).brokers
                    if any(row.address == self.address(victim) and row.state == "away" for row in rows):
                        return time.monotonic()
                    await trio.sleep(0.01)

    async def metadata_write(self, name: str, brokers: Collection[BrokerProcess]) -> float:
        """Create a namespace at one of some brokers; return how many seconds that took with all its attempts."""
        began = time.monotonic()
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    async with danube.connect(self.url(brokers), request_timeout_s=2) as client:
                        await client.admin.create_namespace(name)
                        return time.monotonic() - began
                except AlreadyExistsError:  # an attempt without an answer has done it
                    return time.monotonic() - began
                except DanubeError:
                    await trio.sleep(_POLL_S)


class Load:
    """Producers and consumers of some topics, which live through everything."""

    def __init__(self, client: Client, topics: Sequence[str], rng: random.Random) -> None:
        self.ledgers = {topic: Ledger(topic) for topic in topics}
        self.consumed: dict[str, set[int]] = {topic: set() for topic in topics}
        self.repeated = 0
        self._client = client
        self._rng = rng
        self._acks: list[tuple[str, float, float]] = []
        self._finished = False
        self._news = trio.Event()

    async def create(self, **options: object) -> None:
        """Create the topics with their subscriptions."""
        for topic in self.ledgers:
            await self._client.admin.create_topic(topic, **options)  # type: ignore[arg-type]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write and consume within the block; leaving it waits until everything is acknowledged and consumed."""
        self._finished = False
        async with trio.open_nursery() as consumers:
            async with trio.open_nursery() as producers:
                for topic in self.ledgers:
                    consumers.start_soon(self._consume, topic)
                    producers.start_soon(self._produce, topic)
                yield
                self._finished = True
            with trio.fail_after(PATIENCE_S):
                for topic, ledger in self._items():
                    while not self.consumed[topic] >= ledger.acknowledged.keys():
                        await self._news.wait()
            consumers.cancel_scope.cancel()

    def _items(self) -> list[tuple[str, Ledger]]:
        return list(self.ledgers.items())

    async def _produce(self, topic: str) -> None:
        ledger = self.ledgers[topic]
        writer = f"w{topic.rpartition('/')[2]}"
        async with self._client.producer(topic, name=writer) as producer:
            while not self._finished:
                first, payloads = ledger.next_payloads(writer, self._rng.randrange(1, 12))
                began = time.monotonic()
                receipt = await producer.send_many(payloads)
                ledger.note(writer, first, receipt_ranges(receipt))
                self._acks.append((topic, began, time.monotonic()))
                self._news.set()
                self._news = trio.Event()
                await trio.sleep(self._rng.uniform(0.005, 0.03))

    async def _consume(self, topic: str) -> None:
        seen = self.consumed[topic]
        async with self._client.consumer(topic, subscription="s", start="earliest") as consumer:
            while True:
                batch = await consumer.receive_batch()
                for message in batch:
                    self.repeated += message.offset in seen
                    seen.add(message.offset)
                await batch.ack()
                self._news.set()
                self._news = trio.Event()

    async def gap(self, since: float, of: Callable[[str], bool], within_s: float = PATIENCE_S) -> float:
        """Wait for an acknowledgement of a publish that began after a time; return how long after the time it came."""
        index = len(self._acks)
        while index and self._acks[index - 1][2] >= since:
            index -= 1
        with trio.fail_after(within_s):
            while True:
                for topic, began, acknowledged in self._acks[index:]:
                    index += 1
                    if began >= since and of(topic):
                        return acknowledged - since
                await self._news.wait()

    async def check(self) -> int:
        """Read all logs and hold the brokers to what they have acknowledged; return the number of messages."""
        for ledger in self.ledgers.values():
            await ledger.audit(self._client, name="audit", whole=True)
            assert ledger.counts == ledger.sent, f"{ledger.topic}: {ledger.counts} of {ledger.sent} are stored"
            assert len(ledger.acknowledged) == len(ledger.stored)
        return sum(len(ledger.stored) for ledger in self.ledgers.values())


def patient(url: str) -> AbstractAsyncContextManager[Client]:
    """A client that waits for brokers however long they are away."""
    return danube.connect(url, reconnect_timeout_s=None, reconnect_max_s=0.5)


def report(text: str) -> None:
    """Show what a test has measured (``pytest -s``, or in the report of a failure)."""
    sys.stdout.write(text + "\n")


def spoken(times: Collection[float]) -> str:
    """Median, higher percentiles and maximum of some times, for the report of a test."""
    ordered = sorted(times)
    shown = ", ".join(f"p{each} {ordered[len(ordered) * each // 100]:.2f} s" for each in (50, 90, 99))
    return f"{shown}, max {ordered[-1]:.2f} s of {len(ordered)}"
