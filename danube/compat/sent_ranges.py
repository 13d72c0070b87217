"""Which messages an official client has on its way, to extend their leases. Pure: no I/O, no clock.

These clients do not extend leases, although they queue messages before they process them. So the broker does it: an
acknowledgement shows that the client has reached that message, and restarts the ack timeout of messages sent after it.
Messages sent before it keep their deadlines. So queued messages of a slow client do not time out, while a message that
the client has lost does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

__all__ = ["SentRanges"]

_MOST_RANGES: Final = 10_000
"""Number of ranges that are tracked."""
_MISSED_PAUSE_S: Final = 0.1
"""Pause of evaluating acknowledgements after one for a message that is no longer tracked."""


class SentRanges:
    """Delivered ranges that the client is not known to have received, in order of delivery."""

    __slots__ = ("_ranges", "again_s")

    def __init__(self) -> None:
        self._ranges: deque[list[int]] = deque(maxlen=_MOST_RANGES)
        self.again_s = 0.0
        """Monotonic time in seconds from which acknowledgements are evaluated again; until then, skip them."""

    def add(self, ranges: Sequence[int]) -> None:
        """Add the flat ranges of a delivery."""
        sent = self._ranges
        for index in range(0, len(ranges), 2):
            if sent and sent[-1][1] == ranges[index]:
                sent[-1][1] = ranges[index + 1]
            else:
                sent.append([ranges[index], ranges[index + 1]])

    def heard(self, offset: int, now_s: float, timeout_s: float) -> list[int] | None:
        """Handle an acknowledgement or nack; return the flat ranges of the messages sent after that message.

        A few acknowledgements in each ack timeout are evaluated, those after :attr:`again_s`.

        Args:
            offset: of the message.
            now_s: monotonic time in seconds.
            timeout_s: the ack timeout of the subscription; 0: none.

        Returns:
            None if the message is not known to have been sent.
        """
        sent = self._ranges
        index = next((index for index, (start, end) in enumerate(sent) if start <= offset < end), None)
        if index is None:
            self.again_s = now_s + _MISSED_PAUSE_S
            return None
        for _ in range(index):
            sent.popleft()
        sent[0][0] = offset + 1
        if offset + 1 >= sent[0][1]:
            sent.popleft()
        self.again_s = now_s + timeout_s / 8
        return [number for pair in sent for number in pair]

    def clear(self) -> None:
        """Forget all ranges."""
        self._ranges.clear()
