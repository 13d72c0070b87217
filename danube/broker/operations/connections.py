"""Operations on connections: the open ones of all brokers, and ending one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import trio

from danube.cluster.records import parse_broker
from danube.model import api
from danube.model.connection_api import (
    MAX_CONNECTION_ROWS,
    ConnectionInfo,
    ConnectionList,
    ConnectionMethod,
    KillConnection,
    ListConnections,
)
from danube.model.errors import InvalidArgumentError, NotFoundError

if TYPE_CHECKING:
    from danube.broker.operations.everywhere import Everywhere

__all__ = ["ConnectionOperations", "OpenConnections", "id_key"]

_ID: Final = re.compile(r"(b[1-9][0-9]{0,17})-((?:[a-z]{1,10}-)?)([0-9]{1,18})", re.ASCII)


class OpenConnections(Protocol):
    """The connections of this broker; see :class:`danube.broker.runtime.ports.Ports`."""

    def connections(self) -> Sequence[ConnectionInfo]:
        """Return the open connections of all ports."""
        ...

    def end_connection(self, connection_id: str, reason: str) -> bool:
        """End a connection of this broker; return False if it does not exist."""
        ...


class ConnectionOperations:
    """Operations on connections.

    Args:
        own: those of this broker.
        everywhere: asks the other brokers.
    """

    def __init__(self, own: OpenConnections, everywhere: Everywhere) -> None:
        self._own = own
        self._everywhere = everywhere
        everywhere.add(ConnectionMethod.LIST, self._list_own, ListConnections)
        everywhere.add(ConnectionMethod.KILL, self._kill_own, KillConnection)

    async def list_connections(self, request: ListConnections) -> ConnectionList:
        """List the open connections of all brokers, a page of them.

        Raises:
            InvalidArgumentError: the limit, or the id, is invalid.
        """
        _check_limit(request.limit)
        if request.after:
            id_key(request.after)
        found, silent = await self._everywhere.ask_all(ConnectionMethod.LIST, request, ConnectionList)
        rows = sorted((row for each in found for row in each.connections), key=lambda row: id_key(row.id))
        more = len(rows) > request.limit or any(each.more for each in found)
        return ConnectionList(rows[: request.limit], more, silent)

    async def kill_connection(self, request: KillConnection) -> api.Done:
        """End a connection; its client may connect again.

        Raises:
            InvalidArgumentError: this is not the id of a connection.
            NotFoundError: the connection does not exist, or not any more.
        """
        broker = parse_broker(_parsed(request.id)[0])
        return await self._everywhere.ask(broker, ConnectionMethod.KILL, request, api.Done)

    async def _list_own(self, request: ListConnections) -> ConnectionList:
        await trio.lowlevel.checkpoint()
        _check_limit(request.limit)
        after = id_key(request.after) if request.after else (0, "", 0)
        rows = sorted(
            (row for row in self._own.connections() if id_key(row.id) > after), key=lambda row: id_key(row.id)
        )
        return ConnectionList(rows[: request.limit], len(rows) > request.limit)

    async def _kill_own(self, request: KillConnection) -> api.Done:
        await trio.lowlevel.checkpoint()
        if not self._own.end_connection(request.id, "an operator ended the connection"):
            raise NotFoundError(
                f"connection {request.id!r} is not open; `danube connections list` shows those that are"
            )
        return api.Done()


def id_key(connection_id: str) -> tuple[int, str, int]:
    """Return an id in a form that sorts as lists do: by broker, port and number.

    Raises:
        InvalidArgumentError: this is not the id of a connection.
    """
    broker, port, number = _parsed(connection_id)
    return parse_broker(broker), port, number


def _parsed(connection_id: str) -> tuple[str, str, int]:
    match = _ID.fullmatch(connection_id)
    if match is None:
        raise InvalidArgumentError(
            f"{connection_id!r} is not the id of a connection, such as b1-12; see `danube connections list`"
        )
    return match[1], match[2], int(match[3])


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_CONNECTION_ROWS:
        raise InvalidArgumentError(f"limit is a number from 1 to {MAX_CONNECTION_ROWS}, not {limit}")
