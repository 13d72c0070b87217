"""The schemas of sealed batches are in the storage before these, and come back from it with their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import RunningBroker, raw_producer, running_broker, wait_until
from broker.sealed_topics import bucket, damage, objects_of

import danube
from danube.history import HistoryCatalogue, read_schemas
from danube.history.schemas import read_schema
from danube.model.errors import (
    FailedPreconditionError,
    InternalError,
    SchemaNotFoundError,
    StorageDeniedError,
    StorageError,
)
from danube.model.schema_api import SchemaReference
from danube.schema.objects import SchemaObject

pytestmark = pytest.mark.virtual
between_brokers = pytest.mark.real("the bucket outlives its brokers, which are not on one machine")

TOPIC, SUBJECT = "/default/orders", "/default/orders-value"
LIMITS = {"segment_retry_max_s": 0.2}


class Order(msgspec.Struct):
    id: int


class NewOrder(msgspec.Struct):
    id: int
    note: str = "-"


LATER = danube.Json(NewOrder, name="Order")


async def send(client: danube.Client, schema: Any, *values: Any, topic: str = TOPIC) -> None:
    async with client.producer(topic, schema=schema) as producer:
        for value in values:
            await producer.send(value)


async def orders(client: danube.Client) -> list[NewOrder]:
    found: list[NewOrder] = []
    async with client.reader(TOPIC, start="earliest", schema=LATER) as reader:
        async for batch in reader.batches(until_caught_up=True):
            found += batch.values()
    return found


async def kept(running: RunningBroker, storage: str = "default") -> list[SchemaObject]:
    return await read_schemas(running.broker.directory.history.storages[storage], "danube")


async def numbers_of(client: danube.Client, subject: str = SUBJECT) -> list[int]:
    return [each.number for each in (await client.schemas.subject(subject)).versions]


@between_brokers
async def test_a_bucket_alone_decodes_its_history_and_gives_the_registry_back(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        await client.schemas.register("elsewhere", "string")  # so that the numbers are not the first ones
        await client.schemas.register("elsewhere", "string", metadata={"never": "sent"})
        await send(client, Order, Order(1))
        await client.schemas.bind(TOPIC, SUBJECT)
        await client.admin.seal_topic(TOPIC)
        assert len(objects_of(space, "schemas/danube")) == 1
        await send(client, LATER, NewOrder(2, "a gift"))
        await client.admin.seal_topic(TOPIC)
        numbers = await numbers_of(client)
        assert [each.number for each in await kept(first)] == numbers
        highest = max(numbers)
        await first.crash()
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        planned = await client.storages.restore_topics(url, dry_run=True)
        assert await client.schemas.subjects() == []
        assert (await client.storages.restore_topics(url)).topics == planned.topics
        assert await orders(client) == [NewOrder(1), NewOrder(2, "a gift")]
        assert await numbers_of(client) == numbers
        assert (await client.admin.describe_topic(TOPIC)).schema_subject == SUBJECT
        # A producer finds its version again, and what is new gets numbers beyond.
        await send(client, LATER, NewOrder(3))
        assert await numbers_of(client) == numbers
        assert (await client.schemas.register("another", "bytes")).number > highest
        await client.admin.seal_topic(TOPIC)
        assert (await client.storages.check(deep=True)).ok
        repaired = await client.storages.repair()
        assert (repaired.orphans, repaired.deleted) == (0, 0)
        assert [each.number for each in await kept(second)] == numbers
        await second.restart(crash=True)
        assert await orders(client) == [NewOrder(1), NewOrder(2, "a gift"), NewOrder(3)]


@between_brokers
async def test_a_broker_that_takes_remote_topics_over_by_itself_brings_their_schemas(tmp_path: Path) -> None:
    url, _ = bucket()
    settings: Any = {"storage": url, "limits": LIMITS}
    async with running_broker(tmp_path / "lost", **settings) as first, first.client() as client:
        await client.admin.create_topic(TOPIC, durability="remote")
        await client.schemas.register("elsewhere", "string")  # so that the numbers are not the first ones
        await send(client, Order, Order(1))
        await client.schemas.bind(TOPIC, SUBJECT)
        await send(client, LATER, NewOrder(2, "a gift"))
        numbers = await numbers_of(client)
        await client.admin.seal_topic(TOPIC)
        assert [each.number for each in await kept(first)] == numbers
        await first.crash()
    async with running_broker(tmp_path / "new", **settings) as second, second.client() as client:
        assert await orders(client) == [NewOrder(1), NewOrder(2, "a gift")]
        assert await numbers_of(client) == numbers
        assert (await client.admin.describe_topic(TOPIC)).schema_subject == SUBJECT
        assert (await client.schemas.register("another", "bytes")).number > max(numbers)


@between_brokers
async def test_schemas_that_others_refer_to_come_along(tmp_path: Path) -> None:
    url, _ = bucket()
    inner = '{"type": "fixed", "name": "shop.Money", "size": 8}'
    outer = '{"type": "record", "name": "shop.Order", "fields": [{"name": "total", "type": "shop.Money"}]}'
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        await client.schemas.register("money", "avro", inner)
        references = [SchemaReference("shop.Money", "money", 1)]
        number = (await client.schemas.register("order", "avro", outer, references=references)).number
        async with first.channel() as channel, raw_producer(channel, await topic_of(client)) as raw:
            raw.send(0, b"12345678", schema_id=number)
            await raw.acked()
        await client.admin.seal_topic(TOPIC)
        storage = first.broker.directory.history.storages["default"]
        alone = await read_schema(storage, "danube", number)
        assert (alone.text, [each.name for each in alone.needs]) == (outer, ["shop.Money"])
        with pytest.raises(SchemaNotFoundError, match="there is no object schemas/danube/99"):
            await read_schema(storage, "danube", 99)
        await first.crash()
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        await client.storages.restore_topics(url)
        found = await client.schemas.get(number)
        assert (found.text, [each.subject for each in found.references]) == (outer, ["money"])
        assert [row.subject for row in await client.schemas.subjects()] == ["money", "order"]


async def topic_of(client: danube.Client) -> str:
    await client.admin.create_topic(TOPIC)
    return TOPIC


async def test_numbers_that_the_registry_does_not_know_are_left_out(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits=LIMITS) as running, running.client() as client:
        known = (await client.schemas.register("known", "string")).number
        async with running.channel() as channel, raw_producer(channel, await topic_of(client)) as raw:
            for at, number in enumerate((2**32 - 1, known, 77, 0)):
                raw.send(at, b"x", schema_id=number)
            await raw.acked(4)
        await client.admin.seal_topic(TOPIC)
        assert [each.number for each in await kept(running)] == [known]
        assert (await client.admin.describe_topic(TOPIC)).sealed_offset == 4


async def test_each_storage_has_the_schemas_of_its_own_history(tmp_path: Path) -> None:
    storages = {"cold": {"url": f"disk://{tmp_path}/cold"}}
    async with (
        running_broker(tmp_path / "data", storages=storages, limits=LIMITS) as running,
        running.client() as client,
    ):
        await client.admin.create_topic("/default/cold", storage="cold")
        await send(client, Order, Order(1))
        await send(client, str, "x", topic="/default/cold")
        await client.admin.seal_topic(TOPIC)
        await client.admin.seal_topic("/default/cold")
        assert [each.number for each in await kept(running)] == await numbers_of(client)
        assert [each.number for each in await kept(running, "cold")] == await numbers_of(client, "/default/cold-value")
        for name in ("default", "cold"):
            assert (await client.storages.check(name, deep=True)).ok
            assert (await client.storages.repair(name)).deleted == 0


async def test_a_schema_that_cannot_be_stored_delays_the_history_that_needs_it(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits=LIMITS) as running, running.client() as client:
        history = running.broker.directory.history
        backend: Any = history.storages["default"]._backend
        real_put = backend.put

        async def refuse(key: str, *given: Any, **named: Any) -> None:
            if key.startswith("schemas/"):
                raise StorageDeniedError(f"{key}: the credentials have expired")
            await real_put(key, *given, **named)

        backend.put = refuse
        await send(client, Order, Order(1))
        with pytest.raises(StorageError, match=r"sealing failed and will be retried.*schemas/danube/1.*have expired"):
            await client.admin.seal_topic(TOPIC)
        assert (await client.admin.describe_topic(TOPIC)).sealed_offset == 0
        assert "schemas/danube/1" in history.sealer.status().last_error
        assert await orders(client) == [NewOrder(1)]
        backend.put = real_put
        await wait_until(lambda: history.sealer.status().failing_for_s == 0)
        assert (await client.admin.describe_topic(TOPIC)).sealed_offset == 1
        assert [each.number for each in await kept(running)] == [1]


@between_brokers
async def test_a_broker_that_ends_between_the_schema_and_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url, limits=LIMITS) as running, running.client() as client:
        reached = trio.Event()

        async def stop(*_given: Any, **_named: Any) -> None:
            reached.set()
            await trio.sleep_forever()

        await send(client, Order, Order(1))
        with monkeypatch.context() as patch:
            patch.setattr(HistoryCatalogue, "enter", stop)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.admin.seal_topic, TOPIC)
                await reached.wait()
                nursery.cancel_scope.cancel()
            before = {key: space.objects[key] for key in objects_of(space, "schemas/danube")}
            assert len(before) == 1
            await running.crash()
        await running.restart(crash=True)
        await client.admin.seal_topic(TOPIC)
        assert {key: space.objects[key] for key in objects_of(space, "schemas/danube")} == before
        assert await orders(client) == [NewOrder(1)]


@between_brokers
async def test_a_restore_that_stops_among_the_schemas_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        await send(client, Order, Order(1))
        await send(client, LATER, NewOrder(2))
        await client.admin.seal_topic(TOPIC)
        numbers = await numbers_of(client)
        await first.crash()
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        service, changes = second.broker.registry, 0
        real_write = service._write

        async def write_once(change: Any) -> None:
            nonlocal changes
            changes += 1
            if changes > 1:
                raise InternalError("the disk of the metadata is gone")
            await real_write(change)

        with monkeypatch.context() as patch:
            patch.setattr(service, "_write", write_once)
            with pytest.raises(InternalError, match="is gone"):
                await client.storages.restore_topics(url)
        assert await client.schemas.subjects() == []
        assert [(await client.schemas.get(number)).schema_type for number in numbers] == ["json_schema"] * 2
        assert await client.admin.list_topics() == []
        await client.storages.restore_topics(url)
        assert await numbers_of(client) == numbers
        assert await orders(client) == [NewOrder(1), NewOrder(2)]


@between_brokers
async def test_a_damaged_schema_is_written_again_with_the_next_history(tmp_path: Path) -> None:
    url, space = bucket()
    async with running_broker(tmp_path, storage=url, limits=LIMITS) as running, running.client() as client:
        await send(client, Order, Order(1))
        await client.admin.seal_topic(TOPIC)
        before = await kept(running)
        damage(space, "schemas/danube/1", 40)
        assert await kept(running) == []
        await running.restart()
        await send(client, Order, Order(2))
        await client.admin.seal_topic(TOPIC)
        assert await kept(running) == before


@between_brokers
async def test_nothing_is_restored_into_a_registry_with_other_meanings_of_the_numbers(tmp_path: Path) -> None:
    url, _ = bucket()
    async with running_broker(tmp_path / "lost", storage=url, limits=LIMITS) as first, first.client() as client:
        await send(client, Order, Order(1))
        await client.admin.seal_topic(TOPIC)
        await first.crash()
    async with running_broker(tmp_path / "new", storage=url, limits=LIMITS) as second, second.client() as client:
        await client.schemas.register("other", "bytes")
        for dry_run in (True, False):
            with pytest.raises(FailedPreconditionError, match=r"1 is another schema of 'other' here.*schemas purge"):
                await client.storages.restore_topics(url, dry_run=dry_run)
        assert await client.admin.list_topics() == []


async def test_commits_of_durability_remote_get_their_schemas_when_they_are_sealed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, limits=LIMITS) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="remote")
        await send(client, Order, Order(1))
        assert await kept(running) == []
        await client.admin.seal_topic(TOPIC)
        assert [each.number for each in await kept(running)] == await numbers_of(client)
        assert await orders(client) == [NewOrder(1)]
