"""The work of ``danube consume``: batches in, bytes out, acknowledgements after the bytes have left.

A batch is turned into one piece of output, written with as few system calls as the pipe allows, and only then
acknowledged: a message that was not printed is delivered again, to whoever comes next. Writing happens in a thread,
because a pipe whose reader sleeps (``| less``) would otherwise keep the client from answering its broker's PINGs.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import trio

from danube.cli._client import run_with_client
from danube.cli._format import Shown, compile_format, iso_time
from danube.cli._output import Output
from danube.model.policies import LATEST, SubscriptionType

if TYPE_CHECKING:
    from danube.client import Batch, Client, Consumer

__all__ = ["Plan", "Printer", "json_lines", "make_printer", "run", "table_lines"]

_RECONNECT_S: Final = 60.0
_GRACE_S: Final = 1.0
"""How long, after a signal, the output that is under way may take: then it can still be acknowledged."""

_FEW_MESSAGES: Final = 2_000
"""A smaller ``--count`` is also the read-ahead; a larger one leaves the read-ahead to the client."""

Printer: TypeAlias = Callable[[Sequence[Shown]], bytes]
"""Turns messages into the bytes to print."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of the command ask for."""

    topic: str
    subscription: str
    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    start: str | int | datetime.datetime = LATEST
    count: int | None = None
    until_caught_up: bool = False
    format: str | None = None
    ack: bool = True
    name: str | None = None


def run(plan: Plan, url: str | None, context: str | None, output: Output) -> None:
    """Consume and print until the count, the end, a signal, or the reader of the output ends it.

    Raises:
        InvalidArgumentError: the format means nothing.
        DanubeError: the broker refused, or did not come back within a minute.
    """
    printer = make_printer(plan.format, output)
    if plan.format is None and output is Output.TABLE:
        _write(table_head())
    run_with_client(lambda client: _Job(client, plan, printer).run(), url, context, _RECONNECT_S)


class _Job:
    """One run of the command with a connected client."""

    def __init__(self, client: Client, plan: Plan, printer: Printer) -> None:
        self._client = client
        self._plan = plan
        self._printer = printer
        self._left = plan.count
        self._stopping = False
        self._receiving = trio.CancelScope()

    async def run(self) -> None:
        """Open the consumer and print; leaving the consumer waits until its acknowledgements are durable."""
        plan = self._plan
        # Of a shared subscription, take no messages away from others that will not be printed here.
        credit = plan.count if plan.count is not None and plan.count < _FEW_MESSAGES else None
        async with (
            self._client.consumer(
                plan.topic,
                subscription=plan.subscription,
                type=plan.type,
                start=plan.start,
                name=plan.name,
                credit_messages=credit,
            ) as consumer,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(self._watch_signals, nursery.cancel_scope)
            # A closed pipe is the normal end of `danube consume ... | head`: whoever read has seen enough.
            with contextlib.suppress(BrokenPipeError):
                await self._print_batches(consumer)
            nursery.cancel_scope.cancel()

    async def _watch_signals(self, everything: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        """On a signal, receive no more; what is being printed may end, unless nobody reads it any longer."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self._stopping = True
                self._receiving.cancel()
                everything.deadline = trio.current_time() + _GRACE_S

    async def _print_batches(self, consumer: Consumer) -> None:
        batches = consumer.batches(until_caught_up=self._plan.until_caught_up)
        while not self._stopping:
            with trio.CancelScope() as self._receiving:
                batch = await anext(batches, None)
            if self._receiving.cancelled_caught or batch is None:
                return
            if self._left is not None and self._left < len(batch):
                await self._print_some(batch, self._left)
                return
            await self._show(batch)
            if self._plan.ack:
                batch.ack_nowait()
            if self._left is not None:
                self._left -= len(batch)
                if not self._left:
                    return

    async def _print_some(self, batch: Batch, count: int) -> None:
        chosen = batch[:count]
        await self._show(chosen)
        if self._plan.ack:
            for message in chosen:
                message.ack_nowait()

    async def _show(self, messages: Sequence[Any]) -> None:
        data = self._printer(messages)
        await trio.to_thread.run_sync(_write, data, abandon_on_cancel=True)


# --- Output ----------------------------------------------------------------------------------------------------------


def make_printer(format: str | None, output: Output) -> Printer:
    """Return what turns messages into output.

    Raises:
        InvalidArgumentError: the format means nothing.
    """
    if format is not None:
        show = compile_format(format)
        return lambda messages: b"".join(map(show, messages))
    if output is Output.JSON:
        return json_lines
    if output is Output.TABLE:
        return table_lines
    return _payload_lines


def _payload_lines(messages: Sequence[Any]) -> bytes:
    payloads: Iterable[bytes] = (
        messages.payloads() if hasattr(messages, "payloads") else [message.payload for message in messages]
    )
    return b"\n".join([*payloads, b""])


_encode_lines = msgspec.json.Encoder().encode_lines


def json_lines(messages: Sequence[Shown]) -> bytes:
    """Return one JSON object a line. A payload that is not UTF-8 is base64, and ``encoding`` says so."""
    return _encode_lines([_json_object(message) for message in messages])


def _json_object(message: Shown) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
    }
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload"] = base64.b64encode(message.payload).decode()
        shown["encoding"] = "base64"
    shown["publish_time"] = iso_time(message.publish_time_us)
    shown["producer"] = message.producer
    shown["attempt"] = message.attempt
    shown["attributes"] = message.attributes or {}
    return shown


_ROW: Final = "{:>9}  {:>12}  {:<27}  {:<16}  {}\n"


def table_head() -> bytes:
    """Return the line above the rows of :func:`table_lines`."""
    return _ROW.format("partition", "offset", "publish time", "key", "payload").encode()


def table_lines(messages: Sequence[Shown]) -> bytes:
    """Return one row a line; control characters of keys and payloads are escaped, so that a row stays a row."""
    return "".join(
        _ROW.format(
            message.partition,
            message.offset,
            iso_time(message.publish_time_us),
            _visible(message.key or ""),
            _visible(message.payload.decode(errors="backslashreplace")),
        )
        for message in messages
    ).encode("utf-8", "backslashreplace")


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _write(data: bytes) -> None:
    """Write everything to standard output, past Python's buffer: when this returns, the operating system has it."""
    try:
        descriptor = sys.stdout.fileno()
    except io.UnsupportedOperation:  # standard output was replaced by an object in memory
        sys.stdout.buffer.write(data)
        return
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
