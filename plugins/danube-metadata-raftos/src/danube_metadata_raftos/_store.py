"""The metadata store over raftos: each change is passed through raftos before it is acknowledged.

The rules are those of the built-in engines; raftos only has to say that a change was replicated. When it does not, the
store is over: what raftos has missed is not known, and it does not recover by itself.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
import trio

from danube.metadata import (
    Capabilities,
    Clock,
    Condition,
    Delete,
    Effects,
    LeaseId,
    LocalStore,
    MemoryTable,
    Put,
    StoreMachine,
    TransactionResult,
)
from danube.model.cluster_api import MetadataStanding
from danube.model.errors import InvalidArgumentError, UnavailableError
from danube.model.limits import Limits
from danube_metadata_raftos._nodes import COUNT, RaftosNodes

__all__ = ["MOST_BYTES", "RaftosStore"]

MOST_BYTES: Final = 30_000
"""Most bytes of keys and values in a change: in base64 and encrypted it fits into a datagram."""

_Result = TypeVar("_Result")


class RaftosStore(LocalStore):
    """A metadata store whose changes raftos has seen. Its contents are lost when it is closed.

    Args:
        nodes: started; the caller stops them.
        timeout_s: how long raftos may take for one change.
        limits: of requests, leases and the history.
        clock: decides when leases end.
    """

    def __init__(
        self, nodes: RaftosNodes, *, timeout_s: float, limits: Limits | None = None, clock: Clock = trio.current_time
    ) -> None:
        super().__init__(limits=limits, clock=clock)
        self._nodes = nodes
        self._timeout_s = timeout_s
        self._state = StoreMachine(MemoryTable(), self._limits)
        self._one = trio.Lock()
        self._is_over = False

    @property
    def capabilities(self) -> Capabilities:
        """Neither durable nor linearizable: raftos loses acknowledged changes, and lets two leaders acknowledge."""
        return Capabilities(durable=False, linearizable=False, watch_replay=True, leases=True)

    def standing(self) -> MetadataStanding:
        """The metadata are in this process."""
        return MetadataStanding(engine="raftos", kept_by=f"{COUNT} raftos nodes in this broker, for demonstration")

    @property
    def _machine(self) -> StoreMachine:
        return self._state

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Put | Delete]) -> TransactionResult:
        """See :meth:`MetadataStore.transact`. At most ``MOST_BYTES`` at once."""
        operations = tuple(operations)
        size = sum(len(part.key.encode(errors="replace")) + 16 for part in operations)
        size += sum(len(part.value) for part in operations if isinstance(part, Put))
        if size > MOST_BYTES:
            raise InvalidArgumentError(
                f"a metadata transaction of {size} bytes does not fit into a datagram of raftos, whose limit is"
                f" {MOST_BYTES} bytes here; split it, or use another metadata engine"
            )
        return await super().transact(conditions, operations)

    async def _call(self, work: Callable[[StoreMachine], _Result]) -> _Result:
        async with self._one:  # raftos acknowledges concurrent changes at the wrong time, or never
            self._check_open()
            if self._is_over:
                raise self._silent()
            result = work(self._state)
            data = _encode(self._state.effects)
            if data:
                with trio.CancelScope(shield=True):  # bounded by the timeout
                    await self._replicate(data)
            self._publish()
            return result

    async def _replicate(self, data: str) -> None:
        token, done = trio.lowlevel.current_trio_token(), trio.Event()
        written = self._nodes.replicate(data, lambda: token.run_sync_soon(done.set))
        with trio.move_on_after(self._timeout_s):
            await done.wait()
        if not done.is_set():
            written.cancel()
            self._is_over = True
            raise self._silent()

    def _silent(self) -> UnavailableError:
        return UnavailableError(
            f"raftos has not applied a change within {self._timeout_s:g} s and is not used any more: restart the"
            " broker; the change may be lost. raftos is for demonstration only"
        )

    async def _open(self, nursery: trio.Nursery) -> list[tuple[LeaseId, float]]:
        await trio.lowlevel.checkpoint()
        return []

    async def _shut(self) -> None:
        await trio.lowlevel.checkpoint()


def _encode(effects: Effects) -> str:
    """Return what raftos replicates; empty if nothing has changed. The keys of leases that have ended are implied."""
    if not (effects.batches or effects.granted or effects.revoked):
        return ""
    batches = [] if effects.revoked else [(batch.revision, batch.events) for batch in effects.batches]
    return base64.b64encode(msgspec.msgpack.encode((effects.granted, batches, effects.revoked))).decode()
