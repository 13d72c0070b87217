"""What all links of a broker share: its own description, the secret, the limits, and the log of refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from danube.model.limits import Limits
from danube.peers._contract import Peer
from danube.peers._refusals import Refusals
from danube.peers.hello import NONCE_BYTES, Lives

if TYPE_CHECKING:
    import ssl

__all__ = ["Shared"]

_log = logging.getLogger("danube.peers")


class Shared:
    """See the module.

    Args:
        own: this broker, as it describes itself; changes when it joins a cluster.
        secret: of the cluster; None if it has none.
        limits: of the broker.
        random_bytes: returns that many unpredictable bytes.
        tls: returns what verifies other brokers in a new link, None for a link without TLS.
    """

    def __init__(
        self,
        own: Peer,
        secret: bytes | None,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self.tls = tls or _no_tls
        self.own = own
        self.secret = secret
        self.limits = limits
        self.lives = Lives(16 * limits.max_peers)
        self._random_bytes = random_bytes
        self._refusals = Refusals(limits.peer_refusal_log_s)

    def nonce(self) -> bytes:
        """Return a new nonce for a hello."""
        return self._random_bytes(NONCE_BYTES)

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
            _log.warning("refused %s %s: %s (%d since the last such line)", what, where, error, count)
        elif count:
            _log.warning("refused %s %s: %s", what, where, error)


def _no_tls() -> ssl.SSLContext | None:
    return None
