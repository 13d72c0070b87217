"""The memory metadata store: in process memory, for tests, simulations, and brokers without durability.

It implements the whole contract except durability. Changes are made between two checkpoints of the event loop, so a
cancelled call has no effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, TypeVar

import msgspec
import trio

from danube.metadata._contract import Capabilities, LeaseId, MetadataStore
from danube.metadata._local import Clock, LocalStore
from danube.metadata._machine import StoreMachine
from danube.metadata._memory_table import MemoryTable
from danube.metadata._plugins import MetadataPlugin, Surroundings
from danube.model.cluster_api import MetadataStanding
from danube.model.limits import Limits

__all__ = ["MemoryConfig", "MemoryPlugin", "MemoryStore"]

_Result = TypeVar("_Result")


class MemoryStore(LocalStore):
    """A metadata store whose contents are lost when it is closed.

    ``limits`` bounds sizes and history; ``clock`` decides when leases end (default: Trio's clock, so tests can use a
    virtual one); ``table`` is what it begins with (default: nothing).
    """

    def __init__(
        self, *, limits: Limits | None = None, clock: Clock = trio.current_time, table: MemoryTable | None = None
    ) -> None:
        super().__init__(limits=limits, clock=clock)
        table = table if table is not None else MemoryTable()
        self._state = StoreMachine(table, self._limits)
        self._revision = table.revision

    @property
    def capabilities(self) -> Capabilities:
        """All guarantees of the contract except durability."""
        return Capabilities(durable=False, linearizable=True, watch_replay=True, leases=True)

    def standing(self) -> MetadataStanding:
        """The metadata are in this process."""
        return MetadataStanding(engine="memory", kept_by="the memory of this broker")

    @property
    def _machine(self) -> StoreMachine:
        return self._state

    async def _call(self, work: Callable[[StoreMachine], _Result]) -> _Result:
        await trio.lowlevel.checkpoint()
        self._check_open()
        result = work(self._state)
        self._publish()
        return result

    async def _open(self, nursery: trio.Nursery) -> list[tuple[LeaseId, float]]:
        await trio.lowlevel.checkpoint()
        return self._state.table.leases()

    async def _shut(self) -> None:
        await trio.lowlevel.checkpoint()


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory store has no options."""


class MemoryPlugin(MetadataPlugin[MemoryConfig]):
    """``memory://``: metadata in the memory of the broker."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "in memory; lost when the broker stops"
    config: ClassVar[type[MemoryConfig]] = MemoryConfig

    @asynccontextmanager
    async def open(self, config: MemoryConfig, surroundings: Surroundings) -> AsyncIterator[MetadataStore]:
        """Open an empty store."""
        async with MemoryStore(limits=surroundings.limits, clock=surroundings.clock) as store:
            yield store
