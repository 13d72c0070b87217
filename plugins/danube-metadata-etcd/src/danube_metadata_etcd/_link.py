"""The connection to etcd: one at a time, to one of several endpoints; and the token of a user.

Calls share a connection. It is opened on demand by a task of the link, so that cancelled calls do not abort an attempt
that others wait for. When it is lost, or its member cannot answer, the next call uses the next endpoint. A call is
never repeated, with one exception: etcd refuses a call whose token has expired before it executes it.

Each connection holds an idle stream, because etcd closes a connection that is kept alive by PINGs without one.
"""

from __future__ import annotations

import logging
import math
import ssl
from typing import Any, Final, TypeVar

import msgspec
import trio

from danube.model.errors import ClosedError, DanubeError, UnavailableError
from danube.model.limits import MIB, Limits
from danube.wire import Channel, ClientStream, connect_channel
from danube_metadata_etcd._codec import ETCD
from danube_metadata_etcd._errors import NO_AUTHENTICATION, explain, lacks_token
from danube_metadata_etcd.proto import etcd_pb2 as pb

__all__ = ["Credentials", "Endpoint", "Held", "Link"]

_log = logging.getLogger("danube.metadata.etcd")

T = TypeVar("T")

WATCH: Final = "/etcdserverpb.Watch/Watch"
_AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
_LEAST_PING_S: Final = 10.0
"""etcd closes connections with PINGs more often than every five seconds."""
_LARGEST_ANSWER: Final = 128 * MIB
"""Bytes of one answer: that of the largest transaction has 128 former values of 768 KiB."""


