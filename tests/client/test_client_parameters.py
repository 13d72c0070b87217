"""Any parameter of the client succeeds or gets a documented error; broker and client continue."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import running_broker
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import danube
from danube.client import Admin, Batch, Client, Consumer, Logs, Message, Producer, Reader, Stage, Stages, Storages
from danube.model import SubscriptionPolicy, TopicPolicies
from danube.model.errors import DanubeError, InternalError, InvalidArgumentError

TOPIC, PARTS, SUB = "/default/t", "/default/p", "s"
NUMBERS = [-(2**70), -1, 0, 1, 3, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80, True]
FLOATS = [-1.0, -0.0, 0.0, 5e-324, 1e-9, 0.01, 1e9, 1e18, 1e300, math.nan, math.inf, -math.inf]
TEXTS = [
    "",
    "x",
    "s",
    "\x00",
    "a b",
    "\udcff",
    "\u00fc",
    "u\u0308",
    "\u200b",
    "/",
    "//",
    "earliest",
    "lz4",
    "x" * 70_000,
]
DATES = [
    datetime(2030, 1, 1),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
    datetime(1969, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=UTC),
]
OTHERS: list[Any] = [None, b"x", [], ["x"], [2**70], {}, {"x": 1}, {0: 2**70}, {"a": "\udcff"}, {1: 2}, (), object()]
CHOSEN = st.sampled_from([*NUMBERS, *FLOATS, *TEXTS, TOPIC, PARTS, *DATES, *OTHERS])
ANYTHING = CHOSEN | st.text(max_size=5) | st.integers() | st.floats()

VALID: dict[str, Any] = {
    "attempt": "1",
    "batch_id": 1,
    "end": 1,
    "handler": lambda message: message.payload,
    "key": "k",
    "keys": ["a", "b"],
    "namespace": "other",
    "payload": b"x",
    "payloads": [b"x", b"y"],
    "position": "earliest",
    "producer": "job",
    "records": [b"x"],
    "stages": (),
    "start": 0,
    "storage": "default",
    "subscription": SUB,
    "target": TOPIC,
    "time": 0,
    "timeout_s": 0.05,
    "topic": TOPIC,
    "url": "disk:///tmp/nothing",
}
"""What a parameter is given when it is not its turn."""
FIELDS = sorted({*SubscriptionPolicy.__struct_fields__, *TopicPolicies.__struct_fields__, "no"})


def parameters(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: each for name, each in inspect.signature(call).parameters.items() if name not in ("self", "cls")}


def calls_of(kind: type, *but: str) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class that take something."""
    members = inspect.getmembers(kind, callable)
    return {name: call for name, call in members if name[0] != "_" and name not in but and parameters(call)}


PARTS_OF_A_CLIENT = {"": Client, "admin": Admin, "storages": Storages, "logs": Logs, "stages": Stages}
"""Attributes of a client whose methods are calls; the empty one is the client itself."""


def calls_of_client(parts: Mapping[str, type]) -> dict[tuple[str, str], Callable[..., Any]]:
    """Return the public methods of a client and its parts, by the names of the attribute and of the method."""
    return {(part, name): call for part, kind in parts.items() for name, call in calls_of(kind).items()}


