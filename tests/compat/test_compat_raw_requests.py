"""Every method of the upstream services with odd messages: success, or an error that its clients understand.

The messages are made from the descriptors of the protocol, so that a method or a field that is added is covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker
from compat_harness import Caller, admin_port, calling
from consumer_harness import SHARED, subscribe
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st
from odd_messages import drawn

import danube.compat
from danube.compat.face import CompatFace
from danube.model.errors import AlreadyExistsError, DanubeError, Status
from danube.wire import Method

if TYPE_CHECKING:
    from danube.broker.faces import Served

TOPIC, PARTS, CHECKED = "/default/t", "/default/p", "/default/checked"
"""No request is about the last one."""
ID = 2**40
"""Stands for the id of a producer or a consumer that is there."""

TEXTS = ["", "x", "a b", "\x00", "u\u0308", "\u200b", "\U0010ffff", "/", "//", "/default/", "../..", "x" * 300]
NAMES = [TOPIC, PARTS, f"{PARTS}-part-0", f"{PARTS}-part-9", "/other/new", "/default/new", "default", "other"]
UNSIGNED = [0, 1, 2, 3, 1000, 2**31 - 1, 2**32 - 1]
NUMBERS: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_UINT32: UNSIGNED,
    FieldDescriptor.CPPTYPE_UINT64: [*UNSIGNED, ID, 2**53, 2**63 - 1, 2**63, 2**64 - 1],
    FieldDescriptor.CPPTYPE_INT32: [-(2**31), -1, 0, 1, 2**31 - 1],
    FieldDescriptor.CPPTYPE_INT64: [-(2**63), -1, 0, 1, 2**63 - 1],
    FieldDescriptor.CPPTYPE_DOUBLE: [0.0, -1.0, 1e300, float("inf"), float("nan")],
    FieldDescriptor.CPPTYPE_FLOAT: [0.0, -1.0, 1e30, float("inf"), float("nan")],
}
VALID: dict[str, list[Any]] = {
    "ack_timeout_ms": [0, 1000],
    "base_name": [PARTS, "/default/q"],
    "consumer_id": [ID],
    "consumer_name": ["c"],
    "dispatch_strategy": [1, 0],
    "id": [ID],
    "name": [TOPIC, PARTS, "default"],
    "partitions": [1, 3],
    "producer_id": [ID],
    "producer_name": ["p"],
    "subscription": ["s"],
    "subscription_name": ["s"],
    "topic": [TOPIC, PARTS],
    "topic_name": [TOPIC, f"{PARTS}-part-1"],
}
"""What a field has when it is not its turn."""


def plausible(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Return values of a field's type, extremes among them."""
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return st.sampled_from([b"", b"x", b"x" * 70_000])
        case FieldDescriptor.CPPTYPE_STRING:
            return st.sampled_from([*TEXTS, *NAMES])
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.sampled_from([-1, 0, 1, 2, 3, 4, 99])
        case FieldDescriptor.CPPTYPE_MESSAGE:
            return messages(message_factory.GetMessageClass(field.message_type))
    return st.sampled_from(NUMBERS[field.cpp_type])


@st.composite
def messages(draw: st.DrawFn, kind: Any) -> Any:
    """Return a message; one or two of its fields are odd, and often none is."""
    message = kind()
    fields = kind.DESCRIPTOR.fields
    odd = draw(st.sets(st.integers(0, max(0, len(fields) - 1)), max_size=2))
    for index, field in enumerate(fields):
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for name in draw(st.lists(st.sampled_from(TEXTS), max_size=2)):
                getattr(message, field.name)[name] = draw(st.sampled_from(TEXTS))
            continue
        if index not in odd and is_valid_for(field):
            values = [draw(st.sampled_from(VALID[field.name]))]
        elif index in odd or field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            values = draw(st.lists(plausible(field), max_size=3 if field.is_repeated else 1))
        else:
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(values)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            for value in values:
                getattr(message, field.name).CopyFrom(value)
        else:
            choice = field.containing_oneof
            if values and (choice is None or message.WhichOneof(choice.name) is None):
                setattr(message, field.name, values[-1])
    return message


@st.composite
def requests(draw: st.DrawFn, kind: Any) -> tuple[Any, list[tuple[str, int]]]:
    """Return a message, and what is done to its bytes: a cut, another byte, a tail."""
    message = draw(messages(kind))
    damage = draw(st.sampled_from(["", "", "", "", "<", "^", ">"]))
    return message, [(damage, draw(st.integers(0, 10_000)))] if damage else []


