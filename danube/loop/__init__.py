"""The event loop as network and disk share it: one poller for their descriptors, and work at the end of its rounds."""

from __future__ import annotations

from danube.loop.poller import Poller
from danube.loop.waker import Waker

__all__ = ["Poller", "Waker"]
