"""Acknowledgements of earlier deliveries: after a seek they must not undo the move."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from random import Random

import pytest
import trio
from test_simulation_found import TOPIC, simulate

from danube.client import Client, Consumer, Message
from danube.model import SubscriptionType
from danube.model.errors import DanubeError, FailedPreconditionError
from danube.testing.simulation import World

COUNT = 20
ALL = frozenset(range(COUNT))


class Holder:
    """A consumer that keeps every message that it was handed."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.held: list[Message] = []

    async def take(self) -> None:
        async for message in self.consumer:
            self.held.append(message)


async def fill(client: Client) -> None:
    async with client.producer(TOPIC, batch_max_messages=3) as producer:
        for number in range(COUNT):
            await producer.send(b"%d" % number, key=f"k{number % 4}")


async def hold_all(holders: list[Holder]) -> None:
    """Wait until every message was handed out, to whomever."""
    with trio.fail_after(10):
        while frozenset(message.offset for each in holders for message in each.held) != ALL:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def reach(client: Client) -> None:
    """Wait until a client has a connection to the broker."""
    with trio.fail_after(10):
        while True:
            try:
                await client.admin.info()
            except DanubeError:
                await trio.sleep(0.1)
            else:
                return


@pytest.mark.parametrize("crash", [False, True], ids=["", "restart"])
@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_acknowledgements_of_earlier_deliveries_do_not_undo_a_seek(kind: SubscriptionType, crash: bool) -> None:
    """They were taken for those of the deliveries that followed: what was to come again never came."""

    async def work(world: World) -> None:
        random = Random(5)
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(world.applications.client(host, random, "broker"))
                for host in ("a", "b", "admin")
            ]
            await fill(clients[2])
            holders = []
            for index in range(1 if kind is SubscriptionType.EXCLUSIVE else 2):
                opening = clients[index].consumer(
                    TOPIC, subscription="s", type=kind, start="earliest", policy={"ack_timeout_s": 60.0}
                )
                holders.append(Holder(await stack.enter_async_context(opening)))
            takers = await stack.enter_async_context(trio.open_nursery())
            for holder in holders:
                takers.start_soon(holder.take)
            for _ in range(8):
                await hold_all(holders)
                told = [(holder.consumer, message) for holder in holders for message in holder.held]
                for holder in holders:
                    holder.held = []
                random.shuffle(told)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(clients[2].admin.seek_subscription, TOPIC, "s", 0)
                    for consumer, message in told:
                        await trio.sleep(random.choice((0.0, 0.0002)))  # about as long as a message is on its way
                        if message.offset % 5 == 4 and kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
                            await consumer.ack_cumulative(message)
                        else:
                            message.ack_nowait()
                if crash:
                    world.node.crash(power_loss=False)
                for holder in holders:
                    await holder.consumer.flush_acks()
                await reach(clients[2])
                (row,) = await clients[2].admin.describe_subscription(TOPIC, "s")
                assert row.backlog_messages == COUNT, "nothing of what was delivered since is acknowledged"
            await hold_all(holders)
            for holder in holders:
                for message in holder.held:
                    message.ack_nowait()
                await holder.consumer.flush_acks()
            (row,) = await clients[2].admin.describe_subscription(TOPIC, "s")
            assert row.backlog_messages == 0, "what was delivered since counts"
            takers.cancel_scope.cancel()

    simulate(work)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_nothing_of_before_a_seek_is_said_after_it(kind: SubscriptionType) -> None:
    """Nor refused, nor kept alive, nor handed out: and the credit for what is dropped comes back."""

    async def work(world: World) -> None:
        async with world.applications.client("a", Random(1), "broker") as client:
            await fill(client)
            async with client.consumer(
                TOPIC,
                subscription="s",
                type=kind,
                start="earliest",
                credit_messages=4,
                renew_leases=True,
                policy={"max_redelivery_count": 0, "poison": "drop"},
            ) as consumer:
                await trio.sleep(1)
                first = await consumer.receive()
                for target in (0, 10, 0):
                    await trio.sleep(1)
                    await client.admin.seek_subscription(TOPIC, "s", target)
                    await first.nack()  # it would be poison
                    await first.extend_lease(1)
                    await trio.sleep(1)
                    first.ack_nowait()
                    first = await consumer.receive()
                    assert first.offset == target
                found = {first.offset}
                with trio.fail_after(30):
                    first.ack_nowait()
                    while found != ALL:
                        message = await consumer.receive()
                        assert message.offset not in found
                        found.add(message.offset)
                        message.ack_nowait()
                await consumer.flush_acks()
            (row,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (row.backlog_messages, row.dropped_messages) == (0, 0)

    simulate(work)


def test_a_consumer_that_is_moved_has_not_caught_up() -> None:
    """It is told again when it has, so that reading until then ends, and not before."""

    async def work(world: World) -> None:
        async with world.applications.client("a", Random(1), "broker") as client:
            await fill(client)
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                for _ in range(2):
                    found: list[int] = []
                    with trio.fail_after(10):
                        async for batch in consumer.batches(until_caught_up=True):
                            found += batch.offsets
                            await batch.ack()
                    assert frozenset(found) == ALL
                    await client.admin.seek_subscription(TOPIC, "s", 0)
                    await trio.sleep(0.1)

    simulate(work)


def test_a_subscription_that_was_created_again_knows_nothing_of_the_former_one() -> None:
    """A client that was cut off repeated its acknowledgements to a subscription that had delivered nothing to it."""

    async def work(world: World) -> None:
        async with (
            world.applications.client("a", Random(1), "broker") as client,
            world.applications.client("admin", Random(2), "broker") as manager,
        ):
            await fill(manager)
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                for _ in range(COUNT):
                    (await consumer.receive()).ack_nowait()
                world.network.set_cut("a", "broker", True)
                await trio.sleep(20)  # the broker has noticed
                await manager.admin.delete_subscription(TOPIC, "s")
                async with manager.consumer(TOPIC, subscription="s", start="earliest"):
                    pass
                world.network.set_cut("a", "broker", False)
                with trio.fail_after(60):
                    assert [(await consumer.receive()).offset for _ in range(COUNT)] == sorted(ALL)

    simulate(work)


async def acknowledge_across_a_crash(world: World, opening: AbstractAsyncContextManager[Consumer]) -> None:
    async with opening as consumer:
        message = await consumer.receive()
        world.node.crash(power_loss=False)
        while (await consumer.receive())._batch.generation == message._batch.generation:
            pass  # on the stream that is gone
        await consumer.ack_cumulative(message)
        await consumer.flush_acks()


def test_a_cumulative_acknowledgement_of_a_shared_subscription_is_refused_whenever_it_comes() -> None:
    async def work(world: World) -> None:
        async with world.applications.client("here", Random(1), "broker") as client:
            await fill(client)
            consumer = client.consumer(TOPIC, subscription="s", type="shared", start="earliest")
            with pytest.raises(FailedPreconditionError), trio.fail_after(60):
                await acknowledge_across_a_crash(world, consumer)

    simulate(work)


@pytest.mark.parametrize(
    ("durability", "restart", "may_be_lost"),
    [("disk", False, False), ("remote", False, False), ("os", True, False), ("os", False, True)],
)
def test_a_power_loss_undoes_seeks_of_os_topics_since_the_start_only(
    durability: str, restart: bool, may_be_lost: bool
) -> None:
    """What the history checker excuses, and no more: a broker that is ready has synced what it has recovered."""

    async def work(world: World) -> None:
        lost = 0
        async with world.applications.client("a", Random(1), "broker") as client:
            await client.admin.create_topic(TOPIC, durability=durability)
            async with client.consumer(TOPIC, subscription="s", start="earliest"):
                await fill(client)
            for target in (10, 0, 15, 5, 20, 1, 19, 2):
                await client.admin.seek_subscription(TOPIC, "s", target)
                if restart:
                    world.crash(world.node, power_loss=False)
                    await reach(client)
                world.crash(world.node, power_loss=True)
                await reach(client)
                (row,) = await client.admin.describe_subscription(TOPIC, "s")
                lost += row.floor != target
        assert bool(lost) is may_be_lost, lost

    simulate(work)
