"""Addresses of brokers: ``danube://host[:port][,host[:port] ...]``; with TLS ``danube+tls://``. Pure.

Several addresses belong to one cluster; a client tries them in turn, and learns the other brokers from them.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from danube.model.errors import ConfigurationError

__all__ = ["DEFAULT_PORT", "Address", "has_tls", "parse_address", "parse_url"]

DEFAULT_PORT = 6650
"""Port of a URL that names none."""

_TLS_SCHEME = "danube+tls"


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_url(url: str) -> list[Address]:
    """Return the addresses of a URL such as ``danube://127.0.0.1:6650`` or ``danube://a,b:7000,[::1]``.

    Raises:
        ConfigurationError: another scheme, a path, user information, or a port that is not a number.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"a URL is text, such as danube://127.0.0.1:6650, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("danube", _TLS_SCHEME):
        raise ConfigurationError(
            f"URL {url!r} must begin with danube://, for example danube://127.0.0.1:6650, or with danube+tls://"
        )
    try:
        addresses = [parse_address(part.strip()) for part in rest.rstrip("/").split(",")]
    except ConfigurationError as error:
        raise ConfigurationError(f"URL {url!r}: {error.message}; write {scheme}://host:port") from None
    return list(dict.fromkeys(addresses))


def has_tls(url: str) -> bool:
    """Return whether a URL that :func:`parse_url` accepts demands TLS."""
    return url.startswith(f"{_TLS_SCHEME}://")


def parse_address(text: str) -> Address:
    """Return the address of ``host[:port]``.

    Raises:
        ConfigurationError: the text is something else.
    """
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not host:port ({error})") from error
    if not host or port == 0 or "@" in parts.netloc or parts.path or parts.query or parts.fragment:
        raise ConfigurationError(f"{text!r} is not host:port")
    return Address(host, DEFAULT_PORT if port is None else port)
