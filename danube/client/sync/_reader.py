"""The blocking reader."""

from __future__ import annotations

from danube.client import _reader
from danube.client._reader import Start
from danube.client._reader_feed import ReaderFeed
from danube.client.sync._loop import Loop
from danube.client.sync._receiver import Receiver

__all__ = ["Reader"]


class Reader(Receiver[ReaderFeed]):
    """Reads a topic from a given position on; made by :meth:`Client.reader`. Iterate over it for messages."""

    def __init__(self, reader: _reader.Reader, loop: Loop) -> None:
        super().__init__(reader, loop)
        self._reader = reader

    @property
    def position(self) -> dict[int, int]:
        """For each partition the offset of the next message to be handed out."""
        return self._loop.call(lambda: self._reader.position)

    def seek(self, start: Start) -> None:
        """Move to another position; see :meth:`danube.client.Reader.seek`."""
        self._loop.run(self._reader.seek, start)
