"""The standard streams of a process that was started without some of them (``danube produce <&-``).

What a shell has closed is free for the next file that is opened: a journal as descriptor 2 would get whatever some
library writes to its standard error. And Python has no ``sys.stdin`` then, so that everything that reads it would need
a case of its own. So each closed one is opened again, on the null device and the wrong way round: reading from standard
input fails, and so does writing to standard output, as an error with one line like any other.
"""

from __future__ import annotations

import os
import sys

__all__ = ["reopen_closed_streams"]

_STREAMS = (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))


def reopen_closed_streams() -> None:
    """Give a process the standard streams that it was started without."""
    for descriptor, (name, flags, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None and _closed(descriptor):
            os.open(os.devnull, flags)  # takes the lowest number that is free: those below it are there by now
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays


def _closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False
