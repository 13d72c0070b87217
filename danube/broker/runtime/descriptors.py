"""Limits on file descriptors: leaves enough of them to the journal, since each connection takes one, too."""

from __future__ import annotations

import logging
import resource
from typing import Final

import msgspec

from danube.model.limits import Limits
from danube.model.log_events import log_event

__all__ = ["fit_to_descriptors"]

_log = logging.getLogger("danube.broker")

RESERVE: Final = 256
"""Descriptors reserved for a journal of the default size, metadata, storages and stages ..."""
RESERVE_SHARE: Final = 4
"""... but not more than this fraction of the process's limit, 1/4."""
ADMIN_SHARE: Final = 16
"""The fraction (1/16) of the connections that the admin port may have in addition, if there is one."""


def fit_to_descriptors(limits: Limits, journal_files: int = 0) -> Limits:
    """Raise the process's soft limit of open files as far as needed and allowed; return limits that fit it.

    If even the hard limit is too low for ``max_connections``, that is lowered and the reduction is logged: an
    additional connection would find no descriptor, or, worse, leave none to a journal that needs its next file.

    Args:
        limits: of the broker.
        journal_files: the most files that its journal may have, each of which stays open.
    """
    wanted = limits.max_connections + limits.max_connections // ADMIN_SHARE + RESERVE + journal_files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft_wanted = wanted if hard == unlimited else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft_wanted, hard))
            soft = soft_wanted
        except (OSError, ValueError) as error:
            _log.warning(
                "the limit of open files stays at %d and could not be raised to %d: %s",
                soft,
                wanted,
                error,
                extra=log_event("descriptors.limit_kept"),
            )
    if soft == unlimited:
        return limits
    most = most_connections(soft)
    if most >= limits.max_connections:
        return limits
    _log.warning(
        "the process may open %d files, so it takes %d connections and not max_connections = %d; raise the limit of"
        " open files (ulimit -n, LimitNOFILE) to %d",
        soft,
        most,
        limits.max_connections,
        wanted,
        extra=log_event("descriptors.few_connections"),
    )
    return msgspec.structs.replace(limits, max_connections=most)


def most_connections(descriptors: int) -> int:
    """Return how many connections a port of a process with so many descriptors may accept; at least 1."""
    left = descriptors - min(RESERVE, descriptors // RESERVE_SHARE)
    return max(1, left * ADMIN_SHARE // (ADMIN_SHARE + 1))
