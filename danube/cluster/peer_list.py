"""``--peers``: the brokers that form a cluster, and which of them is this one.

The list is the same on all brokers. Entries are separated by commas; the port is 6650 unless one is given, and a range
of ports stands for as many brokers on one host::

    a,b:6651,[fd00::7]          three brokers
    127.0.0.1:6650-6652         three brokers on one machine
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from danube.model.addresses import DEFAULT_PORT, with_port
from danube.model.errors import ClusterConfigurationError, ConfigurationError

__all__ = ["MOST_PEERS", "find_self", "parse_peers"]

MOST_PEERS: Final = 100
"""Most entries of ``--peers``. Further brokers join later."""

_RANGE: Final = re.compile(r"(.+):([0-9]{1,5})-([0-9]{1,5})")


def parse_peers(text: str) -> tuple[str, ...]:
    """Return the addresses of a list, each with its port, in their order.

    Raises:
        ClusterConfigurationError: an entry is no address, is repeated, or there are too many.
    """
    addresses: list[str] = []
    for entry in text.split(","):
        addresses += _addresses(entry.strip())
    if len(addresses) > MOST_PEERS:
        raise ClusterConfigurationError(
            f"--peers lists {len(addresses)} brokers; a cluster is formed by {MOST_PEERS} at most, and further ones"
            " join it with --join"
        )
    for address in addresses:
        if addresses.count(address) > 1:
            raise ClusterConfigurationError(f"--peers lists {address} twice; list each broker once")
    return tuple(addresses)


def _addresses(entry: str) -> list[str]:
    ranged = _RANGE.fullmatch(entry)
    if ranged is None:
        try:
            return [with_port(entry, DEFAULT_PORT)]
        except ConfigurationError as error:
            raise ClusterConfigurationError(
                f"--peers: {entry!r} is not an address; write host, host:port, or host:port-port for several brokers on"
                " one host, with commas between them"
            ) from error
    host, low, high = ranged[1], int(ranged[2]), int(ranged[3])
    if not 0 < low <= high <= 65535:
        raise ClusterConfigurationError(
            f"--peers: {entry!r} is not a range of ports from 1 to 65535; write the lower one first"
        )
    return [with_port(f"{host}:{port}", DEFAULT_PORT) for port in range(low, high + 1)]


def find_self(
    peers: Sequence[str], listen: Sequence[str], advertise: str | None, is_own: Callable[[str], Collection[str]]
) -> str:
    """Return the entry of ``peers`` that is this broker.

    Args:
        peers: of :func:`parse_peers`.
        listen: addresses it listens on, with their ports.
        advertise: ``--advertise``: the address at which other machines reach it, if it was given.
        is_own: returns the addresses of this machine among those to which a host resolves; none if the host is
            another machine's. Called for hosts that differ from those in ``listen``.

    Raises:
        ClusterConfigurationError: none matches, or more than one.
    """
    if advertise is not None:
        own = with_port(advertise, DEFAULT_PORT)
        if own not in peers:
            raise ClusterConfigurationError(
                f"--advertise {own} is not in --peers ({', '.join(peers)}); the address must be written alike in both"
            )
        return own
    found = [peer for peer in peers if _matches(peer, listen, is_own)]
    if len(found) == 1:
        return found[0]
    wanted = "name this broker's entry with --advertise HOST:PORT"
    if found:
        raise ClusterConfigurationError(
            f"--peers: {' and '.join(found)} are both addresses of this broker, which listens on"
            f" {', '.join(listen)}; {wanted}"
        )
    raise ClusterConfigurationError(
        f"--peers: none of {', '.join(peers)} is an address of this broker, which listens on {', '.join(listen)};"
        f" add it on all brokers, or {wanted}"
    )


def _matches(peer: str, listen: Sequence[str], is_own: Callable[[str], Collection[str]]) -> bool:
    """Whether connections to ``peer`` arrive at one of the listeners."""
    if peer in listen:
        return True
    host, _, port = peer.rpartition(":")
    bound = [address.rpartition(":")[0].strip("[]") for address in listen if address.rpartition(":")[2] == port]
    reached = is_own(host.strip("[]"))
    return any(each in reached or (each in ("0.0.0.0", "::") and reached) for each in bound)
