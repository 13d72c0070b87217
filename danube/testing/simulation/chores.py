"""Operators and observers in a simulated world: they read, seek, change policies, and create and delete topics.

They continue after any error of a call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from danube.client import Client
from danube.model.errors import AlreadyExistsError, DanubeError, NotFoundError
from danube.model.policies import Durability, SubscriptionType
from danube.testing.simulation.node import shown_error

if TYPE_CHECKING:
    from danube.testing.simulation.workload import Applications, ConsumerPlan, TopicPlan

__all__ = ["NO_TOPIC_RULES", "ChorePlan", "do_chore"]

_HARMLESS: Final[tuple[dict[str, Any], ...]] = (
    {"max_unacked_messages": 10},
    {"max_unacked_messages": 0},
    {"redelivery_delay_s": 0.1},
    {"redelivery_delay_s": 1.0, "backoff": "fixed"},
    {"backoff": "exponential"},
    {"dispatch_rate": {"messages_per_s": 50.0}},
    {"dispatch_rate": None},
)
"""Policy changes without effect on deliveries."""

_TOPIC_RULES: Final[tuple[dict[str, Any], ...]] = (
    {"max_message_bytes": 500},
    {"max_producers": 1},
    {"max_consumers": 1},
    {"max_consumers_per_subscription": 1},
    {"max_subscriptions": 1},
    {"publish_rate": {"messages_per_s": 20.0}},
    {"publish_rate": {"bytes_per_s": 20_000.0}},
    {"dispatch_rate": {"messages_per_s": 50.0}},
)
"""Policy changes that refuse or slow down new messages while they last."""
NO_TOPIC_RULES: Final[dict[str, Any]] = {name: None for rules in _TOPIC_RULES for name in rules}
_LONGER_S: Final = 8.0


class ChorePlan(NamedTuple):
    """An actor that repeats one kind of action."""

    kind: str
    """``read``, ``seek``, ``change-policy``, ``change-topic`` or ``churn``."""
    name: str
    """Name of the host."""
    topic: TopicPlan
    every_s: float
    """Mean pause."""
    consumer: ConsumerPlan | None = None
    """One of the consumers of the subscription concerned."""


async def do_chore(applications: Applications, plan: ChorePlan, random: Random) -> None:
    """Repeat the action until the faults are over."""
    chores: dict[str, Callable[[Applications, ChorePlan, Client, Random], Awaitable[None]]] = {
        "read": _read,
        "seek": _seek,
        "change-policy": _change_policy,
        "change-topic": _change_topic,
        "churn": _Churn().turn,
    }
    chore = chores[plan.kind]

    async def work(client: Client, random: Random) -> bool:
        while not applications.calm.is_set():
            try:
                await chore(applications, plan, client, random)
            except DanubeError as error:
                applications.trace("chore-error", plan.name, shown_error(error))
            with trio.move_on_after(random.expovariate(1 / plan.every_s)):
                await applications.calm.wait()
        if chore is _change_topic:
            await client.admin.change_policies(plan.topic.name, **NO_TOPIC_RULES)
        return True

    await applications.again_and_again(plan.name, random, work, 30.0, plan.topic, applications.client)


async def _read(applications: Applications, plan: ChorePlan, client: Client, random: Random) -> None:
    """Read from some offset on, for a while: no gap, no repeat, despite faults of the connection."""
    start: int | str = random.choice(("earliest", "latest", 10, 100))
    history, before = applications.history, dict[str, tuple[int, bytes]]()
    async with client.reader(plan.topic.name, start=start, credit_messages=random.choice((5, 1000))) as reader:
        applications.trace("reader", plan.name, plan.topic.name, start)
        with trio.move_on_after(random.choice((1.0, 10.0))):
            async for batch in reader.batches():
                for message in batch:
                    history.read(
                        batch.topic,
                        message.offset,
                        message.payload,
                        message.key,
                        before=before.get(batch.topic),
                    )
                    before[batch.topic] = message.offset, message.payload
                applications.trace("read", plan.name, batch.topic, batch.ranges)
                if applications.calm.is_set():
                    return


async def _seek(applications: Applications, plan: ChorePlan, client: Client, random: Random) -> None:
    """Move a subscription backward or forward; or skip some messages, after which none may come again."""
    assert plan.consumer is not None
    if random.random() < 0.3:
        await _skip(applications, plan, client, random.choice((1, 10)))
        return
    subscription, target = plan.consumer.subscription, random.choice((0, 10, 100))
    moves = {part: applications.history.moved(part, subscription, target) for part in plan.topic.parts}
    applications.trace("seek", plan.topic.name, subscription, target)
    failed = True
    try:
        await client.admin.seek_subscription(plan.topic.name, subscription, target)
        failed = False
    finally:
        for part in plan.topic.parts:
            applications.history.moved(part, subscription, target, failed=failed)
    for part, before in moves.items():
        applications.history.sought(part, subscription, target, before)
    applications.trace("sought", plan.topic.name, subscription, target)


async def _skip(applications: Applications, plan: ChorePlan, client: Client, count: int) -> None:
    assert plan.consumer is not None
    subscription, history = plan.consumer.subscription, applications.history
    for each in await client.admin.plan_seek(plan.topic.name, subscription, by=count):
        applications.trace("skip", each.topic, subscription, count, each.target)
        history.moved(each.topic, subscription, each.target, voids=False)
        failed = True
        try:
            (done,) = await client.admin.skip_planned(subscription, [each])
            failed = False
        finally:
            history.moved(each.topic, subscription, each.target, failed=failed, voids=False)
        applications.trace("skipped", each.topic, subscription, done.skipped_messages, done.floor)


async def _change_policy(applications: Applications, plan: ChorePlan, client: Client, random: Random) -> None:
    """Change a policy of a live subscription."""
    assert plan.consumer is not None
    changes = dict(random.choice(_HARMLESS))
    poisons = sorted(plan.consumer.rules.poisons)
    if len(poisons) > 1:
        changes["poison"] = str(random.choice(poisons))
    applications.trace("change-policy", plan.topic.name, plan.consumer.subscription, changes)
    await client.admin.change_subscription_policy(plan.topic.name, plan.consumer.subscription, **changes)


async def _change_topic(applications: Applications, plan: ChorePlan, client: Client, random: Random) -> None:
    """Change a policy of a live topic, or remove all of them; lengthen a time to live, and restore it."""
    changes = dict(random.choice((*_TOPIC_RULES, NO_TOPIC_RULES, NO_TOPIC_RULES)))
    if plan.topic.message_ttl_s:
        changes["message_ttl_s"] = random.choice((plan.topic.message_ttl_s, plan.topic.message_ttl_s, _LONGER_S, 0.0))
    applications.trace("change-topic", plan.topic.name, changes)
    await client.admin.change_policies(plan.topic.name, **changes)


class _Churn:
    """Repeatedly creates a topic of its own, uses it and deletes it: each new one must be empty."""

    def __init__(self) -> None:
        self._incarnation = 0

    async def turn(self, applications: Applications, plan: ChorePlan, client: Client, random: Random) -> None:
        """One incarnation."""
        topic = f"/default/churn-{plan.name}"
        self._incarnation += 1
        with suppress(NotFoundError):
            await client.admin.delete_topic(topic)
        local = (Durability.DISK, Durability.OS) if not applications.moves else ()  # a new machine would not have them
        durability = random.choice((*local, plan.topic.durability))
        try:
            await client.admin.create_topic(topic, partitions=random.choice((0, 2)), durability=durability)
        except AlreadyExistsError:
            return  # an answer was lost, or an old deletion is still on its way
        mark = b"churn|%d|" % self._incarnation
        applications.trace("churn", topic, self._incarnation)
        async with client.producer(topic) as producer:
            await producer.send_many([mark + b"%d" % number for number in range(random.choice((1, 10)))])
        kind = random.choice((SubscriptionType.EXCLUSIVE, SubscriptionType.KEY_SHARED))
        async with client.consumer(topic, subscription="s", type=kind, start="earliest") as consumer:
            with trio.move_on_after(random.random()):
                async for message in consumer:
                    if not message.payload.startswith(mark):
                        applications.history.violation(
                            f"P2: {topic}: incarnation {self._incarnation} has {message.payload[:20]!r} of another one"
                        )
                    message.ack_nowait()
