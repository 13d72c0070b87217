"""Proxy mode: clients reach all brokers through one address, and each broker relays their calls to the owner.

Official clients ask for an owner only where the last one was, so they survive that a topic moves, but not that its
owner dies. With ``client_url``, the address of a load balancer in front of all brokers, a lookup answers that address,
and the owner's as a name: the client sends it in the header :data:`OWNER` of all calls about the topic, to whichever
broker the load balancer chooses. That one relays the call::

    client ── client_url ──▶ broker 1 ── connection of all relayed calls ──▶ broker 2, the owner
              CreateProducer, SendMessage, Subscribe, ReceiveMessages, Ack, Nack, HealthCheck

* Messages are passed on byte for byte, without being decoded, in both directions; what the receiver does not take is
  not read from the sender, but for the windows of HTTP/2 and the send buffers.
* The broker that relays proves the caller's credential, so that wrong ones do not count against it at the owner; the
  owner proves it again, and judges the call. It gets the header ``authorization`` only: a client certificate cannot be
  passed on, so a call without that header is refused if there is access control.
* Only running brokers of the cluster are called. If that one is gone, or breaks, the call fails as UNAVAILABLE, and the
  client looks the topic up, at the load balancer. A consumer of the Python client does so only if a health check says
  CLOSE, and makes no health check any more after one has failed: so the broker that relays answers those itself if the
  owner does not, CLOSE once the topic has another owner, and OK until then.
* A call is relayed once: the owner executes it, whatever it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.compat.codec import PROTO
from danube.compat.consumer_ids import find_topic
from danube.compat.errors import RETRIED, for_clients
from danube.compat.health import PATH as HEALTH_CHECK
from danube.compat.proto import danube_api_pb2 as pb
from danube.compat.routing import OWNER, RELAYED, owner_address
from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    NotFoundError,
    NotOwnerError,
    UnauthenticatedError,
    UnavailableError,
)
from danube.wire import Channel, ClientStream, Context, Method, ServerStream

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["MOST_CONNECTIONS", "Proxy"]

_PAUSE_S: Final = 0.25
"""Delay before a stream is refused: the Python client tries again without a pause."""
MOST_CONNECTIONS: Final = 16
"""Most connections to one broker; each carries ``max_streams_per_connection`` calls at a time."""


class _Line:
    """A connection to another broker."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self.settled = trio.Event()
        """Set once it is open, or has failed."""
        self.failure: DanubeError | None = None


