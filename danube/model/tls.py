"""Settings of TLS for a port: files, client certificates, versions; and what the certificate of a peer says. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from danube.model.errors import ClusterConfigurationError, ConfigurationError

__all__ = ["CertifiedBroker", "ClientAuth", "PeerCertificate", "TlsConfig", "certified_broker", "check_tls"]

ClientAuth: TypeAlias = Literal["none", "optional", "required"]


_BROKER: Final = re.compile(r"danube://([^/]+)/broker/b([1-9][0-9]{0,9})")


class CertifiedBroker(NamedTuple):
    """The broker that a certificate names."""

    cluster: str
    number: int
    """3 for ``b3``."""


def certified_broker(names: Iterable[tuple[str, str]]) -> CertifiedBroker | None:
    """Return the broker that subject alternative names contain, ``danube://CLUSTER/broker/ID``; None: none."""
    for kind, value in names:
        match = _BROKER.fullmatch(value) if kind == "URI" else None
        if match is not None:
            return CertifiedBroker(match[1], int(match[2]))
    return None


class PeerCertificate(NamedTuple):
    """The certificate of a peer, whose chain TLS has verified."""

    der: bytes
    """The certificate itself."""
    names: tuple[tuple[str, str], ...]
    """Subject alternative names: ``("URI", "danube://...")``, ``("DNS", "host")``."""
    expires_at_s: float
    """When it ends, in seconds since the epoch."""
    of_broker_ca: bool
    """Whether its chain ends at an authority of the cluster's brokers."""


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[tls]`` of a configuration: what the ports of a server present and accept."""

    cert: str = ""
    """PEM file of the certificate, followed by those of the intermediate authorities."""
    key: str = ""
    """PEM file of its private key, without a password; empty: the key is in the file of the certificate."""
    client_ca: str = ""
    """PEM file of the authorities that sign certificates of clients."""
    client_auth: ClientAuth = "none"
    """Whether clients are asked for a certificate, and whether they need one."""
    broker_ca: str = ""
    """PEM file of the authorities that sign certificates of the cluster's brokers. Links to other brokers verify them
    with it. Certificates of clients may come from it, too, unless ``client_auth`` is ``none``."""
    min_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest version of TLS that is accepted."""
    plaintext: bool = False
    """Whether the ports also serve clients without TLS, while clients migrate. Links to other brokers are opened
    without TLS as long as this is set."""

    @property
    def certifies_brokers(self) -> bool:
        """Whether the ports ask other brokers for certificates of their authority."""
        return bool(self.broker_ca) and self.client_auth != "none" and not self.plaintext

    @property
    def only(self) -> bool:
        """Whether the ports serve nothing but TLS, so that their addresses are given as ``https://``."""
        return not self.plaintext


def check_tls(config: TlsConfig) -> None:
    """Raise ConfigurationError for settings that contradict each other. Files are not read."""
    if not config.cert:
        raise ConfigurationError("[tls] needs cert, a PEM file with the server's certificate (--tls-cert FILE)")
    if config.client_auth != "none" and not (config.client_ca or config.broker_ca):
        raise ConfigurationError(
            f"[tls] client_auth = {config.client_auth!r} needs client_ca, a PEM file with the authorities of client"
            " certificates (--tls-client-ca FILE)"
        )
    if config.broker_ca and config.client_auth == "none" and not config.plaintext:
        raise ClusterConfigurationError(
            "[tls] broker_ca needs client_auth = 'optional' or 'required' (--tls-client-auth optional): with 'none'"
            " other brokers are not asked for their certificates, and the cluster secret alone would link them"
        )
    if config.client_ca and config.client_auth == "none":
        raise ConfigurationError(
            "[tls] client_ca has no effect while client_auth is 'none'; set it to 'optional' or 'required'"
        )
