"""TCP ports for servers that are told their port before they start.

A port that is merely free when it is looked for can be taken before the server binds it: by the next search, by another
process of the same run, or as the local end of an outgoing connection. So ports are taken below the range from which
the system draws the latter, none is given twice by one process, and a lock on one byte of a file keeps the other
processes off it.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
import threading
from pathlib import Path
from typing import Final

__all__ = ["free_port", "free_ports"]

FIRST: Final = 10_000
LAST: Final = 31_999
"""Linux draws the ports of outgoing connections from 32,768 on (``net.ipv4.ip_local_port_range``)."""

_mutex = threading.Lock()
_given: set[int] = set()
_locks: list[int] = []


def free_port() -> int:
    """A TCP port of the loopback interface that is free, and that this function gives to no other caller."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """``count`` consecutive TCP ports of the loopback interface that are free, in ascending order.

    They stay reserved until this process ends. Raises :class:`RuntimeError` if there are none.
    """
    assert 0 < count <= 1_000, count
    with _mutex:
        start = random.randrange(FIRST, LAST + 1)
        first, found = start, 0
        for step in range(2 * (LAST - FIRST)):
            port = FIRST + (start - FIRST + step) % (LAST - FIRST + 1)
            if port == FIRST or not _take(port):
                # Those found so far stay reserved, which costs a few of 22,000.
                first, found = port + 1, 0
                continue
            found += 1
            if found == count:
                return list(range(first, first + count))
    raise RuntimeError(f"no {count} consecutive free TCP ports between {FIRST} and {LAST}")


def _take(port: int) -> bool:
    if port in _given:
        return False
    try:
        # The locks of a process belong to the process, and a fork does not inherit them.
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _given.add(port)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock_file() -> int:
    if not _locks:
        path = Path(tempfile.gettempdir(), f"danube-ports-{os.getuid()}")
        _locks.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return _locks[0]
