"""One broker process for all end-to-end tests that do not need one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from brokers import BrokerProcess


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A running broker; each test uses topics of its own."""
    directory = tmp_path_factory.mktemp("end-to-end") / "data"
    with BrokerProcess(directory, "--journal-file-size", "16MiB", "--log-level", "warning") as process:
        yield process
