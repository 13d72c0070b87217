"""Maps error codes of S3, and of compatible services, to storage errors.

An answer with an error has a code in its body (``NoSuchKey``). Answers to HEAD have no body, and not every service has
every code; then the HTTP status decides.
"""

from __future__ import annotations

from danube.model.errors import (
    StorageConflictError,
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageRangeError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)

__all__ = ["kind_of_answer"]

_KINDS: dict[type[StorageError], tuple[str, ...]] = {
    StorageNotFoundError: ("NoSuchKey", "NoSuchBucket", "NoSuchUpload"),
    StorageExistsError: ("PreconditionFailed",),
    StorageConflictError: ("ConditionalRequestConflict", "OperationAborted"),
    StorageRangeError: ("InvalidRange",),
    StorageThrottledError: (
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "TooManyRequests",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
    ),
    StorageTimeoutError: ("RequestTimeout", "RequestTimeoutException"),
    # Data damaged or truncated in transfer can be sent again.
    StorageUnavailableError: ("InternalError", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"),
    StorageDeniedError: (
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidObjectState",
        "InvalidSecurity",
        "InvalidToken",
        "NotSignedUp",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "UnauthorizedAccess",
        "UnrecognizedClientException",
    ),
}
_BY_CODE = {code: kind for kind, codes in _KINDS.items() for code in codes}

_BY_STATUS: dict[int, type[StorageError]] = {
    401: StorageDeniedError,
    403: StorageDeniedError,
    404: StorageNotFoundError,
    408: StorageTimeoutError,
    409: StorageConflictError,
    412: StorageExistsError,
    416: StorageRangeError,
    429: StorageThrottledError,
    503: StorageThrottledError,
    504: StorageTimeoutError,
}


def kind_of_answer(code: str, status: int) -> type[StorageError]:
    """Return the storage error class for an answer with an error. ``status`` is 0 if there was none (bulk answers).

    Other server errors are retryable; other client errors are not.
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    if not status and code.isdecimal():
        status = int(code)
    return _BY_STATUS.get(status, StorageUnavailableError if status >= 500 else StorageError)
