"""The HTTP API under requests that Schemathesis derives from its description: whatever comes, no answer is a 5xx."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brokers import BrokerProcess
from hypothesis import HealthCheck, Phase, given, settings

from danube.client import sync
from danube.web.openapi import openapi
from danube.web.routes import EVENTS, ROUTES

pytestmark = pytest.mark.extended

EXAMPLES = 12
ENDLESS = {route.operation for route in ROUTES if EVENTS in route.answer_types}
"""Streams of events do not end."""
EXISTING = {"namespace": "default", "name": "orders", "subscription": "billing", "storage": "default"}


def checked(url: str, name: str, statuses: Counter[tuple[str, int]]) -> Callable[[Any], None]:
    """Return a function that sends one request of an operation."""

    def call(case: Any) -> None:
        if isinstance(case.body, dict) and "wait_s" in case.body:
            case.body["wait_s"] = 0
        if statuses.total() % 2 and case.path_parameters:  # names that exist lead further than invented ones
            case.path_parameters |= {name: EXISTING[name] for name in case.path_parameters if name in EXISTING}
        response = case.call(base_url=url, timeout=60)
        statuses[name, response.status_code] += 1
        assert response.status_code < 500, (case.as_curl_command(), response.text)
        if response.status_code >= 400:
            kind = response.headers.get("content-type")
            assert kind == ["application/problem+json"], (
                case.as_curl_command(),
                response.status_code,
                response.headers,
            )
            assert response.json()["status"] == response.status_code

    return call


def test_no_request_fails_the_broker(tmp_path: Path) -> None:
    import schemathesis

    log = tmp_path / "log"
    statuses: Counter[tuple[str, int]] = Counter()
    bounds = settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    with BrokerProcess(tmp_path / "data", http_listen="127.0.0.1:0", stderr=log) as broker:
        url = broker.ready_line.rstrip().rpartition("; console ")[2].rstrip("/")
        schema = schemathesis.openapi.from_dict(openapi())
        with sync.connect(broker.url) as client:
            client.admin.create_topic("/default/orders")
            with client.consumer("/default/orders", subscription="billing"):
                pass
        for result in schema.get_all_operations():
            operation = result.ok()
            name = operation.definition.raw["operationId"]
            if name not in ENDLESS:
                bounds(given(case=operation.as_strategy())(checked(url, name, statuses)))()
        assert broker.poll() is None
        assert broker.terminate() == 0
    assert "Traceback" not in log.read_text()
    reached = {name for name, status in statuses if status < 400}
    assert len(reached) > 25, sorted(statuses.items())
