"""Connections of drivers and executors to the broker.

The client restores a lost connection by itself, but it does not wait for a broker that never answered: a wrong
address is reported at once. A task, however, starts with a new connection, possibly while the broker is restarted. So
tasks on executors wait for the broker; the driver has verified the address by then.

Certificates and proofs come from the environment of each process, the driver's and the executors': ``DANUBE_CA``,
``DANUBE_CERT`` and ``DANUBE_KEY`` name files, and ``DANUBE_TOKEN_FILE`` one with a token (or ``DANUBE_TOKEN`` is the
token). So none of them is in an option, which plans, logs and the user interface of Spark show.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from danube.model.errors import ConnectionLostError

if TYPE_CHECKING:
    from danube.client.sync import Client

__all__ = ["EXECUTOR_PATIENCE_S", "broker_client"]

EXECUTOR_PATIENCE_S = 60.0
"""How long a task waits for a broker that does not answer, before it fails and is retried by Spark."""

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


@contextmanager
def broker_client(servers: str, *, patience_s: float = 0.0) -> Iterator[Client]:
    """Connect to the broker.

    Args:
        servers: its URL, ``danube://host:port``.
        patience_s: how long to try for a first connection; 0 is one attempt.

    Raises:
        ConnectionLostError: no broker answers.
        ConfigurationError: the URL is wrong.
    """
    with ExitStack() as stack:
        yield enter_client(stack, servers, patience_s=patience_s)


def enter_client(stack: ExitStack, servers: str, *, patience_s: float = 0.0, **options: float) -> Client:
    """Connect to the broker as :func:`broker_client` does; the connection ends with ``stack``.

    ``options`` are time limits of :func:`danube.client.sync.connect`.
    """
    # Imported here: a task that finds all of its messages in the storage needs no client.
    from danube.client.sync import connect

    give_up_at = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return stack.enter_context(connect(servers, **credentials(servers), **options))  # type: ignore[arg-type]
        except ConnectionLostError:
            if time.monotonic() + pause_s > give_up_at:
                raise
        # A random pause, so that the tasks of a stage do not retry at the same time.
        time.sleep(pause_s * random.uniform(0.5, 1.0))
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def credentials(servers: str) -> dict[str, Any]:
    """Return the options of :func:`danube.client.sync.connect` that the environment of this process gives.

    Args:
        servers: the URL; the files of certificates are used with ``danube+tls://`` only.
    """
    given: dict[str, Any] = {}
    if servers.startswith("danube+tls://"):
        names = {"ca": "DANUBE_CA", "cert": "DANUBE_CERT", "key": "DANUBE_KEY"}
        given = {option: os.environ[name] for option, name in names.items() if os.environ.get(name)}
    for option, name in (("token_file", "DANUBE_TOKEN_FILE"), ("token", "DANUBE_TOKEN")):
        if os.environ.get(name):
            return given | {option: os.environ[name]}
    return given
