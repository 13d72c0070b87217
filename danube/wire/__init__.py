"""gRPC over HTTP/2: a pure protocol state machine, a Trio server and an anyio client.

* :mod:`danube.wire.connection`: the state machine, bytes in and events out;
* :mod:`danube.wire.service`: methods, and the interfaces of the objects passed to their handlers;
* :mod:`danube.wire.server`: :func:`serve`;
* :mod:`danube.wire.client`: :func:`connect_channel` and the objects for callers;
* :mod:`danube.wire.codec`: conversion between messages and objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danube.wire._message import Message
from danube.wire.client import Channel, ClientStream, Connect, connect_channel, connection_problem
from danube.wire.codec import DEFAULT_CODECS, MSGPACK, Codec, MsgpackCodec
from danube.wire.connection import ERROR_TRAILER, GrpcConnection
from danube.wire.service import Context, Method, ServerStream, Service, UnaryCall, UnaryHandler, UnaryStart

if TYPE_CHECKING:
    from danube.wire.server import Server, serve

__all__ = [
    "DEFAULT_CODECS",
    "ERROR_TRAILER",
    "MSGPACK",
    "Channel",
    "ClientStream",
    "Codec",
    "Connect",
    "Context",
    "GrpcConnection",
    "Message",
    "Method",
    "MsgpackCodec",
    "Server",
    "ServerStream",
    "Service",
    "UnaryCall",
    "UnaryHandler",
    "UnaryStart",
    "connect_channel",
    "connection_problem",
    "serve",
]


def __getattr__(name: str) -> Any:
    """Load the server when it is used first: clients do without it."""
    if name in ("Server", "serve"):
        from danube.wire import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
