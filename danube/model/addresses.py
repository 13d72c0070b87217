"""Addresses of listeners: ``host:port``. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from danube.model.errors import ConfigurationError, ExposedAddressError

__all__ = ["DEFAULT_PORT", "is_loopback", "parse_address", "refuse_exposed", "with_port"]

DEFAULT_PORT: Final = 6650
"""Port of clients, unless an address names another one."""


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Split ``host:port`` (IPv6 hosts in brackets); the port may be left out.

    Raises:
        ConfigurationError: the port is not a number from 0 to 65535.
    """
    host, separator, port = text.rpartition(":")
    if not separator or port.endswith("]"):
        host, port = text, str(default_port)
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535 and host):
        raise ConfigurationError(f"listen address {text!r} is not host:port, for example 127.0.0.1:{default_port}")
    return host.strip("[]"), int(port)


def with_port(text: str, default_port: int) -> str:
    """Return an address with its port; see :func:`parse_address`."""
    host, port = parse_address(text, default_port)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host, as an IP address, is this machine itself. Names other than ``localhost`` are not."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def refuse_exposed(bound: Iterable[tuple[str, str]], risk: str, remedy: str) -> None:
    """Raise ExposedAddressError if something without access control listens on more than this machine.

    Args:
        bound: of each listener, the IP address to which it is bound, and its whole address for the message.
        risk: what other machines could do.
        remedy: how it gets access control.
    """
    for host, shown in bound:
        if not is_loopback(host):
            raise ExposedAddressError(
                f"other machines can reach {shown}, and {risk}; {remedy}, or, if you trust all of that network, start"
                " with --insecure (DANUBE_INSECURE=1)"
            )
