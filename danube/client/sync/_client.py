"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

from danube.client import _client
from danube.client._consuming import READ_AHEAD
from danube.client._options import Environment
from danube.client._reader import Start
from danube.client.sync._admin import AdminCalls
from danube.client.sync._consumer import Consumer
from danube.client.sync._loop import Loop, run_block
from danube.client.sync._producer import Producer
from danube.client.sync._query import QueryCalls
from danube.client.sync._reader import Reader
from danube.client.sync._requester import Requester
from danube.client.sync._stages import StageCalls
from danube.model.limits import MIB, Limits
from danube.model.policies import LATEST, Durability, ProducerAccess, SubscriptionPolicy, SubscriptionType

__all__ = ["Client", "connect"]


@contextmanager
def connect(
    url: str = "danube://127.0.0.1:6650",
    *,
    connect_timeout_s: float = 5.0,
    request_timeout_s: float = 30.0,
    reconnect_initial_s: float = 0.1,
    reconnect_max_s: float = 5.0,
    reconnect_timeout_s: float | None = 60.0,
    close_timeout_s: float = 10.0,
    limits: Limits | None = None,
    environment: Environment | None = None,
    backend: Literal["asyncio", "trio"] = "asyncio",
) -> Iterator[Client]:
    """Connect to a broker; arguments and errors as in :func:`danube.connect`.

    ``backend`` chooses the event loop of the background thread.
    """
    connecting = _client.connect(
        url,
        connect_timeout_s=connect_timeout_s,
        request_timeout_s=request_timeout_s,
        reconnect_initial_s=reconnect_initial_s,
        reconnect_max_s=reconnect_max_s,
        reconnect_timeout_s=reconnect_timeout_s,
        close_timeout_s=close_timeout_s,
        limits=limits,
        environment=environment,
    )
    with run_block(connecting, backend) as (client, loop):
        yield Client(client, loop)


class Client(AdminCalls, StageCalls, QueryCalls):
    """A connection to a broker; made by :func:`connect`."""

    def __init__(self, client: _client.Client, loop: Loop) -> None:
        self._client = client
        self._loop = loop

    @property
    def connected(self) -> bool:
        """Whether there is a live connection at this moment."""
        return self._client.connected

    @contextmanager
    def producer(
        self,
        topic: str,
        *,
        name: str | None = None,
        durability: Durability | str | None = None,
        access: ProducerAccess | str = ProducerAccess.SHARED,
        compression: Literal["lz4", "zstd"] | None = None,
        batch_max_bytes: int = 1 * MIB,
        batch_max_messages: int = 50_000,
        max_in_flight_batches: int = 8,
        max_buffered_bytes: int = 64 * MIB,
        partitions: int = 0,
        send_timeout_s: float | None = None,
    ) -> Iterator[Producer]:
        """Open a producer; arguments and errors as in :meth:`danube.client.Client.producer`."""
        opening = self._client.producer(
            topic,
            name=name,
            durability=durability,
            access=access,
            compression=compression,
            batch_max_bytes=batch_max_bytes,
            batch_max_messages=batch_max_messages,
            max_in_flight_batches=max_in_flight_batches,
            max_buffered_bytes=max_buffered_bytes,
            partitions=partitions,
            send_timeout_s=send_timeout_s,
        )
        with self._loop.enter(opening) as producer:
            yield Producer(producer, self._loop)

    @contextmanager
    def consumer(
        self,
        topic: str,
        *,
        subscription: str,
        type: SubscriptionType | str = SubscriptionType.EXCLUSIVE,  # noqa: A002 - the word of the API
        start: str | int | datetime = LATEST,
        name: str | None = None,
        credit_messages: int | None = None,
        credit_bytes: int = 16 * MIB,
        renew_leases: bool = False,
        key_filters: Sequence[str] = (),
        policy: SubscriptionPolicy | Mapping[str, Any] | None = None,
    ) -> Iterator[Consumer]:
        """Open a consumer; arguments and errors as in :meth:`danube.client.Client.consumer`."""
        opening = self._client.consumer(
            topic,
            subscription=subscription,
            type=type,
            start=start,
            name=name,
            credit_messages=credit_messages,
            credit_bytes=credit_bytes,
            renew_leases=renew_leases,
            key_filters=key_filters,
            policy=policy,
        )
        with self._loop.enter(opening) as inner:
            consumer = Consumer(inner, self._loop)
            try:
                yield consumer
            finally:
                if not self._loop.over:
                    self._loop.call(consumer._hand_over)

    @contextmanager
    def reader(
        self,
        topic: str,
        *,
        start: Start = LATEST,
        name: str | None = None,
        credit_messages: int = READ_AHEAD,
        credit_bytes: int = 16 * MIB,
    ) -> Iterator[Reader]:
        """Read a topic without a subscription; arguments and errors as in :meth:`danube.client.Client.reader`."""
        opening = self._client.reader(
            topic, start=start, name=name, credit_messages=credit_messages, credit_bytes=credit_bytes
        )
        with self._loop.enter(opening) as reader:
            yield Reader(reader, self._loop)

    @contextmanager
    def requester(self, topic: str, *, timeout_s: float = 30.0, max_outstanding: int = 1_000) -> Iterator[Requester]:
        """Send requests to a topic; arguments and errors as in :meth:`danube.client.Client.requester`."""
        opening = self._client.requester(topic, timeout_s=timeout_s, max_outstanding=max_outstanding)
        with self._loop.enter(opening) as requester:
            yield Requester(requester, self._loop)
