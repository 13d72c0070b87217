"""Fetches small documents: from HTTPS servers, and from files. Used for the keys of OIDC issuers.

HTTP/1.1 by h11 on a connection of Trio; both are needed only with a configured issuer. One connection, one request: no
redirects, which would let the server choose another one; no proxies; no compression.
"""

from __future__ import annotations

import os
import ssl
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import trio

from danube.model.errors import ConfigurationError, UnavailableError
from danube.wire.tls import client_context, tls_problem

__all__ = ["fetch"]

_CHUNK_BYTES: Final = 64 * 1024
_PORTS: Final = {"https": 443, "http": 80}


async def fetch(url: str, ca: str, max_bytes: int) -> bytes:
    """Return a document. The caller limits the time; it can be cancelled at any time.

    Args:
        url: ``https://``, ``http://`` or ``file://``; which of them are allowed is for the caller to check.
        ca: PEM file with the authorities of the server's certificate; empty: those of the system.
        max_bytes: largest document.

    Raises:
        UnavailableError: it cannot be had; the message says why.
        ConfigurationError: ``ca`` or the URL cannot be used.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ConfigurationError(f"{url} is no URL: {error}") from error
    if parts.scheme == "file":
        return await _read(unquote(parts.path), max_bytes)
    if parts.scheme not in _PORTS or not host:
        raise ConfigurationError(f"{url} is no address of a document; use https://HOST/PATH or file:///PATH")
    stream: trio.abc.Stream | None = None
    try:
        stream = await trio.open_tcp_stream(host, port or _PORTS[parts.scheme])
        if parts.scheme == "https":
            stream = trio.SSLStream(stream, await _context(ca), server_hostname=host, https_compatible=True)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return await _get(stream, parts.netloc.rpartition("@")[2], target, url, max_bytes)
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLError):
            raise UnavailableError(f"{url}: {tls_problem(error.__cause__)}") from error
        raise UnavailableError(f"{url}: the connection broke") from error
    except (OSError, UnicodeError) as error:
        raise UnavailableError(f"{url}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def _context(ca: str) -> ssl.SSLContext:
    """Return the context of a connection; reads files, so in a thread."""

    def load() -> ssl.SSLContext:
        context = client_context(ca)
        context.set_alpn_protocols(["http/1.1"])
        return context

    return await trio.to_thread.run_sync(load, abandon_on_cancel=True)


async def _read(path: str, max_bytes: int) -> bytes:
    def read() -> bytes:
        # A pipe must not keep the thread waiting.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(max_bytes + 1)

    try:
        found = await trio.to_thread.run_sync(read, abandon_on_cancel=True)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"the file {path} cannot be read: {getattr(error, 'strerror', error)}") from error
    if len(found) > max_bytes:
        raise UnavailableError(f"the file {path} has more than {max_bytes} bytes")
    return found


async def _get(stream: trio.abc.Stream, host: str, target: str, url: str, max_bytes: int) -> bytes:
    import h11  # only with such an issuer

    connection: Any = h11.Connection(h11.CLIENT)
    body = bytearray()
    try:
        request = h11.Request(
            method="GET",
            target=target,
            headers=[("Host", host), ("Accept", "application/json"), ("Connection", "close")],
        )
        await stream.send_all(connection.send(request) + connection.send(h11.EndOfMessage()))
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(_CHUNK_BYTES))
            elif isinstance(event, h11.Response):
                _check_status(event.status_code, url)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > max_bytes:
                    raise UnavailableError(f"{url}: the document has more than {max_bytes} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            elif not isinstance(event, h11.InformationalResponse):
                raise UnavailableError(f"{url}: the connection was closed before the document was complete")
    except h11.ProtocolError as error:
        raise UnavailableError(f"{url}: the answer is no valid HTTP: {error}") from error


def _check_status(status: int, url: str) -> None:
    if 300 <= status < 400:
        raise UnavailableError(
            f"{url}: the server redirects (status {status}), which is not followed; give the URL of the document itself"
        )
    if status != 200:
        raise UnavailableError(f"{url}: the server answers with status {status}")
