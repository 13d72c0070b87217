"""Snapshots of topics in the journal: any size, deleted and unknown topics, files that come free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RunningBroker, running_broker

from danube.cluster.records import DeletedRecord, topic_key
from danube.log import Journal
from danube.model.errors import (
    FailedPreconditionError,
    LimitExceededError,
    NotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from danube.model.ids import TopicId
from danube.model.limits import KIB

pytestmark = pytest.mark.virtual


async def snapshot_all(running: RunningBroker) -> None:
    """Write snapshots of all topics, as if the files of all their entries were to be freed."""
    broker = running.broker
    await broker.runtime.journal.save({each.topic_id: each.whole_snapshot() for each in broker.directory.topics()})


async def test_a_topic_with_many_producers_comes_back(tmp_path: Path) -> None:
    """Their table is larger than an entry of a snapshot may be."""
    names = [f"{number:04}".rjust(254, "x") for number in range(3_500)]
    async with running_broker(tmp_path, patience_s=60) as running, running.client() as client:
        await client.admin.create_topic("/default/t")

        async def register(names: Sequence[str]) -> None:
            for name in names:
                ids[name] = await running.topic("/default/t").intake.register(name)

        ids: dict[str, int] = {}
        async with trio.open_nursery() as nursery:
            for first in range(0, len(names), 100):
                nursery.start_soon(register, names[first : first + 100])
        assert len(running.topic("/default/t").whole_snapshot()) > 3 * 256 * KIB
        await snapshot_all(running)
        for crash in (True, False):
            await running.restart(crash=crash)
            intake = running.topic("/default/t").intake
            assert [await intake.register(name) for name in names[::500]] == [ids[name] for name in names[::500]]


async def test_how_many_producers_are_remembered(tmp_path: Path) -> None:
    limits = {"max_known_producers_per_topic": 2}
    async with running_broker(tmp_path, limits=limits) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        intake = running.topic("/default/t").intake
        known = await intake.register("a")
        async with client.producer("/default/t", name="b") as producer:
            await producer.send(b"one")
        with pytest.raises(LimitExceededError, match="max_known_producers_per_topic"):
            await intake.register("c")
        with pytest.raises(LimitExceededError, match="'d' cannot be registered"):
            async with client.producer("/default/t", name="d"):
                pass
        assert await intake.register("a") == known
        async with client.producer("/default/t", name="b") as producer:
            await producer.send(b"two")


# --- Topics that the metadata do not know ---


async def test_unknown_topics_are_kept_and_come_back_with_their_metadata(tmp_path: Path) -> None:
    """An old copy of the metadata, with consent: what they did not know was taken for deleted."""
    async with running_broker(tmp_path) as running, running.client() as client:
        for name in ("/default/known", "/default/unknown"):
            async with client.producer(name, name="p") as producer:
                await producer.send_many([b"1", b"2", b"3"])
        async with client.consumer("/default/unknown", subscription="s", start="earliest") as consumer:
            await (await consumer.receive()).ack()
            await consumer.flush_acks()
        store = running.broker.metadata
        record = await store.get("/topics/default/unknown")
        assert record is not None
        await store.delete("/topics/default/unknown")
        for crash in (True, False, True):
            await running.restart(crash=crash)
            info = running.broker.info()
            assert info.stranded_topics == 1
            assert info.stranded_bytes > 0
            with pytest.raises(TopicNotFoundError):
                await client.admin.describe_topic("/default/unknown")
            await snapshot_all(running)
        subscriptions, _ = await running.broker.metadata.list("/subscriptions/")
        assert subscriptions == [], "the metadata have swept what belongs to no topic"
        await running.broker.metadata.put("/topics/default/unknown", record.value)
        await running.restart()
        assert running.broker.info().stranded_topics == 0
        async with client.producer("/default/unknown", name="p") as producer:
            assert producer.stored_before == [3]
        async with client.reader("/default/unknown", start="earliest") as reader:
            found = [message.payload async for batch in reader.batches(until_caught_up=True) for message in batch]
        assert found == [b"1", b"2", b"3"]


async def test_deleted_topics_are_not_stranded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for name in ("/default/kept", "/default/gone", "/default/cut-off"):
            async with client.producer(name) as producer:
                await producer.send(b"x")
        await client.admin.delete_topic("/default/gone")
        assert running.broker.directory.catalogue.deletions.noted() == []
        cut_off = running.topic("/default/cut-off").topic_id

        async def never(journal: Journal, topic_ids: Iterable[int]) -> None:
            raise UnavailableError("the broker crashes before the journal knows")

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bury", never)
            with pytest.raises(UnavailableError):
                await client.admin.delete_topic("/default/cut-off")
        assert running.broker.directory.catalogue.deletions.noted() == [DeletedRecord((cut_off,))]
        for _ in range(2):
            await running.restart(crash=True)
            assert running.broker.info().stranded_topics == 0
            assert running.broker.directory.catalogue.deletions.noted() == []
        assert running.broker.runtime.journal.topic_ids() == {running.topic("/default/kept").topic_id}
        async with client.producer("/default/gone") as producer:
            assert (await producer.send(b"anew")).offset == 0


async def test_a_topic_that_was_restored_after_a_deletion_that_was_cut_off_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start took the note of the deletion for the truth, and removed subscriptions and assignment."""
    name = "/default/t"
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic(name)
        async with client.consumer(name, subscription="s"):
            record = running.broker.directory.catalogue.expect(name)
            topic_id = running.topic(name).topic_id
            kept = running.topic(name).subscriptions["s"].record
            assert kept is not None

        async def never(journal: Journal, topic_ids: Iterable[int]) -> None:
            raise UnavailableError("the journal is full")

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "bury", never)
            with pytest.raises(UnavailableError):
                await client.admin.delete_topic(name)
        await running.broker.directory.catalogue.creations.restore(name, record, {topic_id: {"s": kept}})
        for _ in range(3):
            await running.restart(crash=True)
            assert set(running.topic(name).subscriptions) == {"s"}
            assert topic_key(topic_id) in running.broker.directory.membership.assignments.values
            assert running.broker.directory.catalogue.deletions.noted() == []


