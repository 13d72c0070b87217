"""Implements ``danube produce``: reads blocks of lines, routes them, keeps a few sends in flight, sums up the receipts.

::

    file or pipe --thread--> blocks of lines --count, rate, keys, skip--> send_many ... a few in flight --> tally

Order is kept: a send is started only after the previous one has passed all its messages to the producer, which it
does without waiting as long as the producer's buffer has room; :data:`_IN_FLIGHT` blocks are far below that buffer.

**Resuming.** The n-th message of a named producer on a partition has sequence n, and the broker knows how many it
has. The same input is routed in the same way again, so that number of messages of each partition is skipped. This
requires that messages without a key are not routed by the present load, as the client does: a named producer is opened
once for each partition, and they are used in turn, message by message.
"""

from __future__ import annotations

import datetime
import math
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import trio

from danube.cli._client import run_with_client
from danube.cli._lines import BLOCK_BYTES, KeyField, repeat_texts, split_blocks
from danube.cli._output import Output
from danube.cli._produced import Progress, Tally, show_summary
from danube.model.errors import InvalidArgumentError, TopicNotFoundError
from danube.model.names import route_key
from danube.model.policies import Durability

if TYPE_CHECKING:
    from danube.client import Client, Producer

__all__ = ["ProduceOptions", "run"]

_IN_FLIGHT: Final = 3
"""Maximum number of blocks that wait for their receipts at the same time."""

_BLOCK_RECORDS: Final = 100_000
"""Maximum number of messages that are sent in one call."""

_PIPE_READ_BYTES: Final = 64 * 1024
_RECONNECT_S: Final = 60.0
_MAX_CACHED_KEYS: Final = 65_536
_STEPS_PER_SECOND: Final = 20
"""With a rate: maximum number of groups of messages sent per second."""


class ProduceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    topic: str
    file: Path | None = None
    """None for standard input, unless there are texts."""
    texts: list[bytes] = []
    key: str | None = None
    key_field: str | None = None
    attributes: dict[str, str] = {}
    rate: float | None = None
    count: int | None = None
    producer_name: str | None = None
    resume: bool = False
    durability: Durability | None = None
    partitions: int = 0
    compression: Literal["lz4", "zstd"] | None = None
    deliver_after_s: float | None = None
    """Seconds from the sending of each message."""
    deliver_at: datetime.datetime | None = None


class _Lane:
    """A producer, and the number of messages that it still has to skip."""

    def __init__(self, producer: Producer, skip: int) -> None:
        self.producer = producer
        self.skip = skip


def run(options: ProduceOptions, url: str | None, context: str | None, output: Output) -> bool:
    """Produce, and print the summary; return False if a signal ended it early.

    Raises:
        DanubeError: the broker refused, or was unreachable; acknowledged messages are reported on standard error.
        OSError: the input cannot be read.
    """
    tally = Tally()
    known = options.file is not None and options.count is None
    progress = Progress(options.file.stat().st_size if known and options.file else None, output)
    try:
        with progress:
            run_with_client(lambda client: _Job(client, options, tally, progress).run(), url, context, _RECONNECT_S)
    except BaseException:
        if tally.messages:
            print(f"{tally.messages} messages had been acknowledged before the failure", file=sys.stderr)
        raise
    show_summary(tally.summary(), output)
    return not tally.interrupted


