"""The ``etcd://`` plugin: endpoints, options, TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from danube.metadata import MetadataPlugin, MetadataStore, Surroundings, validate_key
from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube_metadata_etcd._link import Credentials, Endpoint, Link
from danube_metadata_etcd._store import EtcdStore

__all__ = ["EtcdConfig", "EtcdPlugin"]

_DEFAULT_PORT = 2379
_MAX_TIMEOUT_S = 600.0


class EtcdConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of ``etcd://host[:port][,host[:port]...][/prefix]``."""

    username: str = ""
    """User of etcd; empty: etcd has no authentication enabled."""
    password: str = ""
    """The user's password; only in the configuration file."""
    tls: bool = False
    """Encrypt the connection and check the certificates of etcd's members."""
    ca_file: str = ""
    """PEM file of the authorities that sign the members' certificates, instead of the system's. Implies ``tls``."""
    cert_file: str = ""
    """PEM file of the certificate that etcd asks clients for. Implies ``tls``."""
    key_file: str = ""
    """PEM file of the key of ``cert_file``; not needed if it is in the same file."""
    connect_timeout_s: float = 2.0
    """How long an attempt to connect to one endpoint may take, in seconds."""
    request_timeout_s: float = 5.0
    """How long a call may take, connecting included, in seconds. An election takes one to two seconds."""


class EtcdPlugin(MetadataPlugin[EtcdConfig]):
    """``etcd://``: metadata in a cluster of etcd."""

    name: ClassVar[str] = "etcd"
    summary: ClassVar[str] = "an etcd cluster, version 3.4 or newer"
    config: ClassVar[type[EtcdConfig]] = EtcdConfig
    secrets: ClassVar[frozenset[str]] = frozenset({"password"})

    @asynccontextmanager
    async def open(self, config: EtcdConfig, surroundings: Surroundings) -> AsyncIterator[MetadataStore]:
        """Connect to the first endpoint that answers, authenticate, and close the connection at the end.

        Raises:
            ConfigurationError: an endpoint, the prefix or an option is invalid.
            UnavailableError: no endpoint answers.
            PermissionDeniedError: etcd refuses the user, or the user may not read the prefix.
        """
        endpoints = _endpoints(surroundings.location)
        prefix = surroundings.path.rstrip("/")
        if prefix:
            try:
                validate_key(prefix, surroundings.limits.metadata_max_key_bytes)
            except InvalidArgumentError as error:
                raise ConfigurationError(f"the prefix of the metadata URL is not valid: {error}") from error
        _check(config)
        link = Link(
            endpoints,
            tls=_tls(config),
            credentials=Credentials(config.username, config.password) if config.username else None,
            limits=surroundings.limits,
            connect_timeout_s=config.connect_timeout_s,
            request_timeout_s=config.request_timeout_s,
        )
        async with EtcdStore(link, prefix, limits=surroundings.limits) as store:
            yield store


def _endpoints(location: str) -> tuple[Endpoint, ...]:
    if "@" in location:
        raise ConfigurationError(
            "the metadata URL of etcd contains user information, and it is shown in logs: set username and password in"
            " the configuration file, [metadata] options"
        )
    found = []
    for text in location.split(","):
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ConfigurationError(f"etcd's endpoint {text!r} is not valid: {error}") from None
        if not host or parts.path:
            raise ConfigurationError(
                f"etcd's endpoint {text!r} names no host; write etcd://host:port,host:port/prefix, for example"
                f" etcd://127.0.0.1:{_DEFAULT_PORT}/danube"
            )
        found.append(Endpoint(host, port if port is not None else _DEFAULT_PORT))
    return tuple(found)


def _check(config: EtcdConfig) -> None:
    for name in ("connect_timeout_s", "request_timeout_s"):
        value = getattr(config, name)
        if not 0 < value <= _MAX_TIMEOUT_S:
            raise ConfigurationError(
                f"the option {name!r} of the metadata engine 'etcd' is {value}; it must be more than 0 and at most"
                f" {_MAX_TIMEOUT_S}"
            )
    if config.password and not config.username:
        raise ConfigurationError("the option 'password' of the metadata engine 'etcd' needs the option 'username'")
    if config.key_file and not config.cert_file:
        raise ConfigurationError("the option 'key_file' of the metadata engine 'etcd' needs the option 'cert_file'")


def _tls(config: EtcdConfig) -> ssl.SSLContext | None:
    if not (config.tls or config.ca_file or config.cert_file):
        return None
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
    except OSError as error:
        raise ConfigurationError(
            f"the option 'ca_file' of the metadata engine 'etcd', {config.ca_file!r}, cannot be used: {error}"
        ) from error
    if config.cert_file:
        try:
            context.load_cert_chain(config.cert_file, config.key_file or None)
        except OSError as error:
            raise ConfigurationError(
                f"the options 'cert_file' and 'key_file' of the metadata engine 'etcd', {config.cert_file!r} and"
                f" {config.key_file!r}, cannot be used: {error}"
            ) from error
    context.set_alpn_protocols(["h2"])
    return context
