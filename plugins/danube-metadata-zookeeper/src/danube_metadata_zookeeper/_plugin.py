"""The ``zookeeper://`` plugin: servers, options, TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from danube.metadata import MetadataPlugin, MetadataStore, Surroundings, validate_key
from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube_metadata_zookeeper._link import Link, Security
from danube_metadata_zookeeper._store import LEAST_PACKET_BYTES, ZooKeeperStore

__all__ = ["ZooKeeperConfig", "ZooKeeperPlugin"]

_DEFAULT_PORT = 2181
_MAX_TIMEOUT_S = 600.0
_MAX_PACKET_BYTES = 64 * 1024 * 1024
_MAX_PREFIX_BYTES = 512


class ZooKeeperConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``zookeeper://host[:port][,host[:port]...][/prefix]``."""

    username: str = ""
    """User of digest authentication, who gets all rights on the nodes; empty: the nodes are open to everyone."""
    password: str = ""
    """The user's password; only in the configuration file."""
    tls: bool = False
    """Encrypt the connection and check the certificates of the servers."""
    ca_file: str = ""
    """PEM file of the authorities that sign the servers' certificates, instead of the system's. Implies ``tls``."""
    cert_file: str = ""
    """PEM file of the certificate that the servers ask clients for. Implies ``tls``."""
    key_file: str = ""
    """PEM file of the key of ``cert_file``; not needed if it is in the same file."""
    check_hostname: bool = True
    """Whether a server's certificate must name the host of the URL."""
    session_timeout_s: float = 6.0
    """How long a server may be silent before the next one is used, about; the servers have bounds for it."""
    request_timeout_s: float = 5.0
    """How long a call may take, connecting included, in seconds. An election takes one to three seconds."""
    max_packet_bytes: int = 1024 * 1024 - 1
    """``jute.maxbuffer`` of the servers, in bytes: it bounds the size of one change. Set both higher for more."""


class ZooKeeperPlugin(MetadataPlugin[ZooKeeperConfig]):
    """``zookeeper://``: metadata in an ensemble of ZooKeeper."""

    name: ClassVar[str] = "zookeeper"
    summary: ClassVar[str] = "Apache ZooKeeper, version 3.5 or newer"
    config: ClassVar[type[ZooKeeperConfig]] = ZooKeeperConfig
    secrets: ClassVar[frozenset[str]] = frozenset({"password"})

    @asynccontextmanager
    async def open(self, config: ZooKeeperConfig, surroundings: Surroundings) -> AsyncIterator[MetadataStore]:
        """Connect to a server, create the prefix if it does not exist, read everything, and close it all at the end.

        Raises:
            ConfigurationError: a server, the prefix or an option is invalid.
            UnavailableError: no server answers.
            PermissionDeniedError: the user may not read and change the nodes below the prefix.
            DataLossError: the nodes below the prefix are not Danube's, or damaged.
        """
        hosts = _hosts(surroundings.location)
        prefix = surroundings.path.rstrip("/")
        if prefix:
            try:
                validate_key(prefix, _MAX_PREFIX_BYTES)
            except InvalidArgumentError as error:
                raise ConfigurationError(f"the prefix of the metadata URL is not valid: {error}") from error
        _check(config)
        link = Link(
            hosts,
            Security(
                config.username,
                config.password,
                tls=config.tls or bool(config.ca_file) or bool(config.cert_file),
                ca_file=config.ca_file,
                cert_file=config.cert_file,
                key_file=config.key_file,
                check_hostname=config.check_hostname,
            ),
            session_timeout_s=config.session_timeout_s,
            request_timeout_s=config.request_timeout_s,
        )
        async with ZooKeeperStore(
            link,
            prefix,
            limits=surroundings.limits,
            clock=surroundings.clock,
            random=surroundings.random,
            request_timeout_s=config.request_timeout_s,
            max_packet_bytes=config.max_packet_bytes,
        ) as store:
            yield store


def _hosts(location: str) -> str:
    if "@" in location:
        raise ConfigurationError(
            "the metadata URL of ZooKeeper contains user information, and it is shown in logs: set username and"
            " password in the configuration file, [metadata] options"
        )
    found = []
    for text in location.split(","):
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError(f"ZooKeeper's server {text!r} is not valid: {error}") from None
        if not host or parts.path:
            raise ConfigurationError(
                f"ZooKeeper's server {text!r} names no host; write zookeeper://host:port,host:port/prefix, for example"
                f" zookeeper://127.0.0.1:{_DEFAULT_PORT}/danube"
            )
        found.append(f"{f'[{host}]' if ':' in host else host}:{port if port is not None else _DEFAULT_PORT}")
    return ",".join(found)


def _check(config: ZooKeeperConfig) -> None:
    for name in ("session_timeout_s", "request_timeout_s"):
        _check_range(name, getattr(config, name), 0.1, _MAX_TIMEOUT_S)
    _check_range("max_packet_bytes", config.max_packet_bytes, LEAST_PACKET_BYTES, _MAX_PACKET_BYTES)
    for name, needed in (("password", "username"), ("username", "password"), ("key_file", "cert_file")):
        if getattr(config, name) and not getattr(config, needed):
            raise ConfigurationError(
                f"the option {name!r} of the metadata engine 'zookeeper' needs the option {needed!r}"
            )
    if ":" in config.username:
        raise ConfigurationError("the option 'username' of the metadata engine 'zookeeper' must not contain ':'")
    for name in ("ca_file", "cert_file", "key_file"):
        file = getattr(config, name)
        if file and not Path(file).is_file():
            raise ConfigurationError(
                f"the option {name!r} of the metadata engine 'zookeeper', {file!r}, is not a file that can be read"
            )


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigurationError(
            f"the option {name!r} of the metadata engine 'zookeeper' is {value}; it must be from {least} to {most}"
        )
