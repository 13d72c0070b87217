"""Identities in the certificates of clients and brokers, by their subject alternative names. Pure.

TLS has verified the chain. The common name is never used. In order:

* ``URI danube://CLUSTER/service/NAME`` or ``.../user/NAME``: the principal ``service:NAME`` or ``user:NAME``;
* ``URI danube://CLUSTER/broker/b3``: a broker, only if the chain ends at the CA of the brokers;
* ``URI spiffe://DOMAIN/PATH`` of the configured trust domain: ``service:spiffe://DOMAIN/PATH``;
* ``DNS NAME``, if configured: ``service:dns/NAME``.

A certificate with two names of the first kind that has any proves nothing, nor does one with names of another cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from danube.security.claims import Identity
from danube.security.flaws import BadProofError, Flaw
from danube.security.limits import SecurityLimits
from danube.security.roles import Principal, PrincipalType

__all__ = ["CertificateRules", "certificate_identity"]

_DANUBE: Final = re.compile(r"danube://([A-Za-z0-9_.-]{1,255})/(user|service|broker)/([A-Za-z0-9_.@-]{1,255})")
_SPIFFE: Final = re.compile(r"spiffe://([a-z0-9._-]{1,255})((?:/[A-Za-z0-9._-]+)+)")
_DNS: Final = re.compile(r"(?=.{1,243}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_MAX_SPIFFE_CHARS: Final = 255
_BROKER: Final = re.compile(r"b[1-9][0-9]{0,9}")


class CertificateRules(NamedTuple):
    """Which names count."""

    cluster: str
    spiffe_domain: str = ""
    """Trust domain of SPIFFE ids; empty: they do not count."""
    dns: bool = False
    """Whether DNS names count."""


def certificate_identity(
    names: Iterable[tuple[str, str]],
    fingerprint: str,
    expires_at_s: float,
    rules: CertificateRules,
    *,
    of_broker_ca: bool,
    limits: SecurityLimits,
) -> Identity:
    """Return the identity in a certificate.

    Args:
        names: its subject alternative names, as the module :mod:`ssl` shows them: ``("URI", "danube://...")``.
        fingerprint: SHA-256 of the certificate, for audits and revocation.
        expires_at_s: when it ends.
        rules: which names count.
        of_broker_ca: whether its chain ends at the CA of the brokers.
        limits: of names.

    Raises:
        BadProofError: it has no name that counts, or contradictory ones.
    """
    found = list(names)
    if len(found) > limits.max_certificate_names:
        raise BadProofError(Flaw.TOO_LARGE)
    uris = [value for kind, value in found if kind == "URI"]
    ours = [value for value in uris if value.lower().startswith("danube:")]
    if ours:
        principal, source = _of_ours(ours, rules, of_broker_ca=of_broker_ca), "danube"
    elif rules.spiffe_domain and any(value.lower().startswith("spiffe:") for value in uris):
        principal, source = _of_spiffe(uris, rules), "spiffe"
    elif rules.dns:
        principal, source = _of_dns([value for kind, value in found if kind == "DNS"]), "dns"
    else:
        raise BadProofError(Flaw.NAME)
    return Identity(principal, "certificate", fingerprint, source, expires_at_s)


def _of_ours(uris: list[str], rules: CertificateRules, *, of_broker_ca: bool) -> Principal:
    match = _DANUBE.fullmatch(uris[0])
    if match is None or len(uris) > 1:
        raise BadProofError(Flaw.NAME)
    cluster, kind, name = match.groups()
    if cluster != rules.cluster:
        raise BadProofError(Flaw.AUDIENCE)
    if kind == PrincipalType.BROKER.value and not (of_broker_ca and _BROKER.fullmatch(name)):
        raise BadProofError(Flaw.NAME)
    return Principal(PrincipalType(kind), name)


def _of_spiffe(uris: list[str], rules: CertificateRules) -> Principal:
    # A certificate with a SPIFFE id has exactly one URI (SPIFFE X.509-SVID, section 2).
    match = _SPIFFE.fullmatch(uris[0])
    if match is None or len(uris) > 1 or len(uris[0]) > _MAX_SPIFFE_CHARS:
        raise BadProofError(Flaw.NAME)
    if any(segment in (".", "..") for segment in match[2].split("/")):
        raise BadProofError(Flaw.NAME)
    if match[1] != rules.spiffe_domain:
        raise BadProofError(Flaw.AUDIENCE)
    return Principal(PrincipalType.SERVICE, uris[0])


def _of_dns(names: list[str]) -> Principal:
    if len(names) != 1 or not _DNS.fullmatch(names[0]):
        raise BadProofError(Flaw.NAME)
    return Principal(PrincipalType.SERVICE, f"dns/{names[0]}")
