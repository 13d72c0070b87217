"""TLS of servers and clients: contexts made of PEM files, their renewal while the server runs, and what errors say.

A pair of certificate and key is used only after a rehearsal: a handshake in memory, with a client that trusts this
certificate alone. So a pair that does not fit, has expired, or is not for servers is refused before any client sees it.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from danube.model.errors import ConfigurationError, UnauthenticatedError
from danube.model.log_events import log_event
from danube.model.tls import PeerCertificate, TlsConfig, check_tls

__all__ = ["LOOK_INTERVAL_S", "ClientFiles", "ServerTls", "client_context", "peer_certificate", "tls_problem"]

LOOK_INTERVAL_S: Final = 5.0
"""Interval of looking whether the files have changed."""
WARN_BEFORE_S: Final = 14 * 24 * 3600.0
"""A certificate that ends within this time is reported when it is loaded."""

_ALPN: Final = ["h2", "http/1.1"]
"""HTTP/1.1 gets an answer that says that the port does not speak it."""
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: those that HTTP/2 allows (RFC 9113, appendix A). Those of TLS 1.3 are all allowed."""
_FIRST_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.*?-----END (?:TRUSTED )?CERTIFICATE-----", re.DOTALL
)

_log = logging.getLogger("danube.wire.tls")


@contextmanager
def _reading() -> Iterator[None]:
    """Raise ConfigurationError for what files can cause at any time: they go away, or change, while they are read."""
    try:
        yield
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the files of certificates and keys cannot be used: {error}") from error


class _Loaded(NamedTuple):
    """What the files contain."""

    server: ssl.SSLContext
    http: ssl.SSLContext
    link: ssl.SSLContext | None
    broker_roots: frozenset[bytes]
    names: tuple[tuple[str, str], ...]
    expires_at_s: float


class ServerTls:
    """The certificate of a server and what it accepts, as last read from the files.

    Args:
        config: the files and settings.
        clock_s: the wall clock, seconds since the epoch, by which certificates are judged to end soon.

    Raises:
        ConfigurationError: a file cannot be read or used, or the settings contradict each other.
    """

    def __init__(self, config: TlsConfig, clock_s: Callable[[], float]) -> None:
        check_tls(config)
        self._clock_s = clock_s
        self.config = config
        self._files = (config.cert, config.key, config.client_ca, config.broker_ca)
        self._signature = _signature(self._files)
        self._loaded = _load(config)
        self._failure = ""
        self._warn(clock_s())

    @property
    def context(self) -> ssl.SSLContext:
        """For new connections of clients."""
        return self._loaded.server

    @property
    def http_context(self) -> ssl.SSLContext:
        """For new connections of HTTP/1.1: browsers would otherwise choose HTTP/2."""
        return self._loaded.http

    def for_links(self) -> ssl.SSLContext | None:
        """Return what new connections to other brokers of the cluster use; None: they are opened without TLS."""
        return None if self.config.plaintext else self._loaded.link

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """The subject alternative names of the certificate, as in :class:`~danube.model.tls.PeerCertificate`."""
        return self._loaded.names

    @property
    def expires_at_s(self) -> float:
        """When the certificate ends, in seconds since the epoch."""
        return self._loaded.expires_at_s

    @property
    def failure(self) -> str:
        """Why the files could not be used when they were last read; empty: they could."""
        return self._failure

    def peer_certificate(self, tls: ssl.SSLObject) -> PeerCertificate | None:
        """Return the verified certificate of a client; as :func:`peer_certificate`."""
        return peer_certificate(tls, self._loaded.broker_roots)

    def reload(self, now_s: float, *, force: bool = False) -> bool:
        """Read the files again if they have changed; return whether new connections use something new.

        Files that cannot be used are logged, and nothing changes; they are read again each time, because not all that
        prevents it changes them. Blocks for as long as files are read.

        Args:
            now_s: seconds since the epoch.
            force: read them even if they seem unchanged.
        """
        signature = _signature(self._files)
        is_news = force or signature != self._signature
        if not is_news and not self._failure:
            return False
        self._signature = signature
        try:
            self._loaded = _load(self.config)
        except ConfigurationError as error:
            if is_news or error.message != self._failure:
                _log.error("the certificate in use stays: %s", error.message, extra=log_event("certificate.kept"))
            self._failure = error.message
            return False
        self._failure = ""
        _log.info("new connections use the certificate in %s, which ends %s", self.config.cert, _date(self))
        self._warn(now_s)
        return True

    async def watch(self) -> None:
        """Call :meth:`reload` in each ``LOOK_INTERVAL_S``, until cancelled."""
        while True:
            await trio.sleep(LOOK_INTERVAL_S)
            await self.reload_in_thread()

    async def reload_in_thread(self, *, force: bool = False) -> bool:
        """Call :meth:`reload` without blocking other tasks; a cancellation does not wait for the files."""
        work = partial(self.reload, self._clock_s(), force=force)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True)

    def _warn(self, now_s: float) -> None:
        if self.expires_at_s - now_s < WARN_BEFORE_S:
            _log.warning(
                "the certificate in %s ends soon: %s",
                self.config.cert,
                _date(self),
                extra=log_event("certificate.ends_soon", file=self.config.cert),
            )


