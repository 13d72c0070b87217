"""What all links of a broker share: its own description, the secret, the limits, and the log of refusals."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from danube.model.errors import ConnectionLostError
from danube.model.limits import Limits
from danube.model.log_events import log_event
from danube.model.tls import PeerCertificate
from danube.peers._contract import Peer
from danube.peers._refusals import Refusals
from danube.peers.hello import NONCE_BYTES, Lives

if TYPE_CHECKING:
    import ssl

__all__ = ["EXPIRY_LOOK_S", "Shared"]

EXPIRY_LOOK_S: Final = 5.0
"""Longest time after which a link notices that the wall clock has been set past the end of a certificate."""

T = TypeVar("T")

_log = logging.getLogger("danube.peers")


class Shared:
    """See the module.

    Args:
        own: this broker, as it describes itself; changes when it joins a cluster.
        secret: of the cluster; None if it has none.
        limits: of the broker.
        random_bytes: returns that many unpredictable bytes.
        wall_s: returns the Unix time in seconds, by which certificates expire.
        tls: returns what verifies other brokers in a new link, None for a link without TLS.
    """

    def __init__(
        self,
        own: Peer,
        secret: bytes | None,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        wall_s: Callable[[], float],
        tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self.tls = tls or _no_tls
        self.own = own
        self.secret = secret
        self.limits = limits
        self.lives = Lives(16 * limits.max_peers)
        self._random_bytes = random_bytes
        self._wall_s = wall_s
        self._refusals = Refusals(limits.peer_refusal_log_s)

    def nonce(self) -> bytes:
        """Return a new nonce for a hello."""
        return self._random_bytes(NONCE_BYTES)

    async def until_expired(
        self, receive: Callable[[], Awaitable[T]], peer: Peer, certificate: PeerCertificate | None
    ) -> T:
        """Return what ``receive`` returns.

        Args:
            receive: waits for the end of a link.
            peer: the other broker.
            certificate: its certificate; None without TLS.

        Raises:
            ConnectionLostError: the certificate has expired meanwhile.
        """
        while True:
            left_s = math.inf if certificate is None else certificate.expires_at_s - self._wall_s()
            if left_s <= 0:
                raise ConnectionLostError(
                    f"the certificate of {peer.name} has expired; with a new one in its files the link is opened again"
                )
            # Not until then at once: the wall clock may be set meanwhile.
            with trio.move_on_after(min(left_s, EXPIRY_LOOK_S)):
                return await receive()

    def log_refusal(self, what: str, host: str, where: str, error: Exception) -> None:
        """Log a refused link, unless one of the same kind and host was logged a short time ago.

        Args:
            what: what was refused, for instance ``a link from``.
            host: the other machine.
            where: the host and port.
            error: why.
        """
        count = self._refusals.note(f"{what} {host}", trio.current_time())
        if count > 1:
            _log.warning(
                "refused %s %s: %s (%d since the last such line)",
                what,
                where,
                error,
                count,
                extra=log_event("peers.link_refused"),
            )
        elif count:
            _log.warning("refused %s %s: %s", what, where, error, extra=log_event("peers.link_refused"))


def _no_tls() -> ssl.SSLContext | None:
    return None
