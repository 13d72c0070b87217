"""How Danube's workers connect."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import danube
from benchmarks._processes import Work
from danube.client import Client

__all__ = ["connect"]

CONNECT_S = 60.0
"""A hundred connections at once take long on a busy machine, and connecting is not what is measured."""


def connect(work: Work) -> AbstractAsyncContextManager[Client]:
    """Connect to the broker that a worker is to use."""
    url, _, directory = work.address.partition("#")  # where the authority and the token are, if there are any
    ca, token = Path(directory, "ca.pem"), Path(directory, "admin.token")
    return danube.connect(
        url,
        connect_timeout_s=CONNECT_S,
        ca=ca if url.startswith("danube+tls:") else None,
        token_file=token if directory and token.exists() else None,
    )
