"""Maps errors of the broker to the statuses that official clients understand. Pure: no I/O, no clock.

These clients evaluate only the status code. After UNAVAILABLE, DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED they retry,
look the topic up, and finally create their producer or consumer again; all other codes are final. So a possibly
temporary error must have one of these three codes, regardless of its status in the native API.
"""

from __future__ import annotations

from typing import Final

from danube.model.errors import DanubeError, NotFoundError, Status, UnavailableError

__all__ = ["RETRIED", "for_clients", "for_receivers"]

RETRIED: Final = frozenset({Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED})
"""The statuses after which official clients retry."""


def for_clients(error: DanubeError) -> DanubeError:
    """Return an error with the same message, and the status with the right effect on a client."""
    if error.retryable and error.status not in RETRIED:
        return UnavailableError(error.message)
    return error


def for_receivers(error: DanubeError) -> DanubeError:
    """Convert an error that ends a stream: after NOT_FOUND the client must look up the topic, and subscribe, again."""
    if isinstance(error, NotFoundError):
        return UnavailableError(error.message)
    return for_clients(error)
