"""``danube.AuthService``: exchanges an API key for a token, as upstream's Java client wants it.

That client calls it when it is built, before it has proven anything, and again each 60 minutes. The token lasts for
four hours, and ends with the API key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from danube.compat.methods import unary
from danube.compat.proto import danube_auth_pb2 as pb
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["AuthService"]


class AuthService:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return dict([unary("/danube.AuthService/Authenticate", self.authenticate, pb.AuthRequest)])

    async def authenticate(self, request: pb.AuthRequest, context: Context) -> pb.AuthResponse:
        """Return a token.

        Raises:
            UnauthenticatedError: the API key proves nothing, or was sent without TLS from another machine.
        """
        return pb.AuthResponse(token=await self._broker.exchange_key(request.api_key, context))
