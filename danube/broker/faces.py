"""Faces: further ways to talk to a broker, laid over its own calls.

The broker serves its native calls itself. A face adds services of another protocol on the same port (another codec
tells them apart), and services for those who look after the broker on the admin port. The broker knows nothing of what
a face does; a face uses the broker's topics, intakes, subscriptions and administration::

    run_broker(config, faces=(danube.compat.face,))     # a function: a broker in, its face out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import trio

from danube.wire import Codec, Service

if TYPE_CHECKING:
    from danube.broker.directory.directory import Directory
    from danube.broker.intake.composer import Composing
    from danube.broker.operations import Operations
    from danube.broker.runtime.runtime import Runtime

__all__ = ["Face", "FaceMaker", "Served"]


class Served(Protocol):
    """What a face gets of its broker."""

    runtime: Runtime
    directory: Directory
    operations: Operations
    composing: Composing
    admin_addresses: list[str]
    """Where it listens for admin services."""

    @property
    def draining(self) -> bool:
        """Whether it ends."""
        ...

    async def wait_draining(self) -> None:
        """Wait until it ends."""
        ...


class Face(Protocol):
    """One face of one broker. It is asked once, when the topics have come to life and before anybody can connect."""

    @property
    def services(self) -> Service:
        """Methods for the port of clients."""
        ...

    @property
    def admin_services(self) -> Service:
        """Methods for the admin port."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs by content subtype, in addition to the native one."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what the face has to do beside its calls, until cancelled.

        Calls are served once ``task_status`` was told. It is cancelled when the last call has ended.
        """
        ...


FaceMaker = Callable[["Served"], Face]
"""Makes the face of a broker."""
