"""The end of a world: a topic has caught up when nothing that the broker has accepted can arrive any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from test_simulation_found import TOPIC, simulate

from danube.client import Client
from danube.model import Durability, Retention, SubscriptionType
from danube.testing.simulation import World
from danube.testing.simulation.upstream import UpstreamPlan, produce_upstream
from danube.testing.simulation.workload import ConsumerPlan, TopicPlan


async def leave_to_a_storage_that_hangs(world: World, topic: TopicPlan, client: Client) -> None:
    """The batch of a producer that has crashed waits for the bucket."""
    with trio.CancelScope() as scope:
        async with (
            world.applications.client("p", Random(2), "broker") as leaving,
            leaving.producer(topic.name) as producer,
        ):
            world.node.set_storage_faults(hang=1.0)
            producer.send_nowait(b"late")
            await trio.sleep(0.1)
            world.network.crash("p", silently=False)
            scope.cancel()
            await trio.sleep_forever()
    world.network.power_on("p")


async def leave_to_the_publish_rate(world: World, topic: TopicPlan, client: Client) -> None:
    """Messages of producers of the upstream protocol that have crashed wait for their turn."""
    await client.admin.change_policies(topic.name, publish_rate={"messages_per_s": 1.0})
    with trio.move_on_after(2.0):
        plan = UpstreamPlan("p", topic, producers=5, pause_s=0.0, crash_after_s=1000.0)
        await produce_upstream(world.applications, plan, Random(2))


@pytest.mark.parametrize(
    ("leave", "durability"),
    [(leave_to_a_storage_that_hangs, Durability.REMOTE), (leave_to_the_publish_rate, Durability.DISK)],
)
def test_batches_of_crashed_producers_are_waited_for(
    leave: Callable[[World, TopicPlan, Client], Awaitable[None]], durability: Durability
) -> None:
    """Seeds 20261201001503, 20261201004122: it came when the consumers had left, and nothing acknowledged it."""

    async def work(world: World) -> None:
        topic = TopicPlan(TOPIC, durability, 0, Retention())
        consumers = [ConsumerPlan("c", "s", SubscriptionType.EXCLUSIVE, topic, 1.0, 1000.0)]
        world.topics, world.consumers = [topic], consumers
        world.history.topic(TOPIC, durability, home="broker")
        async with (
            world.applications.client("c", Random(1), "broker") as client,
            trio.open_nursery() as nursery,
        ):
            await client.admin.create_topic(TOPIC, durability=durability)
            opened = trio.Event()

            async def consume() -> None:
                async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                    opened.set()
                    async for message in consumer:
                        message.ack_nowait()

            nursery.start_soon(consume)
            await opened.wait()
            await leave(world, topic, client)
            before = (await client.admin.describe_topic(TOPIC)).end_offset
            with trio.move_on_after(1.0) as patience:
                await world._caught_up()
            assert patience.cancelled_caught, "something is on its way"
            world.node.set_storage_faults(hang=0.0)
            await world._caught_up()
            after = (await client.admin.describe_topic(TOPIC)).end_offset
            await trio.sleep(200)
            assert before < after == (await client.admin.describe_topic(TOPIC)).end_offset
            nursery.cancel_scope.cancel()

    simulate(work)
