"""A full journal stops publishing only; files with outdated control entries alone are freed."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from broker.broker_harness import raw_consumer, raw_producer, read_all, running_broker, take

import danube
from danube.model import api
from danube.model.errors import JournalFullError, Status
from danube.model.limits import MIB

pytestmark = pytest.mark.virtual

TOPIC = "/default/t"
PAYLOAD = bytes(100_000)
TIGHT = {"journal_max_bytes": 4 * MIB, "journal_reserve_bytes": 4 * MIB, "journal_full_wait_s": 0.2}


async def fill_up(producer: danube.client.Producer, most: int = 200) -> int:
    """Publish until the journal is full; return how many messages were acknowledged."""
    for count in range(most):
        with trio.move_on_after(0.5) as scope:
            await producer.send(b"%06d" % count + PAYLOAD)
        if scope.cancelled_caught:
            return count
    raise AssertionError("the journal never filled up")


@pytest.mark.real("looks at the files of the journal")
async def test_a_full_journal_stops_publishes_and_lets_acks_through(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running_broker(tmp_path, storage="memory", limits={**TIGHT, "journal_max_bytes": 9 * MIB}) as running,
        running.client() as client,
        running.channel() as channel,
    ):
        await client.admin.create_topic("/default/other")
        async with raw_producer(channel, TOPIC) as producer:
            acknowledged = 0
            with caplog.at_level(logging.WARNING, "danube.journal"):
                while True:
                    producer.send(acknowledged, PAYLOAD)
                    began = trio.current_time()
                    reply = await producer.reply()
                    if isinstance(reply, api.PublishRefused):
                        break
                    acknowledged += 1
            assert 75 < acknowledged < 95
            assert trio.current_time() - began >= 0.2, "it waits for space before it gives up"
            assert (reply.status, reply.code) == (Status.RESOURCE_EXHAUSTED, JournalFullError.code)
            assert "delete topics" in reply.message
            assert "journal_max_bytes" in reply.message
            assert sum("journal_max_bytes" in record.message for record in caplog.records) == 1, "warned at 80 %"
        # Other topics share the journal, and the limit.
        async with raw_producer(channel, "/default/other") as other:
            other.send(0, PAYLOAD)
            assert (await other.refused()).code == JournalFullError.code
        # Acks, sessions and cursors go on.
        async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            for message in await take(consumer, acknowledged):
                await message.ack()
                await consumer.flush_acks()
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == acknowledged
        await running.restart(crash=True)
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == info.end_offset == acknowledged


@pytest.mark.real("the journal has to be slower than its producer")
async def test_deleting_a_topic_frees_its_space(tmp_path: Path) -> None:
    limits = {**TIGHT, "journal_full_wait_s": 20.0}
    async with running_broker(tmp_path, storage="memory", limits=limits) as running, running.client() as client:
        async with client.producer("/default/waste") as waste:
            for _ in range(20):
                await waste.send(PAYLOAD)
        async with client.producer(TOPIC) as producer:
            count = await fill_up(producer)
            used = (await client.admin.info()).journal_used_bytes
            # What was given up above is still in line, and goes through once there is space.
            await client.admin.delete_topic("/default/waste")
            with trio.fail_after(10):
                receipt = await producer.send(b"after")
            assert receipt.offset == count + 1
        assert (await client.admin.info()).journal_used_bytes < used
        assert len(await read_all(client, TOPIC)) == count + 2
        await running.restart(crash=True)
        payloads = await read_all(client, TOPIC)
        assert [payload[:6] for payload in payloads[:-1]] == [b"%06d" % n for n in range(count + 1)]
        assert payloads[-1] == b"after"


async def test_a_topic_that_is_deleted_under_load_leaves_no_space_taken(tmp_path: Path) -> None:
    async with running_broker(tmp_path, sync_delay_ms=20) as running, running.client() as client:
        for _ in range(3):
            async with running.channel() as channel, raw_producer(channel, TOPIC) as producer:
                for sequence in range(30):
                    producer.send(sequence, PAYLOAD)
                await producer.acked(1)
                await client.admin.delete_topic(TOPIC)
        assert running.broker.runtime.journal.usage().live_bytes == 0


async def test_acks_alone_never_fill_the_journal(tmp_path: Path) -> None:
    """Files that hold only cursors and producers are recycled after snapshots, and nothing of them is lost."""
    async with (
        running_broker(tmp_path, storage="memory", patience_s=30, limits=TIGHT) as running,
        running.client() as client,
    ):
        async with client.producer(TOPIC, name="p") as producer:
            await producer.send_many([b"%d" % n for n in range(18_000)])
        journal = running.broker.runtime.journal
        async with running.channel() as channel, raw_consumer(channel, TOPIC, kind="shared") as consumer:
            consumer.credit(9_000_000, 1 << 40)
            await consumer.reply_of(api.ConsumeBatch)
            # Out-of-order acks of many ranges make large entries; a seek makes room for them again.
            ranges = [n for start in range(1, 18_000, 2) for n in (start, start + 1)]
            written = used = recycled = seeks = 0
            while written < 7 * MIB:
                consumer.send(api.Ack(ranges, seeks))
                await consumer.flush(written)
                written += 3 * len(ranges)
                await client.admin.seek_subscription(TOPIC, "s", 0)
                seeks += 1
                await consumer.reply_of(api.ConsumeBatch)
                recycled += journal.usage().used_bytes < used
                used = journal.usage().used_bytes
                assert journal.usage().files <= 4
            assert recycled >= 2
            consumer.send(api.Ack(ranges, seeks))
            await consumer.flush()
            (kept,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (kept.floor, kept.acked_ranges) == (0, 9_000)
        for crash in (True, False):
            await running.restart(crash=crash)
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert (info.floor, info.acked_ranges, info.backlog_messages) == (0, 9_000, 9_000)
            async with running.channel() as channel, raw_producer(channel, TOPIC, "p") as raw:
                assert raw.opened.next_sequence == 18_000
                raw.send(3, b"x")
                assert (await raw.refused()).code == "duplicate-sequence"
        async with client.producer(TOPIC, name="p") as producer:
            assert (await producer.send(b"still writable")).offset == 18_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("mounting a file system needs root")
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=28m", "danube-test", str(path)], check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.real("fills a file system")
@pytest.mark.extended
async def test_a_full_disk_stops_publishes_until_space_is_freed(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(6 * MIB))
    limits = {"journal_full_wait_s": 20.0}
    async with (
        running_broker(small_disk / "data", storage="memory", limits=limits) as running,
        running.client() as client,
    ):
        async with client.producer(TOPIC) as producer:
            count = await fill_up(producer)
            assert running.broker.runtime.journal.usage().disk_full
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                for message in await take(consumer, count):
                    await message.ack()
                await consumer.flush_acks()
            ballast.unlink()
            receipt = await producer.send(b"after")
            assert receipt.offset == count + 1
        await running.restart(crash=True)
        payloads = await read_all(client, TOPIC)
        assert [payload[:6] for payload in payloads[:-1]] == [b"%06d" % n for n in range(count + 1)]
        (info,) = await client.admin.describe_subscription(TOPIC, "s")
        assert info.floor == count
