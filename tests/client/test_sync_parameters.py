"""The blocking facade has all features of the asynchronous client, and passes its arguments on."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import blocking_client
import pytest
from brokers import BrokerProcess
from hypothesis import strategies as st
from msgspec import Struct
from test_client_parameters import (
    ANYTHING,
    PARTS,
    SUB,
    TOPIC,
    arguments,
    calls_of,
    calls_of_client,
    drawn,
    parameters,
)

import danube.client
from danube.client import sync
from danube.client.sync._loop import Loop
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
)

FEW = [
    3,
    pytest.param(35, marks=[pytest.mark.extended, pytest.mark.timeout(900)]),
    pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
]
"""Examples of each method."""
OWN = {"Consumer.receive", "Consumer.receive_batch", "Reader.receive", "Reader.receive_batch", "connect"}
"""What takes more here: a timeout that needs no cancel scope, and the event loop to use."""
HANDLES = [name for name in danube.client.__all__ if name in sync.__all__ and name not in ("Handler", "connect")]
PARTS_OF_A_CLIENT = {
    "": sync.Client,
    "admin": sync.Admin,
    "storages": sync.Storages,
    "logs": sync.Logs,
    "stages": sync.Stages,
}
BLOCKING = {"__aiter__": "__iter__", "__anext__": "__next__", "__await__": "receipt"}
"""What a special method of an asynchronous class is called here."""


# --- Surface ---------------------------------------------------------------------------------------------------------


def signature(call: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(name, each.kind, each.default) for name, each in parameters(call).items()]


def surface(kind: type) -> set[str]:
    """Return the names of the public members of a class: methods, properties, and declared attributes."""
    declared = {name for base in kind.__mro__ for name in vars(base).get("__annotations__", ())}
    members = {*dir(kind), *declared} - {*dir(Struct)}
    return {name for name in members if name[0] != "_"} | {name for name in BLOCKING if hasattr(kind, name)}


def test_the_facade_is_current() -> None:
    """Run ``python -m tests.blocking_client`` after every change of the asynchronous classes."""
    assert blocking_client.TARGET.read_text() == blocking_client.generated()


def test_every_class_with_something_to_wait_for_has_a_blocking_form() -> None:
    for name in danube.client.__all__:
        theirs = getattr(danube.client, name)
        if name not in sync.__all__ and isinstance(theirs, type):
            assert not any(map(inspect.iscoroutinefunction, vars(theirs).values())), name
    assert set(sync.__all__) <= set(danube.client.__all__)


@pytest.mark.parametrize("name", HANDLES)
def test_blocking_classes_have_all_that_the_others_have(name: str) -> None:
    theirs, ours = getattr(danube.client, name), getattr(sync, name)
    there, here = surface(theirs), surface(ours)
    assert len(there) > 1
    assert [each for each in there if not hasattr(ours, BLOCKING.get(each, each)) and each not in here] == []
    for each in there & here:
        if inspect.isfunction(getattr(theirs, each, None)):
            if f"{name}.{each}" in OWN:
                assert signature(getattr(ours, each)) == [("timeout_s", inspect.Parameter.POSITIONAL_OR_KEYWORD, None)]
            else:
                assert signature(getattr(ours, each)) == signature(getattr(theirs, each)), each


def test_connect_has_the_same_parameters_in_both_clients() -> None:
    assert signature(sync.connect)[:-1] == signature(danube.client.connect)


def test_the_generator_refuses_code_that_it_has_no_rule_for(tmp_path: Path) -> None:
    source = tmp_path / "_wrong.py"
    for body, complaint in (
        ("def __init__(self):\n        self.shown = 1", "shown is not declared"),
        ("shown: int\n    other: int", "shown has no docstring"),
    ):
        source.write_text(f"class Wrong:\n    {body}\n")
        with pytest.raises(blocking_client.GeneratorError, match=complaint):
            blocking_client.members_of(blocking_client.Module(source, "danube.client"), "Wrong")
    with pytest.raises(blocking_client.GeneratorError, match="PHRASES"):
        blocking_client.docstring("Wait; ``await`` it in an event loop.", 4)


# --- Values ----------------------------------------------------------------------------------------------------------


PATIENCE: ContextVar[float] = ContextVar("patience", default=math.inf)
"""Seconds that each call waits."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let :func:`outcome` give up calls that were told to wait for what never comes; others take their time."""

    async def bounded(
        patience_s: float, function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]
    ) -> Any:
        with anyio.move_on_after(patience_s):
            return await function(*args, **options)
        raise DeadlineExceededError("the test waits no longer")

    run = Loop.run
    monkeypatch.setattr(
        Loop,
        "run",
        lambda self, function, /, *args, **options: run(self, bounded, PATIENCE.get(), function, args, options),
    )


