"""Errors as Confluent's clients know them: a status, an error code and a message. Pure.

Clients retry the statuses 408, 429, 500 and 502 to 504. So these are only used where trying again can help; what is
wrong with a request itself is 4xx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from danube.http import Response
from danube.model.errors import (
    CallRefusedError,
    DanubeError,
    IncompatibleSchemaError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidSchemaError,
    InvalidSchemaNumberError,
    LimitExceededError,
    MessageTooLargeError,
    NotFoundError,
    SchemaModeError,
    SchemaNotFoundError,
    SchemaReferencedError,
    SchemaTooLargeError,
    SchemaVersionDeletedError,
    SchemaVersionNotFoundError,
    Status,
    SubjectDeletedError,
    SubjectNotFoundError,
    to_wire,
)

__all__ = ["CONTENT_TYPE", "Failure", "RegistryError", "failure_of", "refusal", "reworded"]

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryError(InvalidArgumentError):
    """A request that this interface refuses itself.

    Args:
        http: the status.
        number: the error code of Confluent's registry.
        message: what is wrong, and what to do.
    """

    code = "registry"

    def __init__(self, http: int, number: int, message: str, details: Mapping[str, str] | None = None) -> None:
        super().__init__(message, details)
        self.http = http
        self.number = number


class Failure(NamedTuple):
    """An error as it is sent."""

    http: int
    number: int
    message: str


_BY_CLASS: Final[tuple[tuple[type[DanubeError], int, int], ...]] = (
    (SubjectDeletedError, 404, 40404),
    (SubjectNotFoundError, 404, 40401),
    (SchemaVersionDeletedError, 404, 40406),
    (SchemaVersionNotFoundError, 404, 40402),
    (SchemaNotFoundError, 404, 40403),
    (IncompatibleSchemaError, 409, 409),
    (InvalidSchemaError, 422, 42201),
    (SchemaTooLargeError, 422, 42209),
    (InvalidSchemaNumberError, 422, 42207),
    (InvalidNameError, 422, 42208),
    (SchemaModeError, 422, 42205),
    (SchemaReferencedError, 422, 42206),
    (MessageTooLargeError, 413, 413),
    (CallRefusedError, 503, 503),
)
"""The first class that fits counts: a class is after those derived from it."""
_BY_STATUS: Final = {
    Status.INVALID_ARGUMENT: (422, 422),
    Status.UNAUTHENTICATED: (401, 40101),
    Status.PERMISSION_DENIED: (403, 40301),
    Status.RESOURCE_EXHAUSTED: (429, 429),
    Status.FAILED_PRECONDITION: (422, 42205),
    Status.UNAVAILABLE: (500, 50001),
    Status.ABORTED: (500, 50001),
    Status.DATA_LOSS: (500, 50001),
    Status.DEADLINE_EXCEEDED: (500, 50002),
}


def failure_of(error: BaseException, *, of_number: bool = False) -> Failure:
    """Return an exception as it is sent; of one that is no DanubeError, only its type is told.

    Args:
        error: the exception.
        of_number: whether the request names a schema by a number, not a subject.
    """
    message = to_wire(error).message
    if isinstance(error, RegistryError):
        return Failure(error.http, error.number, message)
    for kind, http, number in _BY_CLASS:
        if isinstance(error, kind):
            return Failure(http, number, message)
    if isinstance(error, NotFoundError):  # the gate hides what the caller may not read
        return Failure(404, 40403 if of_number else 40401, message)
    if isinstance(error, DanubeError) and error.status in _BY_STATUS:
        return Failure(*_BY_STATUS[error.status], message)
    return Failure(500, 500, message)


def full(error: LimitExceededError) -> RegistryError:
    """Return the error for a registry that is full: trying again does not help, unlike with other limits."""
    return RegistryError(422, 42209, error.message)


def refusal(failure: Failure, *, headers: tuple[tuple[str, str], ...] = (), close: bool = False) -> Response:
    """Return the answer for an error."""
    http, number, message = failure
    if http == 401:
        headers = (
            *headers,
            ("WWW-Authenticate", 'Basic realm="danube"'),
            ("WWW-Authenticate", 'Bearer realm="danube"'),
        )
    body = msgspec.json.encode({"error_code": number, "message": message})
    return Response(http, body, content_type=CONTENT_TYPE, headers=headers, close=close)


class _Problem(msgspec.Struct):
    detail: str = ""
    remedy: str = ""


def reworded(response: Response) -> Response:
    """Return a problem of the HTTP server itself, such as a request that is no HTTP, as an answer of this interface."""
    found = msgspec.json.decode(response.body, type=_Problem) if isinstance(response.body, bytes) else _Problem()
    message = f"{found.detail}; {found.remedy}" if found.remedy else found.detail
    status = 405 if response.status == 501 else response.status  # an unknown method is no failure of the server
    return refusal(Failure(status, status, message), headers=tuple(response.headers), close=response.close)
