"""A real broker with the schema registry's REST interface, for clients of other makers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokers import BrokerProcess


@contextmanager
def registry_broker(directory: Path, *options: str) -> Iterator[str]:
    """Start a broker; the value is the URL of its registry."""
    with BrokerProcess(directory, *options, registry_listen="127.0.0.1:0") as broker:
        yield registry_url(broker)


def registry_url(broker: BrokerProcess) -> str:
    """Return the URL of a broker's registry, as its ready line says."""
    found = re.search(r"; schema registry (https?://[^/;]+)/", broker.ready_line)
    assert found is not None, broker.ready_line
    return found.group(1)
