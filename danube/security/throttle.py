"""Limits the attempts with wrong credentials. Pure; the caller passes the time, of a clock that never steps back.

Signatures and keys of 256 bits cannot be guessed; what is limited is the work that wrong ones cause, and the guessing
of passwords. An address has ``failed_proofs_burst`` failures and then ``failed_proofs_per_s``. All addresses together
have ``failed_proofs_all_per_s``, except those from which a proof has succeeded before, so that many strangers do not
keep out known clients. A principal is limited for passwords only: otherwise an attacker who knows the name of a
principal, or the id of its key, could keep it out.

Credentials that were verified before are not limited (:mod:`danube.security.verified`): a client with wrong ones does
not keep out the good ones at its address.

What is cheap for an attacker is not free for the broker: each refused call costs as much as any other call. So an
address may cause ``refused_proofs_burst`` of them and then ``refused_proofs_per_s``. Beyond that, the connection that
has sent the credentials ends, and new ones of that address are closed when they are accepted, unless a proof from there
has succeeded before: then clients with good credentials are there, too.

A proof that may not be looked at is refused after ``refused_proof_pause_s``, with UNAVAILABLE: it may be good, and
UNAUTHENTICATED is final for clients.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from functools import lru_cache

from danube.security.limits import SecurityLimits
from danube.security.pace import Pace

__all__ = ["FailedProofs", "network_of"]


class FailedProofs:
    """Failed proofs by address and principal, within a bounded memory."""

    def __init__(self, limits: SecurityLimits) -> None:
        self._most = limits.throttled_addresses
        self._address = Pace(limits.failed_proofs_per_s, limits.failed_proofs_burst)
        self._principal = Pace(limits.failed_proofs_principal_per_s, limits.failed_proofs_principal_burst)
        self._all = Pace(limits.failed_proofs_all_per_s, limits.failed_proofs_all_per_s)
        self._refused = Pace(limits.refused_proofs_per_s, limits.refused_proofs_burst)
        self._all_paid_at = 0.0
        self._failing: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failing) + len(self._known)

    def may_look(self, peer: str, now: float, *, principal: str = "") -> bool:
        """Whether credentials may be verified.

        Args:
            peer: the address of the caller, as the connection has it.
            now: the time.
            principal: whose password it claims to be; empty for other credentials.
        """
        network = network_of(peer)
        if network not in self._known and self._all.allowed_at(self._all_paid_at) > now:
            return False
        if self._address.allowed_at(self._failing.get(("address", network), 0.0)) > now:
            return False
        return not principal or self._principal.allowed_at(self._failing.get(("principal", principal), 0.0)) <= now

    def failed(self, peer: str, now: float, *, principal: str = "") -> None:
        """Credentials were verified and refused."""
        network = network_of(peer)
        if network not in self._known:
            self._all_paid_at = self._all.take(self._all_paid_at, 1, now)
        self._count(("address", network), self._address, now)
        if principal:
            self._count(("principal", principal), self._principal, now)

    def refused(self, peer: str, now: float) -> bool:
        """A call was refused for its credentials; return whether its address has caused too many such refusals."""
        key = ("refused", network_of(peer))
        is_too_much = self._refused.allowed_at(self._failing.get(key, 0.0)) > now
        self._count(key, self._refused, now)
        return is_too_much

    def is_blocked(self, peer: str, now: float) -> bool:
        """Whether an address gets no connections now."""
        network = network_of(peer)
        paid_at = self._failing.get(("refused", network))
        return paid_at is not None and self._refused.allowed_at(paid_at) > now and network not in self._known

    def succeeded(self, peer: str) -> None:
        """Credentials were verified and accepted."""
        network = network_of(peer)
        self._known[network] = None
        self._known.move_to_end(network)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def _count(self, key: tuple[str, str], pace: Pace, now: float) -> None:
        self._failing[key] = pace.take(self._failing.get(key, 0.0), 1, now)
        self._failing.move_to_end(key)
        if len(self._failing) > self._most:
            self._failing.popitem(last=False)


@lru_cache(maxsize=1024)
def network_of(peer: str) -> str:
    """Return what counts as one address: an IPv4 address, an IPv6 network of 64 bits, or other text as it is.

    Args:
        peer: an address, maybe with a port: ``10.0.0.1:4711``, ``[2001:db8::1]:4711``, ``2001:db8::1:4711`` as the
            server names its peers, ``unix``.
    """
    host, colon, port = peer.rpartition(":")
    if not colon or not port.isdecimal():
        host = peer
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
