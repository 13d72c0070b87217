"""One broker process for all tests of a module that talk to it with grpcio's stubs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import grpc
import pytest
from brokers import BrokerProcess
from upstream_stubs import Stubs, Upstream, compile_stubs

_numbers = itertools.count()


@pytest.fixture(scope="session")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Stubs:
    return compile_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture(scope="module")
def upstream(stubs: Stubs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    directory = tmp_path_factory.mktemp("upstream") / "data"
    options = ("--journal-file-size", "16MiB", "--log-level", "warning")
    with (
        BrokerProcess(directory, *options) as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        yield Upstream(broker, channel, stubs)


@pytest.fixture
def topic() -> str:
    """The name of a topic that does not exist."""
    return f"/default/topic-{next(_numbers)}"


@pytest.fixture
def sending(upstream: Upstream, topic: str) -> int:
    """The id of a producer of the topic."""
    return upstream.create(topic).producer_id
