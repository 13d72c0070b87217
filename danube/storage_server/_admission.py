"""Who may use a storage server: by a token, by the names in a client certificate, or by both. Pure.

===============  ==========  ============================================================
``client_auth``  with token  a caller needs
===============  ==========  ============================================================
``none``         no          nothing
``none``         yes         the token
``optional``     yes         the token, or a certificate; a token that is sent must be right
``required``     no          a certificate
``required``     yes         a certificate and the token
===============  ==========  ============================================================

TLS has verified the chain of a certificate. Its names are those of the kinds URI and DNS; the common name never counts.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from typing import Final

from danube.model.errors import ConfigurationError, PeerBlockedError, StorageDeniedError
from danube.model.tls import ClientAuth, PeerCertificate

__all__ = ["Admission", "check_client_name"]

_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s*]+")
_URI_PREFIX: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s*]+/\*")
_DNS: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MOST_SHOWN: Final = 5


def check_client_name(text: str) -> str:
    """Return a name that a list of accepted ones may contain.

    Args:
        text: a URI (``danube://shop/broker/b1``), all URIs with one more segment (``danube://shop/broker/*``), or a DNS
            name.

    Raises:
        ConfigurationError: it is none of them.
    """
    name = text if "://" in text else text.lower()
    if not (_URI.fullmatch(name) or _URI_PREFIX.fullmatch(name) or ("://" not in name and _DNS.fullmatch(name))):
        raise ConfigurationError(
            f"{text!r} is no name of clients; write a URI (danube://CLUSTER/broker/b1), all with one more"
            " segment (danube://CLUSTER/broker/*), or a DNS name"
        )
    return name


class Admission:
    """Judges the calls of a storage server; see the module.

    Args:
        token: that callers must send; None: there is none.
        client_auth: of the server's TLS settings.
        clients: names of which a certificate must have one, see :func:`check_client_name`; without any, each
            certificate of the authority counts.

    Raises:
        ConfigurationError: a name is invalid, or they have no effect; or nothing would be required of some callers.
    """

    def __init__(self, token: str | None = None, client_auth: ClientAuth = "none", clients: Sequence[str] = ()) -> None:
        self._token = None if token is None else f"Bearer {token}".encode()
        self._client_auth = client_auth
        names = [check_client_name(each) for each in clients]
        self._exact = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
        if names and client_auth == "none":
            raise ConfigurationError(
                "names of clients are compared with their certificates, which are not asked for; pass the file of their"
                " authority (--tls-client-ca FILE)"
            )
        if client_auth == "optional" and token is None:
            raise ConfigurationError(
                "with optional certificates, callers without one need a token; pass it (--token-file FILE), or require"
                " certificates (--tls-client-auth required)"
            )

    @property
    def requires_proof(self) -> bool:
        """Whether a caller must prove anything."""
        return self._token is not None or self._client_auth == "required"

    def check(self, authorization: str, certificate: PeerCertificate | None, now_s: float) -> None:
        """Judge a call.

        Args:
            authorization: the header of that name; empty: there is none.
            certificate: of the caller, whose chain TLS has verified; None: it has none.
            now_s: seconds since the epoch.

        Raises:
            StorageDeniedError: the caller may not use this server.
            PeerBlockedError: its certificate has ended since it has connected; the connection is closed.
        """
        required = self._client_auth == "required"
        if required or (self._client_auth == "optional" and certificate is not None and not authorization):
            self._check_certificate(certificate, now_s)
            if not required:
                return
        if self._token is not None and not hmac.compare_digest(authorization.encode(), self._token):
            raise StorageDeniedError("this storage server requires a token; set the right one with option token_file")

    def _check_certificate(self, certificate: PeerCertificate | None, now_s: float) -> None:
        if certificate is None:
            raise StorageDeniedError(
                "this storage server requires a certificate of the client; set its files with the options cert_file and"
                " key_file"
            )
        if now_s >= certificate.expires_at_s:
            raise PeerBlockedError("the certificate of this connection has ended; connect with a renewed one")
        names = list(_names_of(certificate))
        if (self._exact or self._prefixes) and not any(map(self._accepts, names)):
            more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
            raise StorageDeniedError(
                f"this storage server does not accept certificates for {', '.join(names[:_MOST_SHOWN]) or 'no name'}"
                f"{more}; add the name to those of its option --client"
            )

    def _accepts(self, name: str) -> bool:
        return name in self._exact or any(
            name.startswith(each) and "/" not in name[len(each) :] and len(name) > len(each) for each in self._prefixes
        )


def _names_of(certificate: PeerCertificate) -> Iterable[str]:
    for kind, value in certificate.names:
        if kind == "URI":
            yield value
        elif kind == "DNS":
            yield value.lower()
