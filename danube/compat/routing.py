"""The headers by which calls find the broker that a client means; see :mod:`danube.compat.proxy`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from danube.model.addresses import DEFAULT_PORT, with_port
from danube.model.errors import DanubeError

__all__ = ["OWNER", "RELAYED", "concerns", "owner_address"]

OWNER: Final = "x-danube-broker-url"
"""Official clients send the URL of the owner in it, as the lookup has named it, if that said ``proxy``."""
RELAYED: Final = "x-danube-relayed"
"""Marks a call that another broker has relayed; it is not relayed again."""
_MOST_CHARS: Final = 300


def owner_address(url: str) -> str:
    """Return the ``host:port`` in a URL, in the form in which brokers name each other; empty if there is none."""
    _, _, rest = url[:_MOST_CHARS].strip().rpartition("://")
    try:
        return with_port(rest.rstrip("/"), DEFAULT_PORT)
    except DanubeError:
        return ""


def concerns(metadata: Mapping[str, str], own_address: str) -> bool:
    """Whether a call is meant for the broker with this address, and for no other one.

    Through a load balancer a call without the header reaches any broker.
    """
    return RELAYED in metadata or owner_address(metadata.get(OWNER, "")) == own_address
