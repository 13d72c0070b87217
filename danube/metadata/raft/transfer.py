"""Copies of a table on their way from the leader to other members, on both sides. Pure.

The copy travels in pieces, one at a time. The receiver says up to where it has everything; that decides which piece is
sent next, whatever was lost. A copy is identified by its index and its digest: if the leader changes, or has to make
another one, the receiver begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from danube.metadata.raft.messages import SnapshotPiece, SnapshotReply
from danube.model.batch import crc32c
from danube.raft import Base, NodeId

__all__ = ["Copy", "Incoming", "Outgoing", "Receiving", "Sending", "Step"]

_MOST_TRIES: Final = 10
"""A piece is sent so many times without an answer."""


class Copy(NamedTuple):
    """A copy that was made of the leader's table."""

    base: Base
    """The log behind it."""
    size: int
    digest: bytes


class Step(Enum):
    """What follows a piece of a copy."""

    NEXT = "the next piece"
    AGAIN = "the same piece"
    GIVE_UP = "nothing: the member does not answer"


def _unheard() -> None:
    """Wake the sender of a copy that does not wait."""


class Sending:
    """A copy on its way to one member.

    Attributes:
        copy: that is sent.
        position: where the next piece begins.
        on_news: called when an answer arrives.
    """

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.position = 0
        self.on_news: Callable[[], None] = _unheard
        self._tries = 0

    @property
    def is_done(self) -> bool:
        """Whether all of it has arrived."""
        return self.position >= self.copy.size

    def piece(self, term: int, position: int, content: bytes) -> SnapshotPiece:
        """Return the message of the piece that begins at a position, with its content."""
        base, size, digest = self.copy
        return SnapshotPiece(term, base, size, digest, position, content, crc32c(content))

    def arrived(self, reply: SnapshotReply) -> None:
        """Record up to where the member has it."""
        if (reply.index, reply.digest) == (self.copy.base.index, self.copy.digest):
            self.position = min(reply.position, self.copy.size)
            self.on_news()

    def step(self, sent: int) -> Step:
        """Return what follows, after an answer or the time for one, to the piece that began at ``sent``."""
        if self.position != sent or self.is_done:
            self._tries = 0
            return Step.NEXT
        self._tries += 1
        return Step.GIVE_UP if self._tries > _MOST_TRIES else Step.AGAIN


class Outgoing:
    """The copies that a leader sends.

    Attributes:
        copy: the last one that was made, if it is of use; a new one replaces it.
    """

    def __init__(self) -> None:
        self.copy: Copy | None = None
        self._claimed: set[NodeId] = set()
        self._sending: dict[NodeId, Sending] = {}

    def claim(self, to: NodeId) -> bool:
        """Return whether to send a copy to a member: none is on its way. Followed by :meth:`end` in any case."""
        if to in self._claimed:
            return False
        self._claimed.add(to)
        return True

    @property
    def indexes(self) -> Iterable[int]:
        """The entries behind these are needed by the receivers."""
        return [sending.copy.base.index for sending in self._sending.values()]

    def usable(self, base_index: int) -> Copy | None:
        """Return the present copy if the log continues it and it is being sent; otherwise forget it."""
        if self.copy is not None and (self.copy.base.index < base_index or not self._sending):
            self.copy = None
        return self.copy

    def is_present(self, copy: Copy) -> bool:
        """Return whether pieces of a copy can be read: no other has replaced it."""
        return self.copy is not None and self.copy.digest == copy.digest

    def begin(self, to: NodeId, copy: Copy) -> Sending:
        """Begin to send a copy to a member."""
        sending = self._sending[to] = Sending(copy)
        return sending

    def end(self, to: NodeId) -> None:
        """Record that sending to a member has ended, one way or the other."""
        self._claimed.discard(to)
        self._sending.pop(to, None)

    def arrived(self, sender: NodeId, reply: SnapshotReply) -> None:
        """Record the answer of a member."""
        sending = self._sending.get(sender)
        if sending is not None:
            sending.arrived(reply)


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


class Incoming:
    """The pieces that a member receives."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[NodeId, SnapshotPiece]] = deque()
        self._receiving: Receiving | None = None

    @property
    def has_pieces(self) -> bool:
        """Whether pieces wait to be written."""
        return bool(self._pieces)

    def add(self, sender: NodeId, piece: SnapshotPiece) -> None:
        """Queue a piece of a leader."""
        self._pieces.append((sender, piece))

    def take(self) -> tuple[NodeId, SnapshotPiece]:
        """Return, and forget, the next piece."""
        return self._pieces.popleft()

    def of(self, piece: SnapshotPiece) -> Receiving | None:
        """Return the copy to which a piece belongs, a new one if it is that of another; None if it is damaged."""
        if crc32c(piece.piece) != piece.crc:
            return None  # it is sent again
        receiving = self._receiving
        if receiving is None or not receiving.is_of(piece.base.index, piece.digest):
            receiving = self._receiving = Receiving(piece.base, piece.size, piece.digest)
        return receiving

    def installed(self) -> None:
        """Forget the copy: it has become the table."""
        self._receiving = None
