"""``danube.ProducerService``: registers producers by name, and accepts their messages, one in each unary call.

A producer name always gets the same id, however often and from however many connections it is created: no producer is
fenced, because these clients have no epochs. The id is in the journal, so a client that was
disconnected by a restart of the broker continues under it. A message under an unknown id is refused with UNAVAILABLE:
the client then creates its producer again after a few attempts, while it would treat another status as final.

A message is confirmed when it has reached the durability of its topic. Messages are composed into batches
(:mod:`danube.broker.intake.composer`). Retries are not deduplicated: a client gives a retry another ``request_id``, so
the broker cannot distinguish it from a new message, and stores both.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from danube.broker.faces import may_produce, require_schema
from danube.compat.errors import for_clients
from danube.compat.messages import key_of
from danube.compat.methods import unary
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import Durability, validate_name
from danube.model.batch import CompositeRecord, SchemaRef
from danube.model.errors import (
    DanubeError,
    DurabilityMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    MessageTooLargeError,
    SchemaNotFoundError,
    SubjectNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import ProducerId
from danube.model.names import split_partition
from danube.wire import Context, Method, Service, UnaryCall

if TYPE_CHECKING:
    from danube.broker.faces import Served, ServedTopic
    from danube.schema.book import Book

__all__ = ["Producers", "durability_of"]

_SERVICE: Final = "/danube.ProducerService/"
_STRATEGIES: Final = frozenset(pb.DispatchStrategy.values())
_DELIVERY_BYTES: Final = 256
"""Upper bound of the growth of a message on its way to a consumer: its offset, and another address of the broker."""
_ATTRIBUTE_BYTES: Final = 10
"""Upper bound of the bytes of an attribute beside its name and value."""
_LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: Python cannot represent later dates."""
_SWEEP_INTERVAL_S: Final = 60.0
_LARGEST_U32: Final = 2**32 - 1


def durability_of(broker: Served, reliable: bool) -> Durability:
    """Return the durability of a topic that is created with a dispatch strategy, reliable or not."""
    default = broker.runtime.config.durability
    if not reliable:
        return Durability.NONE
    return Durability.DISK if default is Durability.NONE else default


