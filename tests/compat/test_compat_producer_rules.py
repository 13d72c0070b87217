"""Messages of official clients, one by one: accepted or refused, and with which status."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from danube.compat.producers import Producers, durability_of
from danube.compat.proto import danube_api_pb2 as pb
from danube.model import Durability, Limits
from danube.model.batch import CompositeRecord, SchemaRef
from danube.model.errors import (
    DanubeError,
    DataLossError,
    DurabilityMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    JournalFullError,
    MessageTooLargeError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.schema import Book

TOPIC = "/default/t"


class FakeTopic:
    """A topic with its intake and its producers' table."""

    def __init__(self, name: str = TOPIC, durability: Durability = Durability.DISK, **known: int) -> None:
        self.name, self.durability = name, durability
        self.lossy = durability is Durability.NONE
        self.intake = self.producers = self
        self.known = {number: name for name, number in known.items()}
        self.signs: list[int] = []
        self.gone = False
        self.damage: DanubeError | None = None
        self.max_message_bytes = 1000

    def ids(self) -> list[int]:
        return list(self.known)

    def name_of(self, producer_id: int) -> str:
        return self.known.get(producer_id, "")

    def seen(self, producer_id: int) -> str:
        self.signs.append(producer_id)
        return self.known.get(producer_id, "")

    def check_alive(self) -> None:
        if self.damage is not None:
            raise self.damage

    def said_max_message_bytes(self) -> str:
        return "limit max_message_bytes = 1000"

    async def register(self, name: str) -> int:
        number = next((number for number, known in self.known.items() if known == name), 100 + len(self.known))
        self.known[number] = name
        return number


class Call:
    def __init__(self) -> None:
        self.answer: Any = None

    def reply(self, response: Any) -> None:
        assert self.answer is None
        self.answer = response

    def fail(self, error: DanubeError) -> None:
        assert self.answer is None
        self.answer = error


Added = tuple[str, CompositeRecord, int, int, Callable[[DanubeError | None], None], SchemaRef]


class World:
    def __init__(self, *topics: FakeTopic, durability: Durability = Durability.DISK, **limits: Any) -> None:
        self.topics = {topic.name: topic for topic in topics}
        self.added: list[Added] = []
        self.broker = SimpleNamespace(
            runtime=SimpleNamespace(limits=Limits(**limits), config=SimpleNamespace(durability=durability)),
            directory=SimpleNamespace(kept_topics=lambda: list(topics), find=self.topic, ensure=self.ensure),
            composing=SimpleNamespace(of=lambda topic: SimpleNamespace(add=lambda *args: self.add(topic, *args))),
            registry=SimpleNamespace(book=Book(), find=self.find),
        )
        self.producers = Producers(cast("Any", self.broker))
        self.producers.load()

    def topic(self, name: str) -> FakeTopic:
        if name not in self.topics:
            raise TopicNotFoundError(f"topic {name!r} does not exist")
        return self.topics[name]

    async def ensure(self, name: str, _durability: Durability) -> FakeTopic:
        return self.topic(name)

    async def find(self, query: Callable[[Book], Any]) -> Any:
        return query(self.broker.registry.book)

    def add(self, topic: FakeTopic, *args: Any) -> None:
        self.added.append((topic.name, *args))  # type: ignore[arg-type]

    def send(self, producer_id: int = 1, topic: str = TOPIC, **fields: Any) -> Call:
        call = Call()
        request = pb.StreamMessage(
            request_id=77,
            msg_id=pb.MsgID(producer_id=producer_id, topic_name=topic),
            **{"payload": b"hello", "publish_time": 1_700_000_000_123, **fields},
        )
        self.producers.send_message(request, cast("Any", call))
        return call


