"""Which TLS handshakes may run, so that those that never end do not keep out others. Pure: times are arguments.

A handshake costs the server half a millisecond and 40 KiB, and its peer nothing. So at most ``max_tls_handshakes`` run
at once, and ``max_tls_handshakes_per_address`` for one address; others wait for their turn. The addresses take turns,
too, so an address with many waiting connections delays only its own.

* A handshake that succeeds makes room at once. One that fails occupies its address's room for a second after it began:
  an address fails at most ``max_tls_handshakes_per_address`` times a second.
* While others wait for its room, a handshake that has run for longer than a second is given up, the oldest first.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["LEAST_S", "Handshake", "Handshakes", "address_key"]

LEAST_S: Final = 1.0
"""How long a handshake runs at least before it is given up for another one, in seconds."""


class Handshake:
    """One connection's handshake.

    Args:
        address: the peer's, see :func:`address_key`.
        begin: is called when it may begin.
        give_up: is called when it must end; :meth:`Handshakes.leave` follows.
    """

    __slots__ = ("address", "began_at", "begin", "give_up", "given_up")

    def __init__(self, address: str, begin: Callable[[], None], give_up: Callable[[], None]) -> None:
        self.address = address
        self.begin = begin
        self.give_up = give_up
        self.began_at: float | None = None
        """When it began; None while it waits."""
        self.given_up = False


class _Address:
    __slots__ = ("penalties", "running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.penalties: deque[float] = deque()
        """When the room of failed handshakes becomes free."""
        self.waiting: dict[Handshake, None] = {}


class Handshakes:
    """All handshakes of one server.

    Args:
        most: that run at once.
        most_per_address: of one address.
    """

    def __init__(self, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._addresses: dict[str, _Address] = {}
        """Those with running, waiting or failed handshakes."""
        self._queue: dict[str, None] = {}
        """Those with waiting ones; the one whose turn is next comes first."""
        self._running: dict[Handshake, None] = {}
        """In the order in which they began."""

    @property
    def running(self) -> int:
        """Handshakes in progress."""
        return len(self._running)

    def enter(self, handshake: Handshake, now: float) -> None:
        """Take a new handshake; its ``begin`` is called now or later."""
        name = handshake.address
        self._addresses.setdefault(name, _Address()).waiting[handshake] = None
        self._queue.setdefault(name)
        self._begin_one(name, now)

    def leave(self, handshake: Handshake, now: float, *, succeeded: bool) -> None:
        """A handshake has ended, or no longer waits."""
        name = handshake.address
        address = self._addresses[name]
        if handshake.began_at is None:
            del address.waiting[handshake]
        else:
            del self._running[handshake]
            address.running -= 1
            free_at = handshake.began_at + LEAST_S
            if not succeeded and free_at > now:
                address.penalties.append(free_at)
        self._tidy(name, now)
        self._begin(now)

    def look(self, now: float) -> None:
        """Begin what may begin now, and give up what has run too long. Called about once a second."""
        for name in list(self._addresses):
            self._tidy(name, now)
        self._begin(now)
        if self._queue and len(self._running) >= self._most:
            self._give_up(sum(len(self._addresses[name].waiting) for name in self._queue), now, None)
        for name in self._queue:
            address = self._addresses[name]
            if self._taken(address) >= self._most_per_address:
                self._give_up(len(address.waiting), now, name)

    def _begin(self, now: float) -> None:
        """Begin one handshake of each address in turn, as long as there is room."""
        began = True
        while began and len(self._running) < self._most:
            began = False
            for name in list(self._queue):
                if len(self._running) >= self._most:
                    return
                began = self._begin_one(name, now) or began

    def _begin_one(self, name: str, now: float) -> bool:
        address = self._addresses[name]
        if len(self._running) >= self._most or self._taken(address) >= self._most_per_address:
            return False
        handshake = next(iter(address.waiting))
        del address.waiting[handshake]
        del self._queue[name]
        if address.waiting:
            self._queue[name] = None  # behind the others
        address.running += 1
        handshake.began_at = now
        self._running[handshake] = None
        handshake.begin()
        return True

    def _tidy(self, name: str, now: float) -> None:
        address = self._addresses[name]
        penalties = address.penalties
        while penalties and penalties[0] <= now:
            penalties.popleft()
        if not address.waiting:
            self._queue.pop(name, None)
            if not address.running and not penalties:
                del self._addresses[name]

    @staticmethod
    def _taken(address: _Address) -> int:
        return address.running + len(address.penalties)

    def _give_up(self, count: int, now: float, name: str | None) -> None:
        """Give up so many of the oldest handshakes, of one address or of all, that have run for ``LEAST_S``."""
        for handshake in list(self._running):
            assert handshake.began_at is not None
            if not count or now - handshake.began_at < LEAST_S:
                return
            if not handshake.given_up and name in (None, handshake.address):
                handshake.given_up = True
                count -= 1
                handshake.give_up()


def address_key(host: str) -> str:
    """Return what counts as one address: an IPv4 address, the /64 network of an IPv6 address, or the text itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
