"""Workers that send and receive values with ``schema=``."""

from __future__ import annotations

import time
from typing import Any

import msgspec

import danube
from benchmarks._processes import Outcome, Work
from benchmarks.roles._connect import connect
from benchmarks.worker import Control

__all__ = ["consume_values", "publish_values"]

CALL_VALUES = 50_000


class Order(msgspec.Struct):
    """A value of six fields: 82 bytes of JSON, about 30 of Avro or protobuf."""

    id: int
    user: str
    total: float = 0.0
    items: int = 3
    note: str = "hello there"
    paid: bool = True


def _schema(form: str) -> tuple[Any, type[Any]]:
    """Return what ``schema=`` takes, and the class of values."""
    if form == "protobuf":
        message = _message()
        return message, message
    if form == "payloads":
        return None, Order
    return {"json": danube.Json, "avro": danube.Avro}[form](Order), Order


def _message() -> type[Any]:
    """Make the protobuf class of the same fields."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    file = FileDescriptorProto(name="order.proto", package="benchmark", syntax="proto3")
    message = file.message_type.add(name="Order")
    field = FieldDescriptorProto
    kinds = {
        "id": field.TYPE_INT64,
        "user": field.TYPE_STRING,
        "total": field.TYPE_DOUBLE,
        "items": field.TYPE_INT64,
        "note": field.TYPE_STRING,
        "paid": field.TYPE_BOOL,
    }
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    made: type[Any] = GetMessageClass(pool.FindMessageTypeByName("benchmark.Order"))
    return made


async def publish_values(work: Work, control: Control) -> Outcome:
    """Send ``work.count`` values through ``send_many``; ``settings.form`` says how they are encoded."""
    form = str(work.settings["form"])
    schema, kind = _schema(form)
    values: list[Any] = [
        kind(id=number, user="ada", total=12.5, items=3, note="hello there", paid=True)
        for number in range(min(CALL_VALUES, work.count))
    ]
    if form == "payloads":
        values = [msgspec.json.encode(value) for value in values]
    sent = 0
    async with connect(work) as client, client.producer(work.topic, durability="disk", schema=schema) as producer:
        began = control.ready()
        while sent < work.count:
            receipt = await producer.send_many(values[: work.count - sent])
            sent += receipt.count
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    whole, rest = divmod(work.count, len(values))
    total = whole * sum(range(len(values))) + sum(range(rest))
    return Outcome(started_ns=began, finished_ns=ended, count=sent, checksum=_sum_of(form, total), cpu_s=cpu_s)


async def consume_values(work: Work, control: Control) -> Outcome:
    """Read values through ``batches()`` and ``values()``, and add up their numbers."""
    form = str(work.settings["form"])
    schema, _ = _schema(form)
    received = total = 0
    opening: Any = {"subscription": "values", "start": "earliest", "schema": schema}
    async with connect(work) as client, client.consumer(work.topic, **opening) as consumer:
        began = control.ready()
        async for batch in consumer.batches():
            values = batch.values()
            if schema is not None:
                total += sum([value.id for value in values])
            received += len(values)
            await batch.ack()
            if received >= work.count:
                break
        await consumer.flush_acks()
        ended, cpu_s = time.monotonic_ns(), control.cpu_s()
    return Outcome(started_ns=began, finished_ns=ended, count=received, checksum=_sum_of(form, total), cpu_s=cpu_s)


def _sum_of(form: str, total: int) -> int:
    """Return a checksum; 0, which is not compared, of bare payloads, whose numbers nothing reads."""
    return 0 if form == "payloads" else total + 1
