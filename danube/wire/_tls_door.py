"""The entrance to a port with TLS: what a connection goes through before its first bytes of HTTP/2.

The first byte tells whether the peer speaks TLS. Whatever else it speaks is told so in its own words, or served if the
port serves plain text, too. A handshake runs when :class:`~danube.wire._handshakes.Handshakes` lets it.
"""

from __future__ import annotations

import logging
import ssl
from typing import TYPE_CHECKING, Final, NamedTuple

import trio
from h2.errors import ErrorCodes

from danube.model.errors import ConnectionLostError, PeerFloodError, UnauthenticatedError
from danube.model.limits import Limits
from danube.model.tls import PeerCertificate
from danube.wire._core import FrameType
from danube.wire._handshakes import Handshake, Handshakes, address_key
from danube.wire._outgoing import FRAME_HEADER
from danube.wire._tls_transport import MIN_READ_BYTES, tls_over
from danube.wire.tls import ServerTls, tls_problem

if TYPE_CHECKING:
    from danube.wire._transport import Transport

__all__ = ["Admitted", "TlsDoor"]

_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of a TLS connection: the type of its first record."""
_REFUSAL: Final = "this port speaks TLS: danube+tls://"
_HTTP1_BODY: Final = b"This port speaks TLS. Use https://, or a Danube client with danube+tls://.\n"
_HTTP1_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    % len(_HTTP1_BODY)
) + _HTTP1_BODY
_REFUSING_S: Final = 1.0
"""How long a refused peer may take to read the reason."""
_LOG_INTERVAL_S: Final = 1.0
"""Time between two lines in the log about refused connections; the others are counted."""

log = logging.getLogger("danube.wire")


class Admitted(NamedTuple):
    """A connection that may speak HTTP/2."""

    transport: Transport
    received: bytes
    """Its first bytes."""
    secure: bool
    certificate: PeerCertificate | None


class TlsDoor:
    """The entrance of one server.

    Args:
        tls: certificate and rules.
        limits: of handshakes.
        for_http: offer HTTP/1.1 only, instead of HTTP/2.
    """

    def __init__(self, tls: ServerTls, limits: Limits, *, for_http: bool = False) -> None:
        self.tls = tls
        self._for_http = for_http
        self._limits = limits
        self._handshakes = Handshakes(limits.max_tls_handshakes, limits.max_tls_handshakes_per_address)
        self._scopes: dict[trio.CancelScope, None] = {}
        self._quiet_until = 0.0
        self._unsaid = 0

    @property
    def waiting(self) -> int:
        """Connections that have not been admitted yet."""
        return len(self._scopes)

    def look(self, now: float) -> None:
        """Let handshakes begin or end; called about once a second."""
        self._handshakes.look(now)

    def close(self) -> None:
        """End the connections that have not been admitted yet."""
        for scope in self._scopes:
            scope.cancel()

    async def admit(self, transport: Transport, peer: str) -> Admitted | None:
        """Return what comes through; None: the connection was refused or lost, and is closed.

        Args:
            transport: of a new connection; closed unless it is admitted.
            peer: address of the peer, ``host:port``.
        """
        admitted: Admitted | None = None
        began = trio.current_time()
        try:
            with trio.CancelScope(deadline=began + self._limits.tls_handshake_timeout_s) as scope:
                self._scopes[scope] = None
                admitted = await self._pass(transport, peer, scope)
            if scope.cancelled_caught and trio.current_time() >= began + self._limits.tls_handshake_timeout_s:
                seconds = self._limits.tls_handshake_timeout_s
                self._say(peer, f"no TLS handshake within {seconds:g} s (tls_handshake_timeout_s)")
        except ConnectionLostError:
            pass  # the peer has closed it
        finally:
            del self._scopes[scope]
            if admitted is None:
                await transport.close()
        return admitted

    async def _pass(self, transport: Transport, peer: str, scope: trio.CancelScope) -> Admitted | None:
        received = await transport.receive(MIN_READ_BYTES)
        if not received:
            return None
        if received[:1] == _TLS_HANDSHAKE:
            try:
                return await self._shake_hands(transport, received, peer, scope)
            except ssl.SSLError as error:
                self._say(peer, tls_problem(error))
            except (UnauthenticatedError, PeerFloodError) as error:
                self._say(peer, error.message)
        elif self.tls.config.plaintext:
            return Admitted(transport, received, False, None)
        else:
            self._say(peer, "it does not speak TLS")
            await transport.send(memoryview(_answer(received)))
        # Closing before the peer has been read would discard the reason on its side.
        with trio.move_on_after(_REFUSING_S):
            while await transport.receive(MIN_READ_BYTES):
                pass
        return None

    async def _shake_hands(self, transport: Transport, received: bytes, peer: str, scope: trio.CancelScope) -> Admitted:
        turn = trio.Event()
        handshake = Handshake(address_key(peer.rpartition(":")[0].strip("[]")), turn.set, scope.cancel)
        self._handshakes.enter(handshake, trio.current_time())
        succeeded = False
        try:
            await turn.wait()
            context = self.tls.http_context if self._for_http else self.tls.context
            secured = tls_over(transport, context, idle_records=self._limits.max_tls_idle_records_per_minute)
            first = await secured.handshake(received)
            succeeded = True
        finally:
            self._handshakes.leave(handshake, trio.current_time(), succeeded=succeeded)
        return Admitted(secured, first, True, self.tls.peer_certificate(secured.tls))

    def _say(self, peer: str, why: str) -> None:
        now = trio.current_time()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} others since the last such line)" if self._unsaid else ""
        self._unsaid, self._quiet_until = 0, now + _LOG_INTERVAL_S
        log.info("a connection of %s is refused: %s%s", peer, why, more)


def _answer(received: bytes) -> bytes:
    """Return what a peer without TLS is told, in the protocol that it speaks."""
    if not received.startswith(b"PRI"):
        return _HTTP1_ANSWER
    reason = _REFUSAL.encode()
    settings = FRAME_HEADER.pack(0, 0, FrameType.SETTINGS, 0, 0)
    goaway = FRAME_HEADER.pack(0, 8 + len(reason), FrameType.GOAWAY, 0, 0)
    return settings + goaway + bytes(4) + int(ErrorCodes.INADEQUATE_SECURITY).to_bytes(4, "big") + reason
