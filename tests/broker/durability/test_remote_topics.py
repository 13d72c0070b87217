"""Topics of durability ``remote`` end to end: acknowledged in the bucket, and recovered from the bucket alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from broker.broker_harness import RunningBroker, raw_producer, read_all, running_broker, wait_until

import danube
from danube.broker.catalogue.catalogue import Catalogue
from danube.broker.catalogue.creations import Creations
from danube.broker.catalogue.deletions import Deletions
from danube.broker.durability import bucket as remote
from danube.broker.durability import claims as claiming
from danube.broker.durability import reconciliation as reconciling
from danube.broker.durability.bucket import BucketLevel
from danube.broker.durability.claims import Claims
from danube.broker.durability.reconciliation import Reconciliation
from danube.history import SoleTenure, highest_epoch, read_bucket
from danube.history.manifest import ManifestLog
from danube.history.remote.claim import Claim
from danube.model import api
from danube.model.errors import (
    AlreadyExistsError,
    DanubeError,
    DataLossError,
    DurabilityMismatchError,
    FailedPreconditionError,
    LimitExceededError,
    MetadataConflictError,
    OwnerFencedError,
    StorageDeniedError,
    StorageUnavailableError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.limits import KIB
from danube.model.policies import Retention
from danube.storage import SHARED_SPACES

SEALING = {"segment_bytes": 256 * KIB, "segment_merge_parts": 4, "segment_grace_s": 0.05, "remote_snapshot_commits": 10}
TOPIC = "/default/t"


@pytest.fixture
def bucket(request: pytest.FixtureRequest):
    """A bucket in the memory of this process; it survives brokers."""
    name = "".join(letter for letter in request.node.name if letter.isalnum())
    yield f"memory://{name}?durable=true"
    SHARED_SPACES.forget(name)


def keys_of(bucket: str) -> list[str]:
    return list(SHARED_SPACES.space(bucket.removeprefix("memory://").partition("?")[0]).objects)


async def publish(client: danube.Client, topic: str, payloads: Sequence[bytes], **options: Any) -> None:
    async with client.producer(topic, **options) as producer:
        for start in range(0, len(payloads), 50):
            await producer.send_many(payloads[start : start + 50])


def payloads_of(first: int, count: int, size: int = 1000) -> list[bytes]:
    return [f"{number:08}".encode() * (size // 8) for number in range(first, first + count)]


def patch_remote(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Patch a name that the level and its claims have both."""
    for module in (remote, claiming):
        monkeypatch.setattr(module, name, value)