def encoded(message: Any, damage: list[tuple[str, int]], ident: int) -> bytes:
    """Return the bytes of a message with the id that is there now in its place."""
    replace_ids(message, ident)
    data: bytes = message.SerializeToString()
    for how, number in damage:
        place = number % (len(data) + 1)
        match how:
            case "<":
                data = data[:place]
            case ">":
                data += number.to_bytes(2, "little")
            case "^" if place < len(data):
                data = data[:place] + bytes([data[place] ^ (1 + number % 255)]) + data[place + 1 :]
    return data


def replace_ids(message: Any, ident: int) -> None:
    for field, value in message.ListFields():
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and not field.is_repeated:
            replace_ids(value, ident)
        elif not field.is_repeated and value == ID:
            setattr(message, field.name, ident)


def is_valid_for(field: FieldDescriptor) -> bool:
    """Whether a usual value is known: of this name, and of this type."""
    text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
    return field.name in VALID and isinstance(VALID[field.name][0], str) == text


def upstream_methods(running: RunningBroker, face: CompatFace) -> Iterator[tuple[int, Method]]:
    """Yield the methods of both ports."""
    for port, services in ((running.port, face.services), (admin_port(running), face.admin_services)):
        for _, method in sorted(services.items()):
            yield port, method


def request_class(path: str) -> Any:
    """Return the class of a method's messages; some handlers take them as bytes."""
    found = descriptor_pool.Default().FindMethodByName(path[1:].replace("/", "."))
    return message_factory.GetMessageClass(found.input_type)


async def prepare(caller: Caller) -> list[int]:
    """Make a topic and its users, as far as they are not there; return ids of a producer and a consumer."""
    ids = []
    for topic, name in ((TOPIC, "p"), (CHECKED, "checked")):
        try:
            created = await caller.create(topic, name)
        except AlreadyExistsError:
            continue
        ids.append(created.producer_id)
    ids.append(await subscribe(caller, TOPIC, kind=SHARED))
    if len(ids) > 1:
        await caller.send(TOPIC, ids[0])
    return ids


async def call(caller: Caller, method: Method, data: bytes, wait_s: float) -> None:
    """Send one message and hear the broker out; anything but success and an error for clients fails the test."""
    try:
        async with caller.channel.open_stream(method.path) as stream:
            with trio.move_on_after(wait_s):  # some wait for messages
                stream.send_nowait(data)
                stream.end()
                while (answer := await stream.receive()) is not None:
                    answer.release()
    except DanubeError as error:
        bug = error.status in (Status.INTERNAL, Status.UNKNOWN)
        if method.path.endswith(("/Ack", "/Nack")):  # upstream's status for a topic or a subscription that is not there
            bug = bug and not any(each in error.message for each in ("does not exist", "has no subscription"))
        if bug or not error.message or caller.channel.closed:
            raise AssertionError(f"{method.path} {data[:200]!r}: {error!r}") from error


async def check(running: RunningBroker) -> None:
    """See that messages go through the broker."""
    async with running.client() as client, client.consumer(CHECKED, subscription="c", start="latest") as consumer:
        async with client.producer(CHECKED) as producer:
            await producer.send(b"on")
        message = await consumer.receive()
        assert message.payload == b"on"
        await message.ack()
        await consumer.flush_acks()


@pytest.fixture(autouse=True)
def _no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    wrong = [each.getMessage() for each in caplog.get_records("call") if each.exc_info]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "count",
    [
        6,
        pytest.param(35, marks=[pytest.mark.extended, pytest.mark.timeout(1800)]),
        pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
async def test_every_method_with_odd_messages(tmp_path: Path, count: int) -> None:
    made: list[CompatFace] = []

    def face(broker: Served) -> CompatFace:
        made.append(danube.compat.face(broker))
        return made[-1]

    settings = {"admin_listen": ("127.0.0.1:0",), "patience_s": 50 + 20 * count}
    async with running_broker(tmp_path, faces=(face,), **settings) as running:
        called = 0
        for port, method in upstream_methods(running, made[0]):
            async with calling(running) as user, calling(running, port) as caller:
                ids = await prepare(user)
                for number, (message, damage) in enumerate(drawn(requests(request_class(method.path)), count)):
                    with trio.fail_after(60):
                        await call(
                            caller,
                            method,
                            encoded(message, damage, ids[number % len(ids)]),
                            10 if method.kind == "unary" else 0.02,
                        )
                    called += 1
        assert called > 50 * count / 2
        await running.restart(crash=True)
        await check(running)
