"""Maps error codes of Azure's Blob service to storage errors. Answers to HEAD have the code in a header."""

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
    StorageExistsError: ("BlobAlreadyExists", "UnauthorizedBlobOverwrite"),
    StorageNotFoundError: (
        "BlobNotFound",
        "ContainerBeingDeleted",
        "ContainerDisabled",
        "ContainerNotFound",
        "ResourceNotFound",
    ),
    StorageRangeError: ("InvalidRange",),
    StorageThrottledError: ("ServerBusy",),
    StorageTimeoutError: ("OperationTimedOut",),
    # Data damaged in transfer can be sent again.
    StorageUnavailableError: ("InternalError", "Md5Mismatch"),
    StorageDeniedError: (
        "AccountIsDisabled",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "AuthorizationPermissionMismatch",
        "BlobArchived",
        "BlobImmutableDueToPolicy",
        "InsufficientAccountPermissions",
        "InvalidAuthenticationInfo",
        "LeaseIdMissing",
        "NoAuthenticationInformation",
        "PublicAccessNotPermitted",
    ),
}
_BY_CODE = {code: kind for kind, codes in _KINDS.items() for code in codes}

_BY_STATUS: dict[int, type[StorageError]] = {
    401: StorageDeniedError,
    403: StorageDeniedError,
    404: StorageNotFoundError,
    408: StorageTimeoutError,
    409: StorageConflictError,
    412: StorageConflictError,
    416: StorageRangeError,
    429: StorageThrottledError,
    503: StorageThrottledError,
    504: StorageTimeoutError,
}


def kind_of_answer(operation: str, code: str, status: int) -> type[StorageError]:
    """Return the storage error class for an answer with an error.

    Other server errors are retryable; other client errors are not.
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status == 412 and operation == "put":
        return StorageExistsError  # for any other operation, an object that was replaced while it was being read
    return _BY_STATUS.get(status, StorageUnavailableError if status >= 500 else StorageError)
