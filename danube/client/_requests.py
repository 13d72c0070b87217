"""Request and reply over topics: a requester publishes and waits, a responder consumes, handles and publishes back.

::

    requester --- x-correlation-id, x-reply-to, x-reply-key --> {topic} --- shared subscription --> responder
        ^                                                                                              |
        +-- reader, selects its own key -- {topic}-replies <-- x-correlation-id, perhaps x-error ------+

Requests are as durable as their topic; a responder acknowledges one when its reply is published, so that a request may
be handled twice, and its second reply is dropped. The replies' topic has durability ``none``: a reply is lost if its
requester has stopped waiting or is reconnecting; in the latter case the request exceeds its deadline.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio

from danube.client._checks import check_count, check_seconds
from danube.client._consume_options import READ_AHEAD, start_positions
from danube.client._consuming import open_reader
from danube.client._payloads import checked_attributes
from danube.client._tasks import background_tasks, copy_error
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    DeadlineExceededError,
    InvalidArgumentError,
    RequestFailedError,
)
from danube.model.limits import MIB
from danube.model.policies import LATEST, Durability, SubscriptionType

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from danube.client._client import Client
    from danube.client._consumer import Consumer
    from danube.client._instruments import Processing
    from danube.client._message import Message
    from danube.client._payloads import BytesLike
    from danube.client._producer import Producer
    from danube.client._reader import Reader

__all__ = ["Handler", "Requester", "Responder", "open_requester", "open_responder"]

CORRELATION_ID = "x-correlation-id"
REPLY_TO = "x-reply-to"
REPLY_KEY = "x-reply-key"
ERROR = "x-error"
_RESERVED = frozenset((CORRELATION_ID, REPLY_TO, REPLY_KEY, ERROR))

_log = logging.getLogger("danube.client")

_MAX_ERROR_CHARS = 1_000

Handler = Callable[["Message"], Awaitable["BytesLike"]]
"""Receives a request (payload, key, attributes, ...) and returns the payload of the reply."""


class Requester:
    """Sends requests and waits for their replies; made by :meth:`Client.requester`."""

    topic: str
    """The topic of the requests."""

    def __init__(
        self, topic: str, producer: Producer, reader: Reader, identity: str, timeout_s: float, max_outstanding: int
    ) -> None:
        self.topic = topic
        self._producer = producer
        self._reader = reader
        self._identity = identity
        self._timeout_s = timeout_s
        self._slots = anyio.Semaphore(max_outstanding)
        self._waiting: dict[str, _Waiting] = {}
        self._error: DanubeError | None = None
        self._number = 0

    @property
    def outstanding(self) -> int:
        """Number of requests that wait for their replies."""
        return len(self._waiting)

    async def request(
        self,
        payload: BytesLike,
        *,
        key: str | bytes | None = None,
        attributes: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Message:
        """Send a request, and return the reply: a message whose ``payload`` is the return value of the handler.

        Cancelling abandons the reply, not the request. A late reply is dropped.

        Args:
            payload: the request.
            key: as of any message.
            attributes: for the handler; names that the protocol uses itself are refused.
            timeout_s: until the reply arrives, including the wait for a free slot; None: the requester's default.

        Raises:
            RequestFailedError: the handler failed; the message says how.
            DeadlineExceededError: no reply in time. The request may have been handled, or may still be.
            DanubeError: the request could not be sent.
        """
        given = checked_attributes(attributes) or {}
        reserved = sorted(_RESERVED.intersection(given))
        if reserved:
            raise InvalidArgumentError(
                f"attribute {reserved[0]} is reserved for request and reply; choose another name"
            )
        limit_s = self._timeout_s if timeout_s is None else check_seconds("timeout_s", timeout_s)
        with anyio.move_on_after(limit_s):
            async with self._slots:
                return await self._ask(payload, key, given)
        raise DeadlineExceededError(
            f"{self.topic}: no reply within {limit_s:g} s; check that a responder runs, or give it more time"
        )

    async def _ask(self, payload: BytesLike, key: str | bytes | None, attributes: dict[str, str]) -> Message:
        if self._error is not None:
            raise copy_error(self._error)
        self._number += 1
        number = f"{self._identity}-{self._number}"
        head = {CORRELATION_ID: number, REPLY_TO: replies_topic(self.topic), REPLY_KEY: self._identity}
        waiting = self._waiting[number] = _Waiting()
        try:
            await self._producer.send(payload, key=key, attributes={**attributes, **head})
            await waiting.event.wait()
        finally:
            del self._waiting[number]
        if waiting.error is not None:
            raise copy_error(waiting.error)
        reply = waiting.reply
        assert reply is not None
        failure = (reply.attributes or {}).get(ERROR)
        if failure is not None:
            raise RequestFailedError(f"{self.topic}: the handler failed: {failure}")
        return reply

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        """Receive replies until cancelled."""
        task_status.started()
        try:
            identity = self._identity.encode()
            async for batch in self._reader.batches():
                for index, key in enumerate(batch.keys_bytes()):
                    if key == identity:
                        self._take(batch[index])
        except DanubeError as error:
            self._error = error
            for waiting in self._waiting.values():
                waiting.settle(error=error)

    def _take(self, reply: Message) -> None:
        waiting = self._waiting.get((reply.attributes or {}).get(CORRELATION_ID, ""))
        if waiting is not None:
            waiting.settle(reply=reply)


class _Waiting:
    """A request that waits for its reply."""

    __slots__ = ("error", "event", "reply")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.reply: Message | None = None
        self.error: DanubeError | None = None

    def settle(self, *, reply: Message | None = None, error: DanubeError | None = None) -> None:
        if not self.event.is_set():
            self.reply, self.error = reply, error
            self.event.set()


class Responder:
    """Handles requests while its block lasts; made by :meth:`Client.responder`."""

    topic: str
    """The topic of the requests."""
    answered: int
    """Requests that were answered, failed ones included."""
    failed: int
    """Requests whose handler failed."""

    def __init__(self, topic: str, consumer: Consumer, producer: Producer, handler: Handler) -> None:
        self.topic = topic
        self.answered = 0
        self.failed = 0
        self._consumer = consumer
        self._producer = producer
        self._handler = handler
        self._error: DanubeError | None = None

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        """Handle one request after the other until cancelled."""
        task_status.started()
        try:
            while True:
                await self._answer(await self._consumer.receive())
        except DanubeError as error:
            if self._error is None:  # only the first failing task is reported
                self._error = error
                raise

    async def _answer(self, request: Message) -> None:
        with self._consumer.processing(request) as processing:
            await self._answer_within(request, processing)

    async def _answer_within(self, request: Message, processing: Processing) -> None:
        given = request.attributes or {}
        attributes = {CORRELATION_ID: given.get(CORRELATION_ID, "")}
        payload: BytesLike = b""
        try:
            payload = await self._handler(request)
            if not isinstance(payload, bytes | bytearray | memoryview):
                raise InvalidArgumentError(f"the handler returned {type(payload).__name__} instead of bytes")
        except Exception as error:  # noqa: BLE001 - every exception is reported to the requester
            self.failed += 1
            processing.failed(error)
            payload, attributes[ERROR] = b"", _error_text(error)
        if given.get(REPLY_TO) == self._producer.topic:  # a requester must not be able to choose the topic of the reply
            try:
                await self._producer.send(payload, key=given.get(REPLY_KEY), attributes=attributes)
            except InvalidArgumentError as error:  # retrying does not help, for example if the reply is too large
                self.failed += 1
                processing.failed(error)
                await self._refuse(error, given)
        await request.ack()
        self.answered += 1

    async def _refuse(self, error: Exception, given: Mapping[str, str]) -> None:
        """Report to a requester that there is no reply, if possible: its attributes may be invalid."""
        attributes = {CORRELATION_ID: given.get(CORRELATION_ID, ""), ERROR: _error_text(error)}
        try:
            await self._producer.send(b"", key=given.get(REPLY_KEY), attributes=attributes)
        except InvalidArgumentError as again:
            _log.warning(
                "a request of topic %r cannot be answered, not even with an error: %s",
                self._producer.topic,
                again.message,
            )


@asynccontextmanager
async def open_requester(
    client: Client, topic: str, *, timeout_s: float, max_outstanding: int
) -> AsyncIterator[Requester]:
    """Open a requester; arguments as of :meth:`Client.requester`."""
    check_seconds("timeout_s", timeout_s)
    check_count("max_outstanding", max_outstanding, 1)
    await _create_topics(client, topic)
    identity = client._pool.options.environment.random_name("requester")
    replies = replies_topic(topic)
    parts = await client._topics(replies, 0)
    async with (
        open_reader(
            client._pool,
            replies,
            identity,
            parts,
            start_positions(LATEST, len(parts)),
            credit_messages=READ_AHEAD,
            credit_bytes=16 * MIB,
            traced=False,  # most replies are those of others
        ) as reader,
        client.producer(topic) as producer,
        background_tasks() as group,
    ):
        requester = Requester(topic, producer, reader, identity, timeout_s, max_outstanding)
        await group.start(requester._run)
        yield requester


@asynccontextmanager
async def open_responder(
    client: Client, topic: str, handler: Handler, *, subscription: str, concurrency: int
) -> AsyncIterator[Responder]:
    """Open a responder; arguments as of :meth:`Client.responder`."""
    check_count("concurrency", concurrency, 1)
    if not callable(handler):
        raise InvalidArgumentError(f"handler is an asynchronous function, not {type(handler).__name__}")
    await _create_topics(client, topic)
    async with (
        client.producer(replies_topic(topic)) as producer,
        client.consumer(
            topic,
            subscription=subscription,
            type=SubscriptionType.SHARED,
            credit_messages=concurrency,
            renew_leases=True,
            policy={"max_redelivery_count": -1},  # the requester's timeout bounds the attempts
        ) as consumer,
        background_tasks() as group,
    ):
        responder = Responder(topic, consumer, producer, handler)
        for _ in range(concurrency):
            await group.start(responder._run)
        yield responder


async def _create_topics(client: Client, topic: str) -> None:
    for one, durability in ((topic, None), (replies_topic(topic), Durability.NONE)):
        with suppress(AlreadyExistsError):  # the usual case: all requesters and responders of a service share them
            await client.admin.create_topic(one, durability=durability)


def replies_topic(topic: str) -> str:
    """Return the topic of a service's replies."""
    return f"{topic}-replies"


def _error_text(error: Exception) -> str:
    text = error.message if isinstance(error, DanubeError) else str(error)
    text = text.encode("utf-8", "replace").decode()  # the text may contain lone surrogates of the request
    return f"{type(error).__name__}: {text}"[:_MAX_ERROR_CHARS]
