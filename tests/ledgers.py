"""What was sent, what was acknowledged, and whether a topic holds it: the books of the tests that break machines.

Every payload is determined by its writer and number, so a reader can check every byte of it. A ledger keeps
the promises (acknowledged offset, flushed cursor) that a broker has made on one topic, and an audit reads the topic
and holds the broker to them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import trio

from danube.client import Client, RangeReceipt

_FILLER = bytes(range(256)) * 8
_AUDIT_TIMEOUT_S = 30.0


def payload(writer: str, number: int) -> bytes:
    """Return the message ``number`` of a writer: 10 to about 500 bytes, none like another."""
    start = f"{writer}/{number}/".encode()
    seed = zlib.crc32(start)
    return start + _FILLER[seed % 256 :][: seed >> 8 & 0xFF] + seed.to_bytes(4, "big") * (seed >> 16 & 0x3F)


def parse(message: bytes) -> tuple[str, int]:
    """Return writer and number of a payload, every byte of which must be as it was written."""
    writer, number = message.split(b"/", 2)[:2]
    assert message == payload(writer.decode(), int(number)), f"damaged payload: {message[:40]!r}"
    return writer.decode(), int(number)


@dataclass
class Ledger:
    """The promises that were made on one topic."""

    topic: str
    sent: dict[str, int] = field(default_factory=dict)
    """Writer to how many messages it has made."""
    acknowledged: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Offset to writer and number."""
    stored: list[tuple[str, int]] = field(default_factory=list)
    """What audits have seen, by offset."""
    counts: dict[str, int] = field(default_factory=dict)
    """Writer to how many of its messages are in ``stored``."""

    @property
    def end(self) -> int:
        """The offset behind the last acknowledged message."""
        return max(self.acknowledged, default=-1) + 1

    def next_payloads(self, writer: str, count: int) -> tuple[int, list[bytes]]:
        """Return the next messages of a writer and the number of the first."""
        first = self.sent.get(writer, 0)
        self.sent[writer] = first + count
        return first, [payload(writer, first + index) for index in range(count)]

    def note(self, writer: str, first: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Note an acknowledgement: messages from ``first`` on are at these ``(start, count)`` ranges."""
        for start, count in ranges:
            assert start >= 0, "the broker forgot where it stored a message"
            for index in range(count):
                offset = start + index
                assert offset not in self.acknowledged, f"{self.topic}: offset {offset} was given out twice"
                self.acknowledged[offset] = (writer, first)
                first += 1

    def forget_behind(self, end: int) -> int:
        """Drop the acknowledgements of a topic that may lose its end (durability ``os``); return how many."""
        lost = [offset for offset in self.acknowledged if offset >= end]
        for offset in lost:
            del self.acknowledged[offset]
        return len(lost)

    async def audit(self, client: Client, *, name: str, whole: bool = False) -> int:
        """Read the topic up to its end as it is now, and compare; return that end.

        What earlier audits have read is read again only if ``whole``. Every message must be intact, those of one
        writer must come in order, each once and none left out, and every acknowledged one at its offset.
        """
        end = (await client.admin.describe_topic(self.topic)).end_offset
        assert end >= len(self.stored), f"{self.topic}: ends at {end}, but {len(self.stored)} messages were read before"
        if whole:
            again, self.stored, self.counts = self.stored, [], {}
        else:
            again = []
        position = len(self.stored)
        with trio.fail_after(_AUDIT_TIMEOUT_S):
            async with client.consumer(self.topic, subscription=name, start=position) as consumer:
                while position < end:
                    batch = await consumer.receive_batch()
                    await batch.ack()
                    for message in batch:
                        assert message.offset == position, f"{self.topic}: {message.offset} follows {position - 1}"
                        self._take(message.payload)
                        position += 1
            await client.admin.delete_subscription(self.topic, name)
        assert self.stored[: len(again)] == again, f"{self.topic}: what was read before has changed"
        for offset, promised in self.acknowledged.items():
            if offset < position:
                assert self.stored[offset] == promised, f"{self.topic}: offset {offset}, acknowledged as {promised}"
        return end

    def _take(self, message: bytes) -> None:
        writer, number = parse(message)
        expected = self.counts.get(writer, 0)
        assert number == expected, f"{self.topic}, offset {len(self.stored)}: {writer}/{number} follows {expected - 1}"
        self.counts[writer] = expected + 1
        self.stored.append((writer, number))


def receipt_ranges(receipt: RangeReceipt) -> Sequence[tuple[int, int]]:
    """Return the ``(start, count)`` pairs of a receipt."""
    return [(part.start, part.count) for part in receipt.ranges]
