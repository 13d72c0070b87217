"""Translates the errors of calls to etcd into those of the metadata contract. Pure: no I/O, no clock.

etcd's own errors have fixed texts, which tell more than their statuses.
"""

from __future__ import annotations

from typing import Final

from danube.model.errors import (
    ClosedError,
    DanubeError,
    DataLossError,
    InvalidArgumentError,
    LimitExceededError,
    MessageTooLargeError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    WatchCompactedError,
)

__all__ = ["FUTURE", "NO_AUTHENTICATION", "explain", "lacks_token"]

FUTURE: Final = "required revision is a future revision"
NO_AUTHENTICATION: Final = "authentication is not enabled"

_COMPACTED: Final = "required revision has been compacted"
_NO_LEASE: Final = "requested lease not found"
_LACKS_TOKEN: Final = ("invalid auth token", "revision of auth store is old", "user name is empty")
_REMEDIES: Final = {
    "user name is empty": (PermissionDeniedError, "set username and password in the options of [metadata]"),
    "authentication failed": (PermissionDeniedError, "correct username and password in the options of [metadata]"),
    "permission denied": (PermissionDeniedError, "grant the user a role with readwrite permission of the prefix"),
    "database space exceeded": (
        LimitExceededError,
        "compact and defragment etcd, disarm its alarm, and raise --quota-backend-bytes if needed",
    ),
    "too many requests": (UnavailableError, "try again"),
}
_KEPT: Final = (DataLossError, InvalidArgumentError, LimitExceededError, PermissionDeniedError)
_REMOTE: Final = ("etcdserver: ", "grpc: ")
"""Beginnings of the texts of a member that has refused a call."""


def lacks_token(error: DanubeError) -> bool:
    """Whether etcd has refused a call, without executing it, because of its token: authenticate and call again."""
    return any(text in error.message for text in _LACKS_TOKEN)


def explain(error: DanubeError, what: str, place: str, *, changes: bool) -> DanubeError:
    """Return the error to raise for a failed call.

    Args:
        error: as etcd or the connection reported it.
        what: the call.
        place: etcd's endpoint.
        changes: whether the call may have changed something.
    """
    text = f"etcd at {place}: {what}: {error.message}"
    for found, (kind, remedy) in _REMEDIES.items():
        if found in error.message:
            return kind(f"{text}; {remedy}")
    if _NO_LEASE in error.message:
        return NotFoundError(text)
    if _COMPACTED in error.message or FUTURE in error.message:
        return WatchCompactedError(text)
    if isinstance(error, ClosedError):
        return ClosedError(text)
    if isinstance(error, MessageTooLargeError) and not changes:
        return LimitExceededError(text)
    # An error of this side, such as an answer that is too large, may come after a change.
    if isinstance(error, _KEPT) and (not changes or any(begin in error.message for begin in _REMOTE)):
        return type(error)(text)
    # Lost connections, deadlines, elections, members without a leader: all of them pass.
    return UnavailableError(f"{text}; {'it may have been applied' if changes else 'try again'}")
