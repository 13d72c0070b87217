"""Faces: additional protocols served by a broker, built on its shared operations.

The broker serves its native calls itself. A face adds services of another protocol on the same port (distinguished by
their codec), and admin services on the admin port. The broker knows nothing about the protocol of a face::

    run_broker(config, faces=(danube.compat.face,))     # a function: a broker in, its face out

This package is all that faces may know of the broker. It has interfaces only, and no I/O: the parts of the broker that
faces use (:class:`Served`), its topics and subscriptions, and the interface of a consumer, which faces implement.
Those of the broker's parts are for type checkers: at run time they are not loaded, and are imported from here under
``TYPE_CHECKING``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from danube.broker.delivery.connected_consumer import (
    AckWaiter,
    ConnectedConsumer,
    Delivery,
    Feeding,
    Origin,
    StoredBatch,
)
from danube.broker.security.caller import (
    JudgedRight,
    caller_name,
    may_consume,
    may_produce,
    may_read_schema,
    passed_on,
    received,
    require_schema,
)

if TYPE_CHECKING:
    from danube.broker.faces.directory import ServedCatalogue, ServedDirectory, ServedPolicies
    from danube.broker.faces.operations import (
        ServedClusterOperations,
        ServedMoveOperations,
        ServedOperations,
        ServedPolicyOperations,
        ServedSecurityOperations,
        ServedSubscriptionOperations,
        ServedTopicOperations,
    )
    from danube.broker.faces.registry import ServedRegistry
    from danube.broker.faces.served import (
        Served,
        ServedConfig,
        ServedConnections,
        ServedHealth,
        ServedPeers,
        ServedProbe,
        ServedRuntime,
    )
    from danube.broker.faces.topics import (
        ServedComposer,
        ServedComposing,
        ServedIntake,
        ServedProducers,
        ServedSubscription,
        ServedTopic,
    )
    from danube.http._dialect import Dialect
    from danube.http._messages import Handler
    from danube.wire.codec import Codec
    from danube.wire.service import Service

__all__ = [
    "AckWaiter",
    "ConnectedConsumer",
    "Delivery",
    "Face",
    "FaceMaker",
    "Feeding",
    "JudgedRight",
    "Origin",
    "Served",
    "ServedConnections",
    "ServedHealth",
    "ServedProbe",
    "ServedCatalogue",
    "ServedClusterOperations",
    "ServedComposer",
    "ServedComposing",
    "ServedConfig",
    "ServedDirectory",
    "ServedIntake",
    "ServedMoveOperations",
    "ServedPeers",
    "ServedRegistry",
    "ServedOperations",
    "ServedPolicies",
    "ServedPolicyOperations",
    "ServedProducers",
    "ServedRuntime",
    "ServedSecurityOperations",
    "ServedSubscription",
    "ServedSubscriptionOperations",
    "ServedTopic",
    "ServedTopicOperations",
    "Started",
    "StoredBatch",
    "caller_name",
    "may_consume",
    "may_produce",
    "may_read_schema",
    "passed_on",
    "received",
    "require_schema",
]


class Started(Protocol):
    """Told by a background task that it is ready; a ``trio.TaskStatus``."""

    def started(self, /) -> None:
        """Report that the task is ready."""
        ...


class Face(Protocol):
    """One face of one broker. It is created once, before the broker has topics, and its services are known then.

    While the broker starts, only those of its methods are served that are :attr:`danube.wire.Method.early`. These must
    not use more of the broker than its configuration and state.
    """

    @property
    def services(self) -> Service:
        """Methods served on the client port."""
        ...

    @property
    def admin_services(self) -> Service:
        """Methods served on the admin port."""
        ...

    @property
    def http(self) -> Handler | None:
        """Answers the requests of the HTTP port, also while the broker starts and drains; None: the face has no HTTP.

        Of several faces for one port the first one gets it.
        """
        ...

    @property
    def http_door(self) -> Literal["http", "registry"]:
        """Which port :attr:`http` answers: that of HTTP, or that of the schema registry."""
        ...

    @property
    def http_dialect(self) -> Dialect | None:
        """How targets are read on that port, and problems worded; None: as always."""
        ...

    @property
    def http_headers(self) -> Sequence[tuple[str, str]]:
        """Headers of each answer of the HTTP port, also of those that the server gives itself."""
        ...

    @property
    def codecs(self) -> Mapping[str, Codec]:
        """Codecs by content subtype, in addition to the native codec."""
        ...

    def subscription_of_consumer(self, consumer_id: int, /) -> tuple[str, str] | None:
        """Return topic and subscription of a consumer that requests name by its number; None if it is not known."""
        ...

    async def run(self, *, task_status: Started = ...) -> None:
        """Run the background work of the face until cancelled. It begins when the topics are loaded.

        All calls are served once ``task_status`` has been started. The task is cancelled after the last call has ended.
        """
        ...


FaceMaker = Callable[["Served"], Face]
"""Factory of the face of a broker."""