def test_a_message_goes_to_its_topic_as_it_came() -> None:
    world = World(FakeTopic(ann=1))
    call = world.send(routing_key="k", attributes={"a": "1"}, schema_id=2**32 - 1, schema_version=3)
    ((name, record, publish_time_us, size, told, schema),) = world.added
    assert (name, publish_time_us, schema) == (TOPIC, 1_700_000_000_123_000, SchemaRef(2**32 - 1, 3))
    assert (record.payload, record.key, record.attributes) == (b"hello", b"k", {"a": "1"})
    assert (record.producer, record.producer_id, record.sequence) == ("ann", 1, 77)
    assert size == len(b"hello") + len("ann") + len("k") + len("a") + len("1") + 10
    assert call.answer is None, "it is answered when it is durable"
    told(None)
    assert call.answer == pb.MessageResponse(request_id=77)
    world.send()
    assert world.added[1][3] == len(b"hello") + len("ann")
    assert (world.added[1][1].key, world.added[1][1].attributes, world.added[1][5]) == (None, None, SchemaRef())
    world.send(routing_key="")
    assert world.added[2][1].key == b"", "an empty key is one"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TopicNotFoundError("it was deleted"), UnavailableError),
        (JournalFullError("full"), None),
        (DataLossError("damaged"), DataLossError),
        (UnavailableError("away"), UnavailableError),
    ],
)
def test_the_status_of_a_message_lets_the_client_decide(error: DanubeError, kind: type[DanubeError] | None) -> None:
    world = World(FakeTopic(ann=1))
    call = world.send()
    world.added[0][4](error)
    assert call.answer.message == error.message
    if kind is not None:
        assert type(call.answer) is kind


def test_a_message_may_be_as_large_as_the_topic_says_all_counted() -> None:
    world = World(FakeTopic(ann=1))
    rest = len("ann") + len("ü".encode()) + len("ä".encode()) + len("ö".encode()) + 10
    for more in (0, 1):
        fields = {"payload": bytes(1000 - rest + more), "routing_key": "ü", "attributes": {"ä": "ö"}}
        if more:
            with pytest.raises(MessageTooLargeError, match=r"1001 bytes.*max_message_bytes = 1000"):
                world.send(**fields)
        else:
            world.send(**fields)
    assert world.added[0][3] == 1000


def test_the_edges_of_what_a_message_may_say() -> None:
    world = World(FakeTopic(ann=1))
    world.send(publish_time=253_402_300_799_999)
    with pytest.raises(InvalidArgumentError, match="publish_time"):
        world.send(publish_time=253_402_300_800_000)
    with pytest.raises(InvalidArgumentError, match="schema_id"):
        world.send(schema_id=2**32)
    with pytest.raises(InvalidArgumentError, match="msg_id"):
        world.producers.send_message(pb.StreamMessage(request_id=1, payload=b"x"), cast("Any", Call()))
    assert len(world.added) == 1


def test_ids_that_are_not_known_are_looked_for_where_the_client_says() -> None:
    late, other = FakeTopic("/default/late", bob=5), FakeTopic("/default/other", cyd=6)
    world = World(FakeTopic(ann=1), other)
    world.topics[late.name] = late  # it came to life after the start
    world.send(5, late.name)
    assert world.added[0][0] == late.name
    assert world.producers.topics[5] is late  # type: ignore[comparison-overlap]
    assert late.signs == [5]
    world.send(5, late.name)
    assert late.signs == [5, 5], "each message is a sign of life"
    for producer_id, name in ((9, TOPIC), (6, TOPIC), (1, other.name)):
        with pytest.raises(UnavailableError, match="create the producer again"):
            world.send(producer_id, name)
    with pytest.raises(UnavailableError, match="does not exist"):
        world.send(1, "/default/nowhere")
    del late.known[5]
    with pytest.raises(UnavailableError, match="producer id 5 of topic '/default/late' is unknown or has expired"):
        world.send(5, late.name)
    assert len(world.added) == 2, "nothing is stored of a producer without a name"


