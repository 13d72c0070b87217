"""Addresses of brokers: ``danube://host[:port][,host[:port] ...]``.

Several addresses are alternatives for the same broker or cluster; a client tries them in turn.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from danube.model.errors import ConfigurationError

__all__ = ["DEFAULT_PORT", "Address", "parse_url"]

DEFAULT_PORT = 6650
"""Port of a URL that names none."""


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
    if not separator or scheme != "danube":
        raise ConfigurationError(f"URL {url!r} must begin with danube://, for example danube://127.0.0.1:6650")
    addresses = [_parse_address(url, part.strip()) for part in rest.rstrip("/").split(",")]
    return list(dict.fromkeys(addresses))


def _parse_address(url: str, text: str) -> Address:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"URL {url!r}: {text!r} is not host:port ({error})") from error
    if not host or port == 0 or "@" in parts.netloc or parts.path or parts.query or parts.fragment:
        raise ConfigurationError(f"URL {url!r}: {text!r} is not host:port; write danube://host:port")
    return Address(host, DEFAULT_PORT if port is None else port)
