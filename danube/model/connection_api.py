"""The native API of connections: which clients are connected to the brokers, and ending one of these connections.

Like :mod:`danube.model.api`: msgspec Structs, encoded as msgpack arrays, new fields at the end with a default. Any
broker answers for the whole cluster; it asks the others, and names those that do not answer.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "MAX_CONNECTION_ROWS",
    "ConnectionInfo",
    "ConnectionList",
    "ConnectionMethod",
    "KillConnection",
    "ListConnections",
]

MAX_CONNECTION_ROWS: Final = 1_000
"""Most connections of one answer."""


class ConnectionMethod:
    """Paths of the calls."""

    LIST: Final = "/danube.native.v1.Broker/ListConnections"
    KILL: Final = "/danube.native.v1.Broker/KillConnection"


class _Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages."""


class ListConnections(_Message):
    """Asks for the open connections of all brokers. Answered with ConnectionList."""

    after: str = ""
    """The id after which the answer begins; empty for the first one."""
    limit: int = MAX_CONNECTION_ROWS
    """Most connections of the answer, from 1 to :data:`MAX_CONNECTION_ROWS`."""


class ConnectionInfo(_Message, kw_only=True):
    """One open connection of a client, or of another broker."""

    id: str
    """``b1-12``: the broker and the number of the connection, never used again while the broker runs; ``b1-admin-3`` on
    the admin port."""
    broker: str
    """``b1``"""
    peer: str
    """``host:port`` of the other side."""
    protocol: str
    """``native``: of Danube's own clients; ``grpc``: of upstream's; ``link``: of another broker; ``new``: no call was
    made on it yet."""
    client: str = ""
    """Name and version of the client library, as it says itself: ``danube-python/0.5.0``; empty if it does not."""
    principal: str = ""
    """Who made the last call whose caller was proven; empty without access control."""
    streams: int = 0
    """Open streams and calls in progress."""
    received_bytes: int = 0
    """Bytes that have arrived on it."""
    sent_bytes: int = 0
    since_us: int = 0
    """When it was accepted, microseconds since the epoch."""
    queued_bytes: int = 0
    """Bytes that wait for the other side to read them."""
    secure: bool = False
    """It uses TLS."""


class ConnectionList(_Message):
    """Answer to ListConnections, in the order of the ids."""

    connections: list[ConnectionInfo]
    more: bool = False
    """There are further ones; ask for those after the last id."""
    silent: list[str] = []
    """Brokers that are away or did not answer."""


class KillConnection(_Message):
    """Ends a connection; its client may connect again. Answered with Done."""

    id: str
    """As in :class:`ConnectionInfo`."""
