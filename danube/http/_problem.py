"""Errors as answers: RFC 9457, ``application/problem+json``, made of the one tree of exceptions. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from danube.http._messages import Response
from danube.model.errors import (
    DanubeError,
    FailedPreconditionError,
    MessageTooLargeError,
    PermissionDeniedError,
    Status,
    http_status,
    to_wire,
)

__all__ = ["PROBLEM_TYPE", "Problem", "problem", "problem_of", "shown", "single_error", "status_of"]

PROBLEM_TYPE: Final = "application/problem+json"

TITLES: Final = {
    307: "Another broker owns the topic",
    400: "Bad request",
    401: "Who are you?",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "Request timeout",
    409: "Conflict",
    412: "Precondition failed",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    428: "Precondition required",
    429: "Too many",
    431: "Headers too large",
    499: "Cancelled",
    500: "Internal error",
    501: "Not implemented",
    503: "Unavailable",
    504: "Timeout",
}
"""Of each status, the same for all its causes."""
_RETRY_AFTER_S: Final = {429: 1, 503: 1}


class Problem(msgspec.Struct, omit_defaults=False):
    """The body of an answer that reports an error."""

    type: str
    """``about:blank``: the status says what kind of problem it is, and ``code`` more."""
    title: str
    """Of the status."""
    status: int
    detail: str
    """What happened, to which object."""
    code: str
    """A stable name, such as ``topic-not-found``, the same as in all other protocols of the broker."""
    remedy: str = ""
    """What to do about it; empty if ``detail`` says all."""
    details: dict[str, str] = {}
    """Names and values of some errors, for example the address of the broker that owns a topic."""


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    details: dict[str, str] | None = None,
    close: bool = False,
) -> Response:
    """Return the answer that reports an error.

    Args:
        status: of HTTP.
        code: a stable name.
        detail: what happened; what to do about it, after the last semicolon.
        headers: further headers.
        details: names and values for programs.
        close: end the connection after it.
    """
    happened, _, remedy = detail.rpartition("; ")
    if not happened:
        happened, remedy = detail, ""
    title = TITLES.get(status, "Error")
    if status in _RETRY_AFTER_S:
        headers = (*headers, ("Retry-After", str(_RETRY_AFTER_S[status])))
    body = msgspec.json.encode(Problem("about:blank", title, status, happened, code, remedy, details or {}))
    return Response(status, body, content_type=PROBLEM_TYPE, headers=headers, close=close)


def problem_of(error: BaseException) -> Response:
    """Return the answer for an exception; of one that is no DanubeError, only its type is told."""
    wire = to_wire(error)
    status = status_of(error)
    headers: tuple[tuple[str, str], ...] = ()
    if status == 401:
        headers = (("WWW-Authenticate", 'Bearer realm="danube"'), ("WWW-Authenticate", 'Basic realm="danube"'))
    return problem(status, wire.code, wire.message, headers=headers, details=wire.details)


def single_error(error: BaseException) -> BaseException:
    """Return the error within groups of one, as nurseries raise them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def shown(text: str) -> str:
    """Return what a caller has sent for an error: escaped, and not long."""
    return ascii(text)[1:-1][:160]


def status_of(error: BaseException) -> int:
    """Return the status for an exception: that of gRPC's mapping, except where HTTP has a better word."""
    if isinstance(error, MessageTooLargeError):
        return 413
    if isinstance(error, FailedPreconditionError):
        return 409
    if isinstance(error, DanubeError) and error.status is Status.PERMISSION_DENIED:
        return 403 if isinstance(error, PermissionDeniedError) else 502
    return http_status(error)
