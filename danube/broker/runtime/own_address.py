"""Where other brokers reach this one. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from danube.broker.runtime.config import BrokerConfig
from danube.cluster.peer_list import find_self
from danube.model.addresses import DEFAULT_PORT, is_loopback, parse_address, with_port

__all__ = ["foreign_hosts", "http_url", "own_address"]

_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def foreign_hosts(config: BrokerConfig, bound: Sequence[str]) -> list[str]:
    """Return the hosts that have to be resolved for :func:`own_address`.

    Args:
        config: of the broker.
        bound: the addresses on which it listens.
    """
    if config.advertise:
        return []
    return sorted({parse_address(peer)[0] for peer in config.peer_addresses if peer not in bound})


def own_address(config: BrokerConfig, bound: Sequence[str], resolved: Mapping[str, Collection[str]]) -> str:
    """Return the address at which other brokers reach this one.

    Args:
        config: of the broker.
        bound: the addresses on which it listens.
        resolved: the addresses of this machine to which a host of :func:`foreign_hosts` resolves.

    Raises:
        ClusterConfigurationError: none of ``--peers`` is this broker, or more than one.
    """
    if config.peers:
        advertise = config.advertise or None
        return find_self(config.peer_addresses, bound, advertise, lambda host: resolved.get(host, ()))
    if config.advertise:
        return with_port(config.advertise, DEFAULT_PORT)
    host, port = parse_address(bound[0])
    # On all addresses: a broker alone without a secret, which has links to its own machine only.
    return f"{_LOOPBACK[host]}:{port}" if host in _LOOPBACK else bound[0]


def http_url(bound: Sequence[str], own: str, *, secure: bool) -> str:
    """Return the URL at which other brokers' callers reach the HTTP port; empty: they do not.

    Args:
        bound: the addresses on which it listens.
        own: ``host:port`` at which other brokers reach this one: its host stands for "all addresses".
        secure: it serves TLS.
    """
    own_host, _ = parse_address(own)
    for address in bound:
        host, port = parse_address(address)
        if host in _LOOPBACK:
            host = own_host
        if is_loopback(own_host) or not is_loopback(host):
            shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return f"{'https' if secure else 'http'}://{shown}"
    return ""