@st.composite
def arguments(draw: st.DrawFn, call: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments that are valid, but for one or two."""
    known = parameters(call)
    wrong = draw(st.sets(st.sampled_from(sorted(known)), min_size=1, max_size=2))
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, each in known.items():
        if each.kind is each.VAR_KEYWORD:
            if name in wrong:
                named |= draw(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2))
        elif name in wrong or name in VALID or each.default is each.empty:
            value = draw(ANYTHING) if name in wrong else VALID.get(name)
            if each.kind is each.KEYWORD_ONLY:
                named[name] = value
            else:
                positional.append(value)
    return positional, named


def drawn(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return examples; they are gathered first, so that one broker serves for all of them."""
    found: list[Any] = []

    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def gather(example: Any) -> None:
        found.append(example)

    gather()
    return found


async def outcome(call: Callable[..., Any], positional: Sequence[Any], named: dict[str, Any]) -> None:
    """Make a call; anything but success and a documented error is a failure of the test."""
    shown = f"{call.__qualname__}({positional!r}, {named!r})"[:400]
    with trio.move_on_after(0.5):  # a call may have been told to wait for what never comes
        try:
            result = call(*positional, **named)
            if hasattr(result, "__aenter__"):
                async with result:
                    pass
            elif inspect.isawaitable(result):
                await result
        except DanubeError as error:
            if isinstance(error, InternalError) or not error.message:
                raise AssertionError(f"{shown}: {error!r}") from error
        except Exception as error:
            raise AssertionError(f"{shown} raised {type(error).__name__}: {error}") from error


async def prepared(client: Client) -> None:
    await client.admin.create_topic(TOPIC)
    await client.admin.create_topic(PARTS, partitions=2)
    await client.admin.create_namespace("other")
    async with client.consumer(TOPIC, subscription=SUB, start="earliest"), client.producer(TOPIC) as producer:
        await producer.send_many([b"%d" % number for number in range(20)])


FEW = [
    6,
    pytest.param(100, marks=[pytest.mark.extended, pytest.mark.timeout(900)]),
    pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]
"""Examples of each method."""


@pytest.mark.parametrize("count", FEW)
async def test_every_parameter_of_the_client(tmp_path: Path, count: int) -> None:
    cases = {each: drawn(arguments(call), count) for each, call in calls_of_client(PARTS_OF_A_CLIENT).items()}
    async with running_broker(tmp_path, patience_s=900) as running, running.client() as client:
        await prepared(client)
        for (part, name), examples in cases.items():
            for positional, named in examples:
                await outcome(getattr(getattr(client, part, client), name), positional, named)
            await client.admin.info()
        assert not running.broker.draining


@pytest.mark.parametrize("count", FEW)
async def test_every_parameter_of_the_objects_that_a_client_opens(tmp_path: Path, count: int) -> None:
    kinds = [Producer, Consumer, Reader, Message, Batch, Stage]
    cases = {
        (kind, name): drawn(arguments(call), count)
        for kind in kinds
        for name, call in calls_of(kind, "adopt", "build", "count", "index", "pick").items()
    }
    async with running_broker(tmp_path, patience_s=900) as running, running.client() as client:
        await prepared(client)
        async with (
            client.producer(TOPIC) as producer,
            client.consumer(TOPIC, subscription=SUB) as consumer,
            client.reader(PARTS, start="earliest") as reader,
            client.stages.open(TOPIC, producer="job", batch_id=1) as stage,
        ):
            message = await consumer.receive()
            await producer.send_many([b"a", b"b"])
            opened = [producer, consumer, reader, message, await consumer.receive_batch(), stage]
            for (kind, name), examples in cases.items():
                (target,) = (each for each in opened if type(each) is kind)
                for positional, named in examples:
                    await outcome(getattr(target, name), positional, named)
                # Whatever that was: messages go on to arrive, here and elsewhere, and acknowledgements to count.
                await producer.flush()
                async with client.consumer(TOPIC, subscription="other") as other:
                    await producer.send(b"last")
                    await take_until(other, b"last")
                await take_until(consumer, b"last")
                await consumer.flush_acks()


async def take_until(consumer: Consumer, payload: bytes) -> None:
    with trio.fail_after(10):
        while (await consumer.receive()).payload != payload:
            pass


async def test_every_option_of_a_connection(tmp_path: Path) -> None:
    known = parameters(danube.connect)
    options = st.tuples(st.just([]), st.dictionaries(st.sampled_from(sorted(known)), ANYTHING, max_size=2))
    async with running_broker(tmp_path, patience_s=60) as running:
        for _, named in drawn(options, 40):
            await outcome(danube.connect, [], {"url": running.url} | named)
        async with running.client() as client:
            await client.admin.info()


async def test_ranges_that_are_none_end_nothing(tmp_path: Path) -> None:
    wrong: list[Any] = [(0, 2**70), (-1, 1), (5, 5), (6, 5), (0.5, 2), (0, math.inf), ("0", 1), (None, 1), (1, 2**63)]
    async with running_broker(tmp_path) as running, running.client() as client:
        await prepared(client)
        async with client.consumer(TOPIC, subscription=SUB) as consumer:
            for start, end in wrong:
                with pytest.raises(InvalidArgumentError):
                    consumer.ack_range(start, end)
            nowhere: list[Any] = [-1, 1, None]
            for partition in nowhere:
                with pytest.raises(InvalidArgumentError, match="partition"):
                    consumer.ack_range(0, 1, partition=partition)
            consumer.ack_range(0, 2**63 - 1)  # as far as there can be offsets, and without effect on those to come
            await consumer.flush_acks()
            async with client.producer(TOPIC) as producer:
                await producer.send(b"new")
            await take_until(consumer, b"new")


async def test_delays_that_are_none_are_refused_and_send_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client, client.producer(TOPIC) as producer:
        delays: list[Any] = [1e300, math.nan, math.inf, -1, "1", 2**70]
        for delay in delays:
            for send in (producer.send, producer.send_nowait):
                with pytest.raises(InvalidArgumentError, match="deliver_after_s"):
                    await send(b"x", deliver_after_s=delay)
            with pytest.raises(InvalidArgumentError, match="deliver_after_s"):
                await producer.send_many([b"x"], deliver_after_s=delay)
        await producer.send(b"x")
        assert (await client.admin.describe_topic(TOPIC)).end_offset == 1


async def test_places_that_are_none_are_refused(tmp_path: Path) -> None:
    places: list[Any] = [2**80, 2**63, -1, 0.5, math.nan, None, [], {0: 2**80}, {7: 0}]
    async with running_broker(tmp_path) as running, running.client() as client:
        await prepared(client)
        async with client.reader(TOPIC, start=2**63 - 1) as reader:
            assert reader.position == {0: 20}
            for start in places:
                with pytest.raises(InvalidArgumentError, match="start"):
                    async with client.reader(TOPIC, start=start):
                        pass
                with pytest.raises(InvalidArgumentError, match="start"):
                    await reader.seek(start)
            await reader.seek(3)
            assert (await reader.receive()).payload == b"3"
