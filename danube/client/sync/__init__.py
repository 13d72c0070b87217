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
"""

from __future__ import annotations

from danube.client.sync._client import Client, connect
from danube.client.sync._consumer import Consumer
from danube.client.sync._messages import Batch, Message
from danube.client.sync._producer import Pending, Producer
from danube.client.sync._reader import Reader
from danube.client.sync._requester import Requester
from danube.client.sync._stages import Stage

__all__ = ["Batch", "Client", "Consumer", "Message", "Pending", "Producer", "Reader", "Requester", "Stage", "connect"]
