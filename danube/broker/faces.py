"""Faces: additional protocols served by a broker, built on its shared operations.

The broker serves its native calls itself. A face adds services of another protocol on the same port (distinguished by
their codec), and admin services on the admin port. The broker knows nothing about the protocol of a face; a face uses
the broker's topics, intakes, subscriptions and operations::

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
    """The part of a broker that a face may use."""

    runtime: Runtime
    directory: Directory
    operations: Operations
    composing: Composing
    admin_addresses: list[str]
    """Addresses of the admin port."""

    @property
    def draining(self) -> bool:
        """Whether the broker is shutting down."""
        ...

    async def wait_draining(self) -> None:
        """Wait until the broker starts to shut down."""
        ...


class Face(Protocol):
    """One face of one broker. It is created once, after the topics are loaded and before clients can connect."""

    @property
    def services(self) -> Service:
        """Methods served on the client port."""
        ...

    @property
    def admin_services(self) -> Service:
        """Methods served on the admin port."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs by content subtype, in addition to the native codec."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the background work of the face until cancelled.

        Calls are served once ``task_status`` has been started. The task is cancelled after the last call has ended.
        """
        ...


FaceMaker = Callable[["Served"], Face]
"""Factory of the face of a broker."""
