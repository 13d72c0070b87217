"""Recognizes the errors of running out of file descriptors, which are not errors of a disk, network or file."""

from __future__ import annotations

import errno
from typing import Final

from danube.model.errors import OutOfDescriptorsError

__all__ = ["is_out_of_descriptors", "out_of_descriptors"]

_ADVICE: Final = {
    errno.EMFILE: "raise the limit of the process (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "raise the limit of the machine (sysctl fs.file-max), or end other processes",
}


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return whether an error says that the process (EMFILE) or the machine (ENFILE) has no file descriptor left."""
    return isinstance(error, OutOfDescriptorsError) or (isinstance(error, OSError) and error.errno in _ADVICE)


def out_of_descriptors(what: str, error: OSError) -> OutOfDescriptorsError:
    """Return the error to raise when no descriptor is left (:func:`is_out_of_descriptors`) for ``what``."""
    return OutOfDescriptorsError(
        f"{what}: no file descriptor is left ({error.strerror}); {_ADVICE[error.errno or errno.EMFILE]} and start the"
        " broker again"
    )
