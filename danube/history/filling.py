"""Builds an object of batches that fill a gap in a topic's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from danube.history.objects import object_name
from danube.history.packing import BuiltObject, Packer

if TYPE_CHECKING:
    import random

    from danube.history.packing import Named
    from danube.history.tenure import Tenure
    from danube.log import StoredBatch

__all__ = ["build_object"]


def build_object(
    tenure: Tenure, cluster: str, topic: Named, batches: Sequence[StoredBatch], created_us: int, rng: random.Random
) -> BuiltObject:
    """Return an object with the batches of one topic.

    Args:
        tenure: of the broker that seals them, which owns the topic.
        cluster: its name.
        topic: of the batches.
        batches: in the order of their offsets.
        created_us: microseconds since the epoch.
        rng: for the name of the object.

    Raises:
        NotOwnerError: the broker does not own the topic.
    """
    key = object_name(cluster, created_us, tenure.broker, tenure.life, rng)
    packer = Packer(key, tenure.life, created_us, bytearray(), tenure.epoch)
    for batch in batches:
        packer.add(topic, batch)
    return packer.finish()
