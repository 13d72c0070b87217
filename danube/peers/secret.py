"""The secret of a cluster, from the file that ``--cluster-secret`` names.

All brokers of a cluster have the same file. Its content, without spaces and line ends around it, is the key of the
proofs in :mod:`danube.peers.hello`; it is never sent. ``openssl rand -hex 32`` makes a good one.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from danube.model.errors import ClusterConfigurationError

__all__ = ["MAX_SECRET_BYTES", "MIN_SECRET_BYTES", "read_secret"]

MIN_SECRET_BYTES: Final = 16
"""A shorter secret could be guessed from a recorded hello."""
MAX_SECRET_BYTES: Final = 4096

_REMEDY: Final = "make one with: umask 077; openssl rand -hex 32 > FILE"


def read_secret(path: Path) -> bytes:
    """Return the secret in a file.

    Raises:
        ClusterConfigurationError: the file cannot be read, is not a regular file, is readable or writable by others
            than its owner and group, or its secret is too short or too long.
    """
    where = f"the file of --cluster-secret, {path},"
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(file).st_mode
            content = os.read(file, MAX_SECRET_BYTES + 1) if stat.S_ISREG(mode) else b""
        finally:
            os.close(file)
    except OSError as error:
        raise ClusterConfigurationError(f"{where} cannot be read: {error.strerror or error}; {_REMEDY}") from error
    if not stat.S_ISREG(mode):
        raise ClusterConfigurationError(f"{where} is not a regular file; {_REMEDY}")
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ClusterConfigurationError(
            f"{where} has mode {stat.S_IMODE(mode):04o}, so others may read or change it; allow only the broker to read"
            f" it: chmod 600 {path}"
        )
    secret = content.strip()
    if not secret:
        raise ClusterConfigurationError(f"{where} is empty; {_REMEDY}")
    if len(secret) < MIN_SECRET_BYTES:
        raise ClusterConfigurationError(
            f"{where} has a secret of {len(secret)} bytes, and it needs at least {MIN_SECRET_BYTES}; {_REMEDY}"
        )
    if len(content) > MAX_SECRET_BYTES:
        raise ClusterConfigurationError(f"{where} is longer than {MAX_SECRET_BYTES} bytes; {_REMEDY}")
    return secret