def outcome(call: Callable[..., Any], positional: Sequence[Any], named: dict[str, Any]) -> None:
    """Make a call; anything but success and a documented error is a failure of the test."""
    shown = f"{call.__qualname__}({positional!r}, {named!r})"[:400]
    before = PATIENCE.set(0.3)
    try:
        result = call(*positional, **named)
        if isinstance(result, AbstractContextManager):
            with result:
                pass
    except DanubeError as error:
        if isinstance(error, InternalError) or not error.message:
            raise AssertionError(f"{shown}: {error!r}") from error
    except Exception as error:
        raise AssertionError(f"{shown} raised {type(error).__name__}: {error}") from error
    finally:
        PATIENCE.reset(before)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        with sync.connect(running.url) as client:
            client.admin.create_topic(TOPIC)
            client.admin.create_topic(PARTS, partitions=2)
            client.admin.create_namespace("other")
            with client.consumer(TOPIC, subscription=SUB, start="earliest"), client.producer(TOPIC) as producer:
                producer.send_many([b"%d" % number for number in range(20)])
        yield running


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("count", FEW)
def test_every_parameter_of_the_blocking_client(broker: BrokerProcess, count: int) -> None:
    cases = {each: drawn(arguments(call), count) for each, call in calls_of_client(PARTS_OF_A_CLIENT).items()}
    with sync.connect(broker.url) as client:
        for (part, name), examples in cases.items():
            for positional, named in examples:
                outcome(getattr(getattr(client, part, client), name), positional, named)
            client.admin.info()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("count", FEW)
def test_every_parameter_of_the_objects_that_a_blocking_client_opens(broker: BrokerProcess, count: int) -> None:
    topic = f"/default/opened{count}"
    with sync.connect(broker.url) as client:
        client.admin.create_topic(topic)
        with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription=SUB, start="earliest") as consumer,
            client.reader(topic, start="earliest") as reader,
            client.stages.open(topic, producer="job", batch_id=1) as stage,
            client.requester(topic) as requester,
        ):
            producer.send_many([b"a", b"b"])
            message = consumer.receive()
            producer.send_many([b"c", b"d"])
            for target in (producer, consumer, reader, message, consumer.receive_batch(), stage, requester):
                for name, call in calls_of(type(target), "adopt", "build", "count", "index", "pick").items():
                    for positional, named in drawn(arguments(call), count):
                        outcome(getattr(target, name), positional, named)
            outcome(producer.flush, (), {})  # it tells of messages that were refused behind their call
            producer.send(b"last")
            while consumer.receive(10).payload != b"last":
                pass
            consumer.flush_acks()


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), "1", 2**70, [], 1e300])
def test_timeouts_that_are_none_are_refused(broker: BrokerProcess, timeout_s: Any) -> None:
    with sync.connect(broker.url) as client, client.reader(TOPIC, start="earliest") as reader:
        for receive in (reader.receive, reader.receive_batch):
            with pytest.raises(InvalidArgumentError, match="timeout_s"):
                receive(timeout_s)
        assert reader.receive(10).payload == b"0"


def test_the_broker_refuses_an_unknown_policy_that_is_named_like_a_parameter(broker: BrokerProcess) -> None:
    changes: dict[str, Any] = {"function": 1}  # the name of a parameter on the way
    with sync.connect(broker.url) as client, pytest.raises(InvalidArgumentError, match="function"):
        client.admin.change_policies(TOPIC, **changes)


@pytest.mark.parametrize("backend", ["", "curio", None, 1])
def test_backends_that_are_none_are_refused(backend: Any) -> None:
    with pytest.raises(ConfigurationError, match="backend"), sync.connect(backend=backend):
        pytest.fail("must not open")


def test_every_option_of_a_blocking_connection(broker: BrokerProcess) -> None:
    options = st.dictionaries(st.sampled_from(sorted(parameters(sync.connect))), ANYTHING, max_size=2)
    for named in drawn(options, 15):
        outcome(sync.connect, [], {"url": broker.url} | named)
