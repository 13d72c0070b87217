"""State of a copy of a table on its way from the leader to a member, on both sides. Pure.

The copy travels in pieces, one at a time. The receiver says up to where it has everything; that decides which piece is
sent next, whatever was lost. A copy is identified by its index and its digest: if the leader changes, or has to make
another one, the receiver begins again.
"""

from __future__ import annotations

from typing import Protocol

from danube.raft import Base

__all__ = ["Receiving", "Sending"]


class _Event(Protocol):
    def set(self) -> None: ...


class Sending:
    """A copy on its way to one member.

    Attributes:
        base, size, digest: of the copy.
        position: where the next piece begins.
        tries: how often the same piece was sent without an answer.
        news: set when an answer arrives.
    """

    def __init__(self, base: Base, size: int, digest: bytes) -> None:
        self.base = base
        self.size = size
        self.digest = digest
        self.position = 0
        self.tries = 0
        self.news: _Event | None = None

    @property
    def is_done(self) -> bool:
        """Whether all of it has arrived."""
        return self.position >= self.size

    def arrived(self, index: int, digest: bytes, position: int) -> None:
        """Record up to where the member has it."""
        if (index, digest) == (self.base.index, self.digest):
            self.position = min(position, self.size)
            if self.news is not None:
                self.news.set()


class Receiving:
    """A copy that is being received.

    Attributes:
        position: everything below it has arrived.
    """

    def __init__(self, base: Base, size: int, digest: bytes) -> None:
        self.base = base
        self.size = size
        self.digest = digest
        self.position = 0

    def is_of(self, index: int, digest: bytes) -> bool:
        """Return whether this is the copy of an index, with a digest."""
        return (index, digest) == (self.base.index, self.digest)

    def expects(self, position: int) -> bool:
        """Return whether a piece that begins there comes next."""
        return position == self.position and not self.is_complete

    def took(self, size: int) -> None:
        """Record a piece."""
        self.position += size

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.position >= self.size

    def restart(self) -> None:
        """Begin again: the bytes were not those of the copy."""
        self.position = 0
