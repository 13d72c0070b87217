"""Which client connections use the topics of a namespace at this broker. Pure; see :class:`NamespaceConnections`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from danube.model.errors import LimitExceededError

__all__ = ["NamespaceConnections"]


class NamespaceConnections:
    """The connections of namespaces that have streams open on their topics: producers, consumers, readers, stages.

    A connection counts once for each namespace, however many streams it has there, from its first one until its last
    one has ended. Streams are counted also without a quota, so that the count is right from the moment there is one.

    Attributes:
        limit_of: returns the quota of a namespace; None: it has none. Set by the owner.
    """

    def __init__(self) -> None:
        self.limit_of: Callable[[str], int | None] = _no_limit
        self._streams: dict[str, dict[int, int]] = {}
        """By namespace and connection: how many streams are open."""

    def used(self, namespace: str) -> int:
        """Return how many connections use a namespace."""
        return len(self._streams.get(namespace, ()))

    @contextmanager
    def using(self, topic: str, connection_id: int) -> Iterator[None]:
        """Count a stream of a connection on a topic or partition while the context is open.

        Raises:
            LimitExceededError: on entry; the connection would be one more than the quota of the namespace. Retryable.
        """
        namespace = topic.split("/", 2)[1]
        streams = self._streams.get(namespace, {})
        if connection_id not in streams:
            self._check(namespace, len(streams))
        streams[connection_id] = streams.get(connection_id, 0) + 1
        self._streams[namespace] = streams
        try:
            yield
        finally:
            streams[connection_id] -= 1
            if not streams[connection_id]:
                del streams[connection_id]
                if not streams:
                    del self._streams[namespace]

    def _check(self, namespace: str, used: int) -> None:
        most = self.limit_of(namespace)
        if most is not None and used >= most:
            raise LimitExceededError(
                f"namespace {namespace!r} is used by {used} connections at this broker, and its quota max_connections"
                f" is {most}: close the producers and consumers of another one, or ask an administrator to raise it"
                f" (danube namespaces quota set {namespace} max_connections=N)"
            )


def _no_limit(_namespace: str) -> None:
    """Initially no namespace has a quota."""
