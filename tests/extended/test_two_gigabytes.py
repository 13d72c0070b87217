"""Two gigabytes through a broker that may keep a quarter of one: sealed to an S3 server, with both of them killed.

One producer publishes numbered messages and notices nothing of what happens: the broker is killed and started again,
later the S3 server is, and the journal fills up meanwhile. Then everything is read from offset 0 by a broker that has
just been started, so nearly all of it comes from S3. Every byte of a message follows from its number.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from storage_servers import SeaweedServer

import danube
from benchmarks._history import directory_bytes

_log = logging.getLogger(__name__)

pytestmark = pytest.mark.extended

TOTAL_BYTES = 2_000_000_000
JOURNAL_BYTES = 256 * 2**20
RESERVE_BYTES = 128 * 2**20
"""The default of ``journal_reserve_bytes``."""
SNAPSHOT_BYTES = JOURNAL_BYTES // 4
"""Beyond the limit and the reserve, for snapshots that free files when both are used up (``danube/log/_stock.py``)."""
METADATA_BYTES = 16 * 2**20
"""What the metadata may take beside the journal."""
TOPIC = "/default/long"
CALL_MESSAGES = 5_000
LONGEST = 2_000
FILLER = random.Random(2).randbytes(64 * 1024 + LONGEST)
BROKER_DIES_AT = 0.3
STORAGE_DIES_AT = 0.6
STORAGE_AWAY_S = 6.0
PATIENCE_S = 400.0
LOOK_INTERVAL_S = 0.25


def payload(number: int) -> bytes:
    """Message ``number``: itself and up to 2,000 bytes of filler, about 1,000 on average."""
    start = number * 61 % 65521
    return number.to_bytes(8, "big") + FILLER[start : start + number * 7919 % LONGEST]


class DiskWatch:
    """Looks at the disk space of a directory several times a second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.most_bytes = 0

    async def run(self) -> None:
        while True:
            found = await trio.to_thread.run_sync(directory_bytes, self._directory)
            self.most_bytes = max(self.most_bytes, found)
            await trio.sleep(LOOK_INTERVAL_S)


class Publisher:
    """Publishes everything, one call after the other, so that the offset of each message must be its number."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.acknowledged_bytes = 0
        self._progress = trio.Event()

    async def run(self, url: str) -> None:
        async with danube.connect(url) as client, client.producer(TOPIC, name="steady", durability="disk") as producer:
            while self.acknowledged_bytes < TOTAL_BYTES:
                first = self.acknowledged
                payloads = [payload(number) for number in range(first, first + CALL_MESSAGES)]
                receipt = await producer.send_many(payloads)
                end = first
                for part in receipt.ranges:
                    assert part.start == end, f"message {end} is at offset {part.start}"
                    end = part.end
                assert end == first + CALL_MESSAGES
                self.acknowledged = end
                self.acknowledged_bytes += sum(map(len, payloads))
                self._progress.set()
                self._progress = trio.Event()

    async def reached(self, share: float) -> None:
        """Wait until that share of everything is acknowledged."""
        while self.acknowledged_bytes < share * TOTAL_BYTES:
            await self._progress.wait()


@contextmanager
def machines(directory: Path) -> Iterator[tuple[BrokerProcess, SeaweedServer]]:
    with SeaweedServer(directory / "s3", volume_mb=1024) as storage:
        config = directory / "danube.toml"
        config.write_text(
            f'storage = "{storage.storage_url(storage.bucket(), "history")}"\n'
            f'log_level = "warning"\n[limits]\njournal_max_bytes = {JOURNAL_BYTES}\n'
        )
        broker = BrokerProcess(directory / "data", "--config", str(config), stderr=directory / "broker.log")
        with broker:
            yield broker, storage


@asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[DiskWatch]:
    watch = DiskWatch(directory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        yield watch
        nursery.cancel_scope.cancel()


async def kill_both(publisher: Publisher, broker: BrokerProcess, storage: SeaweedServer) -> None:
    await publisher.reached(BROKER_DIES_AT)
    await trio.to_thread.run_sync(broker.kill)
    await trio.to_thread.run_sync(broker.start)
    await publisher.reached(STORAGE_DIES_AT)
    before = publisher.acknowledged
    await trio.to_thread.run_sync(storage.kill)
    await trio.sleep(STORAGE_AWAY_S)
    assert publisher.acknowledged > before, "publishing stood still as soon as the S3 server was gone"
    await trio.to_thread.run_sync(storage.start)


async def replay(url: str, count: int) -> None:
    """Read from offset 0 and compare every byte."""
    position = 0
    async with (
        danube.connect(url) as client,
        client.consumer(TOPIC, subscription="audit", start="earliest") as consumer,
    ):
        async for batch in consumer.batches():
            found = batch.payloads()
            assert list(batch.offsets) == list(range(position, position + len(found)))
            wanted = [payload(number) for number in range(position, position + len(found))]
            assert found == wanted, f"messages from {position} on are not what was sent"
            position += len(found)
            await batch.ack()
            if position >= count:
                break
        assert position == count


async def test_two_gigabytes_come_back_although_broker_and_storage_were_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    with machines(tmp_path) as (broker, storage):
        publisher = Publisher()
        with trio.fail_after(PATIENCE_S):
            async with watched(broker.data_directory) as disk:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(kill_both, publisher, broker, storage)
                    nursery.start_soon(publisher.run, broker.url)
                published_s = time.monotonic() - began
                await trio.to_thread.run_sync(broker.terminate)
                await trio.to_thread.run_sync(broker.start)
                async with danube.connect(broker.url) as client:
                    topic = await client.admin.describe_topic(TOPIC)
                    assert (topic.start_offset, topic.end_offset) == (0, publisher.acknowledged)
                    assert topic.sealed_bytes > TOTAL_BYTES - JOURNAL_BYTES
                await replay(broker.url, publisher.acknowledged)
                async with danube.connect(broker.url) as client:
                    findings = await client.storages.check()
                    assert (findings.ok, findings.missing_objects, findings.damaged_parts) == (True, [], [])
        assert disk.most_bytes <= JOURNAL_BYTES + RESERVE_BYTES + SNAPSHOT_BYTES + METADATA_BYTES
    _log.info(
        "%d messages, %d MB: published in %.0f s, everything took %.0f s; at most %d MiB on the broker's disk",
        publisher.acknowledged,
        publisher.acknowledged_bytes / 1e6,
        published_s,
        time.monotonic() - began,
        disk.most_bytes / 2**20,
    )
