"""Which refused links are logged: the first of each host at once, further ones as a number. Pure.

Anything that reaches the port can cause refusals, so neither the log nor the memory may grow with their number.
"""

from __future__ import annotations

from typing import Final

__all__ = ["Refusals"]

MOST_HOSTS: Final = 100
"""Hosts that are remembered at a time; all further ones share one entry."""
_OTHERS: Final = ""


class Refusals:
    """Refused links by host.

    Args:
        every_s: shortest time between two lines about a host.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._hosts: dict[str, tuple[float, int]] = {}
        """Time of the last line, and the number of refusals since."""

    def note(self, host: str, now: float) -> int:
        """Count a refusal; return how many to log now, this one included, or 0 if none is to be logged."""
        if host not in self._hosts and len(self._hosts) >= MOST_HOSTS:
            self._forget(now)
            if len(self._hosts) >= MOST_HOSTS:
                host = _OTHERS
        said_at, count = self._hosts.get(host, (now - self._every_s, 0))
        count += 1
        if now - said_at < self._every_s:
            self._hosts[host] = (said_at, count)
            return 0
        self._hosts[host] = (now, 0)
        return count

    def _forget(self, now: float) -> None:
        for host, (said_at, _) in list(self._hosts.items()):
            if now - said_at >= self._every_s:
                del self._hosts[host]
