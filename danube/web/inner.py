"""The native client within the broker's own process, for messages: flow control, policies and rights as for all.

Its connection is a pipe into the server of the client port. There it has the address, the certificate and the
``authorization`` of the HTTP request, never those of the broker.
"""

from __future__ import annotations

import base64
import binascii
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from danube.http import Request, single_error
from danube.model.addresses import is_loopback
from danube.model.errors import ConnectionLostError, DanubeError, NotOwnerError, UnauthenticatedError
from danube.web.pipe import open_pipe

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.client import Client

__all__ = ["inner_client", "token_of"]

_SELF: Final = "broker.invalid"
"""The name under which the client asks for the broker that it is within."""
_RECONNECT_S: Final = 1.0
"""How long it looks for the owner of a topic that has just moved."""


def token_of(authorization: str | None) -> str | None:
    """Return the token or API key in a header ``authorization``; None without one.

    Raises:
        UnauthenticatedError: it has another form.
    """
    if authorization is None:
        return None
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            _, colon, password = base64.b64decode(value.strip(), validate=True).decode("utf-8").partition(":")
        except (ValueError, binascii.Error) as error:
            raise UnauthenticatedError("the credentials are not valid") from error
        if colon:
            return password
    raise UnauthenticatedError("the credentials are not valid")


@asynccontextmanager
async def inner_client(broker: Served, request: Request) -> AsyncIterator[Client]:
    """Open a client on behalf of the caller of a request, for the duration of the block.

    Raises:
        UnauthenticatedError: the proof of the caller has a form that no client sends.
        ConnectionLostError: the broker is draining.
        NotOwnerError: the proof of the caller cannot be passed on to the broker that owns the topic.
    """
    token = token_of(request.headers.get("authorization"))
    own = {_SELF, *broker.runtime.addresses}
    if "danube.client" not in sys.modules:
        # The first use in the life of the process: in a thread, because it takes as long as hundreds of calls.
        await trio.to_thread.run_sync(_load)
    from danube.client import Environment, connect

    elsewhere: list[str] = []
    async with _told_elsewhere(elsewhere), trio.open_nursery() as nursery:

        async def dial(host: str, port: int) -> Any:
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            if host == _SELF or shown in own:
                ours, theirs = open_pipe()
                nursery.start_soon(broker.serve_inner, theirs, request)
                await trio.lowlevel.checkpoint()
                return ours
            if broker.has_tls or (token is not None and not is_loopback(host)):
                elsewhere.append(shown)
                raise ConnectionLostError(f"the owner of the topic is the broker at {shown}; send the request there")
            return await trio.open_tcp_stream(host, port)

        environment = Environment(
            connect=dial, clock_us=broker.runtime.clock_us, random=random.Random(broker.runtime.new_id())
        )
        async with connect(
            f"danube://{_SELF}", token=token, reconnect_timeout_s=_RECONNECT_S, environment=environment
        ) as client:
            yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _told_elsewhere(elsewhere: list[str]) -> AsyncIterator[None]:
    """Raise NotOwnerError for a failure within the block, if the client wanted to go to another broker.

    Args:
        elsewhere: the addresses to which it wanted to go.
    """
    try:
        yield
    except Exception as error:
        if not elsewhere or not isinstance(single_error(error), DanubeError):
            raise
        raise NotOwnerError(
            f"the owner of the topic is the broker at {elsewhere[-1]}, and the proof of the caller is not passed on",
            {"address": elsewhere[-1]},
        ) from error


def _load() -> None:
    import danube.client  # noqa: F401