class Producers:
    """Handlers of the service, and the index of producer ids.

    Attributes:
        topics: topics by producer id, from :meth:`load`. Entries of deleted topics and producers are detected on use,
            or by a sweep.
    """

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        limits = broker.runtime.limits
        self._max_request_bytes = max(_DELIVERY_BYTES, limits.compat_max_message_bytes - _DELIVERY_BYTES)
        self.topics: dict[ProducerId, ServedTopic] = {}
        self._nursery: trio.Nursery | None = None

    def service(self) -> Service:
        """Return the methods, by path."""
        path = f"{_SERVICE}SendMessage"
        send = Method(
            path=path,
            kind="unary",
            start=self.send_message,
            request_type=pb.StreamMessage,
            max_request_bytes=self._max_request_bytes,
        )
        return dict([unary(f"{_SERVICE}CreateProducer", self.create_producer, pb.ProducerRequest), (path, send)])

    def is_known(self, producer_id: ProducerId) -> bool:
        """Whether an id is valid, and the caller may use it; then the call marks its producer as alive."""
        topic = self.topics.get(producer_id)
        if topic is None or not may_produce(topic.name):
            return False
        if topic.gone or not topic.intake.seen(producer_id):
            del self.topics[producer_id]
            return False
        return True

    def load(self) -> None:
        """Index the producers of all topics."""
        topics = self._broker.directory.kept_topics()
        self.topics = {producer_id: topic for topic in topics for producer_id in topic.producers.ids()}

    async def run(self) -> None:
        """Remove the ids of deleted topics and producers from time to time, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                await trio.sleep(_SWEEP_INTERVAL_S)
                self.sweep()

    def sweep(self) -> None:
        """Remove the ids of deleted topics and producers."""
        gone = [number for number, topic in self.topics.items() if topic.gone or not topic.producers.name_of(number)]
        for number in gone:
            del self.topics[number]

    async def create_producer(self, request: pb.ProducerRequest, _context: Context) -> pb.ProducerResponse:
        """Return the id of a producer; create it, and its topic if permitted, if they do not exist.

        Raises:
            InvalidArgumentError: a name or the dispatch strategy is invalid.
            FailedPreconditionError: the topic has the other dispatch strategy, or another schema subject than the
                requested one, or that does not exist.
            AlreadyExistsError: a plain and a partitioned topic of one name.
            TopicNotFoundError, NamespaceNotFoundError: the topic does not exist, and may not be created.
            LimitExceededError: too many producers or topics.
        """
        broker, name = self._broker, request.producer_name
        validate_name("producer", name)
        if request.dispatch_strategy not in _STRATEGIES:
            raise InvalidArgumentError(
                f"producer {name!r}: dispatch strategy {request.dispatch_strategy} is unknown; known are 0"
                " (NonReliable) and 1 (Reliable)"
            )
        reliable = request.dispatch_strategy == pb.Reliable
        subject = request.schema_ref.subject
        if subject:
            await self._check_subject(request.topic_name, subject)
        topic = await broker.directory.ensure(request.topic_name, durability_of(broker, reliable))
        if reliable is topic.lossy:
            storing = "does not store messages" if reliable else "stores messages"
            raise DurabilityMismatchError(
                f"topic {topic.name!r} {storing} (durability {topic.durability.value!r}); producer {name!r} requests"
                f" dispatch strategy {'Reliable' if reliable else 'NonReliable'}; this is fixed when a topic is created"
            )
        if subject:
            await self._bind(request.topic_name, subject)
        producer_id = await topic.intake.register(name)
        self.topics[producer_id] = topic
        return pb.ProducerResponse(request_id=request.request_id, producer_id=producer_id, producer_name=name)

    async def _check_subject(self, topic: str, subject: str) -> None:
        """Check that the subject exists that a producer names.

        Raises:
            PermissionDeniedError: the caller may not read its schemas.
            FailedPreconditionError: it does not exist.
        """
        require_schema(subject)
        try:
            await self._broker.registry.find(lambda book: book.versions(subject))
        except SubjectNotFoundError as error:
            raise FailedPreconditionError(
                f"schema subject {subject!r} not found; register it before a producer of {topic!r} uses it"
            ) from error

    async def _bind(self, topic: str, subject: str) -> None:
        """Give a topic a subject if it has none.

        Raises:
            FailedPreconditionError: it has another one.
        """
        broker, catalogue = self._broker, self._broker.directory.catalogue
        record, base = catalogue.find(topic), topic
        if record is None:
            split = split_partition(topic)
            record, base = catalogue.locate(topic)[0], split[0] if split else topic
        if record.schema_subject != subject:
            await broker.operations.topics.bind_subject(base, subject, unless_other=True)

    def send_message(self, request: pb.StreamMessage, call: UnaryCall, *, looked: bool = False) -> None:
        """Accept a message, and reply when it has reached its topic's durability.

        Args:
            request: the message.
            call: to reply to.
            looked: whether the metadata were asked for its schema, if that is not known.

        Raises:
            InvalidArgumentError: it has no ``msg_id``, is too large, or has an invalid field.
            UnavailableError: the topic, or the producer's id, is unknown: look up and create the producer again.
            DataLossError: the topic has stopped because stored data is damaged.
        """
        if not request.HasField("msg_id"):
            raise InvalidArgumentError(
                "the message has no msg_id; send one with the producer_id and topic_name of the producer"
            )
        msg_id = request.msg_id
        producer_id: ProducerId = msg_id.producer_id  # type: ignore[assignment] # an int; no call per message
        topic = self.topics.get(producer_id)
        # A producer is marked as alive by messages to its own topic only.
        mine = topic is not None and topic.name == msg_id.topic_name and not topic.gone
        name = topic.intake.seen(producer_id) if topic is not None and mine else ""
        if topic is None or not name:
            topic, name = self._find_topic(producer_id, msg_id.topic_name)
        payload = request.payload
        attributes = dict(request.attributes)
        key = None
        if request.HasField("routing_key"):
            key = key_of(request.routing_key, attributes) if attributes else request.routing_key.encode()
        size = len(payload) + len(name)
        if key:
            size += len(key)
        if attributes:
            size += sum(
                len(each.encode()) + len(value.encode()) + _ATTRIBUTE_BYTES for each, value in attributes.items()
            )
        intake = topic.intake
        if size > intake.max_message_bytes:
            raise MessageTooLargeError(
                f"message of {size} bytes, with its key and attributes, is larger than"
                f" {intake.said_max_message_bytes()}; split it, or raise that"
            )
        if request.publish_time > _LATEST_MS:
            raise InvalidArgumentError(
                f"publish_time {request.publish_time} is not a valid time in milliseconds since the epoch"
            )
        schema = _NO_SCHEMA
        if request.HasField("schema_id"):
            schema = _named(request)
            number = self._broker.registry.book.to_number(schema.schema_id, schema.schema_version)
            if number is not None:
                schema = SchemaRef(number, schema.schema_version)
            elif schema.schema_id and not looked and self._nursery is not None:
                self._nursery.start_soon(self._send_later, request, call, schema)
                return
        request_id = request.request_id
        self._broker.composing.of(topic).add(
            CompositeRecord(payload, key, attributes or None, 0, name, producer_id, request_id),
            request.publish_time * 1000,
            size,
            partial(_answer, call, request_id),
            schema,
        )

    async def _send_later(self, request: pb.StreamMessage, call: UnaryCall, schema: SchemaRef) -> None:
        """Accept a message after asking the metadata for its schema, which may be new."""

        def query(book: Book) -> None:
            if book.to_number(schema.schema_id, schema.schema_version) is None:
                raise SchemaNotFoundError(f"no schema has id {schema.schema_id} and version {schema.schema_version}")

        try:
            with suppress(SchemaNotFoundError):
                await self._broker.registry.find(query)
            if call.gone:
                call.drop(None)
            else:
                self.send_message(request, call, looked=True)
        except DanubeError as error:
            call.fail(for_clients(error))

    def _find_topic(self, producer_id: ProducerId, topic_name: str) -> tuple[ServedTopic, str]:
        """Find the topic of an id that is not in the index: the topic was loaded late, or does not exist."""
        try:
            topic = self._broker.directory.find(topic_name)
        except TopicNotFoundError as error:
            raise UnavailableError(error.message) from error
        topic.check_alive()
        name = topic.intake.seen(producer_id)
        if not name:
            raise UnavailableError(
                f"producer id {producer_id} of topic {topic_name!r} is unknown or has expired; create the"
                " producer again"
            )
        self.topics[producer_id] = topic
        return topic, name


_NO_SCHEMA: Final = SchemaRef()


def _named(request: pb.StreamMessage) -> SchemaRef:
    schema_id = request.schema_id
    if schema_id > _LARGEST_U32:
        raise InvalidArgumentError(f"schema_id {schema_id} is larger than {_LARGEST_U32}")
    return SchemaRef(schema_id, request.schema_version)


def _answer(call: UnaryCall, request_id: int, error: DanubeError | None) -> None:
    if error is None:
        call.reply(pb.MessageResponse(request_id=request_id))
    elif isinstance(error, TopicNotFoundError):
        call.fail(UnavailableError(error.message))  # deleted meanwhile; the next lookup shows it
    else:
        call.fail(for_clients(error))
