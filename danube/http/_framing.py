"""What a request may be, before anyone looks at its target: framing, methods, sizes. Pure.

h11 refuses most of what could be read in two ways. What it tolerates, and a proxy in front may read otherwise, is
refused here: a length beside a transfer coding, a coding twice, an HTTP/1.0 request with a transfer coding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from danube.model.errors import InvalidArgumentError

__all__ = ["METHODS", "check_framing", "content_length", "head_bytes", "joined", "wants_continue"]

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SINGLE: Final = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "authorization",
        "origin",
        "transfer-encoding",
        "expect",
        "last-event-id",
    }
)
"""Headers that must not come twice: two readers might believe different ones."""


def joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name in lower case.

    Raises:
        InvalidArgumentError: one comes twice that must not.
    """
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        if name in found:
            if name in _SINGLE:
                raise InvalidArgumentError(f"the header {name} is sent twice; send it once")
            found[name] += f", {value}"
        else:
            found[name] = value
    return found


def check_framing(method: str, version: bytes, headers: Mapping[str, str]) -> None:
    """Refuse a request whose length could be read in two ways.

    Raises:
        InvalidArgumentError: it is such a one.
    """
    if version not in (b"1.0", b"1.1"):
        raise InvalidArgumentError(f"HTTP/{version.decode('ascii')} is not spoken here; use HTTP/1.1")
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if "content-length" in headers:
            raise InvalidArgumentError("the request has a Content-Length and a Transfer-Encoding; send one of them")
        if coding.strip().lower() != "chunked" or version != b"1.1":
            raise InvalidArgumentError("the only transfer coding of requests is 'chunked', of HTTP/1.1")
    if version == b"1.1" and not headers.get("host"):
        raise InvalidArgumentError("the request has no header Host; name the server that it is for")
    expect = headers.get("expect")
    if expect is not None and expect.strip().lower() != "100-continue":
        raise InvalidArgumentError("the only expectation that is met is '100-continue'; leave out other ones")
    if method == "TRACE" or method == "CONNECT":
        raise InvalidArgumentError(f"the method {method} is not supported; use one of {', '.join(sorted(METHODS))}")


def head_bytes(target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return about how many bytes the head of a request has."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in headers)


def content_length(headers: Mapping[str, str]) -> int | None:
    """Return the announced length of the body; None: it is sent in chunks. h11 has checked the number."""
    if "transfer-encoding" in headers:
        return None
    return int(headers.get("content-length", "0"))


def wants_continue(headers: Mapping[str, str]) -> bool:
    """Whether the caller waits for permission to send the body."""
    return "expect" in headers
