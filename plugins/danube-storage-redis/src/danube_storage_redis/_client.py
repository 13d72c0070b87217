"""A pool of connections to one server. Each call uses a connection exclusively, for a complete exchange.

A call that fails or is cancelled closes its connection. That makes cancellation effective: the server discards a
command that it has not received completely.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

import trio

from danube.model.errors import (
    StorageDeniedError,
    StorageError,
    StorageThrottledError,
    StorageUnavailableError,
)
from danube_storage_redis._resp import Command, ConnectionEndedError, Reply, RespConnection, ServerError

__all__ = ["RedisClient", "ServerAddress"]

_DENIED = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
_UNAVAILABLE = {
    "BUSY": "a script keeps it busy",
    "CLUSTERDOWN": "its cluster is down",
    "LOADING": "it is loading its data",
    "MASTERDOWN": "it has lost its primary",
    "MISCONF": "it cannot write to its disk",
    "NOREPLICAS": "it has too few replicas",
    "OOM": "its memory is full (maxmemory)",
    "READONLY": "it is a replica now",
    "TRYAGAIN": "its slot is being moved",
    "ASK": "its slot is being moved",
}
_DEAD_PEER_MS = 10_000
"""A connection ends when sent bytes are not confirmed within this time, so calls do not wait for a dead server."""


class ServerAddress:
    """Address, credentials and protocol options of a server."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        url: str,
        username: str = "",
        password: str = "",
        database: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.url = url
        """The URL shown in messages, without secrets."""
        self.username = username
        self.password = password
        self.database = database
        self.tls = tls

    def at(self, host: str, port: int) -> ServerAddress:
        """Return the same for another server; an empty host means this one's (sent by a cluster if it is unknown)."""
        return ServerAddress(
            host or self.host,
            port,
            url=self.url,
            username=self.username,
            password=self.password,
            database=self.database,
            tls=self.tls,
        )

    async def connect(self) -> RespConnection:
        """Open a connection and log in. Raises OSError, trio.BrokenResourceError or :class:`StorageError`."""
        stream = await trio.open_tcp_stream(self.host, self.port)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        transport: trio.abc.Stream = stream
        if self.tls is not None:
            transport = trio.SSLStream(stream, self.tls, server_hostname=self.host)
        connection = RespConnection(transport, stream.socket.fileno())
        try:
            greeting: list[Command] = []
            if self.password:
                greeting.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
            if self.database:
                greeting.append(("SELECT", self.database))
            for reply in await connection.exchange(greeting) if greeting else ():
                if isinstance(reply, ServerError):
                    raise self.translate(reply, "connect", "")
        except BaseException:
            await connection.close()
            raise
        return connection

    def translate(self, error: ServerError, operation: str, key: str) -> StorageError:
        """Return the storage error for an error reply."""
        what = f"{self.url}: {operation} {key}".rstrip()
        if error.code in _DENIED or error.message.startswith(("ERR AUTH ", "ERR Client sent AUTH")):
            return StorageDeniedError(f"{what}: {error.message}; check user name and password, and the server's ACL")
        if error.code in _UNAVAILABLE:
            return StorageUnavailableError(f"{what}: {_UNAVAILABLE[error.code]} ({error.message})")
        if error.message.startswith("ERR max number of clients"):
            return StorageThrottledError(f"{what}: {error.message}; raise the server's maxclients")
        return StorageError(f"{what}: {error.message}")


class RedisClient:
    """Calls to one server, or to the cluster node with the slot of the backend's keys."""

    def __init__(self, address: ServerAddress, max_connections: int) -> None:
        self._address = address
        self._slots = trio.Semaphore(max_connections)
        self._idle: list[RespConnection] = []

    async def call(self, operation: str, key: str, commands: Sequence[Command]) -> list[Reply]:
        """Send commands on one connection and return their replies.

        Raises:
            StorageError: the server answered one of the commands (also one inside a transaction) with an error.
            StorageUnavailableError: no connection, or it broke; the commands may have been executed.
        """
        async with self._slots:
            try:
                connection = await self._take()
            except (OSError, trio.BrokenResourceError, ConnectionEndedError) as error:
                raise self._broken(error, operation, key) from error
            whole = False
            try:
                replies = await connection.exchange(commands)
                failure = _first_error(replies)
                # After an error the connection may be in an unfinished transaction, or connected to the wrong server.
                whole = failure is None
            except (OSError, ValueError, trio.BrokenResourceError, ConnectionEndedError) as error:
                await self.close()
                raise self._broken(error, operation, key) from error
            finally:
                if whole:
                    self._idle.append(connection)
                else:
                    await connection.close()
        if failure is not None:
            raise await self._refused(failure, operation, key)
        return replies

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()

    async def _take(self) -> RespConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            await connection.close()
        return await self._address.connect()

    async def _refused(self, failure: ServerError, operation: str, key: str) -> StorageError:
        if failure.code == "READONLY":
            await self.close()
        elif failure.code == "MOVED":
            # All keys share a slot, so one node of the cluster is enough; the next attempt uses it.
            host, _, port = failure.message.rpartition(" ")[2].rpartition(":")
            self._address = self._address.at(host, int(port))
            await self.close()
            return StorageUnavailableError(f"{self._address.url}: its keys have moved to {host}:{port}; try again")
        return self._address.translate(failure, operation, key)

    def _broken(self, error: Exception, operation: str, key: str) -> StorageUnavailableError:
        reason = str(error.__cause__ or error) or type(error).__name__
        return StorageUnavailableError(f"{self._address.url}: {operation} {key}".rstrip() + f": {reason}")


def _first_error(replies: Sequence[Reply]) -> ServerError | None:
    # EXECABORT only reports that another command was refused, whose own reply precedes it.
    for reply in replies:
        found = _first_error(reply) if isinstance(reply, list) else reply
        if isinstance(found, ServerError):
            return found
    return None
