"""U2: schemas by their ids from the registry's REST interface, as Confluent's deserializers ask for them."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._h2load import h1load, unavailable
from benchmarks.systems.danube import Danube, DanubeServer

__all__ = ["SCENARIO"]

CONNECTIONS = 4
_SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": f"field{each}", "type": "long"} for each in range(6)]}


def _repeat(run: Run) -> Sample:
    assert isinstance(run.server, DanubeServer)
    url = f"http://127.0.0.1:{run.server.registry_port}"
    body = json.dumps({"schema": json.dumps(_SCHEMA)}).encode()
    with urlopen(Request(f"{url}/subjects/orders/versions", body, {"Content-Type": "application/json"})) as answer:
        number = json.load(answer)["id"]
    wanted = f"{url}/schemas/ids/{number}"
    with urlopen(wanted) as answer:
        size = len(answer.read())
    return h1load(run, wanted, size, count=run.count, connections=CONNECTIONS)


SCENARIO = Scenario(
    name="u2",
    title=f"One schema by its id over {CONNECTIONS} connections by h2load (HTTP/1.1), one in flight on each",
    metrics=("calls_per_s", "broker_cpu_us", "p50_us", "p99_us"),
    arms=(
        Arm(
            "danube",
            20_000,
            0,
            "GET /schemas/ids/{id}",
            _repeat,
            server=Danube(registry=True),
            needs=unavailable,
        ),
    ),
    targets=(Target("u2", "calls_per_s", 2_000), Target("u2", "p99_us", 5_000, at_least=False)),
    usual=False,
)