class Proxy:
    """Relays calls of official clients to the brokers that they name.

    Args:
        broker: this broker.
    """

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._here = {"", broker.own_address, owner_address(broker.runtime.config.client_url)}
        """What calls name that are not relayed; the Rust client sends ``client_url`` itself with health checks."""
        self._lines: dict[str, list[_Line]] = {}
        self._relays: dict[str, Method] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay calls from now on, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._broker.detour(self.choose)
            task_status.started()
            await trio.sleep_forever()

    def choose(self, method: Method, metadata: Mapping[str, str]) -> Method:
        """Return the method that serves a call: that of this broker, or one that relays it."""
        named = metadata.get(OWNER)
        if named is None or RELAYED in metadata or method.kind == "bidi":
            return method
        if owner_address(named) in self._here:
            return method
        relay = self._relays.get(method.path)
        if relay is None:
            handler = self._relay
            if method.path == HEALTH_CHECK:
                handler = self._check_health
            elif method.kind == "server_stream":
                handler = self._relay_stream
            relay = self._relays[method.path] = Method(path=method.path, kind="bidi", handler=handler)
        return relay

    async def _prove(self, context: Context) -> None:
        """Check the credential of a caller.

        Raises:
            UnauthenticatedError: it has none that can be passed on.
        """
        await self._broker.prove(context)
        if self._broker.has_security and "authorization" not in context.metadata:
            raise UnauthenticatedError(
                "a call through client_url needs a token, in the header authorization: a client certificate cannot be"
                " passed on to the owner of the topic"
            )

    async def _relay_stream(self, stream: ServerStream, context: Context) -> None:
        """As :meth:`_relay`, with a pause before a failure."""
        try:
            await self._relay(stream, context)
        except DanubeError:
            await trio.sleep(_PAUSE_S)
            raise

    async def _relay(self, stream: ServerStream, context: Context) -> None:
        """Pass a call on, and its answer back.

        Raises:
            UnauthenticatedError: it has no credential that can be passed on.
            UnavailableError: the broker is not running, or does not answer.
            DanubeError: what that broker has answered.
        """
        await self._prove(context)
        failure: DanubeError | None = None
        async with await self._begin(context) as call, trio.open_nursery() as nursery:
            nursery.start_soon(_forward, stream, call)
            try:
                while (message := await call.receive()) is not None:
                    await stream.send(message.data)
                    message.release()
            except DanubeError as error:
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise for_clients(failure)

    async def _check_health(self, stream: ServerStream, context: Context) -> None:
        """Pass a health check on, or answer it if the owner does not.

        Raises:
            UnauthenticatedError: it has no credential that can be passed on.
            DanubeError: what the owner has answered.
        """
        await self._prove(context)
        message = await stream.receive()
        if message is None:
            raise InvalidArgumentError("a health check requires one request message, but got none")
        try:
            async with await self._begin(context) as call:
                call.send_nowait(message.data)
                call.end()
                answer = await call.receive()
            if answer is None:
                raise UnavailableError("the owner of the topic has ended a health check without an answer")
            data = answer.data
        except DanubeError as error:
            if for_clients(error).status not in RETRIED:
                raise
            request = stream.decode(pb.HealthCheckRequest, message.data)
            status = await self._health(request, owner_address(context.metadata[OWNER]))
            data = stream.encode(pb.HealthCheckResponse(status=status))
        message.release()
        await stream.send(data)

    async def _health(self, request: pb.HealthCheckRequest, former: str) -> Any:
        """Answer a health check in place of an owner that does not answer."""
        if request.client != pb.HealthCheckRequest.Consumer:
            return pb.HealthCheckResponse.OK  # producers learn it from their next message
        broker = self._broker
        try:
            topic = await find_topic(broker.metadata, broker.known_brokers(), request.id)
            if topic is not None:
                await broker.directory.search(topic)
        except NotOwnerError as error:
            is_elsewhere = bool(error.address) and error.address != former
            return pb.HealthCheckResponse.CLOSE if is_elsewhere else pb.HealthCheckResponse.OK
        except NotFoundError:
            return pb.HealthCheckResponse.CLOSE
        except DanubeError as error:
            if not error.retryable:
                raise
            return pb.HealthCheckResponse.OK  # the topic waits for its owner, and so must the consumer
        return pb.HealthCheckResponse.CLOSE

    async def _begin(self, context: Context) -> ClientStream:
        """Begin a call at the broker that its caller names.

        Raises:
            UnavailableError: it is not running, or cannot be reached.
            LimitExceededError: all connections to it are full.
        """
        broker = self._broker
        address = owner_address(context.metadata[OWNER])
        if address not in broker.running_addresses():
            raise UnavailableError(
                f"no broker of the cluster runs at {address}, the owner of the topic when it was looked up; look it up"
                " again"
            )
        timeout_s = None if context.deadline == math.inf else max(0.0, context.deadline - trio.current_time())
        metadata = {**{name: value for name, value in context.metadata.items() if name != OWNER}, RELAYED: "1"}
        return await self._open(address, context.path, timeout_s, metadata)

    async def _open(
        self, address: str, path: str, timeout_s: float | None, metadata: Mapping[str, str]
    ) -> ClientStream:
        """Begin a call at another broker, on a connection that has room for it.

        Raises:
            UnavailableError: it cannot be reached.
            LimitExceededError: all connections to it are full.
        """
        lines = self._lines.setdefault(address, [])
        tried = 0
        while True:
            for line in lines[tried:] or [self._connect(address, lines)]:
                await line.settled.wait()
                tried += 1
                if line.channel is None:
                    reason = line.failure.message if line.failure is not None else "the connection was closed"
                    raise UnavailableError(f"the owner of the topic cannot be reached: {reason}; look it up again")
                try:
                    return line.channel.open_stream(path, timeout_s=timeout_s, metadata=metadata)
                except LimitExceededError as error:
                    if tried >= MOST_CONNECTIONS:
                        raise LimitExceededError(
                            f"{tried} connections to {address} are full of relayed calls; use more brokers behind"
                            f" client_url, or raise max_streams_per_connection there: {error.message}"
                        ) from error
                except DanubeError as error:
                    raise UnavailableError(
                        f"the owner of the topic cannot be reached: {error.message}; look it up again"
                    ) from error

    def _connect(self, address: str, lines: list[_Line]) -> _Line:
        assert self._nursery is not None
        line = _Line()
        lines.append(line)
        self._nursery.start_soon(self._keep, address, line, lines)
        return line

    async def _keep(self, address: str, line: _Line, lines: list[_Line]) -> None:
        """Task: keep a connection until it breaks, or accepts no new calls and all others have ended."""
        try:
            async with self._broker.open_channel(address, PROTO) as channel:
                line.channel = channel
                line.settled.set()
                await channel.wait_retired()
                _leave(lines, line)
                await channel.wait_unused()
        except DanubeError as error:
            line.failure = error
        finally:
            _leave(lines, line)
            line.channel = None
            line.settled.set()


def _leave(lines: list[_Line], line: _Line) -> None:
    if line in lines:
        lines.remove(line)


async def _forward(stream: ServerStream, call: ClientStream) -> None:
    """Pass the messages of a client on."""
    while (message := await stream.receive()) is not None:
        await call.wait_send_capacity()
        if not call.send_nowait(message.data):
            return  # it has ended; its answer says why
        message.release()
    call.end()
