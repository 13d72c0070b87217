"""Durability levels: one object for each durability; see :mod:`danube.broker.durability.level`."""

from __future__ import annotations

from collections.abc import Mapping

from danube.broker.durability.bucket import BucketLevel
from danube.broker.durability.journal import JournalLevel
from danube.broker.durability.level import Level, Surroundings
from danube.broker.durability.memory import MemoryLevel
from danube.model import Durability
from danube.storage import Storage

__all__ = ["Level", "Levels", "Surroundings"]


class Levels:
    """The levels of a broker, by durability.

    Args:
        surroundings: dependencies shared by all levels.
        lanes: storages by name, for the commits of durability ``remote`` only.

    Attributes:
        bucket: the level of durability ``remote``, which has to be started and closed.
    """

    def __init__(self, surroundings: Surroundings, lanes: Mapping[str, Storage]) -> None:
        self.bucket = BucketLevel(surroundings, lanes)
        self._by_durability: Mapping[Durability, Level] = {
            Durability.NONE: MemoryLevel(surroundings),
            Durability.OS: JournalLevel(surroundings, synced=False),
            Durability.DISK: JournalLevel(surroundings, synced=True),
            Durability.REMOTE: self.bucket,
        }

    def of(self, durability: Durability) -> Level:
        """Return the level of a durability."""
        return self._by_durability[durability]