def lose_machine(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


async def acknowledge(client: danube.Client, subscription: str, count: int) -> list[bytes]:
    """Take and acknowledge some messages; return when that is durable."""
    taken: list[bytes] = []
    async with client.consumer(TOPIC, subscription=subscription, start="earliest") as consumer:
        async for message in consumer:
            taken.append(message.payload)
            await message.ack()
            if len(taken) == count:
                break
        await consumer.flush_acks()
    return taken


async def test_another_machine_goes_on_with_the_bucket_alone(tmp_path: Path, bucket: str) -> None:
    wanted = payloads_of(0, 300, 100)
    settings = {"storage": bucket, "limits": SEALING}
    async with running_broker(tmp_path, patience_s=30, **settings) as running, running.client() as client:
        made = await client.admin.create_topic(TOPIC, durability="remote", retention=Retention(max_bytes=2**40))
        await client.admin.create_topic("/default/parts", durability="remote", partitions=3)
        await client.admin.create_topic("/default/gone", durability="remote")
        await publish(client, TOPIC, wanted, durability="remote", name="maker")
        await publish(client, "/default/gone", [b"x"])
        await client.admin.delete_topic("/default/gone")
        await publish(client, "/default/parts-part-1", [b"to the second partition"])
        assert await acknowledge(client, "audit", 120) == wanted[:120]
        assert await acknowledge(client, "dropped", 1) == wanted[:1]
        await client.admin.delete_subscription(TOPIC, "dropped")
        await running.crash()
        lose_machine(tmp_path)
        await running.start()
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/parts", TOPIC]
        found = await client.admin.describe_topic(TOPIC)
        assert (found.durability, found.end_offset) == ("remote", 300)
        assert running.topic(TOPIC).retention == Retention(max_bytes=2**40)
        assert found.topic_id == made.topic_id
        assert set(running.topic(TOPIC).subscriptions) == {"audit"}
        assert await acknowledge(client, "audit", 180) == wanted[120:]
        assert await read_all(client, "/default/parts-part-1") == [b"to the second partition"]
        # A producer finds out where it was.
        async with client.producer(TOPIC, name="maker") as producer:
            receipt = await producer.send(b"one more")
            assert receipt.offset == 300
        assert await read_all(client, TOPIC, "fresh") == [*wanted, b"one more"]


async def test_local_restarts_and_crashes(tmp_path: Path, bucket: str) -> None:
    wanted: list[bytes] = []
    settings = {"storage": bucket, "limits": SEALING}
    async with running_broker(tmp_path, patience_s=30, **settings) as running, running.client() as client:
        await client.admin.create_topic("/default/local", durability="disk")
        for life in range(4):
            more = payloads_of(len(wanted), 200, 200)
            await publish(client, TOPIC, more, durability="remote")
            await publish(client, "/default/local", [b"%d" % life])
            wanted += more
            await running.restart(crash=life != 1)
            assert await read_all(client, TOPIC, f"audit-{life}") == wanted
        assert await read_all(client, "/default/local") == [b"0", b"1", b"2", b"3"]


async def test_commits_become_segments_and_go(tmp_path: Path, bucket: str) -> None:
    wanted = payloads_of(0, 1500)
    settings = {"storage": bucket, "limits": SEALING}
    async with running_broker(tmp_path, patience_s=60, **settings) as running, running.client() as client:
        await publish(client, TOPIC, wanted[:1000], durability="remote")
        early = {key for key in keys_of(bucket) if key.startswith("wal/")}
        await running.broker.directory.history.keep()
        assert [key for key in keys_of(bucket) if key.startswith("segments/")]
        for start in range(1000, 1500, 10):  # two snapshots later they are not needed any more
            await publish(client, TOPIC, wanted[start : start + 10])
        await wait_until(lambda: not early & set(keys_of(bucket)))
        topic = running.topic(TOPIC)
        history = running.broker.directory.history.catalogue.topic(topic.topic_id)
        assert history.parts[0].object.startswith("segments/")
        assert history.parts[-1].object.startswith("wal/")
        topic.log._cached.clear()
        assert await read_all(client, TOPIC) == wanted
        # Another machine has to find both: what the manifests say, and what the commits say.
        await running.crash()
        lose_machine(tmp_path)
        await running.start()
        assert await read_all(client, TOPIC) == wanted
        await publish(client, TOPIC, [b"one more"])
        await running.broker.directory.history.keep()  # the bucket is ours: it is merged again
        assert await read_all(client, TOPIC, "again") == [*wanted, b"one more"]
        report = await running.broker.directory.history.janitor.check("default", deep=True)
        assert (report.missing, report.damaged) == ([], [])


async def test_topics_that_were_not_restored_stay_in_the_bucket(tmp_path: Path, bucket: str) -> None:
    settings = {"storage": bucket, "limits": SEALING}
    async with running_broker(tmp_path, patience_s=30, **settings) as running, running.client() as client:
        await publish(client, "/default/local", payloads_of(0, 300), durability="disk")
        await publish(client, TOPIC, payloads_of(0, 300), durability="remote")
        await running.broker.directory.history.sealer.seal_now([running.topic("/default/local")])
        await running.broker.directory.history.keep()
        await running.crash()
        lose_machine(tmp_path)
        await running.start()
        assert [topic.topic for topic in await client.admin.list_topics()] == [TOPIC]
        assert await read_all(client, TOPIC) == payloads_of(0, 300)
        segments = [key for key in keys_of(bucket) if key.startswith("segments/")]
        with pytest.raises(DanubeError, match="topics restore"):
            await running.broker.directory.history.manifests["default"].check()
        assert [key for key in keys_of(bucket) if key.startswith("segments/")] == segments


async def take_over(old: RunningBroker, directory: Path, bucket: str) -> None:
    async with old.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        async with running_broker(directory, storage=bucket) as new, new.client() as other:
            assert await read_all(other, TOPIC) == [b"1"]
            await publish(other, TOPIC, [b"2"])
            with trio.move_on_after(15):
                await publish(client, TOPIC, [b"too late"])
            assert await read_all(other, TOPIC, "again") == [b"1", b"2"]


async def test_a_former_owner_that_is_alive_ends(tmp_path: Path, bucket: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ended: list[BaseException] = []
    try:
        async with running_broker(tmp_path / "a", storage=bucket) as old:
            await take_over(old, tmp_path / "b", bucket)
    except (DanubeError, ExceptionGroup) as error:
        ended.append(error)
    while isinstance(ended[-1], BaseExceptionGroup):
        ended.append(ended[-1].exceptions[0])
    assert isinstance(ended[-1], OwnerFencedError)


async def test_the_first_manifest_of_a_fenced_heir_comes_late(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner that came back was refused by its own bucket from then on: nothing was sealed or merged any more."""
    take_over, begun, goes_on = ManifestLog.take_over, trio.Event(), trio.Event()

    async def take_over_late(self: ManifestLog, *arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            await goes_on.wait()
        await take_over(self, *arguments)

    def manifests() -> list[str]:
        return [key for key in keys_of(bucket) if key.startswith("manifests/")]

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    settings = {"storage": bucket, "limits": SEALING}
    async with running_broker(tmp_path / "a", patience_s=30, **settings) as owner, owner.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await client.admin.seal_topic(TOPIC)
        await owner.crash()
        monkeypatch.setattr(ManifestLog, "take_over", take_over_late)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        with suppress(OwnerFencedError, ExceptionGroup):
            async with running_broker(tmp_path / "b", **settings) as heir:
                await begun.wait()
                epoch = heir.broker.directory.history.catalogue.epoch
                await owner.start()
                await publish(client, TOPIC, [b"2"])
                goes_on.set()
                await wait_until(lambda: any(f"/{epoch:016x}/" in key for key in manifests()))
        assert (await client.admin.seal_topic(TOPIC))[0].sealed_offset == 2
        await owner.broker.directory.history.keep()
        await owner.restart(crash=True)
        assert (await read_bucket(owner.broker.directory.history.storages["default"], "danube")).incarnation == (
            owner.broker.directory.history.catalogue.incarnation
        )
        await publish(client, TOPIC, [b"3"])
        assert (await client.admin.seal_topic(TOPIC))[0].sealed_offset == 3
        assert await read_all(client, TOPIC) == [b"1", b"2", b"3"]


async def test_topics_are_served_while_the_history_is_taken_over(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their publishers waited for a journal that did not run, as long as the storage did not answer."""
    take_over, begun, goes_on = ManifestLog.take_over, trio.Event(), trio.Event()

    async def take_over_late(self: ManifestLog, *arguments: Any) -> None:
        begun.set()
        await goes_on.wait()
        await take_over(self, *arguments)

    async with running_broker(tmp_path, patience_s=30, storage=bucket) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await running.crash()
        lose_machine(tmp_path)
        monkeypatch.setattr(ManifestLog, "take_over", take_over_late)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        await running.start()
        await begun.wait()
        with trio.fail_after(5):
            await publish(client, TOPIC, [b"2"])
        goes_on.set()
        assert await read_all(client, TOPIC) == [b"1", b"2"]
        assert (await client.admin.seal_topic(TOPIC))[0].sealed_offset == 2


async def test_a_claim_that_was_given_up_arrives_late(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next attempt had the same epoch, and took the claim for that of another broker: this one ended."""
    run, claims = Claim.run, list[Claim]()

    async def arrives_late(claim: Claim) -> None:
        claims.append(claim)
        if len(claims) == 1:
            raise StorageUnavailableError("no answer within 10 s")
        if len(claims) == 2:
            await run(claims[0])
        await run(claim)

    patch_remote(monkeypatch, "_RETRY_S", 0.05)
    async with running_broker(tmp_path, patience_s=30, storage=bucket) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        monkeypatch.setattr(Claim, "run", arrives_late)
        await running.restart(crash=True)
        await publish(client, TOPIC, [b"2"])
        assert len(claims) == 2
        assert await read_all(client, TOPIC) == [b"1", b"2"]


async def test_topics_are_not_served_before_it_is_known_what_else_a_bucket_holds(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers that came before the next attempt waited for a journal that was given up."""
    look, asked = reconciling.brokers_with_commits, 0

    async def fails_once(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StorageUnavailableError("the listing broke")
        return await look(*arguments)

    patch_remote(monkeypatch, "_RETRY_S", 1.0)
    async with running_broker(tmp_path, patience_s=30, storage=bucket) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await client.admin.seal_topic(TOPIC)
        await running.crash()
        lose_machine(tmp_path)
        monkeypatch.setattr(reconciling, "brokers_with_commits", fails_once)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        await running.start()
        await wait_until(lambda: asked == 1)
        with trio.fail_after(10):
            await publish(client, TOPIC, [b"2"])
        assert asked == 2
        assert await read_all(client, TOPIC) == [b"1", b"2"]


async def test_a_former_owner_writes_no_manifest_before_its_claim(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote what it knew under an epoch above that of its successor, whose sealed messages were lost for good."""
    write, late, look, claims = ManifestLog._write, trio.Event(), remote.highest_epoch, "refused"

    async def write_late(self: ManifestLog, key: str, data: bytes) -> None:
        if claims == "waiting":
            await late.wait()
        await write(self, key, data)

    async def claim(*arguments: Any) -> int:
        if claims == "refused":
            raise StorageUnavailableError("the storage is slow")
        if claims == "waiting":
            await trio.sleep_forever()
        return await look(*arguments)

    for name in "abc":
        (tmp_path / name).mkdir()
    settings = {"storage": bucket, "limits": SEALING, "patience_s": 30}
    async with running_broker(tmp_path / "a", **settings) as owner:
        async with owner.client() as client:
            await publish(client, TOPIC, [b"1"], durability="remote")
            await client.admin.seal_topic(TOPIC)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        patch_remote(monkeypatch, "highest_epoch", claim)
        monkeypatch.setattr(ManifestLog, "_write", write_late)
        for _ in range(3):  # each start raises its epoch, above that of the successor
            await owner.restart(crash=True)
        claims = "waiting"
        await owner.restart(crash=True)
        owner.broker.directory.history.keep_now()
        await trio.sleep(0.3)
        claims = "granted"
        async with running_broker(tmp_path / "b", **settings) as successor, successor.client() as client:
            early = {key for key in keys_of(bucket) if key.startswith("wal/")}
            wanted = [b"1", *payloads_of(0, 25)]
            for payload in wanted[1:]:
                await publish(client, TOPIC, [payload])
                early |= {key for key in keys_of(bucket) if key.startswith("wal/")}
                await client.admin.seal_topic(TOPIC)
            assert successor.broker.directory.history.catalogue.epoch < owner.broker.directory.history.catalogue.epoch
            await wait_until(lambda: len(early - set(keys_of(bucket))) > 10)
            late.set()
            await trio.sleep(0.2)
            await successor.crash()
            await owner.crash()
            async with running_broker(tmp_path / "c", **settings) as heir, heir.client() as other:
                assert await read_all(other, TOPIC) == wanted


async def test_a_former_owner_does_not_say_where_a_session_stands(tmp_path: Path, bucket: str) -> None:
    """Else a producer that meets it goes back in its sequence, and what it sends next is taken for a repeat."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    session = api.PublishOpen(TOPIC, "p", resume_epoch=1)
    said: list[int] = []
    ended: list[BaseException] = []
    try:
        async with running_broker(tmp_path / "a", storage=bucket) as old:
            async with old.client() as client:
                await publish(client, TOPIC, [b"1", b"2"], durability="remote", name="p")
            said.append((await old.topic(TOPIC).intake.open(session)).next_sequence)
            async with running_broker(tmp_path / "b", storage=bucket) as new:
                said.append((await new.topic(TOPIC).intake.open(session)).next_sequence)
                said.append((await old.topic(TOPIC).intake.open(session)).next_sequence)
    except (DanubeError, ExceptionGroup) as error:
        ended.append(error)
    while isinstance(ended[-1], BaseExceptionGroup):
        ended.append(ended[-1].exceptions[0])
    assert isinstance(ended[-1], OwnerFencedError)
    assert said == [2, 2]


async def test_a_storage_that_does_not_answer(tmp_path: Path, bucket: str) -> None:
    limits = {**SEALING, "storage_operation_timeout_s": 0.2, "remote_stall_s": 0.4}
    settings = {"patience_s": 30, "storage": bucket, "limits": limits}
    async with running_broker(tmp_path, **settings) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await publish(client, "/default/local", [b"a"], durability="disk")
        backend: Any = running.broker.directory.history.storages["default"]._backend
        real_put = backend.put
        offsets: list[int] = []

        async def refuse(*_args: Any, **_keywords: Any) -> None:
            raise StorageDeniedError("the credentials have expired")

        async with (
            running.channel() as channel,
            raw_producer(channel, TOPIC) as raw,
            client.producer(TOPIC, name="patient") as patient,
        ):
            backend.put = refuse

            async def send() -> None:
                offsets.append((await patient.send(b"2")).offset)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await trio.sleep(0.2)
                raw.send(0, b"3")
                refused = await raw.refused()
                assert refused.code == "storage-unavailable"
                assert "the credentials have expired" in refused.message
                raw.send(0, b"3")  # again, as the client does: it waits with the first one
                await publish(client, "/default/local", [b"b"])  # everything else goes on
                assert await read_all(client, "/default/local") == [b"a", b"b"]
                assert not offsets
                backend.put = real_put
                reply = await raw.reply()
                while isinstance(reply, api.PublishRefused):
                    raw.send(0, b"3")
                    reply = await raw.reply()
                assert isinstance(reply, api.PublishAcks)
        assert offsets == [1]  # it came through, once
        assert await read_all(client, TOPIC) == [b"1", b"2", b"3"]


async def test_a_storage_that_is_away_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker serves what it has, and the rest when it is there."""
    data = tmp_path / "data"
    data.mkdir()
    limits = {**SEALING, "storage_operation_timeout_s": 0.2}
    settings = {"patience_s": 30, "storage": f"disk://{tmp_path}/bucket", "limits": limits}
    patch_remote(monkeypatch, "_RETRY_S", 0.05)
    async with running_broker(data, **settings) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await publish(client, "/default/local", [b"a"], durability="disk")
        await running.drain()

        async def away(*_arguments: Any) -> None:
            raise StorageDeniedError("the credentials have expired")

        monkeypatch.setattr(remote, "read_bucket", away)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        await running.start()
        assert await read_all(client, "/default/local") == [b"a"]
        with pytest.raises(DanubeError, match="waits for storage 'default': the credentials have") as caught:
            running.topic(TOPIC)
        assert caught.value.retryable
        monkeypatch.setattr(remote, "read_bucket", read_bucket)
        assert await read_all(client, TOPIC) == [b"1"]


@pytest.mark.parametrize("kind", [UnavailableError, LimitExceededError, MetadataConflictError])
async def test_metadata_that_is_away_at_the_start(
    kind: type[DanubeError], tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are told to try again, so the broker has to, too."""
    patch_remote(monkeypatch, "_RETRY_S", 0.05)
    async with running_broker(tmp_path, patience_s=30, storage=bucket) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await running.drain()
        raise_epoch = SoleTenure.raise_epoch

        async def away(*_arguments: Any) -> None:
            raise kind("the metadata is away for a moment")

        monkeypatch.setattr(SoleTenure, "raise_epoch", away)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        await running.start()
        with pytest.raises(DanubeError, match="waits for storage 'default': the metadata is away") as caught:
            running.topic(TOPIC)
        assert caught.value.retryable
        monkeypatch.setattr(SoleTenure, "raise_epoch", raise_epoch)
        # Creating a topic and publishing open the journal, too; it must open without them.
        await wait_until(lambda: "default" in running.broker.directory.levels.bucket.claims.journals)
        assert await read_all(client, TOPIC) == [b"1"]


async def test_a_new_machine_creates_nothing_before_it_has_read_the_bucket(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a producer that comes early gets an empty topic under the name of one that is in the bucket."""
    async with running_broker(tmp_path / "first", storage=bucket) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")

    async def away(*_arguments: Any) -> None:
        raise StorageDeniedError("the credentials have expired")

    monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
    patch_remote(monkeypatch, "_RETRY_S", 0.05)
    patch_remote(monkeypatch, "highest_epoch", away)
    async with running_broker(tmp_path / "second", storage=bucket) as running, running.client() as client:
        for name in (TOPIC, "/default/other"):
            with pytest.raises(StorageUnavailableError, match=f"whether topic '{name}' exists is not known.*expired"):
                await running.broker.directory.for_producer(api.PublishOpen(name, "p"))
        await client.admin.create_topic("/default/mine", durability="disk")  # an explicit durability is accepted
        patch_remote(monkeypatch, "highest_epoch", highest_epoch)
        assert await read_all(client, TOPIC) == [b"1"]
        await publish(client, "/default/other", [b"2"])


@pytest.fixture
async def withholding(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch):
    """A broker with a local topic of a name that a topic in its bucket has, which it could not read at first."""
    settings = {"storage": bucket, "limits": SEALING}
    async with running_broker(tmp_path / "first", **settings) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="remote", partitions=2)
        await publish(client, f"{TOPIC}-part-1", [b"1"])
        await client.admin.seal_topic(TOPIC)
        await publish(client, f"{TOPIC}-part-1", [b"2"])
        async with client.consumer(TOPIC, subscription="audit", start="earliest") as consumer:
            assert (await consumer.receive()).payload == b"1"
        await publish(client, "/default/other", [b"a"], durability="remote")

    async def away(*_arguments: Any) -> None:
        raise StorageDeniedError("the credentials have expired")

    monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
    patch_remote(monkeypatch, "_RETRY_S", 0.05)
    patch_remote(monkeypatch, "highest_epoch", away)
    async with running_broker(tmp_path / "second", patience_s=30, **settings) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="disk")
        await publish(client, TOPIC, [b"another"])
        patch_remote(monkeypatch, "highest_epoch", highest_epoch)
        await wait_until(lambda: "default" in running.broker.directory.levels.bucket.claims.journals)
        yield running


async def test_a_topic_whose_name_is_taken_stops_no_other(
    withholding: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """No topic of the storage was served, until an operator had deleted the other one and started the broker again."""
    running = withholding
    async with running.client() as client:
        assert f"topic '{TOPIC}' of memory://" in caplog.text
        assert "another topic of that name, of durability 'disk'" in caplog.text
        assert await read_all(client, "/default/other") == [b"a"]
        for life in range(2):  # snapshots, merges and sweeps leave it whole
            await publish(client, "/default/other", [b"%d" % life] * 30)
            await client.admin.seal_topic("/default/other")
            await running.broker.directory.history.keep()
            assert await read_all(client, TOPIC) == [b"another"]
            await running.restart(crash=True)
            await wait_until(lambda: "default" in running.broker.directory.levels.bucket.claims.journals)
        await client.admin.delete_topic(TOPIC)
        found = await client.admin.describe_topic(TOPIC)
        assert (found.durability, found.partitions, found.end_offset) == ("remote", 2, 2)
        assert not running.broker.directory.catalogue.withheld("default")
        await publish(client, f"{TOPIC}-part-0", [b"goes on"])
        await running.restart(crash=True)
        await wait_until(lambda: "default" in running.broker.directory.levels.bucket.claims.journals)
        assert "audit" in running.topic(f"{TOPIC}-part-1").subscriptions
        assert await read_all(client, f"{TOPIC}-part-0") == [b"goes on"]
        assert await read_all(client, f"{TOPIC}-part-1") == [b"1", b"2"]
        await client.admin.delete_topic(TOPIC)
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/other"]


async def test_a_storage_that_is_opened_while_a_withheld_topic_is_served(
    withholding: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storages were walked through while another one came: the deletion failed with an error of Python's."""
    running = withholding
    restore_topic = Creations.restore

    async def slowly(catalogue: Catalogue, *arguments: Any) -> Any:
        journals = running.broker.directory.levels.bucket.claims.journals
        journals["another"] = journals["default"]
        return await restore_topic(catalogue, *arguments)

    async with running.client() as client:
        monkeypatch.setattr(Creations, "restore", slowly)
        await client.admin.delete_topic(TOPIC)
        assert (await client.admin.describe_topic(TOPIC)).durability == "remote"
        del running.broker.directory.levels.bucket.claims.journals["another"]


async def test_a_name_that_becomes_free_while_the_metadata_is_away(
    withholding: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The withheld topic is not replaced by a new one of its name, and is served at the next opportunity."""
    running = withholding
    restore_topic = Creations.restore

    async def away(*_arguments: Any) -> None:
        raise UnavailableError("the metadata is away for a moment")

    async with running.client() as client:
        monkeypatch.setattr(Creations, "restore", away)
        await client.admin.delete_topic(TOPIC)
        with pytest.raises(AlreadyExistsError, match="and is not served"):
            await client.admin.create_topic(TOPIC, durability="remote")
        monkeypatch.setattr(Creations, "restore", restore_topic)
        with pytest.raises(AlreadyExistsError):
            await client.admin.create_topic(TOPIC, durability="remote")
        assert await read_all(client, f"{TOPIC}-part-1") == [b"1", b"2"]


async def test_a_withheld_topic_that_another_owner_deletes(
    withholding: RunningBroker, tmp_path: Path, bucket: str
) -> None:
    running = withholding
    await running.crash()
    async with running_broker(tmp_path / "third", storage=bucket) as other, other.client() as client:
        assert await read_all(client, f"{TOPIC}-part-1") == [b"1", b"2"]
        await client.admin.delete_topic(TOPIC)
    await running.start()
    async with running.client() as client:
        assert await read_all(client, "/default/other") == [b"a"]
        assert await read_all(client, TOPIC) == [b"another"]
        assert not running.broker.directory.catalogue.withheld("default")
        await client.admin.delete_topic(TOPIC)
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/other"]


async def test_invalid_uses_of_durability_remote_are_refused(tmp_path: Path) -> None:
    async with running_broker(tmp_path, storage="memory") as running, running.client() as client:
        with pytest.raises(FailedPreconditionError, match="cannot carry topics of durability 'remote'"):
            await client.admin.create_topic(TOPIC, durability="remote")
        with pytest.raises(TopicNotFoundError):
            await client.admin.describe_topic(TOPIC)
        await client.admin.create_topic(TOPIC, durability="disk")
        with pytest.raises(DurabilityMismatchError):
            await publish(client, TOPIC, [b"x"], durability="remote")


async def test_a_broker_without_such_topics_leaves_the_bucket_alone(tmp_path: Path, bucket: str) -> None:
    async with running_broker(tmp_path, storage=bucket) as running, running.client() as client:
        await publish(client, "/default/local", [b"a"])
        await running.restart()
    assert [key for key in keys_of(bucket) if key.startswith("wal/")] == []


async def test_a_bucket_that_has_forgotten_is_named(tmp_path: Path, bucket: str) -> None:
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await running.drain()
        space = SHARED_SPACES.space(bucket.removeprefix("memory://").partition("?")[0])
        for key in keys_of(bucket):
            if not key.startswith("markers/"):  # else it would be a bucket that is away
                space.remove(key)
        await running.start()
        for _ in range(3):  # the second attempt took the topic for one whose creation was cut off, and removed it
            with pytest.raises(DanubeError, match="knows nothing of its topics of durability 'remote'"):
                running.topic(TOPIC)
            with pytest.raises(DataLossError, match="knows nothing of its topics of durability 'remote'"):
                await client.admin.create_topic("/default/another", durability="remote")
            await running.restart()


async def test_a_creation_that_was_cut_off_is_taken_back(tmp_path: Path, bucket: str) -> None:
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        backend: Any = running.broker.directory.history.storages["default"]._backend

        async def hang(*_args: Any, **_keywords: Any) -> None:
            await trio.sleep_forever()

        backend.put = hang
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.admin.create_topic, "/default/second", durability="remote"))
            await wait_until(lambda: running.broker.directory.catalogue.find("/default/second"))
            nursery.cancel_scope.cancel()
        await running.restart(crash=True)
        assert [topic.topic for topic in await client.admin.list_topics()] == [TOPIC]
        await client.admin.create_topic("/default/second", durability="remote")
        await publish(client, "/default/second", payloads_of(0, 100, 10 * KIB))
        assert sum(len(each) for each in await read_all(client, "/default/second")) == 100 * 10 * KIB


async def hang(*_args: Any, **_keywords: Any) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("durability", ["remote", "disk"])
async def test_a_deletion_that_was_cut_off_has_not_happened(tmp_path: Path, bucket: str, durability: str) -> None:
    """The metadata had forgotten the topic, and the bucket had not: another one took its name, and after the next start
    no topic of the storage was served; without the other one it came back without what was sealed of it."""
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        for topic in (TOPIC, "/default/other"):
            await publish(client, topic, [b"1"], durability="remote")
            await client.admin.seal_topic(topic)
            await publish(client, topic, [b"2"])
        backend: Any = running.broker.directory.history.storages["default"]._backend
        backend.put = hang
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.admin.delete_topic, TOPIC)
            await wait_until(lambda: TOPIC not in running.broker.directory._topics)
            with pytest.raises(AlreadyExistsError):
                await client.admin.create_topic(TOPIC, durability=durability)
            with pytest.raises(StorageUnavailableError, match="deletion is in progress"):
                running.topic(TOPIC)
            with pytest.raises(TopicNotFoundError, match="deleted while it was being changed"):
                await client.admin.change_policies(TOPIC, max_consumers=3)
            nursery.cancel_scope.cancel()
        await running.restart(crash=True)
        for topic in ("/default/other", TOPIC):
            assert await read_all(client, topic) == [b"1", b"2"]
        await client.admin.delete_topic(TOPIC)
        await client.admin.create_topic(TOPIC, durability=durability)
        await running.restart(crash=True)
        assert await read_all(client, "/default/other", "again") == [b"1", b"2"]
        assert await read_all(client, TOPIC, "again") == []


@pytest.mark.parametrize(
    ("how", "kind"), [("crash", UnavailableError), ("return", UnavailableError), ("repeat", FailedPreconditionError)]
)
async def test_a_deletion_that_only_the_bucket_has_is_finished(
    tmp_path: Path,
    bucket: str,
    how: str,
    kind: type[DanubeError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the next start, by itself, or when it is repeated; no snapshot has the topic again meanwhile."""
    limits = {**SEALING, "remote_snapshot_commits": 1}
    patch_remote(monkeypatch, "_RETRY_S", 0.05)
    async with running_broker(tmp_path, storage=bucket, limits=limits) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await client.admin.seal_topic(TOPIC)
        topic_id = running.topic(TOPIC).topic_id
        delete_topic, tried = Deletions.delete, trio.Event()

        async def away(*_arguments: Any, **_keywords: Any) -> None:
            tried.set()
            raise kind("the metadata is away for a moment")

        monkeypatch.setattr(Deletions, "delete", away)
        async with trio.open_nursery() as nursery:

            async def delete() -> None:
                with suppress(FailedPreconditionError):
                    await client.admin.delete_topic(TOPIC)

            nursery.start_soon(delete)
            await tried.wait()
            await publish(client, "/default/other", [b"2"], durability="remote")  # snapshots follow
            nursery.cancel_scope.cancel()
        with pytest.raises(AlreadyExistsError):
            await client.admin.create_topic(TOPIC, durability="disk")
        if how == "crash":
            await running.crash()
        monkeypatch.setattr(Deletions, "delete", delete_topic)
        if how == "crash":
            await running.start()
        elif how == "repeat":
            await client.admin.delete_topic(TOPIC)
        await wait_until(lambda: running.broker.directory.catalogue.find(TOPIC) is None)
        await wait_until(lambda: not running.broker.directory.catalogue.deletions.noted())
        for rows in ("/segments/", "/starts/", "/assignments/"):
            found, _ = await running.broker.metadata.list(rows)
            assert not [row.key for row in found if f"{topic_id:016x}" in row.key], "nothing of it is left"
        assert not [record for record in caplog.records if "wait for storage" in record.getMessage()]
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/other"]
        await client.admin.create_topic(TOPIC, durability="disk")
        await running.restart(crash=True)
        assert await read_all(client, TOPIC) == []
        assert await read_all(client, "/default/other") == [b"2"]


async def test_a_deletion_meets_partitions_that_were_never_stored(tmp_path: Path, bucket: str) -> None:
    """Else it is not recognized in the bucket, and the topic comes back."""
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        await client.admin.create_topic(TOPIC, durability="remote", partitions=1)
        await publish(client, "/default/other", [b"2"], durability="remote")
        await running.broker.directory.catalogue.creations.enlarge(TOPIC, 2)
        await client.admin.delete_topic(TOPIC)
        await running.crash()
        lose_machine(tmp_path)
        await running.start()
        assert [topic.topic for topic in await client.admin.list_topics()] == ["/default/other"]


async def test_sealing_on_demand_makes_segments_of_commits(tmp_path: Path, bucket: str) -> None:
    async with running_broker(tmp_path, patience_s=60, storage=bucket) as running, running.client() as client:
        await publish(client, TOPIC, payloads_of(0, 30), durability="remote")
        topic = running.topic(TOPIC)
        history = running.broker.directory.history.catalogue.topic(topic.topic_id)
        assert {record.object.partition("/")[0] for record in history.parts} == {"wal"}
        (sealed,) = await client.admin.seal_topic(TOPIC)
        assert (sealed.sealed_offset, sealed.parts) == (30, 1)
        assert [record.object.partition("/")[0] for record in history.parts] == ["segments"]
        topic.log._cached.clear()
        assert await read_all(client, TOPIC) == payloads_of(0, 30)


async def test_opening_goes_on_when_its_caller_goes_away(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise topics would be served by a journal without a task, and publishers would wait indefinitely."""
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await running.drain()

        async def leave_it(_claims: Claims, _name: str, done: trio.Event) -> None:
            done.set()

        monkeypatch.setattr(Claims, "_bring_up", leave_it)
        await running.start()
        topics = running.broker.directory.levels.bucket
        revive = BucketLevel._revive

        def revive_and_leave(*arguments: Any) -> None:
            revive(*arguments)
            scope.cancel()

        monkeypatch.setattr(BucketLevel, "_revive", revive_and_leave)
        with trio.CancelScope() as scope:
            await topics.claims.open("default")
        await publish(client, TOPIC, [b"2"])
        await client.admin.create_topic("/default/more", durability="remote")
        assert await read_all(client, TOPIC) == [b"1", b"2"]


async def test_a_change_waits_while_records_are_read_from_the_bucket(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was replaced by what the bucket had, and acknowledged all the same."""
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        await publish(client, TOPIC, [b"1"], durability="remote")
        await running.drain()
        reading, goes_on = trio.Event(), trio.Event()
        agree = Reconciliation.agree

        async def agree_late(*arguments: Any, **named: Any) -> Any:
            reading.set()
            await goes_on.wait()
            return await agree(*arguments, **named)

        monkeypatch.setattr(Reconciliation, "agree", agree_late)
        monkeypatch.setattr(claiming, "_PATIENCE_S", 0.1)
        await running.start()
        await reading.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(client.admin.change_policies, TOPIC, max_consumers=3))
            await trio.sleep(0.1)
            goes_on.set()
        assert (await client.admin.policies(TOPIC)).own.max_consumers == 3


async def test_a_creation_that_waits_for_its_storage_holds_up_no_other(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path, storage=bucket, limits=SEALING) as running, running.client() as client:
        waiting = trio.Event()

        async def wait(*_arguments: Any) -> None:
            waiting.set()
            await trio.sleep_forever()

        monkeypatch.setattr(running.broker.directory.levels.bucket.claims, "_recover", wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(publish, client, TOPIC, [b"1"], durability="remote"))
            await waiting.wait()
            await publish(client, "/default/local", [b"a"], durability="disk")
            assert await read_all(client, "/default/local") == [b"a"]
            assert list(running.broker.directory._creating._locks) == [TOPIC]
            nursery.cancel_scope.cancel()
        await wait_until(lambda: not running.broker.directory._creating._locks)
