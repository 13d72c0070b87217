"""Danube: a message broker in one Python process.

``python -m danube serve`` starts a broker; :func:`danube.connect` opens a client::

    async with danube.connect("danube://127.0.0.1:6650") as client:
        async with client.producer("/default/orders") as producer:
            await producer.send(b"hello")

The package is a house of floors, and imports only point downwards; ``docs/architecture.md`` draws it.
"""

# Only what the interpreter has loaded is imported here: until Ctrl-C is handled, it ends in a traceback.
import _signal  # type: ignore[import-not-found]
import os
import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from danube.client import Client, connect
    from danube.client import Telemetry as Telemetry  # not in __all__: it may not be installed
    from danube.model.errors import SchemaError
    from danube.model.version import __version__
    from danube.schema.typed import Avro, Json, Protobuf, Subject

__all__ = ["Avro", "Client", "Json", "Protobuf", "SchemaError", "Subject", "__version__", "connect"]


def _leave(_number: int, _frame: object) -> None:
    """End the process, in which nothing has begun: the handler of SIGINT while the command line is being loaded."""
    os._exit(130)


def _leave_on_interrupt() -> None:
    """Let Ctrl-C end the process with exit code 130, unless the process ignores it or handles it otherwise."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _leave)


def _command() -> None:
    """Run the ``danube`` command: Ctrl-C first, then everything else."""
    _leave_on_interrupt()
    from danube.cli import main

    main()


if sys.argv[:1] == ["-m"] and ("-m", "danube") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    # `python -m danube`, which still has to find and load `danube.__main__`.
    _leave_on_interrupt()


def __getattr__(name: str) -> "Any":
    """Load everything on first use: a broker, or a command that only prints help, does not pay for the client.

    The command line also gets to handle Ctrl-C sooner.
    """
    if name == "__version__":
        from danube.model.version import __version__

        return __version__
    if name in ("Client", "Telemetry", "connect"):
        from danube import client

        return getattr(client, name)
    if name == "SchemaError":
        from danube.model.errors import SchemaError

        return SchemaError
    if name in ("Avro", "Json", "Protobuf", "Subject"):
        from danube.schema import typed

        return getattr(typed, name)
    raise AttributeError(f"module 'danube' has no attribute {name!r}")
