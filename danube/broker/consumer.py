"""One connected consumer: who it is, and the stream that leads to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import trio

from danube.model import api
from danube.model.errors import DanubeError
from danube.wire import ServerStream

if TYPE_CHECKING:
    from danube.broker.pump import Pump

__all__ = ["Consumer"]

_encode = msgspec.msgpack.Encoder().encode


class Consumer:
    """One connected consumer of a subscription, or a reader."""

    __slots__ = ("_held", "_nursery", "caught_up_at", "consumer_id", "key_filters", "name", "stream")

    def __init__(
        self,
        consumer_id: int,
        name: str,
        stream: ServerStream,
        nursery: trio.Nursery,
        end_offset: int,
        key_filters: tuple[str, ...] = (),
    ) -> None:
        self.consumer_id = consumer_id
        self.name = name
        self.stream = stream
        self.key_filters = key_filters
        self._nursery = nursery
        self._held: tuple[int, int] | None = None
        self.caught_up_at: int | None = end_offset
        """Where it has caught up: the end of the topic when it connected. None once it was told."""

    def send(self, reply: api.ConsumeReply) -> None:
        """Queue one reply."""
        self.stream.send_nowait(_encode(reply))

    def end(self, error: DanubeError) -> None:
        """End its call with an error."""
        self.stream.abandon(error)

    def hold(self, pump: Pump, messages: int, size_bytes: int) -> None:
        """Keep credit back until the consumer has read what is on its way."""
        held = self._held
        if held is None:
            self._held = (messages, size_bytes)
            self._nursery.start_soon(self._release, pump)
        else:
            self._held = (held[0] + messages, held[1] + size_bytes)

    async def _release(self, pump: Pump) -> None:
        await self.stream.wait_send_capacity()
        held, self._held = self._held, None
        assert held is not None
        pump.credit(self, *held)