def test_a_topic_that_has_gone_is_looked_up_again() -> None:
    gone, fresh = FakeTopic(ann=1), FakeTopic(ann=1)
    world = World(gone)
    gone.gone = True
    world.topics[TOPIC] = fresh
    world.send()
    assert world.producers.topics[1] is fresh  # type: ignore[comparison-overlap]
    fresh.gone, fresh.damage = True, DataLossError("topic '/default/t' is damaged")
    for producer_id in (1, 99):  # whether or not it is known there: creating it again would not help
        with pytest.raises(DataLossError, match="is damaged"):
            world.send(producer_id)


def test_known_and_forgotten_producers() -> None:
    first, second = FakeTopic(ann=1, bob=2), FakeTopic("/default/u", cyd=3)
    world = World(first, second)
    assert [world.producers.is_known(number) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert first.signs == [1, 2], "asking is a sign of life"
    del first.known[1]
    assert not world.producers.is_known(1)
    second.gone = True
    assert not world.producers.is_known(3)
    assert list(world.producers.topics) == [2]


async def test_ids_that_are_gone_go_within_a_minute(autojump_clock: trio.testing.MockClock) -> None:
    topic = FakeTopic(ann=1, bob=2)
    world = World(topic)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.producers.run)
        del topic.known[1]
        await trio.sleep(61)
        assert list(world.producers.topics) == [2]
        topic.gone = True
        await trio.sleep(60)
        assert world.producers.topics == {}
        nursery.cancel_scope.cancel()


def test_a_message_leaves_room_for_what_it_grows_by_on_its_way_to_a_consumer() -> None:
    for most, expected in ((4 << 20, (4 << 20) - 256), (2000, 1744), (300, 256)):
        service = World(compat_max_message_bytes=most).producers.service()
        assert service["/danube.ProducerService/SendMessage"].max_request_bytes == expected


async def test_a_producer_asks_for_what_its_topic_is() -> None:
    kept, none = FakeTopic("/default/kept"), FakeTopic("/default/none", Durability.NONE)
    world = World(kept, none)

    async def create(topic: str, strategy: int, name: str = "ann", **fields: Any) -> pb.ProducerResponse:
        request = pb.ProducerRequest(
            request_id=5, topic_name=topic, producer_name=name, dispatch_strategy=cast("Any", strategy), **fields
        )
        return await world.producers.create_producer(request, cast("Any", None))

    answer = await create(kept.name, pb.Reliable)
    assert (answer.request_id, answer.producer_id, answer.producer_name) == (5, 100, "ann")
    assert world.producers.topics[100] is kept  # type: ignore[comparison-overlap]
    await create(none.name, pb.NonReliable)
    with pytest.raises(DurabilityMismatchError, match=r"'/default/kept' stores messages.*strategy NonReliable"):
        await create(kept.name, pb.NonReliable)
    with pytest.raises(DurabilityMismatchError, match=r"'/default/none' does not store messages.*strategy Reliable"):
        await create(none.name, pb.Reliable)
    with pytest.raises(InvalidArgumentError, match="dispatch strategy 7"):
        await create(kept.name, 7)
    with pytest.raises(FailedPreconditionError, match="schema subject 'x' not found"):
        await create(kept.name, pb.Reliable, schema_ref=pb.SchemaReference(subject="x"))
    with pytest.raises(InvalidArgumentError):
        await create(kept.name, pb.Reliable, name="")


@pytest.mark.parametrize(
    ("default", "reliable", "expected"),
    [
        (Durability.OS, True, Durability.OS),
        (Durability.REMOTE, True, Durability.REMOTE),
        (Durability.NONE, True, Durability.DISK),
        (Durability.DISK, False, Durability.NONE),
    ],
)
def test_how_a_topic_is_kept_that_a_producer_creates(default: Durability, reliable: bool, expected: Durability) -> None:
    assert durability_of(World(durability=default).broker, reliable) is expected  # type: ignore[arg-type]
