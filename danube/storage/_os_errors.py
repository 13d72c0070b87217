"""What Python's own exceptions mean for storage."""

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
    """Return the class of ours for an exception of Python's that ended ``operation`` (``put``, ``get``, ...).

    A folder where the object would be is no object; but one cannot be put there either. Errors of the system that say
    nothing more (a full or failing disk, a lost connection) may pass; anything that is no error of the system will not.
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
