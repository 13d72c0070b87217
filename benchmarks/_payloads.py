"""Distinct payloads, and checks that they arrived.

A payload is its sequence number (8 bytes, big endian) and a slice of pseudo-random filler, so no two are equal and
none compresses to nothing. Where order is guaranteed a CRC-32C runs over all payloads in order; where it is not
(shared subscriptions), every sequence number is ticked off.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import google_crc32c

__all__ = ["HEADER_BYTES", "CheckError", "Tally", "checksum", "make_payloads", "sequence_of"]

HEADER_BYTES = 8
_POOL_STEPS = 4096


class CheckError(Exception):
    """The received messages differ from the sent ones."""


def make_payloads(count: int, size: int, first: int = 0) -> list[bytes]:
    """Make ``count`` payloads of ``size`` bytes (at least 8) numbered from ``first``."""
    if size < HEADER_BYTES:
        raise ValueError(f"payloads need at least {HEADER_BYTES} bytes, not {size}")
    rest = size - HEADER_BYTES
    pool = random.Random(size).randbytes(_POOL_STEPS + rest)
    payloads = []
    for number in range(first, first + count):
        start = number * 61 % _POOL_STEPS
        payloads.append(number.to_bytes(HEADER_BYTES, "big") + pool[start : start + rest])
    return payloads


def sequence_of(payload: bytes) -> int:
    """The sequence number inside a payload."""
    return int.from_bytes(payload[:HEADER_BYTES], "big")


def checksum(payloads: Sequence[bytes], value: int = 0) -> int:
    """CRC-32C of the payloads in this order, continuing from ``value``."""
    return int(google_crc32c.extend(value, b"".join(payloads)))


class Tally:
    """Ticks off sequence numbers 0..count-1 that may come in any order, each exactly once."""

    def __init__(self, count: int) -> None:
        self._seen = bytearray(count)
        self.total = 0
        """Messages that were ticked off."""

    def add(self, payloads: Iterable[bytes]) -> None:
        """Tick off payloads.

        Raises:
            CheckError: one came a second time or was never sent.
        """
        for payload in payloads:
            self.add_one(payload)

    def add_one(self, payload: bytes) -> None:
        """Tick off one payload; errors as in :meth:`add`."""
        number = sequence_of(payload)
        if number >= len(self._seen):
            raise CheckError(f"message {number} was never sent")
        if self._seen[number]:
            raise CheckError(f"message {number} was delivered twice")
        self._seen[number] = 1
        self.total += 1
