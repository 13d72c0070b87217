"""Services shared by all components of a broker; the only part of the broker that a topic knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from typing import Any

import trio

from danube.broker.runtime.clock_steps import ClockSteps
from danube.broker.runtime.commits import Commits
from danube.broker.runtime.config import BrokerConfig
from danube.broker.runtime.namespace_connections import NamespaceConnections
from danube.broker.runtime.namespace_rates import NamespaceDeliveries, NamespaceRates
from danube.broker.runtime.namespace_space import NamespaceSpaces
from danube.broker.runtime.opened_batches import OpenedBatches
from danube.broker.runtime.publish_figures import PublishFigures
from danube.broker.runtime.seams import Seams
from danube.broker.runtime.stalls import Stalls
from danube.broker.runtime.subjects import Subjects
from danube.log import BatchCache, Journal
from danube.model import Limits
from danube.model.errors import DanubeError, UnavailableError
from danube.model.ids import ProducerId

__all__ = ["Runtime"]


class Runtime:
    """Configuration, dependencies, journal, caches, ids and tasks of one broker; one instance for each.

    Args:
        config: of the broker.
        seams: its disk, network, clock and random numbers.

    Attributes:
        limits: ``config.limits``.
        clock_us: the wall clock in microseconds since the epoch, for timestamps.
        clock_steps: detects that the wall clock was set.
        stalls: detects that the broker did not run.
        publish_figures: what all intakes count together.
        commits: commit notifications of the journal.
        cache: recent batches of all topics.
        opened: batches of all topics that were opened for their records.
        journal: of all topics except those of durability ``remote``.
        namespace_rates: the publish rates of namespaces.
        namespace_deliveries: the dispatch rates of namespaces.
        namespace_spaces: how much namespaces store here.
        namespace_connections: which connections use namespaces here.
        subjects: the schemas of the subjects that topics here have.
        addresses: the addresses on which the broker listens.
    """

    journal: Journal

    def __init__(self, config: BrokerConfig, seams: Seams) -> None:
        self.config = config
        self.seams = seams
        self.limits: Limits = config.limits
        self.clock_us = seams.wall_clock_us
        self.clock_steps = ClockSteps(seams.wall_clock_us)
        self.stalls = Stalls(config.limits.keepalive_idle_s + config.limits.keepalive_timeout_s)
        self.publish_figures = PublishFigures(seams.wall_clock_us)
        self.commits = Commits(self.publish_figures.settling)
        self.cache = BatchCache(config.limits.cache_bytes)
        self.opened = OpenedBatches(config.limits)
        self.namespace_rates = NamespaceRates()
        self.namespace_deliveries = NamespaceDeliveries()
        self.namespace_spaces = NamespaceSpaces()
        self.namespace_connections = NamespaceConnections()
        self.subjects = Subjects()
        self.addresses: list[str] = []
        self._held_producers: Callable[[], Container[ProducerId]] = frozenset
        self._nursery: trio.Nursery | None = None
        self._has_begun = False
        self._consumer_id = 0

    def new_id(self) -> int:
        """Return a random id for a topic, subscription or producer; never 0, fits a signed 64-bit integer."""
        return self.seams.random.getrandbits(63) or 1

    def random_bytes(self, count: int) -> bytes:
        """Return so many unpredictable bytes, for secrets."""
        return self.seams.random_bytes(count)

    def next_consumer_id(self) -> int:
        """Return a consumer id that is unique in this process."""
        self._consumer_id += 1
        return self._consumer_id

    def hold_producers(self, held: Callable[[], Container[ProducerId]]) -> None:
        """Set the function that returns the producers that topics must not forget, however long they are idle."""
        self._held_producers = held

    def held_producers(self) -> Container[ProducerId]:
        """Return the ids of producers that must not be forgotten."""
        return self._held_producers()

    # --- Tasks ---

    def begin(self, nursery: trio.Nursery) -> None:
        """Run tasks in this nursery from now on; they end with the broker."""
        self._nursery, self._has_begun = nursery, True
        nursery.start_soon(self._hold)

    async def _hold(self) -> None:
        """Task: keep the nursery open until the broker ends. Then it takes no more tasks, and may close at any time."""
        try:
            await trio.sleep_forever()
        finally:
            self._nursery = None

    def start(self, task: Callable[..., Awaitable[object]], *args: Any) -> bool:
        """Start a task that ends with the broker. An exception that leaves it ends the broker.

        Returns: whether it was started; not if the broker ends.
        """
        assert self._has_begun, "tasks run from when the broker serves"
        if self._nursery is None:
            return False
        self._nursery.start_soon(task, *args)
        return True

    async def finish(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work`` in a task of the broker, so that it completes even if the caller is cancelled.

        Raises:
            UnavailableError: the broker ends, and has cancelled ``work``.
            DanubeError, OSError: from ``work``. Any other exception ends the broker.
        """
        done = trio.Event()
        failure: list[DanubeError | OSError] = [
            UnavailableError("the broker ends, so whether it was carried out is unknown; look, and try again")
        ]

        async def run() -> None:
            try:
                await work()
                failure.clear()
            except (DanubeError, OSError) as error:
                failure[:] = [error]
            finally:
                done.set()

        if self._nursery is not None:
            self._nursery.start_soon(run)
            await done.wait()
        if failure:
            raise failure[0]
