"""``danube.HealthCheck``: reports to a client whether its producer or consumer is still known to the broker.

Official clients call it every five seconds. CLOSE makes a consumer subscribe again; it is returned if its id is not
known, or if its stream has ended and no other one was opened. The id of another caller's topic or subscription is not
known to this one, and stays as it is.

In proxy mode (:mod:`danube.compat.proxy`) the Rust client makes this call without the name of the owner, so it may
reach any broker. One that does not know the id, and was not meant, answers OK: the end of its stream tells the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danube.compat.consumers import Consumers
from danube.compat.methods import unary
from danube.compat.producers import Producers
from danube.compat.proto import danube_api_pb2 as pb
from danube.model.errors import InvalidArgumentError
from danube.model.ids import ProducerId
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["PATH", "HealthCheck"]

PATH: Final = "/danube.HealthCheck/HealthCheck"


class HealthCheck:
    """Handler of the service."""

    def __init__(self, broker: Served, producers: Producers, consumers: Consumers) -> None:
        self._broker = broker
        self._producers = producers
        self._consumers = consumers

    def service(self) -> Service:
        """Return the method, by path."""
        return dict([unary(PATH, self.health_check, pb.HealthCheckRequest)])

    async def health_check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        """Return OK or CLOSE.

        Raises:
            InvalidArgumentError: the client is neither a producer nor a consumer.
        """
        match request.client:
            case pb.HealthCheckRequest.Producer:
                known = self._producers.is_known(ProducerId(request.id))
            case pb.HealthCheckRequest.Consumer:
                known = self._consumers.is_known(request.id)
            case other:
                raise InvalidArgumentError(f"client type {other} is unknown; known are 0 (Producer) and 1 (Consumer)")
        if not known and self._broker.runtime.config.client_url:
            from danube.compat.routing import concerns  # not imported without proxy mode

            known = not concerns(context.metadata, self._broker.own_address)  # another broker may know it
        status = pb.HealthCheckResponse.OK if known else pb.HealthCheckResponse.CLOSE
        return pb.HealthCheckResponse(status=status)
