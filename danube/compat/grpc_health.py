"""``grpc.health.v1.Health``: gRPC's standard health service, for probes and load balancers.

The broker as a whole (the empty name) and each service of the port have the same health: serving from the
end of the broker's start until it drains. A failed broker does not answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import trio

from danube.compat.methods import unary
from danube.compat.proto import health_pb2 as pb
from danube.model.errors import InvalidArgumentError, NotFoundError
from danube.wire import Context, Method, ServerStream, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["HEALTH", "GrpcHealth"]

HEALTH: Final = "grpc.health.v1.Health"
"""Name of the service."""


class GrpcHealth:
    """Handlers of the service.

    Args:
        broker: the broker whose health is reported.
        names: names of all services of the port.
    """

    def __init__(self, broker: Served, names: Iterable[str]) -> None:
        self._broker = broker
        self._names = ("", *sorted(names))

    def service(self) -> Service:
        """Return the methods, by path."""
        watch = f"/{HEALTH}/Watch"
        return dict(
            [
                unary(f"/{HEALTH}/Check", self.check, pb.HealthCheckRequest, early=True),
                unary(f"/{HEALTH}/List", self.list_all, pb.HealthListRequest, early=True),
                (watch, Method(path=watch, kind="server_stream", handler=self.watch, early=True)),
            ]
        )

    async def check(self, request: pb.HealthCheckRequest, _context: Context) -> pb.HealthCheckResponse:
        """Return the health of the broker or of one service.

        Raises:
            NotFoundError: the port has no such service.
        """
        if request.service not in self._names:
            raise NotFoundError(f"service {request.service!r} does not exist on this port; List returns the services")
        return pb.HealthCheckResponse(status=self._status())

    async def list_all(self, _request: pb.HealthListRequest, _context: Context) -> pb.HealthListResponse:
        """Return the health of the broker and all services."""
        status = pb.HealthCheckResponse(status=self._status())
        return pb.HealthListResponse(statuses=dict.fromkeys(self._names, status))

    async def watch(self, stream: ServerStream, _context: Context) -> None:
        """Send the health now and when it changes, until the call or the connection ends."""
        message = await stream.receive()
        if message is None:
            raise InvalidArgumentError("Watch requires one request message, but got none")
        request = stream.decode(pb.HealthCheckRequest, message.data)
        message.release()
        if request.service not in self._names:
            await self._send(stream, pb.HealthCheckResponse.SERVICE_UNKNOWN)
        else:
            await self._send(stream, self._status())
            if not self._broker.started and not self._broker.draining:
                await self._broker.wait_started()
                await self._send(stream, self._status())
            if not self._broker.draining:
                await self._broker.wait_draining()
                await self._send(stream, self._status())
        await trio.sleep_forever()

    def _status(self) -> pb.HealthCheckResponse.ServingStatus:
        serving = self._broker.started and not self._broker.draining
        return pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING

    @staticmethod
    async def _send(stream: ServerStream, status: pb.HealthCheckResponse.ServingStatus) -> None:
        await stream.send(stream.encode(pb.HealthCheckResponse(status=status)))
