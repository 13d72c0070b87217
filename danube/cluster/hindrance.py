"""Why a topic cannot be moved to another broker. Pure.

The owner of a topic says so: it knows what the topic has in storages that no other broker reaches. A topic that cannot
move keeps its owner when that one is drained, and is named: an operator decides what to do about it.
"""

from __future__ import annotations

from danube.model import Durability

__all__ = ["hindrance_of"]


def hindrance_of(durability: Durability, storage: str, broker: str, *, shared: bool, sealed: bool, staged: bool) -> str:
    """Return why a topic cannot be moved, without a full stop; empty: it can.

    Args:
        durability: of the topic.
        storage: name of the storage of its history.
        broker: name of its owner.
        shared: whether other brokers reach that storage.
        sealed: whether the topic has history there; one of durability ``remote`` has commits there in any case.
        staged: whether batches are staged for it that have to stay with it, because their producer has no home yet.
    """
    if durability is Durability.REMOTE and not shared:
        return (
            f"it has durability 'remote', in the storage {storage!r} of {broker}, which other brokers cannot reach. A"
            " topic with a shared storage can move"
        )
    if durability is not Durability.NONE and sealed and not shared:
        return (
            f"its history is in the storage {storage!r} of {broker}, which other brokers cannot reach. A topic with a"
            " shared storage can move"
        )
    if staged:
        return "batches are staged for it, from before the cluster had other brokers; try again in a minute"
    return ""
