"""Maps Python's own exceptions to storage errors."""

from __future__ import annotations

import errno

from danube.model.errors import (
    StorageDeniedError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageThrottledError,
    StorageTimeoutError,
    StorageUnavailableError,
)

__all__ = ["kind_of"]

_BY_ERRNO: dict[int | None, type[StorageError]] = {
    errno.EROFS: StorageDeniedError,
    errno.EBUSY: StorageThrottledError,
    errno.EAGAIN: StorageThrottledError,
    errno.EMFILE: StorageThrottledError,
    errno.ENFILE: StorageThrottledError,
    errno.ENAMETOOLONG: StorageError,
    errno.EINVAL: StorageError,
}


def kind_of(error: Exception, operation: str) -> type[StorageError]:
    """Return the storage error class for a Python exception that ended ``operation`` (``put``, ``get``, ...).

    A folder under the key of an object counts as a missing object, although no object can be put there. Unspecific
    system errors (a full or failing disk, a lost connection) are retryable; other exceptions are not.
    """
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return StorageError if operation == "put" else StorageNotFoundError
    if isinstance(error, FileNotFoundError):
        return StorageNotFoundError
    if isinstance(error, FileExistsError):
        return StorageExistsError
    if isinstance(error, PermissionError):
        return StorageDeniedError
    if isinstance(error, TimeoutError):
        return StorageTimeoutError
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno, StorageUnavailableError)
    return StorageError
