"""Polls many descriptors in one task, by a separate epoll instance, and ends each round with the work that it led to.

Trio waits for one descriptor in one task: each wait re-arms the kernel's queue (``epoll_ctl``) and passes through
the scheduler, which for a request of 200 bytes costs more than reading it. Here all sockets of a broker, and the
notifications of its disk, stay in one separate queue (``epoll``), and one task waits for *that* with Trio. When woken,
it calls the function of each ready descriptor, one after the other: a *round*. Then it sleeps again::

    sockets ──▶ our epoll ──▶ Trio's epoll ──▶ one task ──▶ on_readable() of each ──▶ soon()
       disk ──▶

What these functions want done once for the whole round, they pass to :meth:`Poller.soon`: to write all entries that
have arrived as one block, to send all answers of a connection together. Work that is passed outside of rounds runs in
the next turn of the loop, in a second task.

A socket with more data than its reader takes at once is still ready in the next round, behind the others, so no
socket starves. Between two rounds all other tasks run.

Systems without ``epoll`` have no rounds: :attr:`Poller.polls` is false, and only :meth:`Poller.soon` can be used.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Final

import trio

from danube.loop.waker import Waker
from danube.model.descriptors import is_out_of_descriptors, out_of_descriptors

__all__ = ["Poller"]

_MAX_EVENTS: Final = 256
"""Number of descriptors served in one round, before other tasks run."""


class Poller:
    """Calls functions of readable descriptors, and work at the end of a round, while :meth:`run` runs.

    Args:
        polls: whether to poll descriptors, if the system can.
    """

    __slots__ = ("_due", "_due_wanted", "_epoll", "_in_round", "_may_poll", "_readers", "polls")

    def __init__(self, *, polls: bool = True) -> None:
        self.polls = False
        """Whether descriptors can be polled: from :meth:`open` to the end of :meth:`run`, where there is ``epoll``."""
        self._may_poll = polls
        self._readers: dict[int, Callable[[], None]] = {}
        self._due: list[Callable[[], None]] = []
        self._due_wanted = Waker()
        self._in_round = False

    def add(self, fd: int, on_readable: Callable[[], None], *, each_write: bool = False) -> None:
        """Call ``on_readable`` in each round in which the descriptor is readable, or has been closed by the peer.

        It must not raise, and must read something or remove the descriptor: otherwise it is called endlessly. With
        ``each_write`` it need not read: it is called once after the peer has written (edge-triggered).
        """
        if not self.polls:
            return  # the poller has been cancelled, and what reads this descriptor is being cancelled
        assert sys.platform == "linux"
        self._readers[fd] = on_readable
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET if each_write else select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Remove a descriptor, before it is closed. Unknown ones are ignored."""
        if self._readers.pop(fd, None) is not None and self.polls:
            self._epoll.unregister(fd)

    def soon(self, work: Callable[[], None]) -> None:
        """Call ``work`` at the end of the present round; outside of rounds, in the next turn of the loop.

        It must not raise. What it passes to this method itself is called behind it, at the end of the same round.
        """
        self._due.append(work)
        if not self._in_round:
            self._due_wanted.wake()

    def open(self) -> None:
        """Take the descriptor that polling needs, unless that was done; :meth:`run` must follow, and releases it.

        Raises:
            OutOfDescriptorsError: no file descriptor is left.
        """
        if sys.platform != "linux" or self.polls or not self._may_poll:
            return
        try:
            self._epoll = select.epoll()
        except OSError as error:
            if is_out_of_descriptors(error):
                raise out_of_descriptors("the poller of sockets", error) from error
            raise
        self.polls = True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Poll, call functions and work, until cancelled.

        Raises:
            OutOfDescriptorsError: as :meth:`open`.
        """
        self.open()
        try:
            async with trio.open_nursery() as nursery:
                if self.polls:
                    nursery.start_soon(self._poll)
                task_status.started()
                while True:
                    self._work_off()
                    await self._due_wanted.wait()
        finally:
            if self.polls:
                self.polls = False
                self._epoll.close()

    async def _poll(self) -> None:
        poll, readers, fd = self._epoll.poll, self._readers, self._epoll.fileno()
        while True:
            await trio.lowlevel.wait_readable(fd)
            self._in_round = True
            for ready, _ in poll(0, _MAX_EVENTS):
                on_readable = readers.get(ready)
                if on_readable is not None:  # otherwise another function has removed it in this round
                    on_readable()
            self._work_off()
            self._in_round = False

    def _work_off(self) -> None:
        while self._due:
            due, self._due = self._due, []
            for work in due:
                work()
