"""The blocking facade passes on what it is given: a documented error, or success, as of the asynchronous client."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import anyio
import pytest
from brokers import BrokerProcess
from hypothesis import strategies as st
from test_client_parameters import (
    ANYTHING,
    PARTS,
    SUB,
    TOPIC,
    arguments,
    calls_of,
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

FEW = [3, pytest.param(100, marks=[pytest.mark.extended, pytest.mark.timeout(900)])]
"""Examples of each method."""
OWN = {"Consumer.receive", "Consumer.receive_batch", "Reader.receive", "Reader.receive_batch", "connect"}
"""What takes more here: a timeout that needs no cancel scope, and the event loop to use."""
NAMES = sorted({*sync.__all__} & {*danube.client.__all__} - {"connect"})


def signature(call: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(name, each.kind, each.default) for name, each in parameters(call).items()]


@pytest.mark.parametrize("name", NAMES)
def test_blocking_methods_take_what_the_others_take(name: str) -> None:
    theirs, ours = getattr(danube.client, name), getattr(sync, name)
    public = [each for each, call in inspect.getmembers(ours, callable) if each[0] != "_" and hasattr(theirs, each)]
    assert public or name == "Pending"
    for each in public:
        if f"{name}.{each}" not in OWN:
            assert signature(getattr(ours, each)) == signature(getattr(theirs, each)), each
        else:
            assert signature(getattr(ours, each)) == [("timeout_s", inspect.Parameter.POSITIONAL_OR_KEYWORD, None)]


def test_connections_take_what_the_others_take() -> None:
    assert signature(sync.connect)[:-1] == signature(danube.client.connect)


# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up calls that were told to wait for what never comes."""

    async def bounded(function: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        with anyio.move_on_after(0.3):
            return await function(*args, **options)
        raise DeadlineExceededError("the test waits no longer")

    run = Loop.run
    monkeypatch.setattr(
        Loop, "run", lambda self, function, /, *args, **options: run(self, bounded, function, args, options)
    )


def outcome(call: Callable[..., Any], positional: Sequence[Any], named: dict[str, Any]) -> None:
    """Make a call; anything but success and a documented error is a failure of the test."""
    shown = f"{call.__qualname__}({positional!r}, {named!r})"[:400]
    try:
        result = call(*positional, **named)
        if isinstance(result, AbstractContextManager):
            with result:
                pass
        elif call.__name__ == "read_log":
            next(result, None)
    except DanubeError as error:
        if isinstance(error, InternalError) or not error.message:
            raise AssertionError(f"{shown}: {error!r}") from error
    except Exception as error:
        raise AssertionError(f"{shown} raised {type(error).__name__}: {error}") from error


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as running:
        with sync.connect(running.url) as client:
            client.create_topic(TOPIC)
            client.create_topic(PARTS, partitions=2)
            client.create_namespace("other")
            with client.consumer(TOPIC, subscription=SUB, start="earliest"), client.producer(TOPIC) as producer:
                producer.send_many([b"%d" % number for number in range(20)])
        yield running


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("count", FEW)
def test_every_parameter_of_the_blocking_client(broker: BrokerProcess, count: int) -> None:
    cases = {name: drawn(arguments(call), count) for name, call in calls_of(sync.Client).items()}
    with sync.connect(broker.url) as client:
        for name, examples in cases.items():
            for positional, named in examples:
                outcome(getattr(client, name), positional, named)
            client.info()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("count", FEW)
def test_every_parameter_of_what_a_blocking_client_opens(broker: BrokerProcess, count: int) -> None:
    topic = f"/default/opened{count}"
    with sync.connect(broker.url) as client:
        client.create_topic(topic)
        with (
            client.producer(topic) as producer,
            client.consumer(topic, subscription=SUB, start="earliest") as consumer,
            client.reader(topic, start="earliest") as reader,
            client.stage(topic, producer="job", batch_id=1) as stage,
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


def test_what_a_policy_may_not_be_called_is_refused_by_the_broker(broker: BrokerProcess) -> None:
    changes: dict[str, Any] = {"function": 1}  # the name of a parameter on the way
    with sync.connect(broker.url) as client, pytest.raises(InvalidArgumentError, match="function"):
        client.change_policies(TOPIC, **changes)


@pytest.mark.parametrize("backend", ["", "curio", None, 1])
def test_backends_that_are_none_are_refused(backend: Any) -> None:
    with pytest.raises(ConfigurationError, match="backend"), sync.connect(backend=backend):
        pytest.fail("must not open")


def test_every_option_of_a_blocking_connection(broker: BrokerProcess) -> None:
    options = st.dictionaries(st.sampled_from(sorted(parameters(sync.connect))), ANYTHING, max_size=2)
    for named in drawn(options, 15):
        outcome(sync.connect, [], {"url": broker.url} | named)