class Endpoint(msgspec.Struct, frozen=True):
    """Address of a member."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Credentials(msgspec.Struct, frozen=True):
    """A user of etcd."""

    username: str
    password: str

    def __repr__(self) -> str:
        return f"<user {self.username!r}>"


class Held:
    """One connection, and its endpoint."""

    def __init__(self, endpoint: Endpoint, channel: Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.leaving = trio.CancelScope()

    @property
    def usable(self) -> bool:
        """Whether new calls should use it."""
        return not self.channel.retired and not self.leaving.cancel_called


class Link:
    """Calls to etcd.

    Args:
        endpoints: in the order in which they are tried.
        tls: for TLS; None for plain TCP.
        credentials: of the user; None if etcd has no authentication.
        limits: of the broker.
        connect_timeout_s: of an attempt to connect to one endpoint.
        request_timeout_s: of one call, connecting included.
    """

    def __init__(
        self,
        endpoints: tuple[Endpoint, ...],
        *,
        tls: ssl.SSLContext | None,
        credentials: Credentials | None,
        limits: Limits,
        connect_timeout_s: float,
        request_timeout_s: float,
    ) -> None:
        self.request_timeout_s = request_timeout_s
        self._endpoints = endpoints
        self._tls = tls
        self._credentials = credentials
        self._limits = msgspec.structs.replace(
            limits,
            keepalive_idle_s=max(limits.keepalive_idle_s, _LEAST_PING_S),
            max_pending_bytes_per_connection=max(limits.max_pending_bytes_per_connection, 2 * _LARGEST_ANSWER),
        )
        self._connect_timeout_s = connect_timeout_s
        self._at = 0
        self._held: Held | None = None
        self._wanted = trio.Event()
        self._attempted = trio.Event()
        self._failure = ""
        self._life = trio.CancelScope()
        self._closed = False
        self._token: str | None = None
        self._authenticating = trio.Lock()

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Addresses of the members that are tried."""
        return self._endpoints

    # Connections

    async def run(self) -> None:
        """Task: connect when a call needs it, until the link is closed."""
        with self._life:
            await self._run()

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._failure = await self._connect(nursery)
                self._wanted = trio.Event()
                self._attempted.set()
                self._attempted = trio.Event()

    async def _connect(self, nursery: trio.Nursery) -> str:
        """Connect to the first endpoint that answers; return why none does, else an empty text."""
        failures = []
        for _ in self._endpoints:
            endpoint = self._endpoints[self._at]
            try:
                await nursery.start(self._hold, endpoint)
            except DanubeError as error:
                failures.append(error.message.removesuffix("; is a broker running there?"))
                self._at = (self._at + 1) % len(self._endpoints)
            else:
                return ""
        return "; ".join(failures)

    async def _hold(self, endpoint: Endpoint, *, task_status: trio.TaskStatus[None]) -> None:
        """Connect, and keep the connection until it is retired or left, and its calls have ended."""
        started = False

        async def connect() -> Any:
            return await self._stream_to(endpoint)

        try:
            async with connect_channel(
                endpoint.host,
                endpoint.port,
                self._limits,
                connect=connect,
                codec=ETCD,
                connect_timeout_s=self._connect_timeout_s,
            ) as channel:
                held = self._held = Held(endpoint, channel)
                started = True
                task_status.started()
                with held.leaving:
                    async with channel.open_stream(WATCH):
                        await channel.wait_retired()
                if self._held is held:
                    self._at = (self._at + 1) % len(self._endpoints)
                with trio.move_on_after(self.request_timeout_s):
                    await channel.wait_unused()
        except DanubeError:
            if not started:
                raise
            # Calls in progress have failed with the reason; the next one connects.

    async def _stream_to(self, endpoint: Endpoint) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        if self._tls is None:
            return stream
        secured = trio.SSLStream(stream, self._tls, server_hostname=endpoint.host, https_compatible=True)
        try:
            await secured.do_handshake()
        except BaseException as error:
            await trio.aclose_forcefully(stream)
            if isinstance(error, trio.BrokenResourceError):
                raise OSError(f"TLS: {error.__cause__ or error}") from error
            raise
        return secured

    async def held(self) -> Held:
        """Return the live connection; open one if there is none.

        Raises:
            UnavailableError: no endpoint answers.
            ClosedError: the link is closed.
        """
        attempted = False
        while True:
            self._check_open()
            held = self._held
            if held is not None and held.usable:
                return held
            if attempted and self._failure:
                raise UnavailableError(f"etcd cannot be reached: {self._failure}")
            self._wanted.set()
            await self._attempted.wait()
            attempted = True

    def leave(self, held: Held) -> None:
        """Use the next endpoint from now on, if there is another one: this one's member cannot answer."""
        if len(self._endpoints) > 1 and held.usable:
            if self._held is held:
                self._at = (self._at + 1) % len(self._endpoints)
                self._held = None
            held.leaving.cancel()

    def close(self) -> None:
        """End all calls with ClosedError."""
        self._closed = True
        if self._held is not None:
            self._held.channel.close(ClosedError("the metadata store is closed; open it again"))
        self._attempted.set()
        self._life.cancel()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the metadata store is closed; open it again")

    # Calls

    async def call(self, path: str, request: Any, kind: type[T], what: str, *, changes: bool = False) -> T:
        """Call a method with one request and one answer.

        Args:
            path: of the method.
            request: the message.
            kind: class of the answer.
            what: the call, for messages.
            changes: whether it may change something.

        Raises:
            UnavailableError: no answer; if it ``changes``, it may have been applied.
            DanubeError: as :func:`~danube_metadata_etcd._errors.explain` describes.
        """
        deadline = trio.current_time() + self.request_timeout_s
        repeated = False
        while True:
            held = await self._held_until(deadline, what)
            token = self._token
            try:
                if token is None:
                    token = await self._authenticate(held, deadline)
                return await held.channel.unary(
                    path,
                    request,
                    kind,
                    timeout_s=_left(deadline),
                    metadata=self._headers(token),
                    max_response_bytes=_LARGEST_ANSWER,
                )
            except DanubeError as error:
                if not repeated and self._credentials is not None and lacks_token(error):
                    repeated = True
                    self._forget(token)
                    continue
                raise self.explain(error, held, what, changes=changes) from error

    async def open(self, path: str, what: str) -> tuple[ClientStream, Held]:
        """Open a call with messages in both directions.

        Raises:
            UnavailableError: no connection.
            DanubeError: authentication failed.
        """
        deadline = trio.current_time() + self.request_timeout_s
        held = await self._held_until(deadline, what)
        try:
            token = self._token
            if token is None:
                token = await self._authenticate(held, deadline)
            stream = held.channel.open_stream(path, metadata=self._headers(token), max_message_bytes=_LARGEST_ANSWER)
        except DanubeError as error:
            raise self.explain(error, held, what, changes=False) from error
        return stream, held

    def explain(self, error: DanubeError, held: Held, what: str, *, changes: bool) -> DanubeError:
        """Return the error to raise for a failed call, and leave a member that cannot answer."""
        if self._closed:
            return ClosedError("the metadata store is closed; open it again")
        if lacks_token(error):
            self._token = None  # a stream was refused; the next call authenticates
        explained = explain(error, what, str(held.endpoint), changes=changes)
        if type(explained) is UnavailableError:
            self.leave(held)
        return explained

    async def _held_until(self, deadline: float, what: str) -> Held:
        with trio.move_on_at(deadline):
            return await self.held()
        raise UnavailableError(
            f"etcd: {what}: no connection within {self.request_timeout_s} s ({self._failure or 'no endpoint answers'})"
        )

    def _headers(self, token: str) -> dict[str, str]:
        # A member that has lost its leader refuses such calls, and ends such streams, instead of letting them wait.
        headers = {"hasleader": "true"}
        if token:
            headers["token"] = token
        return headers

    # Authentication

    def _forget(self, token: str | None) -> None:
        if self._token == token:
            self._token = None

    async def _authenticate(self, held: Held, deadline: float) -> str:
        """Return a token: empty if none is needed."""
        credentials = self._credentials
        if credentials is None:
            return ""
        async with self._authenticating:
            if self._token is not None:
                return self._token
            try:
                answer = await held.channel.unary(
                    _AUTHENTICATE,
                    pb.AuthenticateRequest(name=credentials.username, password=credentials.password),
                    pb.AuthenticateResponse,
                    timeout_s=_left(deadline),
                )
            except DanubeError as error:
                if NO_AUTHENTICATION not in error.message:
                    raise
                _log.warning(
                    "etcd at %s has no authentication enabled: every client that reaches it can change the metadata",
                    held.endpoint,
                )
                self._token = ""
            else:
                self._token = answer.token
            return self._token


def _left(deadline: float) -> float:
    """Return the seconds until a deadline, rounded up to tenths: equal headers are sent as one byte."""
    return max(1, math.ceil((deadline - trio.current_time()) * 10 - 1e-3)) / 10
