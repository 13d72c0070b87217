"""The client library: for Trio and asyncio, with a blocking facade in :mod:`danube.client.sync`.

:func:`connect` opens a :class:`Client`, which opens producers and consumers. The parts with rules are pure and small
(`_outbox` for batches and their sequence, `_acks` for acknowledgements); the others are thin shells around them.

Applications pass and get offsets as plain ints, and so they are ints within the client; ids of topics and producers
have types of their own (:mod:`danube.model.ids`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from danube.client._admin import Admin
from danube.client._client import Client, connect
from danube.client._consumer import Consumer
from danube.client._jobs import Jobs
from danube.client._log_reading import LogReading
from danube.client._logs import Logs
from danube.client._message import Batch, Message
from danube.client._options import ClientOptions, Environment
from danube.client._producer import Producer
from danube.client._reader import Reader
from danube.client._receipt import Pending
from danube.client._receipts import OffsetRange, RangeReceipt, Receipt
from danube.client._requests import Handler, Requester, Responder
from danube.client._schemas import Schemas
from danube.client._security import Security
from danube.client._stages import Stage, Stages
from danube.client._storages import Storages
from danube.client._url import DEFAULT_PORT

if TYPE_CHECKING:
    from danube.client.telemetry import Telemetry as Telemetry  # not in __all__: it may not be installed

__all__ = [
    "Admin",
    "Batch",
    "Client",
    "ClientOptions",
    "Consumer",
    "DEFAULT_PORT",
    "Environment",
    "Handler",
    "Jobs",
    "LogReading",
    "Logs",
    "Message",
    "OffsetRange",
    "Pending",
    "Producer",
    "RangeReceipt",
    "Reader",
    "Receipt",
    "Requester",
    "Responder",
    "Schemas",
    "Security",
    "Stage",
    "Stages",
    "Storages",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Load what needs OpenTelemetry on first use."""
    if name == "Telemetry":
        from danube.client.telemetry import Telemetry

        return Telemetry
    raise AttributeError(f"module 'danube.client' has no attribute {name!r}")
