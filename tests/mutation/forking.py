"""What every forked child does first."""

from __future__ import annotations

import os
import tempfile

__all__ = ["settle"]


def settle(directory: str, output: int) -> None:
    """Make a child the head of a process group of its own, so that it can be killed with all that it starts.

    Its input, output and errors become ``output``, a file descriptor. Its temporary files, those of pytest included, go
    to ``directory``.
    """
    os.setpgid(0, 0)
    for number in range(3):
        os.dup2(output, number)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = directory
    tempfile.tempdir = directory
