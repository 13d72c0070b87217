"""A disk without space, as the operating system reports it. Pure."""

from __future__ import annotations

import errno
from typing import Final

from danube.model.errors import JournalFullError

__all__ = ["is_out_of_space", "out_of_space"]

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


def is_out_of_space(error: OSError) -> bool:
    """Whether the disk, or the quota of its user, is full."""
    return error.errno in _NO_SPACE


def out_of_space(what: str, error: OSError) -> JournalFullError:
    """Return the error of something that needs space on a full disk at the start. The next start may find some.

    Args:
        what: needs it.
        error: as the operating system has raised it.
    """
    return JournalFullError(
        f"{what} cannot be written, because the disk is full ({error.strerror}); free space on it, and start the broker"
        " again. Nothing is lost"
    )
