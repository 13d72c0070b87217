"""Admin calls about topics of other brokers: relayed to the owner, so that upstream's tools may ask any broker.

A call that its own broker refuses because another one owns the topic (:class:`NotOwnerError`) is sent to that broker
over the link between the two, byte for byte, and executed there. It is relayed once: a broker that gets a relayed call
and is not the owner either refuses it, and the tool tries again. The rights of its caller are judged by the broker that
relays it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio
from google.protobuf.message import DecodeError

from danube.broker.faces import JudgedRight, passed_on, received
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CallRefusedError, InvalidArgumentError, NotOwnerError, UnimplementedError

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.peers import Peer

__all__ = ["CHANNEL", "Handler", "Relay"]

CHANNEL: Final = "admin"
"""The channel of these calls between brokers."""
RELAY_S: Final = 10.0
"""How long the owner may take."""

Handler = Callable[[Any, Any], Awaitable[Any]]
"""A handler of an admin call: its request, and its context, which is None if the call was relayed."""


class _Relayed(msgspec.Struct, array_like=True, frozen=True):
    """A call of :data:`CHANNEL`; its answer is the bytes of the answer."""

    method: str
    request: bytes
    rights: list[JudgedRight] | msgspec.UnsetType | None = msgspec.UNSET
    """What the caller may do, as the broker judged that relays this; None: anything; UNSET: that is not said."""
    seen: int = 0
    """The revision of the metadata up to which that broker had seen all changes; see :func:`received`."""


_RELAYED: Final = msgspec.msgpack.Decoder(_Relayed)
_encode: Final = msgspec.msgpack.Encoder().encode


class Relay:
    """The admin calls that may be relayed.

    Args:
        broker: this broker.
    """

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        self._methods: dict[str, tuple[Handler, Any]] = {}

    def begin(self) -> None:
        """Answer the calls that other brokers relay, from now on."""
        peers = self._broker.peers
        if peers is not None:
            peers.on_call(CHANNEL, self.answer)

    def add(self, method: str, handler: Handler, request: Any, response: Any) -> Handler:
        """Return a handler that has a call executed by the owner of its topic.

        Args:
            method: its name, the same on all brokers.
            handler: executes it here.
            request, response: the types of its messages.
        """
        self._methods[method] = handler, request

        async def relaying(message: Any, context: Any) -> Any:
            try:
                return await handler(message, context)
            except NotOwnerError as error:
                peers = self._broker.peers
                if peers is None or not error.address:
                    raise
                address, call, request = error.address, peers.call, message.SerializeToString()

            async def send(rights: Sequence[JudgedRight] | None, seen: int) -> bytes:
                relayed = _Relayed(method, request, None if rights is None else list(rights), seen)
                return await call(address, CHANNEL, _encode(relayed), RELAY_S)

            return response.FromString(await passed_on(send))

        return relaying

    async def answer(self, _peer: Peer, payload: bytes) -> bytes:
        """Execute a call that another broker has relayed.

        Raises:
            CallRefusedError: this broker starts or ends, or the other one does not know the latest rights.
            UnimplementedError: this version does not know it.
            InvalidArgumentError: it cannot be decoded.
            DanubeError: what the handler raised.
        """
        await trio.lowlevel.checkpoint()
        if self._broker.draining or not self._broker.started:
            state = "shutting down" if self._broker.draining else "starting"
            raise CallRefusedError(f"the owner of the topic is {state}; try again")
        try:
            relayed = _RELAYED.decode(payload)
            if relayed.method not in self._methods:
                raise UnimplementedError(f"this version of Danube does not know the relayed call {relayed.method}")
            handler, request = self._methods[relayed.method]
            message = request.FromString(relayed.request)
        except (*UNDECODABLE, DecodeError) as error:
            raise InvalidArgumentError(f"a relayed call cannot be decoded: {error}") from error
        with received(relayed.rights, relayed.seen, self._broker.security_known):
            encoded: bytes = (await handler(message, None)).SerializeToString()
        return encoded