class ClientFiles:
    """TLS of a client, by files that are read again for a new connection if they have changed.

    Args:
        ca, cert, key: as of :func:`client_context`.

    Raises:
        ConfigurationError: a file cannot be read or used.
    """

    def __init__(self, ca: str = "", cert: str = "", key: str = "") -> None:
        self._files = (ca, cert, key)
        self._signature = _signature(self._files)
        self._context = client_context(*self._files)
        self._failure = ""

    def context(self) -> ssl.SSLContext:
        """Return what a new connection uses. Files that cannot be used any more are logged, and nothing changes."""
        signature = _signature(self._files)
        is_news = signature != self._signature
        if is_news or self._failure:
            self._signature = signature
            try:
                self._context = client_context(*self._files)
                self._failure = ""
            except ConfigurationError as error:
                if is_news or error.message != self._failure:
                    _log.error("the certificates in use stay: %s", error.message, extra=log_event("certificate.kept"))
                self._failure = error.message
        return self._context


@_reading()
def client_context(ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """Return the context of a client, which verifies servers.

    Args:
        ca: PEM file of the authorities to trust; empty: those of the system.
        cert: PEM file of the client's own certificate; empty: none.
        key: PEM file of its key; empty: it is in the same file.

    Raises:
        ConfigurationError: a file cannot be read or used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, "1.2")
    context.set_alpn_protocols(["h2"])
    if ca:
        _load_authorities(context, ca, "ca")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if key and not cert:
        raise ConfigurationError("key is the key of a certificate; give cert, too")
    if cert:
        _load_pair(context, cert, key)
    return context


def peer_certificate(tls: ssl.SSLObject, broker_roots: frozenset[bytes] = frozenset()) -> PeerCertificate | None:
    """Return the verified certificate of a peer; None: it has presented none.

    Args:
        tls: after the handshake.
        broker_roots: the authorities of brokers.

    Raises:
        UnauthenticatedError: it cannot be read, because a name in it is no text.
    """
    der = tls.getpeercert(binary_form=True)
    try:
        shown = tls.getpeercert()
        if der is None or not shown:
            return None
        expires_at_s = float(ssl.cert_time_to_seconds(str(shown["notAfter"])))
    except ValueError as error:
        raise UnauthenticatedError(f"the certificate of the client cannot be read: {error}") from error
    names: Any = shown.get("subjectAltName", ())
    of_broker_ca = bool(broker_roots) and _root(tls) in broker_roots
    return PeerCertificate(der, tuple(names), expires_at_s, of_broker_ca)


def tls_problem(error: ssl.SSLError) -> str:
    """Return what went wrong between two sides, and what to do about it, in one clause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _verification_problem(error)
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    for part, text in _PROBLEMS:
        if part in reason:
            return text
    return f"TLS failed: {reason.lower().replace('_', ' ')}"


_PROBLEMS: Final[Sequence[tuple[str, str]]] = (
    ("WRONG_VERSION_NUMBER", "the port does not speak TLS; use a URL without tls, danube://"),
    ("RECORD_LAYER_FAILURE", "the port does not speak TLS; use a URL without tls, danube://"),
    ("CERTIFICATE_REQUIRED", "the broker asks for a client certificate; pass one with cert and key"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the client has presented no certificate, and needs one"),
    ("ALERT_UNKNOWN_CA", "the other side does not trust the authority of the certificate"),
    ("ALERT_CERTIFICATE_EXPIRED", "the other side says that the certificate has expired"),
    ("ALERT_BAD_CERTIFICATE", "the other side refuses the certificate"),
    ("ALERT_PROTOCOL_VERSION", "the other side supports no version of TLS that is enabled here"),
    ("UNSUPPORTED_PROTOCOL", "the other side supports no version of TLS that is enabled here"),
    ("ALERT_HANDSHAKE_FAILURE", "the other side refuses TLS here; if its port is a plain one, use danube://"),
    ("UNEXPECTED_EOF", "the connection was closed within a TLS record"),
)


def _verification_problem(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message or str(error)
    lowered = text.lower()
    if "hostname" in lowered or "ip address mismatch" in lowered:
        hint = "use a name or address that is in the certificate, or issue one with this name"
    elif "expired" in lowered:
        hint = "it must be renewed"
    elif "not yet valid" in lowered:
        hint = "check the clocks of both machines"
    elif "self-signed" in lowered or "self signed" in lowered or "issuer" in lowered:
        hint = "pass the file of its authority (ca)"
    else:
        hint = "check it with openssl s_client -connect"
    return f"the certificate is not accepted: {text.rstrip('.')}; {hint}"


# --- Files -----------------------------------------------------------------------------------------------------------


def _signature(paths: Sequence[str]) -> tuple[object, ...]:
    """Return what changes when one of the files does; empty paths stand for none."""
    found: list[object] = []
    for path in paths:
        try:
            status = os.stat(path) if path else None
        except OSError as error:
            found.append(error.errno)
        else:  # a new mode or owner changes the last one
            found.append(status and (status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns))
    return tuple(found)


@_reading()
def _load(config: TlsConfig) -> _Loaded:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, config.min_version)
    context.set_alpn_protocols(_ALPN)
    _load_pair(context, config.cert, config.key)
    names, expires_at_s = _rehearse(context, config.cert)
    roots: frozenset[bytes] = frozenset()
    link: ssl.SSLContext | None = None
    if config.broker_ca:
        link = client_context(config.broker_ca, config.cert, config.key)
        roots = frozenset(link.get_ca_certs(binary_form=True))
    http = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(http, config.min_version)
    http.set_alpn_protocols(["http/1.1"])
    _load_pair(http, config.cert, config.key)
    if config.client_auth != "none":
        for each in (context, http):
            for path, option in ((config.client_ca, "client_ca"), (config.broker_ca, "broker_ca")):
                if path:
                    _load_authorities(each, path, option)
            each.verify_mode = ssl.CERT_REQUIRED if config.client_auth == "required" else ssl.CERT_OPTIONAL
    return _Loaded(context, http, link, roots, names, expires_at_s)


def _harden(context: ssl.SSLContext, min_version: str) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    def refuse_password() -> str:
        raise ConfigurationError(
            f"the key in {key or cert} needs a password; store it without one, readable by its owner"
        )

    for path, what in ((cert, "certificate"), (key, "key")):
        if path:
            _check_readable(path, what)
    try:
        context.load_cert_chain(cert, key or None, password=refuse_password)
    except ssl.SSLError as error:
        reason = (error.reason or "").upper().replace(" ", "_")
        if "KEY_VALUES_MISMATCH" in reason or "KEY_TYPE_MISMATCH" in reason:
            raise ConfigurationError(f"the key in {key or cert} is not that of the certificate in {cert}") from error
        wanted = "a certificate and its key" if not key else "a certificate, or the key not one"
        raise ConfigurationError(
            f"the certificate {cert} cannot be used: it does not contain {wanted} in PEM form"
            f" ({reason.lower().replace('_', ' ') or error})"
        ) from error


def _load_authorities(context: ssl.SSLContext, path: str, option: str) -> None:
    _check_readable(path, f"file of {option}")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{option} {path} contains no certificate in PEM form") from error


def _check_readable(path: str, what: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read: {error.strerror}") from error


def _rehearse(server: ssl.SSLContext, cert: str) -> tuple[tuple[tuple[str, str], ...], float]:
    """Shake hands with a client that trusts only this certificate; return its names, and when it ends."""
    found = _FIRST_CERTIFICATE.search(Path(cert).read_bytes())
    if found is None:
        raise ConfigurationError(f"{cert} contains no certificate in PEM form")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=found[0].decode("ascii"))
        client = _shake_hands(server, context)
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"the certificate {cert} cannot be used by a server: {error.verify_message.rstrip('.')}"
        ) from error
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the certificate {cert} cannot be used by a server: {error}") from error
    shown = client.getpeercert()
    assert shown
    names: Any = shown.get("subjectAltName", ())
    if not names:
        raise ConfigurationError(
            f"the certificate {cert} has no subject alternative name, so no client accepts it; issue one with the names"
            " and addresses of this machine"
        )
    return tuple(names), float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    while asking not in done:
        for side in (asking, answering):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass  # the other side's turn
    return asking


def _root(tls: ssl.SSLObject) -> bytes | None:
    """Return the authority at which the verified chain of the peer ends."""
    if hasattr(tls, "get_verified_chain"):  # since Python 3.13
        chain: Any = tls.get_verified_chain()
        return bytes(chain[-1]) if chain else None
    chain = tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]
    return ssl.PEM_cert_to_DER_cert(chain[-1].public_bytes()) if chain else None


def _date(tls: ServerTls) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(tls.expires_at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
