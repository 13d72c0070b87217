"""Reads many sockets in one task, by polling them with a separate epoll instance.

Trio waits for one socket in one task: each read re-arms the kernel's queue (``epoll_ctl``) and passes through
the scheduler, which for a request of 200 bytes costs more than reading it. Here all sockets of a server stay in one
separate queue (``epoll``, level-triggered), and one task waits for *that* with Trio. When woken, it reads each
ready socket, one after the other, and sleeps again::

    sockets ──▶ our epoll ──▶ Trio's epoll ──▶ one task ──▶ on_readable() of each socket

A socket with more data than its reader takes at once is still ready in the next round, behind the others, so no
socket starves. Between two rounds all other tasks run.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Final

import trio

__all__ = ["Poller", "new_poller"]

_MAX_EVENTS: Final = 256
"""Number of sockets read in one round, before other tasks run."""


class Poller:
    """Calls ``on_readable`` of sockets; :meth:`run` must run concurrently. Requires ``epoll``."""

    __slots__ = ("_epoll", "_readers")

    def __init__(self) -> None:
        assert sys.platform == "linux"
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call ``on_readable`` whenever the socket has data or has been closed by the peer, until :meth:`remove`.

        It must not raise, and must read something or remove the socket: otherwise it is called endlessly.
        """
        assert sys.platform == "linux"
        if self._epoll.closed:
            return  # the server is being cancelled, and its connections with it
        self._readers[fd] = on_readable
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Remove a socket, before it is closed. Unknown sockets are ignored."""
        if self._readers.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Poll the sockets and call their callbacks, until cancelled."""
        poll, readers = self._epoll.poll, self._readers
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in poll(0, _MAX_EVENTS):
                    on_readable = readers.get(fd)
                    if on_readable is not None:  # otherwise another callback has removed it in this round
                        on_readable()


def new_poller() -> Poller | None:
    """Return a poller, None if the system has no ``epoll``."""
    return Poller() if sys.platform == "linux" else None
