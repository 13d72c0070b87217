"""The blocking facade, for scripts, notebooks and Spark executors: the same names without ``await``.

::

    from danube.client.sync import connect

    with connect("danube://127.0.0.1:6650") as client:
        with client.producer("/default/orders") as producer:
            producer.send(b"hello")
        with client.consumer("/default/orders", subscription="billing", start="earliest") as consumer:
            for message in consumer:
                message.ack()

The asynchronous client runs in an event loop in a thread of its own; every call is passed to it and waits, so the
rules about order, errors and reconnects are those of :mod:`danube.client`. All objects may be used from several
threads. Acknowledgements do not wait: they are collected here and passed on together.

``_facade`` is generated from the asynchronous classes. Only the differences are written by hand: the thread with the
loop (``_loop``), taking several messages at a time (``_receiver``, ``_reading``), collecting acknowledgements
(``_consumer``), and handlers in threads (``_handlers``).
"""

from __future__ import annotations

from danube.client.sync._facade import (
    Admin,
    Client,
    Consumer,
    Jobs,
    LogReading,
    Logs,
    Pending,
    Producer,
    Reader,
    Requester,
    Responder,
    Schemas,
    Security,
    Stage,
    Stages,
    Storages,
    connect,
)
from danube.client.sync._handlers import Handler
from danube.client.sync._messages import Batch, Message

__all__ = [
    "Admin",
    "Batch",
    "Client",
    "Consumer",
    "Handler",
    "Jobs",
    "LogReading",
    "Logs",
    "Message",
    "Pending",
    "Producer",
    "Reader",
    "Requester",
    "Responder",
    "Stage",
    "Stages",
    "Schemas",
    "Security",
    "Storages",
    "connect",
]
