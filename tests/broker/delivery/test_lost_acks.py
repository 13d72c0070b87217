"""An acknowledgement that did not reach the journal is never reported as durable."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from broker.broker_harness import RawConsumer, raw_consumer, running_broker, wait_until

from danube.broker.delivery.subscription import Subscription
from danube.log import Entry
from danube.model import api
from danube.model.errors import DanubeError, JournalFencedError, UnavailableError

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"


class Journal:
    """Takes the cursor entries of a topic, and settles them when the test wants it."""

    def __init__(self, on_commit: Callable[[list[Entry], DanubeError | None], None]) -> None:
        self.on_commit = on_commit
        self.entries: list[Entry] = []
        self.closed: DanubeError | None = None

    def submit(self, entry: Entry) -> None:
        if self.closed is not None:
            raise self.closed
        self.entries.append(entry)

    def settle_first(self, error: DanubeError | None) -> None:
        self.on_commit(self.entries[:1], error)


@asynccontextmanager
async def delivered(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[RawConsumer, Subscription, Journal], None]:
    """A consumer that has three messages, and a journal that does what the test says."""
    async with running_broker(directory) as running, running.client() as client, running.channel() as channel:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"a", b"b", b"c"])
        async with raw_consumer(channel, TOPIC) as consumer:
            consumer.credit(100)
            await consumer.reply_of(api.ConsumeBatch)
            topic = running.topic(TOPIC)
            journal = Journal(running.broker.runtime.journal.on_commit)
            with monkeypatch.context() as patch:
                patch.setattr(topic, "submit", journal.submit)
                yield consumer, topic.subscriptions["s"], journal


async def test_a_flush_after_the_fence_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fenced = JournalFencedError("the disk is gone")
    async with delivered(tmp_path, monkeypatch) as (consumer, _, journal):
        consumer.send(api.Ack([0, 1]))
        await wait_until(lambda: journal.entries)
        journal.settle_first(fenced)
        consumer.send(api.FlushAcks(1))
        with pytest.raises(JournalFencedError, match="the disk is gone"):
            await consumer.reply_of(api.AcksFlushed)


async def test_a_flush_that_waits_for_the_next_entry_fails_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with delivered(tmp_path, monkeypatch) as (consumer, subscription, journal):
        consumer.send(api.Ack([0, 1]))
        consumer.send(api.Ack([1, 2]))
        consumer.send(api.FlushAcks(1))
        await wait_until(lambda: subscription.cursor.floor == 2)
        journal.settle_first(JournalFencedError("the disk is gone"))
        with pytest.raises(JournalFencedError):
            await consumer.reply_of(api.AcksFlushed)


async def test_a_journal_that_closes_between_two_entries_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with delivered(tmp_path, monkeypatch) as (consumer, subscription, journal):
        consumer.send(api.Ack([0, 1]))
        consumer.send(api.Ack([1, 2]))
        consumer.send(api.FlushAcks(1))
        await wait_until(lambda: subscription.cursor.floor == 2)
        journal.closed = UnavailableError("the journal is closing")
        journal.settle_first(None)
        with pytest.raises(UnavailableError, match="closing"):
            await consumer.reply_of(api.AcksFlushed)
        assert len(journal.entries) == 1


async def test_a_seek_that_is_not_durable_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with delivered(tmp_path, monkeypatch) as (_, subscription, journal), trio.open_nursery() as nursery:
        nursery.start_soon(_refused_seek, subscription)
        await wait_until(lambda: journal.entries)
        journal.settle_first(JournalFencedError("the disk is gone"))


async def _refused_seek(subscription: Subscription) -> None:
    with pytest.raises(JournalFencedError, match="the disk is gone"):
        await subscription.seek(0)
