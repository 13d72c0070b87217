"""A search: reads a topic, and reports what matches, for example as server-sent events.

Sealed messages of a storage on this machine are read from there, in a thread, without work for the broker; all others
come from the broker as stored batches. Either way a batch is passed over as a whole if it cannot match
(:mod:`danube.web.search.scanning`). :class:`EventReport` writes these events::

    match      a message (MessageRow); the id of the event is the position behind it
    progress   twice a second: how far the search is (SearchProgress)
    end        why it has ended, and where another search would go on (SearchEnd)
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import trio

from danube.http import event_text
from danube.model.errors import StorageError
from danube.web.bodies import SearchEnd, SearchProgress
from danube.web.messages import message_row, shown_positions
from danube.web.search.filters import parse_filter
from danube.web.search.jobs import Job, Part
from danube.web.search.scanning import Found, Scanner

if TYPE_CHECKING:
    from danube.client import Client
    from danube.history.direct import DirectPart
    from danube.model.query_api import RawBatch

__all__ = ["EventReport", "Report", "Search"]

_PROGRESS_S: Final = 0.5
_CREDIT_BYTES: Final = 4 * 1024 * 1024
"""Batches that the broker may send ahead."""


class Report(Protocol):
    """Takes what a search finds."""

    def match(self, found: Found, positions: Mapping[int, int]) -> bytes:
        """Return a match as bytes; ``positions`` are those behind it, by partition. May be called in a thread."""
        ...

    async def send(self, data: bytes) -> None:
        """Take matches as bytes, and wait until more may follow."""
        ...

    async def progress(self, progress: SearchProgress) -> None:
        """Take how far the search is."""
        ...

    async def end(self, end: SearchEnd) -> None:
        """Take how the search has ended."""
        ...


class EventReport:
    """Reports as server-sent events.

    Args:
        send: takes events, and waits until more may follow.
        payload_bytes: beyond which a payload is cut.

    Attributes:
        last: the event ``end``, which is not sent; empty before.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]], payload_bytes: int) -> None:
        self._send = send
        self._payload_bytes = payload_bytes
        self.last = b""

    def match(self, found: Found, positions: Mapping[int, int]) -> bytes:
        """Return an event ``match``."""
        row = message_row(found, found.partition, self._payload_bytes)
        return event_text(msgspec.json.encode(row), name="match", event_id=shown_positions(positions))

    async def send(self, data: bytes) -> None:
        """Send events ``match``."""
        await self._send(data)

    async def progress(self, progress: SearchProgress) -> None:
        """Send an event ``progress``."""
        await self._send(event_text(msgspec.json.encode(progress), name="progress"))

    async def end(self, end: SearchEnd) -> None:
        """Keep the event ``end``."""
        await trio.lowlevel.checkpoint()
        self.last = event_text(msgspec.json.encode(end), name="end")


class Search:
    """One search.

    Args:
        client: of the caller.
        job: what to search.
        report: takes what is found.

    Attributes:
        matches: messages that have matched.
        scanned: messages that were looked at.
    """

    def __init__(self, client: Client, job: Job, report: Report) -> None:
        self._client = client
        self._job = job
        self._report = report
        self._node = parse_filter(job.filter)
        self._positions = {part.partition: part.start for part in job.parts}
        self._partition = job.parts[0].partition if job.parts else 0
        self._total = sum(part.end - part.start for part in job.parts)
        self._began_s = 0.0
        self._bytes = 0
        self._over = ""
        self.matches = 0
        self.scanned = 0

    async def run(self) -> None:
        """Search until the end, or a bound of the job. Cancellation ends it at once.

        Raises:
            DanubeError: something cannot be read.
        """
        self._began_s = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_progress)
            for part in self._job.parts:
                self._partition = part.partition
                await self._search(part)
                if self._is_over():
                    break
            nursery.cancel_scope.cancel()
        await self._report.end(self._ended())

    async def _tell_progress(self) -> None:
        while True:
            await trio.sleep(_PROGRESS_S)
            await self._report.progress(self._progress())

    def _progress(self) -> SearchProgress:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-6)
        return SearchProgress(
            partition=self._partition,
            offset=self._positions.get(self._partition, 0),
            scanned=self.scanned,
            total=self._total,
            matches=self.matches,
            elapsed_s=round(elapsed_s, 3),
            per_second=round(self.scanned / elapsed_s),
        )

    def _ended(self) -> SearchEnd:
        said = msgspec.structs.asdict(self._progress())
        return SearchEnd(**said, reason=self._over or "complete", next=shown_positions(self._positions))

    async def _search(self, part: Part) -> None:
        scanner = Scanner(self._node, part.topic, part.partition, self._job.max_batch_bytes)
        if part.storage_url:
            await self._read_sealed(part, scanner)
        position = self._positions[part.partition]
        if self._is_over() or position >= part.end:
            return
        async with self._client.logs.read(
            part.topic, position, part.end, topic_id=part.topic_id, credit_bytes=_CREDIT_BYTES
        ) as reading:
            while not self._is_over() and (batches := await reading.next_batches()):
                for batch in batches:
                    matches = self._take(scanner, batch, part)
                    if matches:
                        await self._report.send(matches)
                    else:
                        await trio.lowlevel.checkpoint()
                    if self._is_over():
                        break
        if not self._is_over():
            self._positions[part.partition] = part.end

    def _is_over(self) -> bool:
        """Whether a bound was reached."""
        return bool(self._over)

    def _take(self, scanner: Scanner, batch: RawBatch, part: Part) -> bytes:
        """Look at a batch; return what matches as bytes."""
        job, partition = self._job, part.partition
        position = self._positions[partition]
        scanned, found = scanner.scan(batch, position, part.end)
        end = max(position, min(batch.end_offset, part.end))
        matches = []
        for each in found:
            self._positions[partition] = each.offset + 1
            match = self._report.match(each, self._positions)
            matches.append(match)
            self.matches += 1
            self._bytes += len(match)
            if self.matches >= job.max_matches or self._bytes >= job.max_bytes:
                self._over = "matches" if self.matches >= job.max_matches else "bytes"
                self.scanned += max(0, scanned - (end - each.offset - 1))
                return b"".join(matches)
        self.scanned += scanned
        self._positions[partition] = end
        if time.monotonic() - self._began_s >= job.max_s:
            self._over = "time"
        return b"".join(matches)

    # --- Sealed messages ---

    async def _read_sealed(self, part: Part, scanner: Scanner) -> None:
        """Read what is in a storage on this machine. What cannot be read there is left to the broker."""
        found = await self._client.logs.parts(part.topic, part.start, part.end)
        if found.topic_id != part.topic_id or not found.parts:
            return
        from danube.history.direct import direct_parts, open_direct  # only where history is read directly

        def is_here(each: DirectPart) -> bool:
            return found.storages.get(each.storage) == part.storage_url

        def read() -> None:
            with open_direct(part.storage_url) as storage:
                spans = [(each, part.start, part.end) for each in takewhile(is_here, direct_parts(found))]
                for batch in storage.read_all(spans):
                    trio.from_thread.check_cancelled()
                    matches = self._take(scanner, batch, part)
                    if matches:
                        trio.from_thread.run(self._report.send, matches)
                    if self._is_over():
                        return

        try:
            await trio.to_thread.run_sync(read)
        except StorageError:
            # Merged or removed since, or a directory of another machine: the broker knows.
            return
