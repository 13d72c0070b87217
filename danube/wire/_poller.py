"""Reading many sockets in one task.

Trio waits for one socket in one task: each read arms the kernel's queue anew (``epoll_ctl``) and takes a trip through
the scheduler, which for a request of 200 bytes costs more than reading it. Here all sockets of a server stay in one
queue of our own (``epoll``, level-triggered), and one task waits for *that* with Trio. When it is woken, it lets each
socket that has something be read, one after the other, and sleeps again::

    sockets ──▶ our epoll ──▶ Trio's epoll ──▶ one task ──▶ on_readable() of each socket

A socket that has more than its reader takes at once is still ready in the next round, behind the others, so nobody
starves. Between two rounds every other task has its turn.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Final

import trio

__all__ = ["Poller", "new_poller"]

_MAX_EVENTS: Final = 256
"""How many sockets are read in one round, before other tasks have their turn."""


class Poller:
    """Calls ``on_readable`` of sockets; :meth:`run` must run beside it. Only where there is ``epoll``."""

    __slots__ = ("_epoll", "_readers")

    def __init__(self) -> None:
        assert sys.platform == "linux"
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call ``on_readable`` whenever the socket has something, its end included, until :meth:`remove`.

        It must not raise, and has to take something or remove the socket: otherwise it is called for ever.
        """
        assert sys.platform == "linux"
        if self._epoll.closed:
            return  # the server ends, and so does whoever asks
        self._readers[fd] = on_readable
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Forget a socket, before it is closed. Nothing happens if it is not there."""
        if self._readers.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Wait and call, until cancelled."""
        poll, readers = self._epoll.poll, self._readers
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, _ in poll(0, _MAX_EVENTS):
                    on_readable = readers.get(fd)
                    if on_readable is not None:  # else another one's callback has removed it in this round
                        on_readable()


def new_poller() -> Poller | None:
    """Return a poller, None where the system has no ``epoll``."""
    return Poller() if sys.platform == "linux" else None
