"""Use the schema registry with the official client, step by step. The job is one JSON object, the argument.

Job:
    url, topic      of the broker; a topic that does not exist.
    subject         a subject that does not exist; ``<subject>-other`` neither.

Lines:
    {"ready": true}                 connected; the steps begin at once
    {"step": name, ...}             what a step has given
    {"done": number of steps}
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from typing import Any

import grpc
from connecting import builder_of
from danube.consumer import SubType

from danube import DispatchStrategy
from danube.schema import CompatibilityMode, SchemaType

STEPS = 0


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def step(name: str, **found: Any) -> None:
    global STEPS
    STEPS += 1
    say(step=name, **found)


async def outcome(call: Awaitable[Any]) -> str:
    """Return the status of a call, or the type of another error; empty: it succeeded."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except Exception as error:  # noqa: BLE001 - the client wraps errors in types of its own
        return f"{type(error).__name__}: {error}"
    return ""


def person(*required: str, optional: tuple[str, ...] = ()) -> bytes:
    properties = {name: {"type": "string"} for name in (*required, *optional)}
    return json.dumps({"type": "object", "properties": properties, "required": list(required)}).encode()


async def main(job: dict[str, Any]) -> None:
    client = await builder_of(job).build()
    say(ready=True)
    topic, subject, other = job["topic"], job["subject"], f"{job['subject']}-other"
    schemas = client.schema()

    def register(name: str, data: bytes, kind: SchemaType = SchemaType.JSON_SCHEMA) -> Any:
        return schemas.register_schema(name).with_type(kind).with_schema_data(data).execute()

    first = await register(subject, person("name"))
    again = await register(subject, person("name"))
    second = await register(subject, person("name", optional=("email",)))
    step("register", ids=[first, again, second], versions=await schemas.list_versions(subject))
    latest = await schemas.get_latest_schema(subject)
    old = await schemas.get_schema_version(first, 1)
    step(
        "get",
        latest=[latest.schema_id, latest.version, latest.schema_type],
        old=[old.schema_id, old.version, json.loads(old.schema_definition) == json.loads(person("name"))],
    )

    checked = [
        (await schemas.check_compatibility(subject, data, SchemaType.JSON_SCHEMA, mode))[0]
        for data, mode in (
            (person("name", optional=("email", "age")), None),
            (person(), None),
            (person("name", "age"), CompatibilityMode.FORWARD),
            (person("name"), CompatibilityMode.FORWARD),
            (b'{"type": "array"}', CompatibilityMode.NONE),
        )
    ]
    refused = await outcome(register(subject, person()))
    step("compatibility", checked=checked, refused=refused)
    await schemas.set_compatibility_mode(subject, CompatibilityMode.NONE)
    third = await register(subject, person())
    step("none", id=third, versions=await schemas.list_versions(subject))
    step("deleted", success=(await schemas.delete_schema_version(subject, 3))[0])

    def producer(name: str) -> Any:
        builder = client.new_producer().with_topic(topic).with_name(name)
        return builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)

    await register(other, person("x"))
    unknown = await outcome(producer("u").with_schema_subject("nobody").build().create())
    one = producer("one").with_schema_version(subject, 1).build()
    two = producer("two").with_schema_subject(subject).build()
    three = producer("three").with_schema_min_version(subject, 2).build()
    plain = producer("plain").build()
    for each in (one, two, three, plain):
        await each.create()
    elsewhere = await outcome(producer("x").with_schema_subject(other).build().create())
    pinned = await outcome(producer("y").with_schema_version(subject, 99).build().create())
    step("producers", unknown=unknown, elsewhere=elsewhere, pinned=pinned)

    builder = client.new_consumer().with_topic(topic).with_consumer_name("c").with_subscription("s")
    consumer = builder.with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    queue = await consumer.receive()
    for each, payload in ((one, b"1"), (two, b"2"), (three, b"3"), (plain, b"4")):
        await each.send(payload, None)
    found = []
    for _ in range(4):
        message = await asyncio.wait_for(queue.get(), 20)
        found.append([bytes(message.payload).decode(), message.schema_id, message.schema_version])
        await consumer.ack(message)
    step("messages", found=found)

    configured = await schemas.configure_topic_schema(topic, subject, "enforce")
    config = await schemas.get_topic_schema_config(topic)
    step(
        "configured", success=configured[0], config=[config.schema_subject, config.validation_policy, config.schema_id]
    )
    step("enforced", schema=await outcome(two.send(b"5", None)), none=await outcome(plain.send(b"6", None)))
    await schemas.update_topic_validation_policy(topic, "warn")
    step("warned", none=await outcome(plain.send(b"7", None)))
    say(done=STEPS)


asyncio.run(main(json.loads(sys.argv[1])))
