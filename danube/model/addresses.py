"""Addresses of listeners: ``host:port``. Pure."""

from __future__ import annotations

from typing import Final

from danube.model.errors import ConfigurationError

__all__ = ["DEFAULT_PORT", "parse_address", "with_port"]

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
