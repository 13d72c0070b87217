"""U1: the unary calls of the upstream protocol, one message in each, as its official clients send them."""

from __future__ import annotations

import struct
from pathlib import Path

import trio

from benchmarks._run import Run, Sample
from benchmarks.scenarios._base import Arm, Scenario, Target
from benchmarks.scenarios._h2load import h2load, unavailable
from benchmarks.systems.danube import Danube
from danube.compat.codec import PROTO
from danube.compat.proto import danube_api_pb2 as pb
from danube.model.ids import ProducerId
from danube.wire import connect_channel

__all__ = ["SCENARIO"]

CONNECTIONS = 16
ALONE_SHARE = 0.1
"""Part of the calls that is made once more, over a single connection."""
_SERVICE = "/danube.ProducerService/"
_REQUEST_ID = 1
_TOKEN = "danube, token"
_ANSWER_BYTES = 5 + len(pb.MessageResponse(request_id=_REQUEST_ID).SerializeToString())


def _request(run: Run, producer_id: ProducerId) -> bytes:
    message = pb.StreamMessage(
        request_id=_REQUEST_ID,
        msg_id=pb.MsgID(
            producer_id=producer_id, topic_name=run.topic(), broker_addr=f"http://127.0.0.1:{run.server.port}"
        ),
        payload=b"x" * run.size,
        publish_time=1_750_000_000_000,
        producer_name="benchmark",
    )
    data: bytes = message.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


def _credentials(run: Run) -> dict[str, str]:
    """Return the headers that prove who calls, if the broker asks for that."""
    _, _, directory = run.server.address.partition("#")
    return {"authorization": f"Bearer {Path(directory, 'admin.token').read_text()}"} if directory else {}


async def _create_producer(run: Run) -> ProducerId:
    request = pb.ProducerRequest(
        request_id=1, producer_name="benchmark", topic_name=run.topic(), dispatch_strategy=pb.Reliable
    )
    async with connect_channel("127.0.0.1", run.server.port, codec=PROTO) as channel:
        path = f"{_SERVICE}CreateProducer"
        response: pb.ProducerResponse = await channel.unary(
            path, request, pb.ProducerResponse, metadata=_credentials(run)
        )
        return ProducerId(response.producer_id)


def _measure(run: Run, producer_id: ProducerId) -> Sample:
    request, path = _request(run, producer_id), f"{_SERVICE}SendMessage"
    sample = h2load(
        run, path, request, _ANSWER_BYTES, count=run.count, connections=CONNECTIONS, headers=_credentials(run)
    )
    few = max(100, int(run.count * ALONE_SHARE))
    alone = h2load(run, path, request, _ANSWER_BYTES, count=few, connections=1, headers=_credentials(run))
    sample.values |= {f"alone_{name}": alone.values[name] for name in ("p50_us", "p99_us")}
    return sample


def _repeat(run: Run) -> Sample:
    sample = _measure(run, trio.run(_create_producer, run))
    run.alone(run.work("delete"))
    return sample


def _echo(run: Run) -> Sample:
    return _measure(run, ProducerId(1))


SCENARIO = Scenario(
    name="u1",
    title=f"One message a call over {CONNECTIONS} connections by h2load, one in flight on each, 100 B; then one alone",
    metrics=("calls_per_s", "broker_cpu_us", "p50_us", "p99_us", "alone_p50_us", "alone_p99_us"),
    arms=(
        Arm("danube", 60_000, 100, "danube.ProducerService/SendMessage", _repeat, needs=unavailable),
        Arm(
            "danube",
            60_000,
            100,
            "danube.ProducerService/SendMessage",
            _repeat,
            label=_TOKEN,
            server=Danube(secured=True),
            needs=unavailable,
        ),
        Arm("grpc-aio", 30_000, 100, "the same call, answered at once by grpc.aio", _echo, needs=unavailable),
    ),
    targets=(
        Target("u1", "calls_per_s", 7_000),
        Target("u1", "calls_per_s", 1.0, against="grpc-aio"),
        Target("u1", "broker_cpu_us", 1.0, at_least=False, against="grpc-aio"),
        Target("u1", "alone_p50_us", 1_000, at_least=False),
        Target("u1", "calls_per_s", 6_000, arm=_TOKEN),
    ),
    usual=False,
)
