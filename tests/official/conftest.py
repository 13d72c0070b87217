"""One broker process for all scenarios of the official client that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from brokers import BrokerProcess
from official_client import Official, official_python


@pytest.fixture(scope="session")
def broker_of_official_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    official_python()
    directory = tmp_path_factory.mktemp("official-client")
    with BrokerProcess(directory / "data", "--journal-file-size", "16MiB", "--log-level", "warning") as process:
        yield process


@pytest.fixture
def official(broker_of_official_clients: BrokerProcess, request: pytest.FixtureRequest, tmp_path: Path) -> Official:
    """The official client with a topic of the test's own."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name).strip("-")
    return Official(broker_of_official_clients, f"/default/{name}", tmp_path)
