"""Says on standard error what a command waits for: a person at the prompt sees that it does, and can end it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from danube.client import Client

__all__ = ["WaitWatch"]

_LOOK_INTERVAL_S: Final = 0.5
_LEAST_S: Final = 1.0
"""Shorter waits are not mentioned."""


class WaitWatch:
    """Looks at what a client waits for, and prints each reason once: again only after the wait has ended.

    Args:
        connecting: what the command waits for until there is a client.
    """

    def __init__(self, connecting: str) -> None:
        self.client: Client | None = None
        """The client, once it is connected."""
        self._connecting = connecting
        self._said: set[str] = set()

    async def run(self) -> None:
        """Watch until cancelled."""
        began_s = trio.current_time()
        while True:
            await trio.sleep(_LOOK_INTERVAL_S)
            if self.client is None:
                self._look(self._connecting if trio.current_time() - began_s >= _LEAST_S else None)
            else:
                self._look(self.client.waiting)

    def _look(self, reason: str | None) -> None:
        if reason is None:
            self._said.clear()
        elif reason not in self._said:
            self._said.add(reason)
            print(f"waiting: {' '.join(reason.split())}; Ctrl-C ends it", file=sys.stderr, flush=True)
