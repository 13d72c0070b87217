"""Definitions of a running cluster: read them, and carry out the steps that lead to others. Asynchronous only.

The rules are in :mod:`danube.model.definitions`; all calls are those of the client's caller, and need its rights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from danube.model.definitions import (
    MOST_DEFINED,
    Definitions,
    NamespaceDefinition,
    Plan,
    Step,
    SubscriptionDefinition,
    TopicDefinition,
    plan,
)
from danube.model.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InternalError,
    LimitExceededError,
    NotFoundError,
)
from danube.model.names import SYSTEM_NAMESPACE

if TYPE_CHECKING:
    from danube.client._client import Client
    from danube.model import api

__all__ = ["apply_plan", "export_definitions", "make_plan"]


async def export_definitions(client: Client) -> Definitions:
    """Return the definitions of everything that the caller may describe.

    It makes two calls for each topic; what changes meanwhile may be seen before or after its change.

    Raises:
        LimitExceededError: there are too many topics.
        DanubeError: a call failed.
    """
    namespaces: dict[str, NamespaceDefinition] = {}
    for name in await client.admin.list_namespaces():
        if name != SYSTEM_NAMESPACE:
            own = (await client.admin.policies(name)).own
            namespaces[name] = NamespaceDefinition(policies=own)
    rows = [row for row in await client.admin.list_topics() if not row.topic.startswith(f"/{SYSTEM_NAMESPACE}/")]
    if len(rows) > MOST_DEFINED:
        raise LimitExceededError(f"there are {len(rows)} topics; definitions have at most {MOST_DEFINED}")
    topics = {}
    for row in rows:
        try:
            topics[row.topic] = await _topic(client, row)
        except NotFoundError:
            continue  # it was deleted meanwhile
    return Definitions(namespaces=namespaces, topics=topics)


async def _topic(client: Client, row: api.TopicInfo) -> TopicDefinition:
    subscriptions: dict[str, SubscriptionDefinition] = {}
    for each in await client.admin.list_subscriptions(row.topic):
        # Of several partitions the first one speaks for all.
        policy = msgspec.to_builtins(each.policy)
        subscriptions.setdefault(each.subscription, SubscriptionDefinition(type=each.type, policy=policy))
    return TopicDefinition(
        partitions=row.partitions,
        durability=row.durability,
        storage=row.storage,
        policies=(await client.admin.policies(row.topic)).own,
        subscriptions=subscriptions,
    )


async def make_plan(client: Client, wanted: Definitions, *, prune: bool = False) -> Plan:
    """Return the steps from what there is to what is wanted; raise as :func:`export_definitions`."""
    return plan(await export_definitions(client), wanted, prune=prune)


async def apply_plan(client: Client, found: Plan) -> None:
    """Carry out the steps of a plan, one after the other.

    A step that fails ends it; those before it stay done, and a new plan has the rest.

    Raises:
        FailedPreconditionError: the plan has conflicts.
        DanubeError: a step failed.
    """
    if found.conflicts:
        raise FailedPreconditionError(f"nothing was changed: {found.conflicts[0]}")
    for step in found.steps:
        await _carry_out(client, step)


async def _carry_out(client: Client, step: Step) -> None:
    admin, changes = client.admin, step.changes
    match step.action, step.kind:
        case "create", "namespace":
            try:
                await admin.create_namespace(step.name)
            except AlreadyExistsError:
                return  # it is there
        case "create", "topic":
            await admin.create_topic(step.name, **changes)
        case "expand", "topic":
            await admin.expand_topic(step.name, changes["partitions"])
        case "change", "namespace" | "topic":
            await admin.change_policies(step.name, **changes)
        case "create", "subscription":
            await _subscribe(client, step)
        case "change", "subscription":
            await admin.change_subscription_policy(step.name, step.subscription, **changes)
        case "delete", "subscription":
            await admin.delete_subscription(step.name, step.subscription)
        case "delete", "topic":
            await admin.delete_topic(step.name)
        case "delete", "namespace":
            await admin.delete_namespace(step.name)
        case _:
            raise InternalError(f"the step {step.action} {step.kind} is unknown")


async def _subscribe(client: Client, step: Step) -> None:
    changes = step.changes
    await client.admin.create_subscription(step.name, step.subscription, type=changes["type"], start=changes["start"])
    if changes.get("policy"):
        await client.admin.change_subscription_policy(step.name, step.subscription, **changes["policy"])