async def test_stranded_topics_are_listed_and_given_up_with_consent(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        for name in ("/default/known", "/default/one", "/default/two"):
            async with client.producer(name) as producer:
                await producer.send_many([b"1", b"2", b"3"])
        ids = {name: running.topic(name).topic_id for name in ("/default/one", "/default/two")}
        for name in ids:
            await running.broker.metadata.delete(f"/topics{name}")
        await running.restart(crash=True)
        found = {topic.topic_id: topic for topic in await client.admin.list_stranded()}
        assert found.keys() == set(ids.values())
        one = ids["/default/one"]
        assert found[one].end_offset == 3
        assert found[one].journal_bytes > 0
        assert {topic.journal_bytes for topic in found.values()} == {found[one].journal_bytes}, "both sent the same"
        with pytest.raises(FailedPreconditionError, match="--accept-loss"):
            await client.admin.forget_stranded([one], accept_loss=False)
        with pytest.raises(NotFoundError, match="nothing was deleted"):
            await client.admin.forget_stranded([one, TopicId(7)], accept_loss=True)
        assert len(await client.admin.list_stranded()) == 2
        assert await client.admin.forget_stranded([one], accept_loss=True) == [found[one]]
        for crash in (True, False):
            assert [topic.topic_id for topic in await client.admin.list_stranded()] == [ids["/default/two"]]
            assert running.broker.info().stranded_topics == 1
            await running.restart(crash=crash)


async def test_states_that_take_a_quarter_of_the_journal_refuse_more(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        await client.admin.create_topic("/default/t")
        async with client.producer("/default/t", name="known") as producer:
            await producer.send(b"x")
        journal = running.broker.runtime.journal
        most = running.broker.config.limits.journal_max_bytes // 4
        topic_id = running.topic("/default/t").topic_id
        await journal.save({topic_id: bytes(most)})
        limit = "a quarter of limit journal_max_bytes"
        with pytest.raises(LimitExceededError, match=f"topic '/default/new' cannot be added: .*{limit}"):
            await client.admin.create_topic("/default/new")
        with pytest.raises(LimitExceededError, match=f"producer 'new' of topic '/default/t' .*{limit}"):
            async with client.producer("/default/t", name="new"):
                pass
        async with client.producer("/default/t", name="known") as producer:
            await producer.send(b"y")
        await client.admin.create_topic("/default/lossy", durability="none")
        await snapshot_all(running)  # its state is small
        await client.admin.create_topic("/default/new")
        await client.admin.delete_topic("/default/new")
