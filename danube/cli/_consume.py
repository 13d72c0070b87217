"""Implements ``danube consume`` and ``read``: prints batches, and acknowledges them after they were written.

A batch is converted to one piece of output, written with as few system calls as the pipe allows, and only then
acknowledged: a message that was not printed is delivered again, to the next consumer.
"""

from __future__ import annotations

import contextlib
import datetime
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import trio

from danube.cli import _printing
from danube.cli._client import run_with_client
from danube.cli._decoding import Decoding
from danube.cli._output import Output
from danube.cli._printing import Printer, make_printer
from danube.model.policies import EARLIEST, LATEST, SubscriptionType

if TYPE_CHECKING:
    from danube.client import Batch, Client, Consumer, Reader

__all__ = ["ConsumeOptions", "ReadOptions", "run"]

_RECONNECT_S: Final = 60.0
_GRACE_S: Final = 1.0
"""Time that output under way may take after a signal: then it can still be acknowledged."""

_FEW_MESSAGES: Final = 2_000
"""A smaller ``--count`` is also the read-ahead; a larger one leaves the read-ahead to the client."""


class _Options(Protocol):
    """Options common to both commands."""

    @property
    def count(self) -> int | None: ...
    @property
    def until_caught_up(self) -> bool: ...
    @property
    def format(self) -> str | None: ...
    @property
    def ack(self) -> bool: ...
    @property
    def decode(self) -> bool: ...
    def open(self, client: Client) -> AbstractAsyncContextManager[Consumer | Reader]: ...


class ConsumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``danube consume``."""

    topic: str
    subscription: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: str | int | datetime.datetime = LATEST
    count: int | None = None
    until_caught_up: bool = False
    format: str | None = None
    ack: bool = True
    name: str | None = None
    key_filters: Sequence[str] = ()
    renew_leases: bool = False
    decode: bool = False

    def open(self, client: Client) -> AbstractAsyncContextManager[Consumer]:
        """Return the consumer to enter; leaving it waits until its acknowledgements are durable."""
        return client.consumer(
            self.topic,
            subscription=self.subscription,
            type=self.type,
            start=self.start,
            name=self.name,
            # On a shared subscription, do not take messages from other consumers that will not be printed here.
            credit_messages=_narrow(self.count),
            key_filters=self.key_filters,
            renew_leases=self.renew_leases,
        )


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``danube read``."""

    topic: str
    start: str | int | datetime.datetime = EARLIEST
    count: int | None = None
    until_caught_up: bool = True
    format: str | None = None
    decode: bool = False

    @property
    def ack(self) -> bool:
        """False: a reader acknowledges nothing."""
        return False

    def open(self, client: Client) -> AbstractAsyncContextManager[Reader]:
        """Return the reader to enter."""
        few = _narrow(self.count)
        if few is None:
            return client.reader(self.topic, start=self.start)
        return client.reader(self.topic, start=self.start, credit_messages=few)


def _narrow(count: int | None) -> int | None:
    return count if count is not None and count < _FEW_MESSAGES else None


def run(options: ConsumeOptions | ReadOptions, url: str | None, context: str | None, output: Output) -> None:
    """Receive and print until the count, the end of the topic, a signal, or a closed output.

    Raises:
        InvalidArgumentError: the format is invalid.
        DanubeError: the broker refused, or was unreachable for more than a minute.
    """
    printer = make_printer(options.format, output)
    if options.format is None and output is Output.TABLE:
        _printing.write_now(_printing.table_head())
    run_with_client(lambda client: _Job(client, options, printer).run(), url, context, _RECONNECT_S)


class _Job:
    """One run of the command with a connected client."""

    def __init__(self, client: Client, options: _Options, printer: Printer) -> None:
        self._client = client
        self._options = options
        self._printer = printer
        self._decoding = Decoding(client) if options.decode else None
        self._left = options.count
        self._stopping = False
        self._receiving = trio.CancelScope()

    async def run(self) -> None:
        """Open the consumer or reader, and print."""
        async with self._options.open(self._client) as source, trio.open_nursery() as nursery:
            await nursery.start(self._watch_signals, nursery.cancel_scope)
            # A closed pipe is the normal end of `danube consume ... | head`: its reader has finished.
            with contextlib.suppress(BrokenPipeError):
                await self._print_batches(source)
            nursery.cancel_scope.cancel()

    async def _watch_signals(self, everything: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        """On a signal, stop receiving; output under way may complete, unless it is not read any longer."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self._stopping = True
                self._receiving.cancel()
                everything.deadline = trio.current_time() + _GRACE_S

    async def _print_batches(self, source: Consumer | Reader) -> None:
        batches = source.batches(until_caught_up=self._options.until_caught_up)
        while not self._stopping:
            with trio.CancelScope() as self._receiving:
                batch = await anext(batches, None)
            if self._receiving.cancelled_caught or batch is None:
                return
            if self._left is not None and self._left < len(batch):
                await self._print_some(batch, self._left)
                return
            await self._show(batch, batch)
            if self._options.ack:
                batch.ack_nowait()
            if self._left is not None:
                self._left -= len(batch)
                if not self._left:
                    return

    async def _print_some(self, batch: Batch, count: int) -> None:
        chosen = batch[:count]
        await self._show(chosen, batch)
        if self._options.ack:
            for message in chosen:
                message.ack_nowait()

    async def _show(self, messages: Sequence[Any], batch: Batch) -> None:
        if self._decoding is not None:
            messages = await self._decoding.shown(batch.schema_id, messages, is_framed=batch.is_framed)
        await _printing.write(self._printer(messages))
