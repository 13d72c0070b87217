"""gRPC text encodings: timeouts, percent-encoded messages, and the mapping of HTTP statuses.

Every message of a stream carries this prefix (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md)::

    0               1               2               3               4               5
    +---------------+---------------+---------------+---------------+---------------+----------...
    | compressed: 0 |             length of the message, big endian                 | message
    +---------------+---------------+---------------+---------------+---------------+----------...
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from urllib.parse import quote, unquote, unquote_to_bytes

from danube.model.errors import InvalidArgumentError, Status

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PREFIX",
    "PREFIX_SIZE",
    "decode_error",
    "decode_message",
    "encode_error",
    "encode_message",
    "format_timeout",
    "parse_timeout",
    "status_from_http",
]

PREFIX = struct.Struct(">BI")
PREFIX_SIZE = PREFIX.size

MAX_MESSAGE_BYTES = 2048
"""Maximum size of a ``grpc-message``, percent-encoded."""
MAX_DETAILS_BYTES = 1024
"""Maximum size of the details of an error, encoded."""
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNSAFE = re.compile(rb"[^\x20-\x24\x26-\x7e]|\A\x20|\x20\Z")
_HTTP_STATUS = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}


def parse_timeout(text: str) -> float:
    """Return the seconds of a ``grpc-timeout`` value; InvalidArgumentError if it is invalid."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(
            f"grpc-timeout {text!r} is not up to eight digits and a unit (H, M, S, m, u or n); correct the header"
        )
    return int(match[1]) * _UNIT_S[match[2]]


def format_timeout(seconds: float) -> str:
    """Return ``seconds`` as a ``grpc-timeout`` value, rounded up in the finest unit that fits eight digits."""
    for unit in ("n", "u", "m", "S", "M", "H"):
        value = max(0, math.ceil(seconds / _UNIT_S[unit] * (1 - 1e-12)))
        if value < 10**8:
            return f"{value}{unit}"
    return "99999999H"


def encode_message(text: str) -> str:
    """Percent-encode a ``grpc-message``: everything but printable ASCII, and the percent sign itself.

    So are spaces at both ends: HTTP/2 allows none there (RFC 9113 section 8.2.1), and peers reset the stream.

    Text longer than :data:`MAX_MESSAGE_BYTES` is truncated: a peer limits the size of headers, and the text may
    originate from the peer.
    """
    cut = text if len(text) <= MAX_MESSAGE_BYTES else text[: MAX_MESSAGE_BYTES - 1] + "…"
    while True:
        found = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], cut.encode("utf-8", "replace")).decode("ascii")
        if len(found) <= MAX_MESSAGE_BYTES:
            return found
        cut = cut[: len(cut) * 2 // 3] + "…"


def decode_message(text: str) -> str:
    """Undo :func:`encode_message`. Never fails: invalid UTF-8 is replaced, a stray percent sign is kept."""
    return unquote_to_bytes(text).decode("utf-8", "replace")


def encode_error(code: str, details: Mapping[str, str]) -> str:
    """Return the trailer of an error: its code, and its details as ``;name=value``, percent-encoded.

    Details of more than :data:`MAX_DETAILS_BYTES` are left out: a peer limits the size of headers.
    """
    if not details:
        return code
    text = "".join(f";{_quoted(name)}={_quoted(value)}" for name, value in details.items())
    return code + text if len(text) <= MAX_DETAILS_BYTES else code


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")


def decode_error(text: str) -> tuple[str, dict[str, str]]:
    """Undo :func:`encode_error`. Never fails: what is not a name and a value is left out."""
    code, *details = text.split(";")
    pairs = (detail.partition("=") for detail in details)
    return code, {unquote(name): unquote(value) for name, separator, value in pairs if name and separator}


def status_from_http(http_status: int) -> Status:
    """Return the gRPC status for an HTTP response without one."""
    return _HTTP_STATUS.get(http_status, Status.UNKNOWN)
