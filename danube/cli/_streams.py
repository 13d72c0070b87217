"""Reopens standard streams that were closed when the process was started (``danube produce <&-``).

The descriptor of a closed stream is reused by the next file that is opened: a journal as descriptor 2 would receive
the standard error output of any library. And ``sys.stdin`` is None then, so that all code that reads it would need a
special case. So each closed stream is opened on the null device in the wrong direction: reading from standard input
fails, and so does writing to standard output, with an ordinary one-line error.
"""

from __future__ import annotations

import os
import sys

__all__ = ["reopen_closed_streams"]

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def reopen_closed_streams() -> None:
    """Open the standard streams that the process was started without."""
    for descriptor, (name, flags, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None and _closed(descriptor):
            os.open(os.devnull, flags)  # takes the lowest free number: those below are open by now
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays


def _closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False
