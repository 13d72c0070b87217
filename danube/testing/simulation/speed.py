"""Measures the speed of virtual time: a world without faults, under a known load.

The load: one broker, two producers and two consumers. A producer publishes and a consumer takes 10 operations a second,
in batches of 10. Both readings of that are measured: ``messages`` counts messages (1 batch of 10 a second for each
client), ``batches`` counts batches (10 batches of 10 a second for each). Everything a seeded world has is switched on:
the history, its checks, the trace, disks and networks that take their time.
"""

from __future__ import annotations

import time
from random import Random
from typing import NamedTuple

import trio

from danube.broker import BrokerConfig
from danube.model.policies import Durability, Retention, SubscriptionType
from danube.testing.history import History
from danube.testing.simulation._scheduler import run_seeded
from danube.testing.simulation.network import Network
from danube.testing.simulation.node import PORT
from danube.testing.simulation.plan import WorldPlan
from danube.testing.simulation.trace import Trace
from danube.testing.simulation.workload import TopicPlan
from danube.testing.simulation.world import World

__all__ = ["LOADS", "Speed", "measure"]

_BATCH = 10
_PAYLOAD = b"x" * 100
LOADS = {"messages": 1.0, "batches": 10.0}
"""Batches a second of each client, by what an operation is taken to be."""


class Speed(NamedTuple):
    """What was measured."""

    load: str
    virtual_s: float
    cpu_s: float
    """CPU time of the process; other processes do not count."""
    passes: int
    """Of Trio's loop."""
    messages: int

    @property
    def factor(self) -> float:
        """Virtual seconds in a second of one core."""
        return self.virtual_s / self.cpu_s


class _Passes(trio.abc.Instrument):
    """Counts the passes of the scheduler."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        """Count one."""
        self.count += 1


def measure(load: str, virtual_s: float) -> Speed:
    """Run a calm world for ``virtual_s`` seconds of load; blocks."""
    return run_seeded(lambda: _Calm(LOADS[load]).run(load, virtual_s), 1)


class _Calm:
    """The world of one measurement."""

    def __init__(self, batches_per_s: float) -> None:
        self._pause_s = 1 / batches_per_s
        self._topics = [TopicPlan(f"/default/t{index}", Durability.DISK, 0, Retention()) for index in range(2)]
        config = BrokerConfig(listen=(f"broker:{PORT}",), data_directory="/simulated", storage="memory://bucket")
        plan = WorldPlan(1, {"broker": config}, self._topics, [], [], [], {}, 1.0, 1.0, "drain")
        self.world = World(plan, Trace(keep=10))

    async def run(self, load: str, virtual_s: float) -> Speed:
        """Start the measurement when all clients are connected."""
        world = self.world
        history: History = world.history
        network: Network = world.network
        passes = _Passes()
        async with world.machines(), trio.open_nursery() as nursery:
            await world.node.ready.wait()
            for index, topic in enumerate(self._topics):
                history.topic(topic.name, topic.durability)
                await nursery.start(self._produce, f"p{index}", topic)
                await nursery.start(self._consume, f"c{index}", topic)
            await trio.sleep(1)
            trio.lowlevel.add_instrument(passes)
            began_s, delivered = time.process_time(), history.delivered_messages
            await trio.sleep(virtual_s)
            cpu_s = time.process_time() - began_s
            messages = history.delivered_messages - delivered
            nursery.cancel_scope.cancel()
        assert network.bytes_delivered
        assert not history.violations, history.violations
        return Speed(load, virtual_s, cpu_s, passes.count, messages)

    async def _produce(self, name: str, topic: TopicPlan, *, task_status: trio.TaskStatus[None]) -> None:
        world, number = self.world, 0
        async with (
            world.applications.client(name, Random(name), "broker") as client,
            client.producer(topic.name, name=name) as producer,
        ):
            task_status.started()
            while True:
                payloads: list[bytes] = []
                for _ in range(_BATCH):
                    number += 1
                    payloads.append(b"%s|%d|" % (name.encode(), number) + _PAYLOAD)
                    world.history.publish(name, 1, number, topic.name, payloads[-1], None)
                (stored,) = (await producer.send_many(payloads)).ranges
                for index, payload in enumerate(payloads):
                    world.history.acknowledge(payload, topic.name, stored.start + index)
                world.trace("acked", topic.name, stored.start, len(payloads))
                await trio.sleep(self._pause_s)

    async def _consume(self, name: str, topic: TopicPlan, *, task_status: trio.TaskStatus[None]) -> None:
        world = self.world
        async with (
            world.applications.client(name, Random(name), "broker") as client,
            client.consumer(topic.name, subscription="s", start="earliest") as consumer,
        ):
            session = world.history.session("s", SubscriptionType.EXCLUSIVE, [topic.name])
            task_status.started()
            async for batch in consumer.batches():
                world.trace("taken", name, topic.name, batch.ranges, batch.attempt)
                for message in batch:
                    world.history.deliver(
                        session, batch.generation, topic.name, message.offset, message.payload, message.key
                    )
                await batch.ack()