class _Job:
    """One run of the command with a connected client."""

    def __init__(self, client: Client, options: ProduceOptions, tally: Tally, progress: Progress) -> None:
        self._client = client
        self._options = options
        self._tally = tally
        self._progress = progress
        self._slots = trio.Semaphore(_IN_FLIGHT)
        self._feeding = trio.CancelScope()
        self._lanes: list[_Lane] = []
        self._send_options: dict[str, Any] = {}
        if options.attributes:
            self._send_options["attributes"] = options.attributes
        if options.deliver_after_s is not None:
            self._send_options["deliver_after_s"] = options.deliver_after_s
        if options.deliver_at is not None:
            self._send_options["deliver_at"] = options.deliver_at
        self._key_field = KeyField(options.key_field) if options.key_field is not None else None
        self._partition_of: dict[str, int] = {}

    async def run(self) -> None:
        """Open the producers, send everything, wait for all receipts."""
        async with AsyncExitStack() as stack:
            await self._open_lanes(stack)
            async with trio.open_nursery() as nursery:
                await nursery.start(self._watch_signals)
                began = time.perf_counter()
                async with trio.open_nursery() as sends:
                    await self._feed(sends)
                self._tally.seconds = time.perf_counter() - began
                nursery.cancel_scope.cancel()

    async def _watch_signals(self, *, task_status: trio.TaskStatus[None]) -> None:
        """First signal: stop reading, finish sends under way. Second: exit at once."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                if self._tally.interrupted:
                    raise KeyboardInterrupt
                self._tally.interrupted = True
                self._feeding.cancel()

    # --- Producers ---------------------------------------------------------------------------------------------------

    async def _open_lanes(self, stack: AsyncExitStack) -> None:
        options = self._options
        topics = [options.topic]
        if options.producer_name is not None:
            topics = await self._partition_topics()
        for index, topic in enumerate(topics):
            name = options.producer_name
            if name is not None and topic != options.topic:
                name = f"{name}-{index}"
            producer = await stack.enter_async_context(
                self._client.producer(
                    topic,
                    name=name,
                    durability=options.durability,
                    compression=options.compression,
                    partitions=options.partitions if topic == options.topic else 0,
                )
            )
            self._lanes.append(_Lane(producer, sum(producer.stored_before) if options.resume else 0))

    async def _partition_topics(self) -> list[str]:
        options = self._options
        try:
            return (await self._client.admin.lookup_topic(options.topic)).topics
        except TopicNotFoundError:
            if not options.partitions:
                return [options.topic]
        await self._client.admin.create_topic(
            options.topic, partitions=options.partitions, durability=options.durability
        )
        return (await self._client.admin.lookup_topic(options.topic)).topics

    # --- Input -------------------------------------------------------------------------------------------------------

    async def _feed(self, sends: trio.Nursery) -> None:
        """Read, cut, pace and send until the input ends, the count is reached, or a signal arrives."""
        options = self._options
        left = math.inf if options.count is None else options.count
        done = 0
        began = trio.current_time()
        with _open_input(options) as source:
            sender, receiver = trio.open_memory_channel[list[bytes]](source.queue_size)
            async with trio.open_nursery() as nursery:
                self._feeding = nursery.cancel_scope
                if self._tally.interrupted:
                    nursery.cancel_scope.cancel()
                nursery.start_soon(_read, source, sender)
                while left > 0 and (lines := await _gather(receiver)):
                    if len(lines) > left:
                        lines = lines[: int(left)]
                    left -= len(lines)
                    for piece in self._pieces(lines):
                        if options.rate is not None:
                            await trio.sleep_until(began + done / options.rate)
                        await self._dispatch(sends, piece, done)
                        done += len(piece)
                nursery.cancel_scope.cancel()

    def _pieces(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        size = _BLOCK_RECORDS
        if self._options.rate is not None:
            size = max(1, min(size, int(self._options.rate / _STEPS_PER_SECOND)))
        for start in range(0, len(lines), size):
            yield lines[start : start + size]

    # --- Sending -----------------------------------------------------------------------------------------------------

    async def _dispatch(self, sends: trio.Nursery, lines: list[bytes], lines_before: int) -> None:
        keys: Sequence[str | None] | None = None
        if self._key_field is not None:
            keys = self._key_field.keys(lines, lines_before + 1)
        if len(self._lanes) == 1:
            await self._start_send(sends, self._lanes[0], lines, keys)
            return
        groups: list[tuple[list[bytes], list[str | None]]] = [([], []) for _ in self._lanes]
        each_key = keys if keys is not None else [self._options.key] * len(lines)
        for number, (line, key) in enumerate(zip(lines, each_key, strict=True), lines_before):
            group = groups[number % len(groups) if key is None else self._route(key)]
            group[0].append(line)
            group[1].append(key)
        for lane, (payloads, their_keys) in zip(self._lanes, groups, strict=True):
            if payloads:
                await self._start_send(sends, lane, payloads, None if keys is None else their_keys)

    def _route(self, key: str) -> int:
        index = self._partition_of.get(key)
        if index is None:
            if len(self._partition_of) >= _MAX_CACHED_KEYS:
                self._partition_of.clear()
            index = self._partition_of[key] = route_key(key, len(self._lanes))
        return index

    async def _start_send(
        self, sends: trio.Nursery, lane: _Lane, payloads: list[bytes], keys: Sequence[str | None] | None
    ) -> None:
        if lane.skip:
            skipped = min(lane.skip, len(payloads))
            lane.skip -= skipped
            self._tally.skipped += skipped
            payloads = payloads[skipped:]
            keys = None if keys is None else keys[skipped:]
            if not payloads:
                return
        await self._slots.acquire()
        # start() returns when the task has called started(); the task then passes its messages to the producer without
        # an await, so that the next one cannot overtake it.
        await sends.start(self._send, lane.producer, payloads, keys)

    async def _send(
        self,
        producer: Producer,
        payloads: list[bytes],
        keys: Sequence[str | None] | None,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        task_status.started()
        try:
            if keys is not None:
                receipt = await producer.send_many(payloads, keys=keys, **self._send_options)
            else:
                receipt = await producer.send_many(payloads, key=self._options.key, **self._send_options)
        finally:
            self._slots.release()
        size_bytes = sum(map(len, payloads))
        self._tally.add(receipt, size_bytes)
        self._progress.advance(size_bytes + len(payloads))


# --- Input helpers ---------------------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """The input."""

    blocks: Iterator[list[bytes]]
    queue_size: int
    """Number of blocks that may wait to be sent."""
    may_be_silent: bool = False
    """Whether reading the next block may take any time."""


@contextmanager
def _open_input(options: ProduceOptions) -> Iterator[_Source]:
    if options.texts:
        count = len(options.texts) if options.count is None else options.count
        yield _Source(repeat_texts(options.texts, count), 1)
        return
    if options.file is not None:
        with open(options.file, "rb", buffering=0) as file:
            yield _blocks_of(file.fileno())
        return
    descriptor = sys.stdin.fileno()
    try:
        os.read(descriptor, 0)
    except OSError as error:
        raise InvalidArgumentError(
            f"standard input cannot be read ({error.strerror}); give --file or --message"
        ) from error
    if os.isatty(descriptor):
        print("reading lines from the terminal; Ctrl-D ends", file=sys.stderr)
    yield _blocks_of(descriptor)


def _blocks_of(descriptor: int) -> _Source:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return _Source(split_blocks(descriptor, BLOCK_BYTES), 1)
    # A pipe gives small pieces, each as soon as it is available; pieces that have queued up are sent together.
    return _Source(split_blocks(descriptor, _PIPE_READ_BYTES), BLOCK_BYTES // _PIPE_READ_BYTES, may_be_silent=True)


async def _read(source: _Source, sender: trio.MemorySendChannel[list[bytes]]) -> None:
    # A read from a silent pipe cannot be interrupted: on Ctrl-C its (daemon) thread is left behind. That of a file is
    # waited for: the file is closed next, and another one may be opened under its descriptor.
    read = partial(trio.to_thread.run_sync, next, source.blocks, None, abandon_on_cancel=source.may_be_silent)
    async with sender:
        while (block := await read()) is not None:
            await sender.send(block)


async def _gather(receiver: trio.MemoryReceiveChannel[list[bytes]]) -> list[bytes]:
    """Return the lines of all available blocks, at least one; an empty list at the end of the input."""
    lines: list[bytes] = []
    try:
        lines = await receiver.receive()
        while len(lines) < _BLOCK_RECORDS:
            lines += receiver.receive_nowait()
    except (trio.EndOfChannel, trio.WouldBlock):
        pass
    return lines
