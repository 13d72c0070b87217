"""The client: one connection to a broker, and the producers, consumers and calls that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from danube.client._connection import Connection
from danube.client._options import ClientOptions, Environment
from danube.client._query import QueryCalls
from danube.client._requests import RequestCalls
from danube.client._stages import StageCalls
from danube.client._tasks import background_tasks
from danube.client._url import parse_url
from danube.model.limits import Limits

__all__ = ["Client", "connect"]


@asynccontextmanager
async def connect(
    url: str = "danube://127.0.0.1:6650",
    *,
    connect_timeout_s: float = 5.0,
    request_timeout_s: float = 30.0,
    reconnect_initial_s: float = 0.1,
    reconnect_max_s: float = 5.0,
    reconnect_timeout_s: float | None = 60.0,
    close_timeout_s: float = 10.0,
    limits: Limits | None = None,
    environment: Environment | None = None,
) -> AsyncIterator[Client]:
    """Connect to a broker: ``async with danube.connect("danube://127.0.0.1:6650") as client``.

    Works under Trio and asyncio. When the connection breaks it is restored in the background; producers and consumers
    resume by themselves, and calls wait.

    Args:
        url: ``danube://host[:port]``, default port 6650; several addresses separated by commas are tried in turn.
        connect_timeout_s: for the connection and handshake with one address.
        request_timeout_s: for one call, and for opening a producer or consumer.
        reconnect_initial_s: delay before the second attempt to reconnect; it doubles, with jitter ...
        reconnect_max_s: ... up to this.
        reconnect_timeout_s: how long a lost connection may take to come back before producers and consumers fail with
            ConnectionLostError; None means forever.
        close_timeout_s: how long leaving a producer waits for its messages, or a consumer for its acknowledgements.
        limits: sizes and keep-alive times of this side.
        environment: clock, randomness and network, for tests and simulations.

    Raises:
        ConfigurationError: the URL or an option is invalid.
        ConnectionLostError: no address answers now; the first connection is not retried.
    """
    options = ClientOptions(
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        reconnect_initial_s=reconnect_initial_s,
        reconnect_max_s=reconnect_max_s,
        reconnect_timeout_s=reconnect_timeout_s,
        close_timeout_s=close_timeout_s,
        limits=limits or Limits(),
        environment=environment or Environment(),
    )
    connection = Connection(parse_url(url), options)
    async with background_tasks() as group:
        await group.start(connection.run)
        yield Client(connection)


class Client(RequestCalls, StageCalls, QueryCalls):
    """A connection to a broker; made by :func:`connect`. Use it in the event loop in which it was made."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._options = connection.options

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return self._connection.connected
