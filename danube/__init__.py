"""Danube: a message broker in one Python process.

``python -m danube serve`` starts a broker; :func:`danube.connect` opens a client::

    async with danube.connect("danube://127.0.0.1:6650") as client:
        async with client.producer("/default/orders") as producer:
            await producer.send(b"hello")

The package is a house of floors, and imports only point downwards; ``docs/architecture.md`` draws it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danube.model.version import __version__

if TYPE_CHECKING:
    from danube.client import Client, connect

__all__ = ["Client", "__version__", "connect"]


def __getattr__(name: str) -> Any:
    """Load the client on first use: a broker or a CLI that only prints help does not pay for it."""
    if name in ("Client", "connect"):
        from danube import client

        return getattr(client, name)
    raise AttributeError(f"module 'danube' has no attribute {name!r}")
