# ruff: noqa: SIM117 - a nested "async with" shows what is inside of what
"""Stages for topics of several brokers: one home, one decision, batches that go to their owners, whoever dies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import trio
from broker.broker_harness import wait_until
from broker.directory.cluster_harness import ClusterWorld, Machine, cluster

from danube.broker.stages.decisions import ProducerRecord, Share
from danube.broker.stages.distant import Neighbours
from danube.broker.stages.homes import HomeRecord
from danube.broker.stages.ledger import Ledger
from danube.client import Client
from danube.cluster.ordering import order_move
from danube.cluster.records import BROKERS, BrokerState
from danube.metadata import Delete
from danube.model import Limits, Rate
from danube.model.batch import SchemaRef
from danube.model.errors import (
    ConnectionLostError,
    DataLossError,
    FailedPreconditionError,
    MessageTooLargeError,
    OwnerAwayError,
    OwnerFencedError,
    SchemaMismatchError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import ProducerId
from danube.model.stage_api import StageCommit, StagedBatch

pytestmark = pytest.mark.virtual

PARTS = [f"/default/t-part-{number}" for number in range(3)]


@asynccontextmanager
async def three(directory: Path, **settings: Any) -> AsyncIterator[tuple[ClusterWorld, dict[str, Machine]]]:
    """Three linked brokers, and the owner of each partition of a topic."""
    async with cluster(directory, 3, cluster_secret="file", **settings) as world:
        async with world.machines[0].client() as client:
            await client.admin.create_topic("/default/t", partitions=3)
        await wait_until(lambda: sum(len(each.broker.directory) for each in world.machines) == 3)
        yield world, {topic.name: each for each in world.machines for topic in each.broker.directory.topics()}


async def staged(client: Client, topic: str, batch_id: int, *payloads: bytes, producer: str = "job") -> StagedBatch:
    async with client.stages.open(topic, producer=producer, batch_id=batch_id) as stage:
        await stage.add(list(payloads))
        return await stage.finish()


async def rows(client: Client, count: int) -> list[bytes]:
    """All messages of the topic; there must be no more of them."""
    found: list[bytes] = []
    async with client.reader("/default/t", start="earliest") as reader:
        while len(found) < count:
            found += (await reader.receive_batch()).payloads()
        with trio.move_on_after(1):
            found += (await reader.receive_batch()).payloads()
    return sorted(found)


async def home_of(world: ClusterWorld, producer: str = "job") -> Machine:
    item = await world.store.get(f"/stage-homes/{producer}")
    return world.machines[msgspec.msgpack.decode(item.value, type=HomeRecord).broker - 1]


async def test_a_batch_for_topics_of_several_brokers_is_committed_once(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        assert len(set(owners.values())) == 3
        batches = []
        for machine, topic in zip(world.machines, PARTS, strict=True):  # executors on three machines
            async with machine.client() as client:
                batches.append(await staged(client, topic, 1, topic.encode(), bytes(200_000)))
        async with world.machines[2].client() as driver:
            assert (await driver.stages.describe()).total == 3
            outcome = await driver.stages.commit("job", 1, batches)
            assert outcome.committed
            assert outcome.offsets == dict.fromkeys(PARTS, (0, 2))
            assert (await driver.stages.describe()).stages == []
            assert await driver.stages.last_batch("job") == 1
        async with world.machines[0].client() as client:
            assert not (await client.stages.commit("job", 1, batches)).committed
            again = await staged(client, PARTS[1], 1, b"again")
            assert again.stage_id == 0  # it was committed, whichever broker is asked
            expected = sorted([*[topic.encode() for topic in PARTS], *[bytes(200_000)] * 3])
            assert await rows(client, 6) == expected
            second = [await staged(client, topic, 2, b"2") for topic in PARTS]
            assert (await client.stages.commit("job", 2, second)).offsets == dict.fromkeys(PARTS, (2, 3))


async def test_the_home_is_an_owner_of_the_first_topic(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        for number, topic in enumerate(PARTS):
            async with world.machines[0].client() as client:
                await staged(client, topic, 1, b"x", producer=f"job{number}")
            assert await home_of(world, f"job{number}") is owners[topic]


async def test_first_stages_at_once_have_one_home(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, _):
        found: list[StagedBatch] = []

        async def work(machine: Machine, topic: str) -> None:
            async with machine.client() as client:
                found.append(await staged(client, topic, 1, b"x"))

        async with trio.open_nursery() as nursery:
            for machine in world.machines:
                for topic in PARTS:
                    nursery.start_soon(work, machine, topic)
        home = await home_of(world)
        assert len(home.broker.stages._store) == 9
        async with world.machines[1].client() as driver:
            assert (await driver.stages.commit("job", 1, found)).committed
            assert await rows(driver, 9) == [b"x"] * 9


async def test_the_owner_judges_what_is_staged_elsewhere(tmp_path: Path) -> None:
    async with three(tmp_path, limits={"max_message_bytes": 300_000}) as (world, owners):
        async with world.machines[0].client() as client:
            await client.admin.create_topic("/default/small")
            await client.admin.change_policies("/default/small", max_message_bytes=100)
            await client.admin.create_topic("/default/fast", durability="none")
            await client.admin.create_topic("/default/slow")
            await client.admin.change_policies("/default/slow", publish_rate=Rate(bytes_per_s=1_000))
            await trio.sleep(1)
            homes = {name: f"job-{number}" for number, name in enumerate(PARTS)}
            for topic, producer in homes.items():
                await staged(client, topic, 1, b"x", producer=producer)
            for producer in homes.values():  # two of the three are not the owner
                with pytest.raises(MessageTooLargeError):
                    await staged(client, "/default/small", 1, bytes(200), producer=producer)
                with pytest.raises(FailedPreconditionError, match="stores nothing"):
                    await staged(client, "/default/fast", 1, b"x", producer=producer)
                with pytest.raises(TopicNotFoundError):
                    await staged(client, "/default/t-part-7", 1, b"x", producer=producer)
                await staged(client, "/default/small", 1, bytes(100), producer=producer)
            began = trio.current_time()
            for producer in homes.values():
                for _ in range(3):
                    await staged(client, "/default/slow", 1, bytes(2_000), producer=producer)
            assert trio.current_time() - began > 5  # all of them share the rate of the topic
        assert len(owners) == 3


async def test_the_owner_judges_the_schemas_of_what_is_staged_elsewhere(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, _):
        async with world.machines[0].client() as client:
            await client.admin.create_topic("/default/typed")
            number = (await client.schemas.register("typed", "json", '{"type": "object"}')).number
            await client.schemas.bind("/default/typed", "typed")
            await client.admin.change_policies("/default/typed", schema_validation="enforce")
            await trio.sleep(1)
            for turn, home in enumerate(PARTS):
                producer = f"job-{turn}"
                await staged(client, home, 1, b"x", producer=producer)
                with pytest.raises(SchemaMismatchError):
                    await staged(client, "/default/typed", 1, b"{}", producer=producer)
                named = SchemaRef(number, 1)
                async with client.stages.open("/default/typed", producer=producer, batch_id=1, schema=named) as stage:
                    await stage.add([b"{}"])
                    batch = await stage.finish()
                assert (await client.stages.commit(producer, 1, [batch])).committed


async def test_a_home_that_is_away_is_waited_for_by_name(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        home = owners[PARTS[0]]
        other = next(each for each in world.machines if each is not home)
        async with other.client(request_timeout_s=3.0, reconnect_timeout_s=4.0) as client:
            first = await staged(client, PARTS[0], 1, b"1")
            await home.kill()
            await trio.sleep(4)
            name = f"b{world.machines.index(home) + 1}"
            with pytest.raises(OwnerAwayError, match=f"producer 'job' waits for broker {name}, which holds its stages"):
                await staged(client, next(topic for topic in PARTS if owners[topic] is other), 1, b"2")
            await home.start()
            batches = [first, *[await staged(client, topic, 1, b"2") for topic in PARTS[1:]]]
            assert (await client.stages.commit("job", 1, batches)).committed
            assert await rows(client, 3) == [b"1", b"2", b"2"]


async def lose(world: ClusterWorld, lost: Machine, other: Machine) -> str:
    """Kill a broker, and declare it gone, as ``danube cluster forget`` does; return its name."""
    await lost.kill()
    await trio.sleep(4)
    name = f"b{world.machines.index(lost) + 1}"
    gone = msgspec.structs.replace(other.broker.directory.membership.brokers.values[name], state=BrokerState.GONE)
    await world.store.put(BROKERS + name, msgspec.msgpack.encode(gone))
    await trio.sleep(0.1)
    return name


async def test_a_forgotten_home_is_replaced(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        home = owners[PARTS[0]]
        other = next(each for each in world.machines if each is not home)
        async with other.client(request_timeout_s=3.0) as client:
            await staged(client, PARTS[0], 1, b"1")
            await lose(world, home, other)
            batch = await staged(client, next(topic for topic in PARTS if owners[topic] is other), 1, b"2")
            assert (await client.stages.commit("job", 1, [batch])).committed
            assert await home_of(world) is not home
            # What it left is of no use to it when it comes back, because its data directory does not join again.


async def rows_of(client: Client, topic: str) -> list[bytes]:
    async with client.reader(topic, start="earliest") as reader:
        found = []
        with trio.move_on_after(1):
            while True:
                found += (await reader.receive_batch()).payloads()
    return found


@pytest.mark.parametrize("begin", ["ask", "abort", "commit", "stage"])
async def test_what_a_forgotten_home_has_committed_is_not_committed_again(tmp_path: Path, begin: str) -> None:
    async with three(tmp_path) as (world, owners):
        home = owners[PARTS[0]]
        heir = owners[PARTS[1]]
        async with heir.client(request_timeout_s=3.0) as client:
            batches = [await staged(client, topic, 7, topic.encode()) for topic in PARTS[:2]]
            outcome = await client.stages.commit("job", 7, batches, label="run")
            assert outcome.committed
            name = await lose(world, home, heir)
            if begin == "ask":
                assert await client.stages.last_batch("job") == 7
                assert (await home_of(world)) is home, "nothing was taken over"
            elif begin == "abort":
                assert await client.stages.abort("job", 7)
            elif begin == "commit":
                assert await client.stages.commit("job", 7, batches[1:]) == StageCommit(False, outcome.offsets, "run")
            again = await staged(client, PARTS[1], 7, b"again")
            assert again.stage_id == 0
            assert await client.stages.commit("job", 7, [again]) == StageCommit(False, outcome.offsets, "run")
            assert await world.store.get(f"/stages/{name}/job") is None
            assert await client.stages.last_batch("job") == 7
            assert (await client.stages.commit("job", 8, [await staged(client, PARTS[1], 8, b"8")])).committed
            assert await rows_of(client, PARTS[1]) == [PARTS[1].encode(), b"8"]
            new_home = await home_of(world)
            assert new_home is not home
        await new_home.kill()
        await new_home.start()
        async with heir.client(reconnect_timeout_s=20.0) as client:
            assert (await staged(client, PARTS[1], 8, b"again")).stage_id == 0


async def test_a_takeover_that_was_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with three(tmp_path) as (world, owners):
        home, heir = owners[PARTS[0]], owners[PARTS[1]]
        async with heir.client(request_timeout_s=3.0) as client:
            batches = [await staged(client, topic, 7, b"x") for topic in PARTS[:2]]
            await client.stages.commit("job", 7, batches)
            await lose(world, home, heir)

            async def away(*_: Any) -> None:
                raise UnavailableError("away")

            with monkeypatch.context() as patch:
                patch.setattr(Ledger, "inherit", away)
                with pytest.raises(UnavailableError):
                    await staged(client, PARTS[1], 7, b"again")
            assert await home_of(world) is heir
            assert await client.stages.last_batch("job") == 7
        await heir.kill()
        await heir.start()
        async with heir.client() as client:
            assert (await staged(client, PARTS[1], 7, b"again")).stage_id == 0


async def test_a_commit_that_a_forgotten_home_has_not_completed_is_refused(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        home, heir = owners[PARTS[0]], owners[PARTS[1]]
        async with heir.client(request_timeout_s=3.0) as client:
            batch = await staged(client, PARTS[0], 7, b"1")
            name = await lose(world, home, heir)
            share = Share(PARTS[1], heir.broker.directory.catalogue.locate(PARTS[1])[1], ProducerId(1), 0, 5, [1])
            record = ProducerRecord(7, world.wall_clock_us(), True, [share], {}, "")
            await world.store.put(f"/stages/{name}/job", msgspec.msgpack.encode(record))
            said = f"batch 7 of producer 'job' was being committed by broker {name}, .*{PARTS[1]} from offset 5 on"
            for batch_id in (7, 8):
                with pytest.raises(DataLossError, match=said):
                    await staged(client, PARTS[1], batch_id, b"2")
            with pytest.raises(DataLossError, match=said):
                await client.stages.commit("job", 7, [batch])
            with pytest.raises(DataLossError, match=said):
                await client.stages.last_batch("job")
            with pytest.raises(DataLossError, match=said):
                await client.stages.abort("job", 7)
            batch = await staged(client, PARTS[1], 7, b"2", producer="job-2")
            assert (await client.stages.commit("job-2", 7, [batch])).committed


async def test_a_forgotten_home_decides_nothing_more(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        home, heir = owners[PARTS[0]], owners[PARTS[1]]
        async with heir.client(request_timeout_s=3.0) as client:
            await staged(client, PARTS[0], 7, b"1")
            name = await lose(world, home, heir)
            late = Ledger(world.store, name, Limits(), world.wall_clock_us)  # it was cut off, and is alive
            await late.load()
            assert (await staged(client, PARTS[1], 7, b"2")).stage_id
            known = await late.known("job")
            with pytest.raises(OwnerFencedError):
                await late.write(known, ProducerRecord(7, world.wall_clock_us(), False, [], {}))


async def test_what_forgotten_brokers_have_left_expires(tmp_path: Path) -> None:
    limits = {"stage_expiry_s": 30.0, "stage_producer_expiry_s": 1_000.0}
    async with three(tmp_path, limits=limits, patience_s=10_000) as (world, owners):
        home, heir = owners[PARTS[0]], owners[PARTS[1]]
        async with heir.client(request_timeout_s=3.0) as client:
            await client.stages.commit("job", 1, [await staged(client, PARTS[0], 1, b"x")])
            name = await lose(world, home, heir)
            await trio.sleep(700)
            assert await world.store.get("/stage-homes/job") is None
            assert await client.stages.last_batch("job") == 1
            await trio.sleep(1_300)
            assert await world.store.get(f"/stages/{name}/job") is None
            assert await client.stages.last_batch("job") is None


async def test_an_earlier_ledger_counts_as_a_claim(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        record = ProducerRecord(5, 1, False, [], {}, "")
        await world.store.put("/stages/b2/job", msgspec.msgpack.encode(record))
        await world.machines[1].drain()
        await world.machines[1].start()  # it reads its ledger
        async with world.machines[0].client() as client:
            for topic in PARTS:
                assert (await staged(client, topic, 5, b"x")).stage_id == 0
            assert (await home_of(world)) is world.machines[1]
        assert len(owners) == 3


async def test_unused_homes_are_given_up(tmp_path: Path) -> None:
    async with three(tmp_path, limits={"stage_expiry_s": 30.0}, patience_s=10_000) as (world, _):
        async with world.machines[0].client() as client:
            await staged(client, PARTS[0], 1, b"x", producer="idle")
            await client.stages.commit("busy", 1, [await staged(client, PARTS[0], 1, b"x", producer="busy")])
            await trio.sleep(700)
            assert await world.store.get("/stage-homes/idle") is None
            assert await world.store.get("/stage-homes/busy") is not None
            batch = await staged(client, PARTS[1], 1, b"x", producer="idle")
            assert (await client.stages.commit("idle", 1, [batch])).committed


async def test_a_producer_that_stages_again_while_it_is_given_up_keeps_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path) as (world, owners):
        home = owners[PARTS[0]]
        async with home.client() as client:
            await staged(client, PARTS[0], 1, b"x")
            await client.stages.abort("job", 1)
        homes, store = home.broker.stages._homes, home.broker.directory.catalogue.store
        transact = store.transact

        async def transact_late(conditions: Any, operations: Any) -> Any:
            if operations == [Delete("/stage-homes/job")]:
                await homes.require("job")
            return await transact(conditions, operations)

        monkeypatch.setattr(store, "transact", transact_late)
        await homes.release(lambda _: False, world.wall_clock_us() + 1)
        assert homes.is_here("job")
        assert await home_of(world) is home


async def move(world: ClusterWorld, topic: str, target: Machine) -> None:
    """Order a move of a topic, and wait until the broker serves it."""
    directory = world.machines[0].broker.directory
    topic_id = directory.catalogue.locate(topic)[1]
    me = target.broker.directory.membership.me
    await order_move(world.machines[0].node.faults, directory.membership, topic_id, me, random=Random(7))
    await wait_until(lambda: target.broker.directory.served(topic_id) is not None)


@pytest.mark.parametrize("step", ["staging", "open", "decided", "append", "appended", "done"])
@pytest.mark.parametrize("part", [0, 1])
async def test_a_commit_survives_a_move_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, part: int
) -> None:
    """The topic of the home itself, or another one, goes to a third broker between any two steps."""
    struck: list[str] = []
    async with three(tmp_path) as (world, owners):
        target = owners[PARTS[2]]

        async def strike(at: str) -> None:
            if at == step and not struck:
                struck.append(at)
                await move(world, PARTS[part], target)

        ask, write = Neighbours._ask, Ledger.write

        async def asking(self: Any, name: str, topic_id: Any, question: Any, kind: Any) -> Any:
            if name == PARTS[1] and type(question).__name__ == "AppendShare":
                await strike("append")
            answer = await ask(self, name, topic_id, question, kind)
            if name == PARTS[1]:
                await strike({"AppendShare": "appended", "OpenShare": "open"}.get(type(question).__name__, ""))
            return answer

        async def writing(self: Any, known: Any, record: Any) -> None:
            await write(self, known, record)
            await strike("decided" if record.committing else "done")

        monkeypatch.setattr(Neighbours, "_ask", asking)
        monkeypatch.setattr(Ledger, "write", writing)
        async with world.machines[2].client(reconnect_timeout_s=60.0) as client:
            batches = [await staged(client, PARTS[0], 1, PARTS[0].encode(), bytes(150_000))]
            await strike("staging")
            batches += [await staged(client, topic, 1, topic.encode(), bytes(150_000)) for topic in PARTS[1:]]
            with trio.fail_after(120):
                while True:
                    try:
                        await client.stages.commit("job", 1, batches)
                        break
                    except UnavailableError:
                        await trio.sleep(0.5)
            assert struck == [step]
            assert await rows(client, 6) == sorted([*[topic.encode() for topic in PARTS], *[bytes(150_000)] * 3])
            assert not (await client.stages.commit("job", 1, batches)).committed
            again = await staged(client, PARTS[part], 1, b"again")  # at its next owner, too, it was committed
            assert again.stage_id == 0


Blow = Callable[[Machine, Machine], Awaitable[None]]
"""Does something to the home, or to the owner of another topic."""


async def test_staged_batches_do_not_keep_topics_from_being_ordered_to_move(tmp_path: Path) -> None:
    async with three(tmp_path) as (world, owners):
        async with world.machines[0].client() as client:
            batches = [await staged(client, topic, 1, topic.encode()) for topic in PARTS]
            home = await home_of(world)
            here = next(topic for topic in PARTS if owners[topic] is home)
            target = next(machine for machine in world.machines if machine is not home)
            name = f"b{world.machines.index(target) + 1}"
            assert [row.problem for row in await client.admin.move_topic(here, name)] == [""]
            await wait_until(lambda: here in {topic.name for topic in target.broker.directory.topics()})
            assert (await client.stages.commit("job", 1, batches)).committed
            assert await rows(client, 3) == sorted(topic.encode() for topic in PARTS)


async def kill_home(home: Machine, owner: Machine) -> None:
    await home.kill()
    await home.start()


async def kill_owner(home: Machine, owner: Machine) -> None:
    await owner.kill()
    await trio.sleep(1)
    await owner.start()


@pytest.mark.parametrize("blow", [kill_home, kill_owner])
@pytest.mark.parametrize("step", ["open", "decided", "append", "appended", "done"])
async def test_a_commit_survives_a_crash_at_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, blow: Blow
) -> None:
    """Whatever happens between any two steps: the batch is in all topics, once."""
    struck: list[str] = []
    async with three(tmp_path) as (world, owners):
        home, owner = owners[PARTS[0]], owners[PARTS[1]]

        async def strike(at: str) -> None:
            if at == step and not struck:
                struck.append(at)
                world.nursery.start_soon(blow, home, owner)
                await trio.sleep(0.5)

        ask, write = Neighbours._ask, Ledger.write

        async def asking(self: Any, name: str, topic_id: Any, question: Any, kind: Any) -> Any:
            of_owner = name == PARTS[1]
            if of_owner and type(question).__name__ == "AppendShare":
                await strike("append")
            answer = await ask(self, name, topic_id, question, kind)
            if of_owner:
                await strike({"AppendShare": "appended", "OpenShare": "open"}.get(type(question).__name__, ""))
            return answer

        async def writing(self: Any, known: Any, record: Any) -> None:
            await write(self, known, record)
            await strike("decided" if record.committing else "done")

        monkeypatch.setattr(Neighbours, "_ask", asking)
        monkeypatch.setattr(Ledger, "write", writing)
        async with world.machines[2].client(reconnect_timeout_s=60.0) as client:
            batches = [await staged(client, topic, 1, topic.encode(), bytes(150_000)) for topic in PARTS]
            with trio.fail_after(120):
                while True:
                    try:
                        await client.stages.commit("job", 1, batches)
                        break
                    except (UnavailableError, ConnectionLostError):
                        await trio.sleep(0.5)
            assert struck == [step]
            assert await rows(client, 6) == sorted([*[topic.encode() for topic in PARTS], *[bytes(150_000)] * 3])
            assert await client.stages.last_batch("job") == 1


@pytest.mark.parametrize("blow", ["restart", "no answer"])
async def test_topics_do_not_forget_a_producer_before_they_know_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blow: str
) -> None:
    """The home dies when another broker has its share, and that one forgets producers that are idle for 10 min."""
    async with three(tmp_path, patience_s=10_000) as (_, owners):
        home, owner = owners[PARTS[0]], owners[PARTS[1]]
        async with home.client() as client:
            await client.stages.commit("job", 1, [await staged(client, topic, 1, b"1") for topic in PARTS])
            batches = [await staged(client, topic, 2, b"2") for topic in PARTS[:2]]
        appended = trio.Event()
        ask = Neighbours._ask

        async def asking(self: Any, name: str, topic_id: Any, question: Any, kind: Any) -> Any:
            answer = await ask(self, name, topic_id, question, kind)
            if type(question).__name__ == "AppendShare" and not appended.is_set():
                appended.set()
                await trio.sleep_forever()
            return answer

        async def commit() -> None:
            with suppress(ConnectionLostError, UnavailableError):
                async with home.client(reconnect_timeout_s=1.0) as client:
                    await client.stages.commit("job", 2, batches)

        monkeypatch.setattr(Neighbours, "_ask", asking)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await appended.wait()
            await home.kill()

        async def publish() -> None:
            async with owner.client() as client, client.producer(PARTS[1]) as producer:
                await producer.send(b"other")

        async def unanswered() -> Any:
            raise UnavailableError("away")

        if blow == "restart":
            await owner.kill()
            await trio.sleep(1_200)
            await owner.start()
            await publish()
        else:
            with monkeypatch.context() as patch:
                patch.setattr(owner.broker.stages._homes, "held", unanswered)
                await trio.sleep(1_200)
                await publish()
        await home.start()
        async with owner.client() as client:
            await wait_until(lambda: not any(known.pending for known in home.broker.stages._ledger))
            found = await rows_of(client, PARTS[1])
            assert [row for row in found if row != b"other"] == [b"1", b"2"]
        table = owner.broker.directory.find(PARTS[1]).intake._table
        assert table.session_of("staged/job") is not None
        await trio.sleep(1_200)
        await publish()
        assert table.session_of("staged/job") is None, "nobody needs it any more"
