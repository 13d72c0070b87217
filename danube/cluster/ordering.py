"""Orders moves of topics, and withdraws the orders.

An order is a row below ``/moves`` (:class:`~danube.cluster.records.MoveRecord`). It is created in one transaction that
is conditional on the assignment, on the sessions of owner and target, and on the record of the target, so it names an
owner and a target that both existed at the same time. If the answer is lost, the caller finds the row in the table of
moves a moment later, or it does not: nothing has moved in either case.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from danube.cluster.membership import Membership
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    MOVES,
    BrokerState,
    MoveReason,
    MoveRecord,
    broker_name,
    topic_key,
)
from danube.metadata import Condition, Delete, MetadataStore, Put
from danube.model.errors import FailedPreconditionError, MetadataConflictError, UnavailableError
from danube.model.ids import BrokerId, TopicId

__all__ = ["order_move", "withdraw_move"]

_encode: Final = msgspec.msgpack.encode


async def order_move(
    store: MetadataStore,
    membership: Membership,
    topic_id: TopicId,
    target: BrokerId,
    *,
    random: Random,
    reason: MoveReason = MoveReason.ASKED,
    by: str = "",
    ordered_s: float = 0.0,
    conditions: Sequence[Condition] = (),
) -> MoveRecord:
    """Order the owner of a topic or partition to move it to another broker; return the order.

    Args:
        store: the metadata.
        membership: of this broker, which need be neither the owner nor the target.
        topic_id: of a plain topic or a partition.
        target: the broker that is to own it.
        random: draws the id of the move.
        reason, by, ordered_s: as in :class:`~danube.cluster.records.MoveRecord`.
        conditions: further ones, for example of the term of the coordinator.

    Raises:
        FailedPreconditionError: the feature level of the cluster is too low; the topic has no owner, the target owns it
            already, or the target takes no topics; or another move of this topic is ordered.
        UnavailableError: the owner or the target does not run; or this broker has no session; or the answer was lost,
            and the order may exist.
        MetadataConflictError: something has changed in the meantime; nothing was ordered: try again.
    """
    membership.check_moves()
    key = topic_key(topic_id)
    assignment = membership.assignments.values.get(key)
    if assignment is None:
        raise FailedPreconditionError(f"topic {key} has no owner, so it cannot be moved")
    name = broker_name(target)
    if assignment.owner == target:
        raise FailedPreconditionError(f"topic {key} is on broker {name} already")
    record = membership.brokers.values.get(name)
    if record is None:
        raise FailedPreconditionError(f"topic {key} cannot be moved to broker {name}, which does not exist")
    if record.state is not BrokerState.ACTIVE:
        raise FailedPreconditionError(
            f"topic {key} cannot be moved to broker {name}, which is {record.state}; activate it before"
        )
    owner = broker_name(assignment.owner)
    for each in (owner, name):
        if each not in membership.sessions.values:
            raise UnavailableError(f"topic {key} cannot be moved from {owner} to {name}: broker {each} does not run")
    other = membership.moves.values.get(key)
    if other is not None:
        raise FailedPreconditionError(f"topic {key} is being moved to broker {broker_name(other.target)} already")
    order = MoveRecord(
        move=random.getrandbits(63) or 1,
        target=target,
        target_session=membership.session_of(target).mod_revision,
        assignment=membership.assignments.revision(key),
        reason=reason,
        by=by,
        ordered_s=ordered_s,
    )
    await store.transact(
        [
            membership.session_of(target),
            membership.session_of(assignment.owner),
            Condition(ASSIGNMENTS + key, order.assignment),
            Condition(BROKERS + name, membership.brokers.revision(name)),
            Condition(MOVES + key, 0),
            *conditions,
        ],
        [Put(MOVES + key, _encode(order))],
    )
    return order


async def withdraw_move(store: MetadataStore, topic_id: TopicId, revision: int) -> bool:
    """Delete the order with a revision; return whether it existed. From then on the move cannot happen any more.

    Raises:
        DanubeError: the metadata do not answer; the order may exist or not.
    """
    key = MOVES + topic_key(topic_id)
    try:
        await store.transact([Condition(key, revision)], [Delete(key)])
    except MetadataConflictError:
        return False
    return True
