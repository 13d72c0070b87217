"""Danube: a message broker in one Python process.

``python -m danube serve`` starts a broker; :func:`danube.connect` opens a client::

    async with danube.connect("danube://127.0.0.1:6650") as client:
        async with client.producer("/default/orders") as producer:
            await producer.send(b"hello")

The package is a house of floors, and imports only point downwards; ``docs/architecture.md`` draws it.
"""

# Nothing is imported here: until `danube` handles Ctrl-C, that ends in a traceback of the interpreter.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from danube.client import Client, connect
    from danube.model.version import __version__

__all__ = ["Client", "__version__", "connect"]


def __getattr__(name: str) -> "Any":
    """Load everything on first use: a broker, or a command that only prints help, does not pay for the client.

    The command line also gets to handle Ctrl-C sooner.
    """
    if name == "__version__":
        from danube.model.version import __version__

        return __version__
    if name in ("Client", "connect"):
        from danube import client

        return getattr(client, name)
    raise AttributeError(f"module 'danube' has no attribute {name!r}")
